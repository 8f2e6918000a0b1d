"""Capturing requests: each Generate's line is in the file before anything is answered."""

import os
import time
from collections.abc import Sequence
from typing import Self

import trio
from purerpc.grpclib.exceptions import InternalError

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.errors import CaptureOpenError, JournalWriteError
from replay.journal import Journal, JournalStatistics
from replay.logger import get_logger
from replay.rpc.calls import Call
from replay.worker.capture import Extended, allowed_metadata, capture_line, end_torn_line

log = get_logger(__name__)

#: Above this many ids the line is made in a thread: it would keep the loop for milliseconds.
IDS_ON_THE_LOOP = 50_000


class FileCapture(trio.abc.AsyncResource):
    """Writes requests to one file, whichever worker of the process received them.

    With *extended* the lines have the rank, the arrival and the metadata that *metadata_allow*
    (globs over names) lets through.
    """

    def __init__(
        self, journal: Journal, *, extended: bool = False, metadata_allow: Sequence[str] = ()
    ) -> None:
        self._journal = journal
        self._extended = extended
        self._metadata_allow = tuple(metadata_allow)
        self._threads = trio.CapacityLimiter(1)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        extended: bool = False,
        metadata_allow: Sequence[str] = (),
    ) -> Self:
        """Open *path* for appending.  Raises CaptureOpenError."""
        try:
            journal = Journal.open(path, begin=end_torn_line)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            reason = getattr(error, "strerror", None) or str(error)
            raise CaptureOpenError(f"cannot open capture file {path}: {reason}") from error
        return cls(journal, extended=extended, metadata_allow=metadata_allow)

    async def capture(self, message: pb.GenerateRequest, call: Call) -> None:
        """Return when the line is in the file; INTERNAL when the file did not take it."""
        extended = self._extension(call) if self._extended else None
        if len(message.tokenized.input_ids) > IDS_ON_THE_LOOP:
            line = await trio.to_thread.run_sync(
                lambda: capture_line(message, extended=extended), limiter=self._threads
            )
        else:
            line = capture_line(message, extended=extended)
        try:
            await self._journal.append(line)
        except (JournalWriteError, trio.ClosedResourceError) as error:
            raise InternalError("the request could not be captured") from error

    def _extension(self, call: Call) -> Extended:
        age = trio.current_time() - call.arrival
        return Extended(
            arrival_unix_ns=time.time_ns() - int(age * 1e9),
            metadata=allowed_metadata(call.metadata, self._metadata_allow),
        )

    async def reopen(self) -> None:
        """Open the path again, after a rotation; when that fails the old file stays in use.

        Once the file is closed nothing happens: a rotation may come while the worker stops.
        """
        try:
            await self._journal.reopen()
        except trio.ClosedResourceError:
            log.debug("capture not reopened", path=self._journal.path, reason="closed")
        except OSError as error:
            log.error("capture not reopened", path=self._journal.path, reason=error.strerror)
        else:
            log.info("capture reopened", path=self._journal.path)

    def statistics(self) -> JournalStatistics:
        """Return the file's counters."""
        return self._journal.statistics()

    async def aclose(self) -> None:
        """Write what is waiting, then close; see `Journal.aclose`."""
        await self._journal.aclose()
        lost = self._journal.statistics()
        if lost.failed or lost.lost_at_close or lost.dropped:
            log.warning(
                "capture incomplete",
                failed=lost.failed,
                dropped=lost.dropped,
                lost_at_close=lost.lost_at_close,
            )
