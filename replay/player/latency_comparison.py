"""PURE.  The latencies of two or three runs of the same requests, and what of them differs.

A request counts for a metric if every run is complete and tells it; what one run does not tell of a
request is left out of all, so that like is compared with like.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import attrs

from replay.player.latency import METRICS, is_recorded, latencies_ms, latency_ms
from replay.player.observation import Observation
from replay.player.statistics import (
    FAMILY_ERROR,
    QUANTILES,
    SHOWN_ERROR,
    Difference,
    Interval,
    Sample,
    Threshold,
    judge,
    quantile_difference,
    shift,
)

#: One request in the baseline, the candidate and, if there is one, the control.
Runs = tuple[Observation, ...]


@attrs.frozen(kw_only=True)
class Distribution:
    """One metric of one run."""

    side: str
    metric: str
    sample: Sample
    undefined: int
    """Requests that have no such value."""


@attrs.frozen(kw_only=True)
class LatencyComparison:
    """The distributions of each run and the differences between them."""

    requests: int
    """Requests that were compared."""
    distributions: Sequence[Distribution]
    differences: Sequence[Difference]
    left_out: Mapping[str, int]
    """Requests that a run does not tell a metric of, by metric, where there are any."""
    intervals: int
    """How many intervals and tests hold together."""
    error: float
    """The chance with which one of them may miss."""


def compare_latencies(
    requests: Sequence[Runs],
    sides: Sequence[str],
    *,
    thresholds: Mapping[str, Threshold],
    allowances_ms: Mapping[str, float],
    further_tests: int = 0,
) -> LatencyComparison:
    """Compare *requests*, which stand in the order of their arrival.

    *sides* names the runs: baseline, candidate and perhaps control.  *allowances_ms* is added to
    the thresholds, by metric.  *further_tests* is how many tests of the caller's share the family's
    chance of error.
    """
    told: dict[str, list[Runs]] = {}
    left_out: dict[str, int] = {}
    for metric in METRICS:
        chosen = [runs for runs in requests if all(is_recorded(run, metric) for run in runs)]
        if any(latency_ms(runs[0], metric) is not None for runs in chosen):
            told[metric] = chosen
        if len(chosen) < len(requests):
            left_out[metric] = len(requests) - len(chosen)
    statistics = sum(len(QUANTILES) + _has_shift(metric) for metric in told)
    intervals = statistics * (len(sides) - 1) + further_tests
    error = FAMILY_ERROR / max(1, intervals)
    distributions: list[Distribution] = []
    differences: list[Difference] = []
    for metric, chosen in told.items():
        values = [
            [latencies_ms(runs[place], metric) for runs in chosen] for place in range(len(sides))
        ]
        samples = [Sample(of_run) for of_run in values]
        distributions += [
            Distribution(
                side=side, metric=metric, sample=sample, undefined=sum(not each for each in of_run)
            )
            for side, sample, of_run in zip(sides, samples, values, strict=True)
        ]
        threshold, allowance_ms = thresholds[metric], allowances_ms.get(metric, 0.0)
        for statistic, baseline_ms, noise, found in _found(metric, chosen, samples, error):
            noise_ms = None if noise is None else noise[0]
            least_ms = max(threshold.at(baseline_ms) + allowance_ms, abs(noise_ms or 0.0))
            bounds_ms = Interval(-least_ms, least_ms)
            if noise is not None:
                # One control is one draw: what it might have differed by is noise as well.
                bounds_ms = Interval(min(-least_ms, noise[1].low), max(least_ms, noise[1].high))
            difference_ms, interval_ms = found[0]
            bound_ms = bounds_ms.high if difference_ms >= 0 else -bounds_ms.low
            differences.append(
                Difference(
                    metric=metric,
                    statistic=statistic,
                    baseline_ms=baseline_ms,
                    candidate_ms=baseline_ms + difference_ms,
                    difference_ms=difference_ms,
                    interval_ms=interval_ms,
                    control_difference_ms=noise_ms,
                    threshold_ms=bound_ms if math.isfinite(bound_ms) else least_ms,
                    verdict=judge(bounds_ms, *(interval for _, interval in found)),
                )
            )
    return LatencyComparison(
        requests=len(requests),
        distributions=distributions,
        differences=differences,
        left_out=left_out,
        intervals=intervals,
        error=error,
    )


_Change = tuple[float, Interval]
_Found = tuple[str, float, _Change | None, list[_Change]]


def _found(
    metric: str, requests: Sequence[Runs], samples: Sequence[Sample], error: float
) -> Iterable[_Found]:
    """Yield each statistic: name, baseline, and with their intervals control - baseline and the
    differences.

    The first difference is to the baseline, the second, if there is a control, to the control.
    """
    baseline, candidate, *control = samples
    noise: _Change | None
    median = baseline.quantile(0.5)
    if median is not None and _has_shift(metric):
        changes = _changes(metric, requests, 0, 1)
        found = [each for each in (shift(changes, error),) if each is not None]
        noise = None
        if control:
            noise = shift(_changes(metric, requests, 0, 2), SHOWN_ERROR)
            against = shift(_changes(metric, requests, 2, 1), error)
            found += [against] if against is not None else []
        if found:
            yield "shift", median, noise, found
    for share in QUANTILES:
        before = baseline.quantile(share)
        found = [
            each
            for old in (baseline, *control)
            if (each := quantile_difference(old, candidate, share, error)) is not None
        ]
        if before is None or not found:
            continue
        noise = quantile_difference(baseline, control[0], share, SHOWN_ERROR) if control else None
        yield f"p{share * 100:g}", before, noise, found


def _changes(metric: str, requests: Sequence[Runs], before: int, after: int) -> Sample:
    pairs = (
        (latency_ms(runs[before], metric), latency_ms(runs[after], metric)) for runs in requests
    )
    return Sample(new - old for old, new in pairs if old is not None and new is not None)


def _has_shift(metric: str) -> bool:
    """Whether a request has one value of *metric*, so that two runs of it can be subtracted."""
    return metric != "itl"
