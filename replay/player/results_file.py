"""Writes a run's results as they come, in a thread, so that a slow disk delays no request."""

import os
from pathlib import Path

import trio

from replay.errors import ReplayError
from replay.player.observation import Observation
from replay.player.results import RunHead, write_end, write_head, write_observation


class ResultsError(ReplayError):
    """The results cannot be written."""


class ResultsFile:
    """An open results file.  `run` writes what `put` hands over."""

    def __init__(self, path: Path, head: RunHead) -> None:
        """Open the file with mode 0600; one that is there is written anew.  Raises ResultsError."""
        self._path = path
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ResultsError(f"cannot write results to {path}: {error.strerror}") from None
        self._file = open(descriptor, "wb", buffering=0)  # noqa: SIM115 - `close` closes it
        self._waiting = [write_head(head)]
        self._news = trio.Event()
        self._is_over = False
        self._limiter = trio.CapacityLimiter(1)
        self.failed = trio.Event()
        """Set when the file takes no more; what is handed over from then on is lost."""
        self.fault: ResultsError | None = None

    def put(self, observation: Observation) -> None:
        """Hand over one result."""
        if self.fault is not None:
            return
        self._waiting.append(write_observation(observation))
        self._news.set()

    def finish(self, end: "dict[str, object]") -> None:
        """Hand over the last line; `run` returns when it is written."""
        self._waiting.append(write_end(end))
        self._is_over = True
        self._news.set()

    async def run(self) -> None:
        """Write what comes until the end, or until the file takes no more."""
        while not self._is_over or self._waiting:
            if not self._waiting:
                self._news = trio.Event()
                await self._news.wait()
            data = b"".join(self._waiting)
            self._waiting.clear()
            try:
                await trio.to_thread.run_sync(self._write, data, limiter=self._limiter)
            except OSError as error:
                self.fault = ResultsError(f"cannot write results to {self._path}: {error.strerror}")
                self.failed.set()
                return

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]
