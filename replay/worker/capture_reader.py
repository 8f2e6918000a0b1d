"""Reading a capture back, for whoever replays or compares it."""

import json
from collections.abc import Iterator
from typing import Any, BinaryIO, NoReturn

import attrs


@attrs.frozen(kw_only=True)
class CapturedLine:
    """A whole line of a capture."""

    offset: int
    """Where it begins, in bytes."""
    fields: dict[str, Any]


@attrs.frozen(kw_only=True)
class TornLine:
    """Bytes of a capture that are no line: a writer was killed over it."""

    offset: int
    length: int
    """In bytes, without the newline that the next writer put behind it."""


def read_lines(file: BinaryIO) -> Iterator[CapturedLine | TornLine]:
    """Yield what stands in *file*, a line at a time, from its position on.

    Blank lines are left out.  A last line without its newline counts as whole if it is: nothing
    but the newline can be missing then.
    """
    offset = 0
    for raw in file:
        line = raw.rstrip(b"\r\n")
        if line:
            fields = _parse(line)
            if fields is None:
                yield TornLine(offset=offset, length=len(line))
            else:
                yield CapturedLine(offset=offset, fields=fields)
        offset += len(raw)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        fields = json.loads(line.decode(), parse_constant=_no_json)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def _no_json(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
