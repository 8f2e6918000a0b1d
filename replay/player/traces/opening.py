"""Opens a source and hands out its lines or its bytes, unpacked on the way, without ever holding it
whole.

These calls block: the player makes them in a thread.
"""

import gzip
import io
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO, cast

import zstandard

from replay.player.arrival import Arrival
from replay.player.traces.fault import Notes, TraceError
from replay.player.traces.formats import RECORDS, RESULTS, TEXT_FORMATS
from replay.player.traces.lines import split_lines
from replay.player.traces.options import ReadOptions
from replay.player.traces.sniff import GZIP_MAGIC, HEAD_BYTES, ZSTD_MAGIC, sniff

_PIECE_BYTES = 1 << 18


class Source:
    """An open source.  Close it, or use it in a `with`."""

    def __init__(self, name: str, packed: BinaryIO) -> None:
        self.name = name
        self.notes = Notes()
        self._packed = packed
        magic = _peek(packed, 4)
        self.packing: str | None = None
        """`gz`, `zst` or None."""
        unpacked: IO[bytes]
        if magic.startswith(GZIP_MAGIC):
            self.packing = "gz"
            unpacked = cast(IO[bytes], gzip.GzipFile(fileobj=packed))
        elif magic.startswith(ZSTD_MAGIC):
            self.packing = "zst"
            unpacked = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)
        else:
            unpacked = packed
        self._unpacked = unpacked
        self._head = self._read_head()
        self.format = sniff(self._head)
        """The name of its format."""

    def __enter__(self) -> "Source":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file below."""
        if self._unpacked is not self._packed:
            self._unpacked.close()
        self._packed.close()

    @property
    def time_unit(self) -> str:
        """What the times of the source count in."""
        form = TEXT_FORMATS.get(self.format)
        return form.time_unit if form else "ns"

    def arrivals(self, options: ReadOptions | None = None) -> Iterator[Arrival]:
        """Read the requests of a source of lines, in the order in which they stand.

        Raises TraceError, which names the source and the line.
        """
        form = TEXT_FORMATS.get(self.format)
        if form is None:
            raise TraceError(
                0, f"is a file of {self.format}; it is not read by lines", source=self.name
            )
        try:
            yield from form.read(split_lines(self.pieces()), options or ReadOptions(), self.notes)
        except TraceError as error:
            raise error.at(self.name) from None

    def pieces(self) -> Iterator[bytes]:
        """Read the unpacked bytes from the start.

        A packed source that was cut off ends early and is noted.
        """
        yield self._head
        while piece := self._read(_PIECE_BYTES):
            yield piece

    def _read_head(self) -> bytes:
        head = bytearray()
        while len(head) < HEAD_BYTES and (piece := self._read(HEAD_BYTES - len(head))):
            head += piece
        return bytes(head)

    def _read(self, size: int) -> bytes:
        try:
            return self._unpacked.read(size)
        except EOFError:
            self.notes.warn(f"the {self.packing} stream is cut off; what came before it was read")
            return b""
        except (zlib.error, zstandard.ZstdError, gzip.BadGzipFile):
            raise TraceError(0, f"the {self.packing} stream is damaged", source=self.name) from None


def open_source(path: str | os.PathLike[str]) -> Source:
    """Open the file at *path* and find out what it is.

    Raises OSError as `open` does, and TraceError, with the name of the file, for what no format
    begins with.
    """
    file = Path(path).open("rb")  # noqa: SIM115 - the source closes it
    try:
        return Source(str(path), cast(BinaryIO, file))
    except TraceError as error:
        file.close()
        raise error.at(str(path)) from None
    except BaseException:
        file.close()
        raise


def is_play_source(name: str) -> bool:
    """Whether requests can be read out of a source of this format."""
    return name in TEXT_FORMATS or name == RECORDS


def is_compare_source(name: str) -> bool:
    """Whether a source of this format tells what came of requests."""
    return name in (RECORDS, RESULTS, "capture", "script")


def _peek(file: BinaryIO, size: int) -> bytes:
    if isinstance(file, io.BufferedReader):
        return file.peek(size)[:size]
    head = file.read(size)
    file.seek(0)
    return head
