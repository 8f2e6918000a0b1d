"""Opens a source and hands out its requests, without ever holding it whole.

These calls block: the player makes them in a thread.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from replay.plane.record_file import rotation
from replay.player.arrival import Arrival
from replay.player.traces.fault import Notes, TraceError
from replay.player.traces.formats import RECORDS, REFERENCES, RESULTS, TEXT_FORMATS
from replay.player.traces.lines import Line, split_lines
from replay.player.traces.options import ReadOptions
from replay.player.traces.record_source import RecordSource
from replay.player.traces.sniff import HEAD_BYTES, sniff
from replay.player.traces.unpacking import UnpackedStream

_PIECE_BYTES = 1 << 18


class Source:
    """An open source.  Close it, or use it in a `with`; read it once."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open the file at *path*, or the first of a rotation, and find out what it is.

        Raises OSError as `open` does, and TraceError for what no format begins with.
        """
        self.name = str(path)
        self.notes = Notes()
        self._path = Path(path)
        self._records: RecordSource | None = None
        # A rotation of record files may have no file of its bare name.
        first = self._path if self._path.exists() else (rotation(self._path) or [self._path])[0]
        self._file = first.open("rb")
        try:
            self._stream = UnpackedStream(self._file, self.notes)
            self._head = self._read_head()
            self.format = sniff(self._head)
            """The name of its format."""
        except TraceError as error:
            self._file.close()
            raise error.at(self.name) from None
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> "Source":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
        self._file.close()

    @property
    def packing(self) -> str | None:
        """`gz`, `zst` or None."""
        return self._stream.packing

    @property
    def time_unit(self) -> str:
        """What the times of the source count in."""
        form = TEXT_FORMATS.get(self.format)
        return form.time_unit if form else "ns"

    @property
    def fraction(self) -> float | None:
        """Which part of the source has been read; None if that is not known."""
        if self.format == RECORDS:
            return self._records.fraction if self._records is not None else None
        try:
            size = os.fstat(self._file.fileno()).st_size
            return min(1.0, self._file.tell() / size) if size else None
        except (OSError, ValueError):
            return None

    def arrivals(self, options: ReadOptions | None = None) -> Iterator[Arrival]:
        """Read the requests: records by their arrival, lines in the order in which they stand.

        Raises TraceError, which names the source and the line.
        """
        if self.format == RECORDS:
            self._records = self.records()
            yield from self._records.arrivals(self.notes)
            return
        form = TEXT_FORMATS.get(self.format)
        if form is None:
            raise TraceError(0, f"has no requests, it is a file of {self.format}", source=self.name)
        try:
            yield from form.read(self.lines(), options or ReadOptions(), self.notes)
        except TraceError as error:
            raise error.at(self.name) from None

    def records(self) -> RecordSource:
        """Return the record files at this path, which are read more than once.

        Raises TraceError for a pipe.
        """
        if not self._file.seekable():
            raise TraceError(0, "record files are read twice; a pipe cannot be", source=self.name)
        return RecordSource(self._path)

    def lines(self) -> Iterator[Line]:
        """Read the lines from the start."""
        return split_lines(self._pieces())

    def _pieces(self) -> Iterator[bytes]:
        yield self._head
        self._head = b""
        while piece := self._stream.read(_PIECE_BYTES):
            yield piece

    def _read_head(self) -> bytes:
        head = bytearray()
        while len(head) < HEAD_BYTES and (piece := self._stream.read(HEAD_BYTES - len(head))):
            head += piece
        return bytes(head)


def is_compare_source(name: str) -> bool:
    """Whether a source of this format tells what came of requests, or what their prompts were."""
    return name in (RECORDS, RESULTS, REFERENCES, "capture", "script")
