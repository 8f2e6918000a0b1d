"""Writes record files: one file after the other, each begun by us and by nobody else.

A record is in the file when `append` returns, or an exception says why not.  The journal sees to
it that it stands there whole or not at all; where it cannot (a full disk that does not even take
the half back, another process in the same file) the file is left alone and a new one is begun.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import trio

from replay.errors import JournalWriteError
from replay.journal import Journal
from replay.logger import get_logger
from replay.plane.record_file import HEADER, next_number, numbered_path, pack_record

log = get_logger(__name__)

#: How the begin rule says that somebody else wrote to the file.
_NOT_OURS = errno.ESTALE


def _begin(size: int, read_at: Callable[[int, int], bytes]) -> bytes:
    if size == 0:
        return HEADER
    raise OSError(_NOT_OURS, os.strerror(_NOT_OURS))


class RecordFileWriter(trio.abc.AsyncResource):
    """Writes messages to the files of a rotation.  For one task."""

    def __init__(
        self, path: Path, rotate_bytes: int | None, rotate_seconds: float | None, first: Path
    ) -> None:
        """Use `open`."""
        self._base = path
        self._rotate_bytes = rotate_bytes
        self._rotate_seconds = rotate_seconds
        self.files = 0
        self.records = 0
        self._begin_file(first)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        rotate_bytes: int | None = None,
        rotate_seconds: float | None = None,
        is_numbered: bool = True,
    ) -> Self:
        """Begin a new file, with mode 0600.

        The files are `PATH.000000`, `PATH.000001`, and so on, after those that are there.  Without
        *is_numbered* the first one is PATH itself, unless something stands in it.  Raises
        `OSError`.
        """
        base = Path(path)
        first = numbered_path(base, next_number(base))
        if not is_numbered and not _holds_something(base):
            first = base
        return cls(base, rotate_bytes, rotate_seconds, first)

    async def append(self, messages: Iterable[Sequence[bytes]]) -> None:
        """Write messages, all into one file.

        Raises `JournalWriteError`, and `ValueError` if one is too long: then none is written.
        """
        records = [pack_record(frames) for frames in messages]
        data = b"".join(records)
        if self._is_due(len(data)):
            await self._rotate()
        try:
            await self._journal.append(data)
        except JournalWriteError as error:
            if error.errno != _NOT_OURS:
                raise
            log.warning("somebody else wrote to a record file", path=self._journal.path)
            await self._rotate()
            await self._journal.append(data)
        self.records += len(records)
        self._bytes += len(data)

    async def aclose(self) -> None:
        """Close the file.  Give it a deadline."""
        await self._journal.aclose()

    def remove_if_empty(self) -> None:
        """Remove the file if nobody has put a record into it."""
        if self._bytes == len(HEADER):
            with suppress(OSError):
                os.unlink(self._journal.path)

    def _is_due(self, more: int) -> bool:
        if self._bytes == len(HEADER):
            return False  # a file has at least one record, however long that is
        if self._rotate_bytes is not None and self._bytes + more > self._rotate_bytes:
            return True
        age = trio.current_time() - self._begun
        return self._rotate_seconds is not None and age >= self._rotate_seconds

    async def _rotate(self) -> None:
        full = self._journal
        try:
            self._begin_file(numbered_path(self._base, next_number(self._base)))
        except OSError as error:
            raise JournalWriteError(str(self._base), error) from error
        await full.aclose()

    def _begin_file(self, path: Path) -> None:
        self._journal = Journal.open(path, begin=_begin)
        self._bytes = len(HEADER)
        self._begun = trio.current_time()
        self.files += 1


def _holds_something(path: Path) -> bool:
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "is no regular file")
    return status.st_size > 0
