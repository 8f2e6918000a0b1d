"""TTFT and ITL of one request, for the worker's metrics."""

import time
from collections.abc import Sequence

from replay.metrics import WorkerMetrics


class LatencyObserver:
    """Implements `replay.worker.answer.Observer`: a chunk with tokens is one event."""

    __slots__ = ("_last_ns", "_metrics", "_saw_token")

    def __init__(self, metrics: WorkerMetrics, arrival_ns: int) -> None:
        """*arrival_ns* is on the clock of `time.monotonic_ns`."""
        self._metrics = metrics
        self._last_ns = arrival_ns
        self._saw_token = False

    def observe(self, ids: Sequence[int], index: int = 0, finish_reason: str | None = None) -> None:
        """Count the time since the last chunk with tokens, or since the arrival."""
        if not ids:
            return
        now_ns = time.monotonic_ns()
        if self._saw_token:
            self._metrics.itl.observe(now_ns - self._last_ns)
        else:
            self._saw_token = True
            self._metrics.ttft.observe(now_ns - self._last_ns)
        self._last_ns = now_ns

    def observe_whole(self, ids: Sequence[int], finish_reason: str) -> None:
        """Count a whole answer: one first token, and no time between the others."""
        if ids:
            self._metrics.ttft.observe(time.monotonic_ns() - self._last_ns)
            if len(ids) > 1:
                self._metrics.itl.observe(0, len(ids) - 1)
