"""PURE.  Quantiles, their confidence intervals, and which differences between runs are more than
noise.

The p-quantile of n values is the one of rank ceil(p * n).

Intervals are bootstrap intervals, solved rather than simulated: how many of n values drawn again
lie below a quantile is a binomial count, so its tails give the ranks of the interval's ends
exactly, without a seed and in no time, also at the 1 - 0.001/40 that a family of intervals needs
and that no number of resamples would reach.  Where the tail lies beyond the largest value, the end
is infinite: so few values cannot tell.

Requests of a run are not independent: neighbours wait in one queue, and the gaps of one stream have
one cause.  The count's variance is therefore measured on blocks of neighbouring requests (a block
bootstrap, solved as well), and n is divided by the factor by which it exceeds the binomial's; the
factor is never below 1.

A difference of quantiles has the interval that the two runs' intervals make (each side's distance,
squared and added); the runs count as independent, which is careful, because they share their
requests.  The shift is the median of the differences request by request, and its interval is that
of a median.

A difference counts only if its whole interval lies beyond the practical threshold and beyond the
noise floor, measured against the baseline and against the control alike.  The noise floor is what
the control, a second run of the baseline, differs by, and what it might have differed by: the end
of its own interval, which holds nineteen times in twenty.  The intervals of a comparison hold
together with 1 - `FAMILY_ERROR` (Bonferroni).
"""

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

import attrs

from replay.player.binomial import binomial_quantile

if TYPE_CHECKING:
    Floats: TypeAlias = array[float]
else:
    Floats = array

#: The chance that any interval of one comparison misses: one false alarm in a thousand comparisons.
FAMILY_ERROR = 0.001
#: The chance with which an interval that is shown beside a single number misses.
SHOWN_ERROR = 0.05
QUANTILES = (0.5, 0.9, 0.99)

#: Fewer requests than this say nothing of how neighbours depend on each other.
_REQUESTS_FOR_BLOCKS = 30


@attrs.frozen
class Interval:
    """A range that holds the true value with the confidence it was made for; its ends may be
    infinite.
    """

    low: float
    high: float


class Sample:
    """The values of one metric in one run, in the order in which the requests arrived.

    A request may have several values (its token gaps) or one.
    """

    def __init__(self, values_by_request: Iterable[Sequence[float] | float]) -> None:
        self._values: Floats = array("d")
        self._sizes: array[int] = array("I")
        for values in values_by_request:
            if isinstance(values, int | float):
                self._values.append(values)
                self._sizes.append(1)
            elif values:
                self._values.extend(values)
                self._sizes.append(len(values))
        self._sorted: Floats = array("d", sorted(self._values))
        self._effects: dict[float, float] = {}

    def __len__(self) -> int:
        return len(self._values)

    @property
    def mean(self) -> float | None:
        """Their mean, or None without values."""
        return math.fsum(self._values) / len(self) if len(self) else None

    @property
    def sorted_values(self) -> Sequence[float]:
        """The values from the smallest to the largest."""
        return self._sorted

    def quantile(self, share: float) -> float | None:
        """Return the value below or at which *share* of them lie, or None without values."""
        if not len(self):
            return None
        return self._sorted[max(1, math.ceil(share * len(self))) - 1]

    def interval(self, share: float, error: float) -> Interval:
        """Return where the true quantile lies, missing it with the chance *error*."""
        count = len(self)
        if not count:
            return Interval(-math.inf, math.inf)
        independent = max(1, int(count / self.design_effect(share)))
        low = binomial_quantile(independent, share, error / 2)
        high = binomial_quantile(independent, share, 1 - error / 2) + 1
        return Interval(
            -math.inf if low == 0 else self._sorted[max(1, low * count // independent) - 1],
            math.inf
            if high > independent
            else self._sorted[min(count, -(-high * count // independent)) - 1],
        )

    def design_effect(self, share: float) -> float:
        """Return by which factor the dependence of neighbours widens the count's variance."""
        if share not in self._effects:
            self._effects[share] = self._measured_effect(share)
        return self._effects[share]

    def _measured_effect(self, share: float) -> float:
        requests = len(self._sizes)
        if requests < _REQUESTS_FOR_BLOCKS:
            return 1.0
        bound = self.quantile(share)
        assert bound is not None
        below = bisect_right(self._sorted, bound) / len(self)
        if below >= 1:
            return 1.0
        excesses: Floats = array("d")
        start = 0
        for size in self._sizes:
            hits = sum(value <= bound for value in self._values[start : start + size])
            excesses.append(hits - below * size)
            start += size
        expected = len(self) * below * (1 - below)
        lengths = {math.isqrt(requests), round(requests ** (2 / 3))}
        if len(self) > requests:
            lengths.add(1)
        return max(1.0, *(_variance_of_sum(excesses, length) / expected for length in lengths))


def _variance_of_sum(values: Floats, length: int) -> float:
    """Estimate the variance of the sum of *values* from the sums of blocks of *length*."""
    blocks = len(values) // length
    sums = [math.fsum(values[block * length : (block + 1) * length]) for block in range(blocks)]
    mean = math.fsum(sums) / blocks
    deviations = math.fsum((value - mean) ** 2 for value in sums)
    return deviations / (blocks - 1) * len(values) / length


def quantile_difference(
    baseline: Sample, candidate: Sample, share: float, error: float
) -> tuple[float, Interval] | None:
    """Return candidate - baseline of a quantile, and its interval; None if a side has no values."""
    before, after = baseline.quantile(share), candidate.quantile(share)
    if before is None or after is None:
        return None
    old, new = baseline.interval(share, error), candidate.interval(share, error)
    difference = after - before
    return difference, Interval(
        difference - math.hypot(after - new.low, old.high - before),
        difference + math.hypot(new.high - after, before - old.low),
    )


def shift(differences: Sample, error: float) -> tuple[float, Interval] | None:
    """Return the median of *differences*, request by request, and its interval."""
    median = differences.quantile(0.5)
    return None if median is None else (median, differences.interval(0.5, error))


@attrs.frozen(kw_only=True)
class Threshold:
    """What is too small to matter: the larger of a time and a share of the baseline's value."""

    absolute_ms: float
    relative: float = 0.03

    def at(self, baseline_ms: float) -> float:
        """Return the threshold beside *baseline_ms*."""
        return max(self.absolute_ms, self.relative * abs(baseline_ms))


class Verdict(StrEnum):
    """What a comparison says of one statistic."""

    NOT_SHOWN = "not shown"
    """No difference beyond noise and threshold was shown."""
    HIGHER = "higher"
    LOWER = "lower"
    TOO_FEW = "too few"
    """So few values have no bounded interval at this confidence."""


@attrs.frozen(kw_only=True)
class Difference:
    """One statistic of two runs, in milliseconds, and whether it differs."""

    metric: str
    statistic: str
    baseline_ms: float
    candidate_ms: float
    difference_ms: float
    interval_ms: Interval
    control_difference_ms: float | None
    """Control - baseline.  None: no control."""
    threshold_ms: float
    """What the interval had to lie beyond: the practical threshold, or the noise floor above it."""
    verdict: Verdict

    @property
    def is_flagged(self) -> bool:
        """Whether it counts as a difference."""
        return self.verdict in (Verdict.HIGHER, Verdict.LOWER)


def judge(bounds: Interval, *intervals: Interval) -> Verdict:
    """Return what *intervals* (against the baseline, against the control) say together.

    Between *bounds* lies what does not count.
    """
    if all(interval.low > bounds.high for interval in intervals):
        return Verdict.HIGHER
    if all(interval.high < bounds.low for interval in intervals):
        return Verdict.LOWER
    if any(math.isinf(interval.low) and math.isinf(interval.high) for interval in intervals):
        return Verdict.TOO_FEW
    return Verdict.NOT_SHOWN
