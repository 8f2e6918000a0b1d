"""PURE.  What evenly spaced requests do to a comparison.

An engine works in passes, a token's time apart.  Requests that come in even steps all meet it at
one moment of that beat, and each run meets it at another: first tokens of two runs of one engine
then differ by up to a token's time, in all requests alike, which no control shows reliably.
"""

from collections.abc import Sequence
from itertools import pairwise

from replay.player.latency import latencies_ms
from replay.player.observation import Observation
from replay.player.statistics import Sample

#: Steps that differ by less than this share are even.
_EVEN = 0.01
#: Fewer steps may be even by chance.
_STEPS = 10


def are_even(observations: Sequence[Observation]) -> bool:
    """Tell whether requests were due in even steps."""
    due = sorted(each.scheduled_ns for each in observations if each.scheduled_ns is not None)
    steps = sorted(later - earlier for earlier, later in pairwise(due))
    if len(steps) < _STEPS:
        return False
    middle = steps[len(steps) // 2]
    return steps[-1] - steps[0] <= _EVEN * middle and middle > 0


def beat_ms(observations: Sequence[Observation]) -> float:
    """Return the median time between two tokens; 0 if there are none."""
    return Sample(latencies_ms(each, "itl") for each in observations).quantile(0.5) or 0.0
