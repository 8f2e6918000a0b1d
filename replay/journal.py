"""The one writer of a file: requests hand it lines, a thread writes all that are waiting at once.

A request that may not be answered before its line is in the file waits in `append`.  Handing a
line over costs the loop a queue entry; the thread takes everything that came while it wrote the
last batch, and wakes the loop once for all of it, so the price of a line falls with the load.

The loop itself never waits for the file.  A disk or a pipe that hangs delays those who wait for
their own line, and these can be cancelled.
"""

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Final, Self

import attrs
import trio

from replay.append_file import BeginRule, begin_anywhere, open_append_file
from replay.errors import JournalWriteError

#: A batch takes no more lines once it has this many bytes, so that one batch cannot keep other
#: processes from the file, or the first of its lines from being confirmed, for long.
BATCH_BYTES: Final = 1 << 20

#: What lines that nobody waits for (their request was cancelled, or it never waited) may hold
#: while the file hangs.  Beyond it they are dropped and counted.
UNWAITED_BYTES: Final = 64 << 20


@attrs.frozen(kw_only=True)
class JournalStatistics:
    """What a journal has done so far, counted in lines where the name says nothing else."""

    written: int
    written_bytes: int
    batches: int
    failed: int
    """The file did not take them.  In a regular file nothing is left of them."""
    abandoned: int
    """Whoever waited was cancelled first.  The line is counted once more when it is settled."""
    dropped: int
    """Nobody waited, and too many bytes of that kind (`UNWAITED_BYTES`) were waiting already."""
    lost_at_close: int
    waiting: int
    """Handed over and not settled yet."""
    reopened: int
    reopen_failures: int


class Journal(trio.abc.AsyncResource):
    """A file that the tasks of one trio loop append to.

    All methods are for the loop in which `open` was called.  Several journals, in this process or
    in others, may have the same regular file open.
    """

    def __init__(self, path: str, begin: BeginRule) -> None:
        """Use `open`."""
        self.path = path
        self._begin = begin
        self._token = trio.lowlevel.current_trio_token()
        self._interrupt = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            self._file = open_append_file(path, begin, self._interrupt)
        except BaseException:
            os.close(self._interrupt)
            raise
        self._queue: queue.SimpleQueue[_Line | _Reopening | None] = queue.SimpleQueue()
        """None is the end."""
        self._lines: set[_Line] = set()
        """Handed over and not settled."""
        self._closing = False
        self._aborted = False
        self._ended = trio.Event()
        self._written = self._written_bytes = self._batches = self._failed = 0
        self._abandoned = self._dropped = self._lost_at_close = 0
        self._unwaited_bytes = 0
        self._reopened = self._reopen_failures = 0
        # A daemon: a disk that hangs for ever must not keep the process from its end.
        threading.Thread(target=self._run, name="replay-journal", daemon=True).start()

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, begin: BeginRule = begin_anywhere) -> Self:
        """Open *path* for appending, or create it with mode 0600.

        *begin* is what the format does about the end of a file that somebody else wrote.  Raises
        `OSError` at once if the path cannot be opened; a FIFO that nobody reads gives ENXIO.
        """
        return cls(os.fspath(path), begin)

    async def append(self, data: bytes) -> None:
        """Append *data*, a whole line or record, and return when it is in the file.

        Raises `JournalWriteError` if the file did not take it.  May be cancelled at once, whatever
        the file does; the data may be written all the same.
        """
        line = self._hand_over(data)
        try:
            await line.wait()
        except trio.Cancelled:
            self._abandoned += 1
            self._bound_unwaited(line)
            raise

    def append_nowait(self, data: bytes) -> None:
        """Append *data* some time soon.  What fails or finds no room is only counted."""
        self._bound_unwaited(self._hand_over(data))

    async def reopen(self) -> None:
        """Open the path again, after a rotation; lines handed over before go to the old file.

        Raises `OSError` if that fails: the old file stays in use.
        """
        if self._closing:
            raise trio.ClosedResourceError("the journal is closed")
        reopening = _Reopening()
        self._queue.put(reopening)
        await reopening.wait()

    def statistics(self) -> JournalStatistics:
        """Return the counters as they are now."""
        return JournalStatistics(
            written=self._written,
            written_bytes=self._written_bytes,
            batches=self._batches,
            failed=self._failed,
            abandoned=self._abandoned,
            dropped=self._dropped,
            lost_at_close=self._lost_at_close,
            waiting=len(self._lines),
            reopened=self._reopened,
            reopen_failures=self._reopen_failures,
        )

    def close(self) -> None:
        """Close without waiting.  Whoever waits for a line gets `trio.ClosedResourceError`.

        What the thread is writing at this moment may still reach the file.
        """
        self._stop()
        if not self._aborted and not self._ended.is_set():
            self._aborted = True
            os.eventfd_write(self._interrupt, 1)
            self._give_up()

    async def aclose(self) -> None:
        """Write what is waiting, then close.  Give it a deadline; when cancelled it is `close`."""
        self._stop()
        try:
            await self._ended.wait()
        except trio.Cancelled:
            self.close()
            raise

    def _stop(self) -> None:
        if not self._closing:
            self._closing = True
            self._queue.put(None)

    def _hand_over(self, data: bytes) -> "_Line":
        if self._closing:
            raise trio.ClosedResourceError("the journal is closed")
        line = _Line(data)
        self._lines.add(line)
        self._queue.put(line)
        return line

    def _bound_unwaited(self, line: "_Line") -> None:
        if line not in self._lines:
            return  # settled between the cancellation and now
        size = len(line.data)
        if self._unwaited_bytes + size > UNWAITED_BYTES:
            line.data = b""  # the thread may have taken it a moment before, and says so then
        else:
            line.unwaited = size
            self._unwaited_bytes += size

    # The rest of the loop's half: what the thread has it run.

    def _settle(
        self,
        lines: Sequence["_Line"],
        taken: Sequence[bytes],
        outcomes: Sequence[OSError | None],
    ) -> None:
        self._batches += 1
        for line, data, error in zip(lines, taken, outcomes, strict=True):
            if line not in self._lines:
                continue  # the journal was closed meanwhile
            if error is not None:
                self._failed += 1
                line.error = JournalWriteError(self.path, error)
            elif data:
                self._written += 1
                self._written_bytes += len(data)
            else:
                self._dropped += 1
            self._lines.remove(line)
            self._unwaited_bytes -= line.unwaited
            line.wake()

    def _settle_reopening(self, reopening: "_Reopening") -> None:
        if reopening.error is None:
            self._reopened += 1
        else:
            self._reopen_failures += 1
        reopening.wake()

    def _give_up(self) -> None:
        self._lost_at_close += len(self._lines)
        for line in self._lines:
            line.error = trio.ClosedResourceError("the journal was closed")
            line.wake()
        self._lines.clear()

    def _end(self) -> None:
        self._stop()
        self._give_up()  # nothing is left, unless the thread died of a fault
        self._ended.set()
        os.close(self._interrupt)

    # The thread's half.

    def _run(self) -> None:
        try:
            self._write_until_stopped()
        finally:
            self._file.close()
            # If the loop is gone the interrupt stays open: a late `close` must find it.
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._end)

    def _write_until_stopped(self) -> None:
        item: _Line | _Reopening | None
        while True:
            batch: list[_Line] = []
            size = 0
            item = self._queue.get()
            while isinstance(item, _Line):
                batch.append(item)
                size += len(item.data)
                # Only this thread takes from the queue, so what is not empty can be got.
                if size >= BATCH_BYTES or self._queue.empty():
                    break
                item = self._queue.get()
            try:
                self._write(batch)
                if isinstance(item, _Reopening):
                    self._reopen(item)
            except trio.RunFinishedError:
                return  # the loop is gone, and with it all who could ask
            if item is None:
                return

    def _write(self, batch: list["_Line"]) -> None:
        while batch and not self._aborted:
            taken = [line.data for line in batch]
            outcomes = self._file.append(taken)
            done = len(outcomes)
            if done:
                self._token.run_sync_soon(self._settle, batch[:done], taken[:done], outcomes)
            batch = batch[done:]

    def _reopen(self, reopening: "_Reopening") -> None:
        try:
            file = open_append_file(self.path, self._begin, self._interrupt)
        except OSError as error:
            reopening.error = error
        else:
            self._file.close()
            self._file = file
        self._token.run_sync_soon(self._settle_reopening, reopening)


class _Waited:
    """Something handed to the thread, and the task that waits until it is settled."""

    __slots__ = ("error", "task")

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.task: trio.lowlevel.Task | None = None

    async def wait(self) -> None:
        self.task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abandon)
        if self.error is not None:
            raise self.error

    def wake(self) -> None:
        if self.task is not None:
            trio.lowlevel.reschedule(self.task)
            self.task = None

    def _abandon(self, _: Callable[[], None]) -> trio.lowlevel.Abort:
        self.task = None
        return trio.lowlevel.Abort.SUCCEEDED


class _Line(_Waited):
    __slots__ = ("data", "unwaited")

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = data
        self.unwaited = 0
        """Bytes that count towards `UNWAITED_BYTES`."""


class _Reopening(_Waited):
    __slots__ = ()
