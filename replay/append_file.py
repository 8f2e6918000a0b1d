"""The end of a file: what is appended stands there whole, or not at all.

A regular file may be shared by processes.  Each batch goes out in one write, in append mode, under
`flock`; what did not fit is cut off again before the lock is given back.  A process that was
killed in mid write leaves a torn tail, and what the next writer has to do about it is a matter of
the format: the caller brings that rule as a function.

Pipes and devices get no lock and no such promise.  They are written without blocking, so that a
reader that stopped can never hold a thread in a system call.
"""

import errno
import fcntl
import os
import select
import stat
from collections.abc import Callable, Sequence

#: Called under the lock when the file does not end where this process left it: with its size in
#: bytes and a function (offset, length) -> bytes that reads it.  Returns what to write before the
#: next line, or raises `OSError` to refuse the file.
BeginRule = Callable[[int, Callable[[int, int], bytes]], bytes]

_FLAGS = os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY


def begin_anywhere(size: int, read_at: Callable[[int, int], bytes]) -> bytes:
    """Leave the tail as it is: the rule of a format that looks after its own tail."""
    return b""


def open_append_file(path: str, begin: BeginRule, interrupt: int) -> "RegularFile | StreamFile":
    """Open *path* for appending, or create it with mode 0600, whatever the umask.

    An existing file keeps its mode.  *interrupt* is a descriptor: when it becomes readable, a wait
    for the reader of a pipe ends.  Raises `OSError` at once for what cannot be opened, a FIFO
    without a reader included (ENXIO).
    """
    descriptor = _open_or_create(path)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return StreamFile(descriptor, interrupt)
        # The tail must be read too.  The first open was for writing only, because a FIFO that is
        # opened for both never says that nobody reads it.
        both = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | _FLAGS)
        os.close(descriptor)
        descriptor = both
        _require_locks(descriptor)
        return RegularFile(descriptor, begin)
    except BaseException:
        os.close(descriptor)
        raise


def _open_or_create(path: str) -> int:
    flags = os.O_WRONLY | os.O_NONBLOCK | _FLAGS
    while True:
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            # Exclusive creation does not follow a symlink that points to nothing.
            target = os.path.realpath(path) if os.path.islink(path) else path
        try:
            descriptor = os.open(target, flags | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue  # somebody else was faster, so it exists and keeps its mode
        os.fchmod(descriptor, 0o600)
        return descriptor


def _require_locks(descriptor: int) -> None:
    """Raise `OSError` if the file system has no `flock`: better now than at the first line."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    fcntl.flock(descriptor, fcntl.LOCK_UN)


class RegularFile:
    """A regular file, open for appending together with other processes."""

    __slots__ = ("_begin", "_descriptor", "_end")

    def __init__(self, descriptor: int, begin: BeginRule) -> None:
        self._descriptor = descriptor
        self._begin = begin
        self._end = -1
        """Where our last write ended; -1 before the first."""

    def append(self, lines: Sequence[bytes]) -> list[OSError | None]:
        """Write *lines*, and return for each what went wrong, or None once it is in the file."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        except OSError as error:
            return [error] * len(lines)
        try:
            return self._append_locked(lines)
        except OSError as error:  # the size or the tail cannot be read
            return [error] * len(lines)
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)

    def _append_locked(self, lines: Sequence[bytes]) -> list[OSError | None]:
        size = os.fstat(self._descriptor).st_size
        first = b"" if size == self._end else self._begin(size, self._read_at)
        data = lines[0] if len(lines) == 1 and not first else b"".join((first, *lines))
        try:
            written = os.write(self._descriptor, data)
        except OSError:
            written = 0
        if written == len(data):
            self._end = size + written
            return [None] * len(lines)
        self._cut(size + written, size)
        return self._append_singly(size, first, lines)

    def _append_singly(
        self, size: int, first: bytes, lines: Sequence[bytes]
    ) -> list[OSError | None]:
        """Write line after line when they did not fit together: each fails for itself."""
        outcomes: list[OSError | None] = []
        for line in lines:
            data = first + line
            failure: OSError | None = None
            try:
                written = os.write(self._descriptor, data)
                if written < len(data):
                    failure = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                written, failure = 0, error
            if failure is None:
                size += written
                first = b""
            else:
                self._cut(size + written, size)
            outcomes.append(failure)
        self._end = size
        return outcomes

    def _cut(self, found: int, wanted: int) -> None:
        """Take half a line back.  Where that fails the begin rule finds a torn tail."""
        try:
            # Somebody without the lock may have emptied the file: cutting would fill it with NULs.
            if found > wanted and os.fstat(self._descriptor).st_size == found:
                os.ftruncate(self._descriptor, wanted)
        except OSError:
            pass

    def _read_at(self, offset: int, length: int) -> bytes:
        return os.pread(self._descriptor, length, offset)


class StreamFile:
    """A pipe, a terminal or another device, written without blocking."""

    __slots__ = ("_descriptor", "_interrupt", "_poll", "_sent")

    def __init__(self, descriptor: int, interrupt: int) -> None:
        self._descriptor = descriptor
        self._interrupt = interrupt
        self._sent = 0
        """Bytes of the next line that are out already."""
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._poll.register(interrupt, select.POLLIN)

    def append(self, lines: Sequence[bytes]) -> list[OSError | None]:
        """Write *lines* as far as the reader takes them, at least one.

        Returns the outcomes of the lines that are done; the rest is to be handed in again.  An
        empty list says that the wait for the reader was interrupted.
        """
        outcomes: list[OSError | None] = []
        for line in lines:
            while self._sent < len(line):
                try:
                    self._sent += os.write(self._descriptor, memoryview(line)[self._sent :])
                except BlockingIOError:
                    if outcomes:
                        return outcomes
                    ready = self._poll.poll()
                    if any(descriptor == self._interrupt for descriptor, _ in ready):
                        return []
                except OSError as error:
                    outcomes.append(error)
                    break
            else:
                outcomes.append(None)
            self._sent = 0
        return outcomes

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)
