"""PURE.  The numbers of a comparison that a rule can be written about."""

from collections.abc import Iterator

from replay.player.compare import Comparison, Side
from replay.player.fail_on import Measure
from replay.player.observation import Outcome
from replay.player.statistics import QUANTILES, Sample

#: A capture tells no outcome, and a request that was not sent is missing.
_NOT_FAILED = (Outcome.COMPLETE, Outcome.UNKNOWN, Outcome.NOT_SENT)

Number = tuple[tuple[str, Measure], float | None]


def numbers_of(comparison: Comparison) -> dict[tuple[str, Measure], float | None]:
    """Return every number by its name and measure; what is not known is absent or None."""
    return dict(_numbers(comparison))


def schedule_delay(side: Side) -> Sample:
    """Return by how many milliseconds the requests of *side* were late; empty for a recording."""
    delays = (each.schedule_delay_ns for each in side.observations)
    return Sample(delay / 1e6 for delay in delays if delay is not None)


def _numbers(comparison: Comparison) -> Iterator[Number]:
    flags = [count.is_flagged for count in comparison.counts]
    flags += [difference.is_flagged for difference in comparison.latencies.differences]
    flags.append(bool(comparison.missing))
    yield ("flagged", Measure.NUMBER), sum(flags)
    yield ("missing", Measure.NUMBER), len(comparison.missing)
    yield ("extra", Measure.NUMBER), len(comparison.extra)
    outcomes = (each.outcome for each in comparison.candidate.observations)
    yield ("failed", Measure.NUMBER), sum(each not in _NOT_FAILED for each in outcomes)
    for count in comparison.counts:
        if count.judged:
            yield (count.kind, Measure.NUMBER), count.differing
            yield (count.kind, Measure.SHARE), count.differing / count.judged
    yield from _latencies(comparison)
    if "candidate" in comparison.goodputs:
        yield ("goodput", Measure.SHARE), comparison.goodputs["candidate"].share
    delays = schedule_delay(comparison.candidate)
    if len(delays):
        for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
            yield (f"schedule_delay.{name}", Measure.MILLISECONDS), delays.quantile(share)


def _latencies(comparison: Comparison) -> Iterator[Number]:
    samples = {
        (found.metric, found.side): found.sample for found in comparison.latencies.distributions
    }
    for (metric, side), sample in samples.items():
        if side != "candidate":
            continue
        old = samples[metric, "baseline"]
        pairs = [
            (f"p{share * 100:g}", old.quantile(share), sample.quantile(share))
            for share in QUANTILES
        ]
        pairs.append(("mean", old.mean, sample.mean))
        for statistic, before, after in pairs:
            yield (f"{metric}.{statistic}", Measure.MILLISECONDS), after
            yield from _change(f"{metric}.{statistic}", before, after)
    for difference in comparison.latencies.differences:
        if difference.statistic == "shift":
            name = f"{difference.metric}.shift"
            yield from _change(name, difference.baseline_ms, difference.candidate_ms)


def _change(name: str, before: float | None, after: float | None) -> Iterator[Number]:
    if before is None or after is None:
        return
    yield (name, Measure.CHANGE_MS), after - before
    if before > 0:
        yield (name, Measure.CHANGE_SHARE), (after - before) / before
