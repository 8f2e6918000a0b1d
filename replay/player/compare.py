"""PURE.  Compares two runs of the same requests, and says what differs beyond the noise of a third.

Rules.  Answers are compared request by request (`answers`), latencies as distributions
(`statistics`) over the requests that are complete in every run, in the order in which they arrived,
without the first `warm_up` of them.  A request that one run lacks or did not send is missing, never
skipped.

A difference between answers counts as soon as there is one, unless the control (a second run of the
baseline) shows that the baseline does not repeat itself: then the candidate has to differ from the
baseline in significantly more requests than the control does.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs

from replay.player.answers import (
    AnswerDifference,
    PromptDifference,
    Prompts,
    Tokens,
    compare_answers,
    compare_prompts,
)
from replay.player.beat import are_even, beat_ms
from replay.player.binomial import sign_test
from replay.player.goodput import Goodput, goodput
from replay.player.join import Joined, join
from replay.player.latency import latency_ms
from replay.player.latency_comparison import LatencyComparison, Runs, compare_latencies
from replay.player.observation import Observation, Outcome
from replay.player.statistics import Threshold

#: What is too small to matter, unless the operator says otherwise.
DEFAULT_THRESHOLDS: Mapping[str, Threshold] = {
    "ttft": Threshold(absolute_ms=3.0),
    "itl": Threshold(absolute_ms=0.5),
    "tpot": Threshold(absolute_ms=0.5),
    "e2e": Threshold(absolute_ms=5.0),
}


@attrs.frozen(kw_only=True)
class Side:
    """One run."""

    name: str
    observations: Sequence[Observation]
    measured_at: str | None = None
    """Where its latencies were taken: `worker` or `client`."""
    seconds: float | None = None
    """How long requests were sent."""

    @property
    def outcomes(self) -> Counter[str]:
        """How many requests ended how."""
        return Counter(observation.outcome.value for observation in self.observations)


@attrs.frozen(kw_only=True)
class CompareSettings:
    """What counts."""

    warm_up: int = 0
    """How many of the first requests are left out of the latencies."""
    thresholds: Mapping[str, Threshold] = attrs.field(factory=lambda: dict(DEFAULT_THRESHOLDS))
    objectives: Mapping[str, float] = attrs.field(factory=dict)
    """Milliseconds by metric, for the goodput."""
    place_allowance_ms: float = 10.0
    """Added to the thresholds of `ttft` and `e2e` when one side was measured at the worker and the
    other at the client: the way between them is no difference."""


@attrs.frozen(kw_only=True)
class Row:
    """One request in two runs."""

    baseline: Observation
    candidate: Observation
    answer: AnswerDifference
    prompt: PromptDifference

    @property
    def request_id(self) -> str:
        """The baseline's id."""
        return self.baseline.request_id

    @property
    def differs(self) -> bool:
        """Whether anything that could be compared differs, its times apart."""
        return not self.answer.is_equal or self.prompt.prompts is Prompts.DIFFERS

    def change_ms(self, metric: str) -> float | None:
        """Return candidate - baseline, or None if either has none."""
        before = latency_ms(self.baseline, metric)
        after = latency_ms(self.candidate, metric)
        return None if before is None or after is None else after - before


@attrs.frozen(kw_only=True)
class Count:
    """In how many requests answers differ in one way."""

    kind: str
    judged: int
    """Requests that could be compared."""
    differing: int
    is_flagged: bool
    control_judged: int | None = None
    control_differing: int | None = None
    """Requests in which the control differs from the baseline.  None: no control."""


@attrs.frozen(kw_only=True)
class Comparison:
    """What two runs have in common and what not."""

    baseline: Side
    candidate: Side
    control: Side | None
    settings: CompareSettings
    rows: Sequence[Row]
    """In the order in which the requests arrived."""
    missing: Sequence[str]
    """Ids of the baseline's requests that the candidate lacks or did not send."""
    extra: Sequence[str]
    """Ids that only the candidate has."""
    ambiguous: Sequence[str]
    """Names that stood for more requests than could be told apart."""
    counts: Sequence[Count]
    latencies: LatencyComparison
    goodputs: Mapping[str, Goodput]
    """By the role of the side; empty without objectives."""
    warnings: Sequence[str]

    @property
    def sides(self) -> Mapping[str, Side]:
        """The runs, by their role."""
        sides = {"baseline": self.baseline, "candidate": self.candidate}
        return sides if self.control is None else {**sides, "control": self.control}

    @property
    def is_flagged(self) -> bool:
        """Whether anything counts as a difference."""
        return bool(
            self.missing
            or any(count.is_flagged for count in self.counts)
            or any(difference.is_flagged for difference in self.latencies.differences)
        )


def compare(
    baseline: Side,
    candidate: Side,
    *,
    control: Side | None = None,
    settings: CompareSettings | None = None,
) -> Comparison:
    """Compare two runs.  *control* is a second run of the baseline."""
    settings = settings or CompareSettings()
    joined = _join(baseline, candidate)
    rows = sorted(_rows(joined), key=lambda row: row.baseline.position)
    second = None
    if control is not None:
        second = {id(row.baseline): row for row in _rows(_join(baseline, control))}
    roles = ["baseline", "candidate"] if control is None else ["baseline", "candidate", "control"]
    allowance_ms = _beat_ms(baseline, candidate)
    if None not in (places := {baseline.measured_at, candidate.measured_at}) and len(places) > 1:
        allowance_ms += settings.place_allowance_ms
    latencies = compare_latencies(
        list(_complete_runs(rows[settings.warm_up :], second)),
        roles,
        thresholds=settings.thresholds,
        allowances_ms=dict.fromkeys(("ttft", "e2e"), allowance_ms),
        further_tests=len(_KINDS) if second is not None else 0,
    )
    sides = [side for side in (baseline, candidate, control) if side is not None]
    return Comparison(
        baseline=baseline,
        candidate=candidate,
        control=control,
        settings=settings,
        rows=rows,
        missing=[observation.request_id for observation in joined.only_left],
        extra=[observation.request_id for observation in joined.only_right],
        ambiguous=joined.ambiguous,
        counts=[_count(kind, rows, second, latencies.error) for kind in _KINDS],
        latencies=latencies,
        goodputs={
            role: goodput(side.observations, settings.objectives, seconds=side.seconds)
            for role, side in zip(roles, sides, strict=True)
            if settings.objectives
        },
        warnings=list(_warnings(baseline, candidate, joined.ambiguous)),
    )


def _beat_ms(baseline: Side, candidate: Side) -> float:
    """Return how far apart first tokens may be for no other reason than when requests came."""
    if not any(are_even(side.observations) for side in (baseline, candidate)):
        return 0.0
    return max(beat_ms(side.observations) for side in (baseline, candidate))


def _join(left: Side, right: Side) -> Joined[Observation]:
    """Join what was sent in both runs."""
    return join(_sent(left), _sent(right), lambda observation: observation.request_id)


def _sent(side: Side) -> list[Observation]:
    return [each for each in side.observations if each.outcome is not Outcome.NOT_SENT]


def _rows(joined: Joined[Observation]) -> Iterator[Row]:
    for before, after in joined.pairs:
        yield Row(
            baseline=before,
            candidate=after,
            answer=compare_answers(before, after),
            prompt=compare_prompts(before, after),
        )


def _complete_runs(rows: Sequence[Row], second: Mapping[int, Row] | None) -> Iterator[Runs]:
    """Yield the requests that are complete in every run."""
    for row in rows:
        runs: Runs = (row.baseline, row.candidate)
        if second is not None:
            if id(row.baseline) not in second:
                continue
            runs = (*runs, second[id(row.baseline)].candidate)
        if all(run.outcome is Outcome.COMPLETE for run in runs):
            yield runs


def _both_complete(row: Row) -> bool:
    return row.baseline.outcome is row.candidate.outcome is Outcome.COMPLETE


#: Ways in which answers can differ: whether a request can be judged, and whether it differs.
_KINDS: Mapping[str, tuple[Callable[[Row], bool], Callable[[Row], bool]]] = {
    "tokens": (
        lambda row: row.answer.tokens is not Tokens.UNKNOWN,
        lambda row: row.answer.tokens is Tokens.DIFFER,
    ),
    "lengths": (_both_complete, lambda row: row.answer.lengths_differ),
    "finish_reasons": (_both_complete, lambda row: row.answer.finishes_differ),
    "outcomes": (
        lambda row: Outcome.UNKNOWN not in (row.baseline.outcome, row.candidate.outcome),
        lambda row: row.answer.outcomes_differ,
    ),
    "prompts": (
        lambda row: row.prompt.prompts is not Prompts.UNKNOWN,
        lambda row: row.prompt.prompts is Prompts.DIFFERS,
    ),
}


def _count(kind: str, rows: Sequence[Row], second: Mapping[int, Row] | None, error: float) -> Count:
    can_judge, differs = _KINDS[kind]
    judged = [row for row in rows if can_judge(row)]
    differing = sum(map(differs, judged))
    if second is None:
        return Count(kind=kind, judged=len(judged), differing=differing, is_flagged=differing > 0)
    repeated = [row for row in second.values() if can_judge(row)]
    noise = sum(map(differs, repeated))
    only_candidate = only_control = 0
    for row in judged:
        again = second.get(id(row.baseline))
        if again is not None and can_judge(again):
            only_candidate += differs(row) > differs(again)
            only_control += differs(row) < differs(again)
    is_flagged = differing > 0
    if noise:
        is_flagged = sign_test(only_candidate, only_control) <= error
    return Count(
        kind=kind,
        judged=len(judged),
        differing=differing,
        control_judged=len(repeated),
        control_differing=noise,
        is_flagged=is_flagged,
    )


def _warnings(baseline: Side, candidate: Side, ambiguous: Sequence[str]) -> Iterator[str]:
    places = {side.measured_at for side in (baseline, candidate)}
    if None not in places and len(places) > 1:
        yield (
            f"the baseline was measured at the {baseline.measured_at}, the candidate at the "
            f"{candidate.measured_at}: the way between them is part of each latency"
        )
    if beat := _beat_ms(baseline, candidate):
        yield (
            "requests came in even steps, so each run met the engine at one moment of its beat: a "
            f"token's time, {beat:.3g} ms, is allowed for in first tokens and ends; --poisson or "
            "recorded times need no such allowance"
        )
    if ambiguous:
        yield f"{len(ambiguous)} name(s) stand for more requests than could be told apart"
