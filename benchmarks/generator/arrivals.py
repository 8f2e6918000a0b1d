"""PURE.  When the requests of an open loop are due, in nanoseconds from the start.

Each time is computed from the start, so that no error adds up; equal seeds give equal times.
"""

import itertools
import random
from collections.abc import Iterator
from enum import StrEnum

import attrs

SECOND_NS = 1_000_000_000


class Pace(StrEnum):
    """How far the arrivals are apart."""

    CONSTANT = "constant"
    POISSON = "poisson"
    GAMMA = "gamma"


@attrs.frozen(kw_only=True)
class Arrivals:
    """An endless schedule."""

    rate: float
    """Requests a second, on average."""
    pace: Pace = Pace.CONSTANT
    shape: float = 0.25
    """Of `gamma` only: the gaps' standard deviation is `shape ** -0.5` times their mean, so below 1
    there are bursts, 1 is `poisson`, above it is ever more even."""
    seed: int = 0

    def due_ns(self) -> Iterator[int]:
        """Yield when each request is due; the first one at 0."""
        if self.pace is Pace.CONSTANT:
            for number in itertools.count():
                yield round(number * SECOND_NS / self.rate)
        gaps = random.Random(self.seed)
        shape = 1.0 if self.pace is Pace.POISSON else self.shape
        scale, seconds = 1 / (self.rate * shape), 0.0
        while True:
            yield round(seconds * SECOND_NS)
            seconds += gaps.gammavariate(shape, scale)

    def until(self, end_ns: int) -> Iterator[int]:
        """Yield when the requests are due that are so before *end_ns*."""
        return itertools.takewhile(lambda due: due < end_ns, self.due_ns())
