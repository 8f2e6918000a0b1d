"""PURE.  A comparison, or one run, as plain values: what the JSON file holds and every other form
shows.

Ids of requests are in it; prompts and answers never are.  What is infinite or not known is null.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from replay.player.answers import Tokens
from replay.player.compare import Comparison, Row, Side
from replay.player.goodput import Goodput, goodput
from replay.player.latency import METRICS, latencies_ms
from replay.player.numbers import schedule_delay
from replay.player.observation import Observation, Outcome
from replay.player.statistics import FAMILY_ERROR, QUANTILES, SHOWN_ERROR, Difference, Sample

SCHEMA = "replay.comparison.v1"
RUN_SCHEMA = "replay.run.v1"
#: How many requests each list names.
_LISTED_IDS = 100
_WORST = 25
#: A request this late was not sent on time; a run with more than one in a hundred says so.
LATE_MS = 10.0

METHOD = (
    "Quantiles are values of rank ceil(p n). Intervals are bootstrap intervals, solved from the "
    "binomial distribution instead of simulated; the dependence of neighbouring requests is "
    "measured on blocks and widens them. A difference counts if its whole interval lies beyond "
    "the threshold and beyond the interval of what the control differs by, against baseline and "
    "control alike. "
    "All intervals and tests of a comparison hold together with a chance of error of {family:g}: "
    "each of the {count} misses with {each:.2g}."
)


def report_of(comparison: Comparison) -> dict[str, Any]:
    """Return *comparison* as values that JSON knows."""
    latencies = comparison.latencies
    by_metric: dict[str, dict[str, Any]] = {}
    for found in latencies.distributions:
        shown = distribution(found.sample, undefined=found.undefined)
        by_metric.setdefault(found.metric, {})[found.side] = shown
    return {
        "schema": SCHEMA,
        "flagged": comparison.is_flagged,
        "sides": {role: side_summary(side) for role, side in comparison.sides.items()},
        "joined": len(comparison.rows),
        "missing": _listed(comparison.missing),
        "extra": _listed(comparison.extra),
        "ambiguous": _listed(comparison.ambiguous),
        "answers": [
            {
                "kind": count.kind,
                "judged": count.judged,
                "differing": count.differing,
                "control_judged": count.control_judged,
                "control_differing": count.control_differing,
                "flagged": count.is_flagged,
            }
            for count in comparison.counts
        ],
        "latency_requests": latencies.requests,
        "latencies": by_metric,
        "latencies_left_out": dict(latencies.left_out),
        "differences": [_difference(found) for found in latencies.differences],
        "objectives_ms": dict(comparison.settings.objectives),
        "goodput": {role: goodput_summary(found) for role, found in comparison.goodputs.items()},
        "differing": [differing(row) for row in comparison.rows if row.differs][:_LISTED_IDS],
        "slowest": [slowed(row) for row in worst(comparison.rows)],
        "settings": {
            "warm_up": comparison.settings.warm_up,
            "thresholds": {
                metric: {"absolute_ms": each.absolute_ms, "relative": each.relative}
                for metric, each in comparison.settings.thresholds.items()
            },
            "place_allowance_ms": comparison.settings.place_allowance_ms,
            "family_error": FAMILY_ERROR,
            "intervals": latencies.intervals,
            "error_of_each": latencies.error,
            "shown_error": SHOWN_ERROR,
        },
        "method": METHOD.format(
            family=FAMILY_ERROR, count=latencies.intervals, each=latencies.error
        ),
        "warnings": list(comparison.warnings),
    }


def run_report(side: Side, objectives: Mapping[str, float]) -> dict[str, Any]:
    """Return one run as values that JSON knows."""
    complete = [each for each in side.observations if each.outcome is Outcome.COMPLETE]
    latencies = {}
    for metric in METRICS:
        values = [latencies_ms(each, metric) for each in complete]
        sample = Sample(values)
        if len(sample):
            latencies[metric] = distribution(sample, undefined=sum(not each for each in values))
    found = goodput(side.observations, objectives, seconds=side.seconds) if objectives else None
    return {
        "schema": RUN_SCHEMA,
        "run": side_summary(side),
        "latencies": latencies,
        "objectives_ms": dict(objectives),
        "goodput": None if found is None else goodput_summary(found),
    }


def side_summary(side: Side) -> dict[str, Any]:
    """Return what can be said of one run alone."""
    delays = schedule_delay(side)
    sent = [each for each in side.observations if each.outcome is not Outcome.NOT_SENT]
    summary: dict[str, Any] = {
        "name": side.name,
        "measured_at": side.measured_at,
        "requests": len(side.observations),
        "outcomes": dict(sorted(side.outcomes.items())),
        "failures": _failures(side.observations),
        "prompt_tokens": sum(each.prompt_tokens or 0 for each in sent),
        "output_tokens": sum(each.output_tokens for each in sent),
        "cached_tokens": _sum_known(each.cached_tokens for each in sent),
        "filled": sum(bool(each.filled) for each in sent),
        "seconds": side.seconds,
        "achieved_rate": len(sent) / side.seconds if side.seconds else None,
        "schedule": None,
        "targets": [target_summary(name, each) for name, each in _by_target(sent)],
    }
    if len(delays):
        late = sum(delay > LATE_MS for delay in delays.sorted_values)
        summary["schedule"] = {
            "p50_ms": delays.quantile(0.5),
            "p99_ms": delays.quantile(0.99),
            "max_ms": delays.quantile(1.0),
            "late": late,
            "late_ms": LATE_MS,
            "kept": late <= 0.01 * len(delays),
        }
    return summary


def target_summary(name: str, observations: Sequence[Observation]) -> dict[str, Any]:
    """Return what can be said of the requests that one of several targets got."""
    complete = [each for each in observations if each.outcome is Outcome.COMPLETE]
    first = Sample(latencies_ms(each, "ttft") for each in complete)
    prompt_tokens = sum(each.prompt_tokens or 0 for each in observations)
    cached = _sum_known(each.cached_tokens for each in observations)
    return {
        "name": name,
        "requests": len(observations),
        "outcomes": dict(sorted(Counter(each.outcome.value for each in observations).items())),
        "prompt_tokens": prompt_tokens,
        "output_tokens": sum(each.output_tokens for each in observations),
        "cached_tokens": cached,
        "ttft_p50_ms": first.quantile(0.5),
        "ttft_p99_ms": first.quantile(0.99),
    }


def _by_target(observations: Iterable[Observation]) -> list[tuple[str, list[Observation]]]:
    """Group what several targets got by their names; nothing for a run with one."""
    groups: dict[str, list[Observation]] = {}
    for each in observations:
        if each.target is not None:
            groups.setdefault(each.target, []).append(each)
    return sorted(groups.items())


def distribution(sample: Sample, *, undefined: int) -> dict[str, Any]:
    """Return the numbers of one distribution; intervals hold nineteen times in twenty."""
    quantiles = {}
    for share in QUANTILES:
        interval = sample.interval(share, SHOWN_ERROR)
        quantiles[f"p{share * 100:g}"] = {
            "ms": sample.quantile(share),
            "low_ms": _finite(interval.low),
            "high_ms": _finite(interval.high),
        }
    return {
        "count": len(sample),
        "undefined": undefined,
        "mean_ms": sample.mean,
        "max_ms": sample.quantile(1.0),
        **quantiles,
    }


def goodput_summary(found: Goodput) -> dict[str, Any]:
    """Return the numbers of a goodput."""
    return {
        "requests": found.requests,
        "met": found.met,
        "share": found.share,
        "low": found.interval.low,
        "high": found.interval.high,
        "per_second": found.per_second,
        "missed": dict(found.missed),
        "unknown": found.unknown,
    }


def worst(rows: Sequence[Row]) -> list[Row]:
    """Return the requests whose end came latest against the baseline, the worst first."""
    slower = [
        (change, -place, row)
        for place, row in enumerate(rows)
        if row.baseline.outcome is row.candidate.outcome is Outcome.COMPLETE
        and (change := row.change_ms("e2e")) is not None
        and change > 0
    ]
    return [row for _, _, row in heapq.nlargest(_WORST, slower, key=lambda each: each[:2])]


def differing(row: Row) -> dict[str, Any]:
    """Return how the answers to one request differ."""
    answer = row.answer
    return {
        "request_id": row.request_id,
        "tokens": answer.tokens.value,
        "choice": answer.choice,
        "first_difference": answer.first_index if answer.tokens is Tokens.DIFFER else None,
        "unit": "character" if answer.is_text else "token",
        "prompt_first_difference": row.prompt.first_index,
        "output_tokens": [row.baseline.output_tokens, row.candidate.output_tokens],
        "outcomes": [row.baseline.outcome.value, row.candidate.outcome.value],
        "lengths_differ": answer.lengths_differ,
        "finish_reasons_differ": answer.finishes_differ,
        "outcomes_differ": answer.outcomes_differ,
    }


def slowed(row: Row) -> dict[str, Any]:
    """Return how much later one request was answered."""
    return {
        "request_id": row.request_id,
        "prompt_tokens": row.candidate.prompt_tokens or row.baseline.prompt_tokens,
        "output_tokens": row.candidate.output_tokens,
        **{f"{metric}_change_ms": row.change_ms(metric) for metric in METRICS},
        "e2e_ms": [_ms(row.baseline.e2e_ns), _ms(row.candidate.e2e_ns)],
    }


def _difference(found: Difference) -> dict[str, Any]:
    return {
        "metric": found.metric,
        "statistic": found.statistic,
        "baseline_ms": found.baseline_ms,
        "candidate_ms": found.candidate_ms,
        "difference_ms": found.difference_ms,
        "low_ms": _finite(found.interval_ms.low),
        "high_ms": _finite(found.interval_ms.high),
        "control_difference_ms": found.control_difference_ms,
        "threshold_ms": found.threshold_ms,
        "verdict": found.verdict.value,
        "flagged": found.is_flagged,
    }


def _failures(observations: Iterable[Observation]) -> list[dict[str, Any]]:
    """Group what failed by its label, with the first ids of each group."""
    groups: dict[str, list[str]] = {}
    for each in observations:
        if each.outcome in (Outcome.ERROR, Outcome.INCOMPLETE):
            groups.setdefault(each.error or each.outcome.value, []).append(each.request_id)
    return [
        {"label": label, **_listed(ids)}
        for label, ids in sorted(groups.items(), key=lambda group: -len(group[1]))
    ]


def _listed(ids: Sequence[str]) -> dict[str, Any]:
    return {"count": len(ids), "ids": list(ids[:_LISTED_IDS])}


def _sum_known(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _ms(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e6
