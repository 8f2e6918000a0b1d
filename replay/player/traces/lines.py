"""PURE.  Cuts a stream of bytes into numbered lines, holding one line at a time.

A byte order mark is dropped, CRLF counts as a newline, blank lines are passed over but counted, and
the last line says whether a newline ended it: one that does not may have been torn off.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from replay.player.traces.fault import TraceError

#: A line longer than this is no line of a trace: a prompt of a million ids has 7 MB.
MAX_LINE_BYTES = 256 << 20

_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


class Line(NamedTuple):
    """One line that is not blank."""

    number: int
    """From 1, blank lines counted."""
    data: bytes
    """Without its newline."""
    is_whole: bool
    """Whether a newline ended it."""


def split_lines(pieces: Iterable[bytes], *, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[Line]:
    """Cut *pieces* into lines.  Raises TraceError for a line that never ends and for UTF-16."""
    number = 0
    rest: list[bytes] = []
    held = 0
    for piece in pieces:
        *ended, last = piece.split(b"\n")
        for data in ended:
            if rest:
                rest.append(data)
                data = b"".join(rest)
                rest = []
                held = 0
            number += 1
            if (line := _line(number, data, is_whole=True)) is not None:
                yield line
        if last:
            rest.append(last)
            held += len(last)
            if held > max_line_bytes:
                raise TraceError(number + 1, f"longer than {max_line_bytes} bytes")
    if rest and (line := _line(number + 1, b"".join(rest), is_whole=False)) is not None:
        yield line


def _line(number: int, data: bytes, *, is_whole: bool) -> Line | None:
    if number == 1:
        if data.startswith(_UTF16_MARKS):
            raise TraceError(1, "is UTF-16 text; traces are UTF-8")
        data = data.removeprefix(_UTF8_MARK)
    data = data.removesuffix(b"\r")
    return Line(number, data, is_whole) if data.strip() else None
