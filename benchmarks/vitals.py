"""What a server holds: memory, descriptors, tasks; and whether that comes back to where it was."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from benchmarks.contenders import WORKER, WORKER_OPTIONS
from benchmarks.processes import ServerError, ServerProcess, python_module, start

#: How long a server may take to answer SIGUSR1, and to give back what ended calls held.
ANSWER_SECONDS = 5.0
SETTLE_SECONDS = 10.0
_LOOK_SECONDS = 0.05


@attrs.frozen
class Vitals:
    """What a server held at one moment."""

    rss_bytes: int
    descriptors: int
    tasks: int


class ObservedWorker:
    """A worker of `observed_worker`; `observed_worker` (below) starts one."""

    def __init__(self, server: ServerProcess, told: Path) -> None:
        """Watch *server*, which writes into *told*."""
        self.server = server
        self._told = told

    def vitals(self) -> Vitals:
        """Ask it.  Raises ServerError when it does not answer."""
        self._told.unlink(missing_ok=True)
        os.kill(self.server.pid, signal.SIGUSR1)
        deadline = time.monotonic() + ANSWER_SECONDS
        while not self._told.exists():
            if time.monotonic() > deadline or not self.server.is_alive():
                raise ServerError(f"the worker tells nothing; it said:\n{self.server.last_words()}")
            time.sleep(0.005)
        tasks = json.loads(self._told.read_text())["tasks"]
        return Vitals(self.server.rss_bytes(), self.server.descriptors(), tasks)

    def settled(self, start: Vitals) -> Vitals:
        """Wait until it holds no more tasks and descriptors than at *start*; return what it holds.

        After `SETTLE_SECONDS` that is what it still holds.
        """
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            now = self.vitals()
            is_back = now.tasks <= start.tasks and now.descriptors <= start.descriptors
            if is_back or time.monotonic() > deadline:
                return now
            time.sleep(_LOOK_SECONDS)


@contextlib.contextmanager
def observed_worker(folder: Path, core: int, *options: str) -> Iterator[ObservedWorker]:
    """Run a worker on *core* that tells what it holds.  Raises ServerError."""
    told = folder / "vitals.json"
    command = python_module(
        "benchmarks.observed_worker", str(told), "serve", *WORKER_OPTIONS, *options
    )
    with start(WORKER, command, core) as server:
        yield ObservedWorker(server, told)


def slope_per_minute(samples: Sequence[tuple[float, float]]) -> float:
    """Return by how much the second value grows in 60 of the first: the least squares' line."""
    if len(samples) < 2:
        return float("nan")
    middle = sum(x for x, _ in samples) / len(samples)
    mean = sum(y for _, y in samples) / len(samples)
    spread = sum((x - middle) ** 2 for x, _ in samples)
    return sum((x - middle) * (y - mean) for x, y in samples) / spread * 60 if spread else 0.0
