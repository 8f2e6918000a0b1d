"""Reads gz and zst as if they were not packed, and says when a stream was cut off.

What is packed is told by its first bytes.  Several streams one behind the other are one.
"""

import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, BinaryIO, Protocol, cast

import zstandard

from replay.player.traces.fault import Notes, TraceError

_GZIP_MAGIC = b"\x1f\x8b"
#: Of zlib: a window of any size, inside gzip's frame.
_GZIP_WBITS = 31
#: Little, because a piece of it may become thirty thousand times as much.
_PACKED_BYTES = 1 << 12
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def is_packed(head: bytes) -> bool:
    """Tell whether *head* begins a gz or zst stream."""
    return head.startswith((_GZIP_MAGIC, _ZSTD_MAGIC))


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
            self._stream = cast(IO[bytes], _Members(file, lambda: zlib.decompressobj(_GZIP_WBITS)))
        elif magic.startswith(_ZSTD_MAGIC):
            self.packing = "zst"
            unpacker = zstandard.ZstdDecompressor()
            self._stream = cast(IO[bytes], _Members(file, unpacker.decompressobj))

    def read(self, size: int = -1) -> bytes:
        """Read up to *size* bytes.  A stream that was cut off ends early, which is noted.

        Raises TraceError for a damaged one.
        """
        try:
            return self._stream.read(size)
        except EOFError:
            self._notes.warn(f"the {self.packing} stream is cut off; what came before was read")
            return b""
        except (zlib.error, zstandard.ZstdError):
            raise TraceError(0, f"the {self.packing} stream is damaged") from None

    def close(self) -> None:
        """Close the unpacking side."""
        if self.packing is not None:
            self._stream.close()


class _Member(Protocol):
    """What unpacks one stream: zlib's and zstandard's objects do."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


class _Members:
    """The streams of a packed file, one behind the other.

    Unlike the readers of the libraries it hands out all that came before a stream was cut off, and
    tells a cut of either kind.
    """

    def __init__(self, file: io.BufferedReader, new_member: Callable[[], _Member]) -> None:
        self._file = file
        self._new_member = new_member
        self._member: _Member | None = None
        """None between two streams."""
        self._packed = b""
        self._unpacked = bytearray()
        self._is_cut = False

    def read(self, size: int = -1) -> bytes:
        """Return *size* bytes, fewer only at the end.

        Raises EOFError behind the last byte of a stream that was cut off, and the library's error
        for what is no stream.
        """
        while (size < 0 or len(self._unpacked) < size) and self._unpack_more():
            pass
        if self._is_cut and not self._unpacked:
            raise EOFError
        length = len(self._unpacked) if size < 0 else size
        data = bytes(self._unpacked[:length])
        del self._unpacked[:length]
        return data

    def close(self) -> None:
        """Do nothing: the file belongs to somebody else."""

    def _unpack_more(self) -> bool:
        """Unpack a piece; return whether there was one."""
        packed = self._packed or self._file.read(_PACKED_BYTES)
        self._packed = b""
        if self._member is None:
            # Who writes blocks of a fixed size fills the last one up with zeros.
            packed = packed.lstrip(b"\0")
        if not packed:
            self._is_cut = self._member is not None
            # A piece of nothing but zeros is followed by others.
            return self._member is None and bool(self._file.peek(1))
        if self._member is None:
            self._member = self._new_member()
        self._unpacked += self._member.decompress(packed)
        if self._member.eof:
            self._packed = self._member.unused_data
            self._member = None
        return True


@contextmanager
def open_unpacked(file: io.BufferedReader, notes: Notes) -> Iterator[BinaryIO]:
    """Read *file* unpacked inside the block."""
    stream = UnpackedStream(file, notes)
    try:
        yield cast(BinaryIO, stream)
    finally:
        stream.close()
