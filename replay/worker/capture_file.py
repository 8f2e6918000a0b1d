"""The capture of a worker: each Generate's line is in the file before anything is answered."""

from typing import Self

import structlog
import trio
from purerpc.grpclib.exceptions import InternalError

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.errors import CaptureOpenError, JournalWriteError
from replay.journal import Journal
from replay.rpc.calls import Call
from replay.worker.capture import capture_line

log = structlog.get_logger(__name__)


class CaptureFile:
    """Implements `replay.worker.service.RequestCapture` on a journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @classmethod
    def open(cls, path: str) -> Self:
        """Open *path*.  Raises CaptureOpenError."""
        try:
            return cls(Journal.open(path))
        except OSError as error:
            raise CaptureOpenError(f"cannot open capture file {path}: {error.strerror}") from error

    async def capture(self, message: pb.GenerateRequest, call: Call) -> None:
        """Return when the request's line is in the file; INTERNAL when the file did not take it."""
        try:
            await self._journal.append(capture_line(message))
        except (JournalWriteError, trio.ClosedResourceError) as error:
            raise InternalError("the request could not be captured") from error
