"""Reads gz and zst as if they were not packed, and says when a stream was cut off.

What is packed is told by its first bytes.  Several streams one behind the other are one.
"""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, BinaryIO, cast

import zstandard

from replay.player.traces.fault import Notes, TraceError

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class UnpackedStream:
    """The bytes of a file, unpacked.  It does not close the file."""

    def __init__(self, file: io.BufferedReader, notes: Notes) -> None:
        self._notes = notes
        magic = file.peek(4)[:4]
        self.packing: str | None = None
        """`gz`, `zst` or None."""
        self._stream: IO[bytes] = file
        if magic.startswith(_GZIP_MAGIC):
            self.packing = "gz"
            self._stream = cast(IO[bytes], gzip.GzipFile(fileobj=file))
        elif magic.startswith(_ZSTD_MAGIC):
            self.packing = "zst"
            self._stream = zstandard.ZstdDecompressor().stream_reader(
                file, read_across_frames=True, closefd=False
            )

    def read(self, size: int = -1) -> bytes:
        """Read up to *size* bytes.  A stream that was cut off ends early, which is noted.

        Raises TraceError for a damaged one.
        """
        try:
            return self._stream.read(size)
        except EOFError:
            self._notes.warn(f"the {self.packing} stream is cut off; what came before was read")
            return b""
        except (zlib.error, zstandard.ZstdError, gzip.BadGzipFile):
            raise TraceError(0, f"the {self.packing} stream is damaged") from None

    def close(self) -> None:
        """Close the unpacking side."""
        if self.packing is not None:
            self._stream.close()


@contextmanager
def open_unpacked(file: io.BufferedReader, notes: Notes) -> Iterator[BinaryIO]:
    """Read *file* unpacked inside the block."""
    stream = UnpackedStream(file, notes)
    try:
        yield cast(BinaryIO, stream)
    finally:
        stream.close()
