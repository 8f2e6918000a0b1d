"""The framing of record files, and how they are read.

PURE.  A header line, then for each message its length, its CRC-32 and a MessagePack array of its
four frames.  What follows a length or a checksum that does not fit is torn: it is reported, in
bytes, and never searched for another beginning.
"""

import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgpack

from replay.errors import ReplayError
from replay.plane.codec import bin_header

HEADER = b"replay-records 1\n"
#: Neither written nor believed: a torn length must not make a reader take gigabytes.
LONGEST_RECORD = 1 << 28

_RECORD = struct.Struct(">II")
_ARRAY_OF_FOUR = b"\x94"
_CHUNK_BYTES = 1 << 20
_NUMBER = re.compile(r"\.([0-9]{6,})")


class NotARecordFileError(ReplayError):
    """The file does not begin as a record file does."""


def pack_record(frames: Sequence[bytes]) -> bytes:
    """Return what stands in a file for a message.  Raises `ValueError` if it is too long."""
    pieces = [_ARRAY_OF_FOUR]
    for frame in frames:
        pieces.append(bin_header(len(frame)))
        pieces.append(frame)
    length = sum(map(len, pieces))
    if length > LONGEST_RECORD:
        raise ValueError(f"a record of {length} bytes is too long for a record file")
    checksum = 0
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
    return b"".join((_RECORD.pack(length, checksum), *pieces))


def fits(frames: Sequence[bytes]) -> bool:
    """Say whether `pack_record` takes a message."""
    heads = sum(len(bin_header(len(frame))) for frame in frames)
    return len(_ARRAY_OF_FOUR) + heads + sum(map(len, frames)) <= LONGEST_RECORD


class RecordReader:
    """Reads the messages of one file as a stream.  Iterate once; it does not close the stream."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.records = 0
        """Messages read so far."""
        self.torn_bytes = 0
        """Length of the unreadable end, known once the iteration has ended."""

    def __iter__(self) -> Iterator[list[bytes]]:
        """Yield the frames of each message.

        Raises `NotARecordFileError` for another header, and `OSError`.
        """
        data = self._read_header()
        wanted = 0
        while chunk := self._stream.read(max(_CHUNK_BYTES, wanted)):
            data += chunk
            position = 0
            size = len(data)
            view = memoryview(data)
            while size - position >= _RECORD.size:
                length, checksum = _RECORD.unpack_from(data, position)
                start = position + _RECORD.size
                wanted = start + length - size
                if length > LONGEST_RECORD:
                    return self._tear(size - position)
                if wanted > 0:
                    break
                body = view[start : start + length]
                frames = _frames(body) if zlib.crc32(body) == checksum else None
                if frames is None:
                    return self._tear(size - position)
                position = start + length
                self.records += 1
                yield frames
            data = data[position:]
        self.torn_bytes += len(data)
        return None

    def _read_header(self) -> bytes:
        data = b""
        while len(data) < len(HEADER):
            chunk = self._stream.read(len(HEADER) - len(data))
            if not chunk:
                break
            data += chunk
        if data == HEADER:
            return b""
        if HEADER.startswith(data):  # the process ended before the header was out
            self.torn_bytes = len(data)
            return b""
        raise NotARecordFileError("this is no record file: it begins otherwise")

    def _tear(self, known: int) -> None:
        self.torn_bytes = known
        while chunk := self._stream.read(_CHUNK_BYTES):
            self.torn_bytes += len(chunk)


def _frames(body: memoryview) -> list[bytes] | None:
    try:
        frames = msgpack.unpackb(body)
    except ValueError:
        return None
    if type(frames) is not list or any(type(frame) is not bytes for frame in frames):
        return None
    return frames


class RecordFiles:
    """The files of one rotation, read one after the other as if they were one."""

    def __init__(self, path: str | Path) -> None:
        """Name the files by the path that their writer was given, or a single one by its own.

        Raises `FileNotFoundError` if there is none.
        """
        self.paths = rotation(Path(path))
        if not self.paths:
            raise FileNotFoundError(f"{path}: no record file is there")
        self.records = 0
        self.torn_bytes: dict[Path, int] = {}
        """The files that have an unreadable end, once they have been read."""

    def __iter__(self) -> Iterator[list[bytes]]:
        """Yield the frames of each message.  Raises `NotARecordFileError` and `OSError`."""
        for path in self.paths:
            with path.open("rb", buffering=0) as stream:
                reader = RecordReader(stream)
                yield from reader
            self.records += reader.records
            if reader.torn_bytes:
                self.torn_bytes[path] = reader.torn_bytes


def rotation(base: Path) -> list[Path]:
    """Return the files that belong to *base*, in the order in which they were written."""
    numbered = []
    if base.parent.is_dir():
        for path in base.parent.iterdir():
            match = _NUMBER.fullmatch(path.name.removeprefix(base.name))
            if path.name.startswith(base.name) and match:
                numbered.append((int(match[1]), path))
    files = [path for _, path in sorted(numbered)]
    return [base, *files] if base.is_file() else files


def numbered_path(base: Path, number: int) -> Path:
    """Return the path of file *number* of a rotation."""
    return base.with_name(f"{base.name}.{number:06}")


def next_number(base: Path) -> int:
    """Return the number of the next file of a rotation: none is written to twice."""
    last = [path for path in rotation(base) if path != base][-1:]
    return int(last[0].suffix[1:]) + 1 if last else 0
