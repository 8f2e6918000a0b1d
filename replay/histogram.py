"""PURE.  A histogram that a hot path can afford: integers in nanoseconds, no lock, no labels."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

NS: Final = 1_000_000_000


class NanosecondHistogram:
    """Counts of durations by upper bound.  Read as seconds, cumulated, in Prometheus' way."""

    __slots__ = ("_bounds_ns", "_counts", "sum_ns")

    def __init__(self, bounds_seconds: Sequence[float]) -> None:
        """Count up to each of *bounds_seconds*, which go up, and beyond the last."""
        self._bounds_ns = [round(bound * NS) for bound in bounds_seconds]
        self._counts = [0] * (len(self._bounds_ns) + 1)
        self.sum_ns = 0

    def observe(self, duration_ns: int, times: int = 1) -> None:
        """Count a duration, or equal ones.  A bound belongs to what is below it."""
        self._counts[bisect_left(self._bounds_ns, duration_ns)] += times
        self.sum_ns += duration_ns * times

    @property
    def count(self) -> int:
        """How many durations were counted."""
        return sum(self._counts)

    def cumulated(self) -> Iterator[tuple[float, int]]:
        """Yield each bound in seconds, infinity at last, and how many were at most that long."""
        total = 0
        bounds = [bound / NS for bound in self._bounds_ns] + [float("inf")]
        for bound, count in zip(bounds, self._counts, strict=True):
            total += count
            yield bound, total
