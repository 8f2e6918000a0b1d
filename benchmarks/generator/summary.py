"""PURE.  The numbers of a run, and whether they are the server's or only the client's.

The latencies are those of `replay.player.observation`.  Requests that were sent in the warm-up are
left out of everything.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import attrs

from benchmarks.generator.arrivals import SECOND_NS
from benchmarks.generator.run import LoadRun
from replay.player.goodput import Goodput, goodput
from replay.player.latency import METRICS, latencies_ms
from replay.player.observation import Observation, Outcome
from replay.player.statistics import Sample

#: A request that was sent so much after its time counts as late.
LATE_MS = 1.0
#: A client whose schedule is off by more than this share of the first token's time measures itself.
DELAY_SHARE = 0.05
#: The rate was kept if at least this share of it was sent.
KEPT_RATE = 0.99
#: A closed loop on a core that is busy for more than this share of the time is as fast as that.
BUSY_SHARE = 0.9

CLIENT_BOUND = "client-bound"

#: Quantiles that are compared with each other's share: the middle and the tail.
_JUDGED = (0.5, 0.99)


@attrs.frozen(kw_only=True)
class Schedule:
    """How an open loop kept its times."""

    scheduled_rate: float
    """Requests a second of the schedule that was drawn; `--rate` is its mean."""
    achieved_rate: float
    delay: Sample
    """How many milliseconds after its time each request was sent."""
    control: Sample
    """How many milliseconds late a sleeper woke that did nothing else."""
    late: int
    not_sent: int

    @property
    def kept_share(self) -> float:
        """The rate as a share of the schedule's."""
        return self.achieved_rate / self.scheduled_rate


@attrs.frozen(kw_only=True)
class Summary:
    """What a run says."""

    seconds: float
    """From the end of the warm-up until nothing more was sent."""
    sent: int
    complete: int
    statuses: Mapping[str, int]
    """Requests by how they ended: a word for an outcome, a label for a failure."""
    short: int
    """Complete answers of another length than was asked for."""
    request_rate: float
    """Complete answers a second."""
    token_rate: float
    """Tokens a second, of any answer."""
    prompt_tokens: int
    """As the target counts them."""
    latencies: Mapping[str, Sample]
    """Milliseconds by metric, of complete answers."""
    schedule: Schedule | None
    goodput: Goodput | None
    busy: float
    """CPU of the busiest process of the client, for a second of the run."""
    core_busy: float
    """CPU of the busiest core that a process of the client was on, whoever used it."""
    bounds: tuple[str, ...]
    """Why the client, not the server, bounded the run; empty: it did not."""

    @property
    def is_client_bound(self) -> bool:
        """Whether the latencies are the client's as much as the server's."""
        return bool(self.bounds)

    def latency_ms(self, metric: str, share: float) -> float:
        """Return a quantile; NaN without values."""
        value = self.latencies[metric].quantile(share)
        return math.nan if value is None else value


def summarise(run: LoadRun, *, objectives: Mapping[str, float] | None = None) -> Summary:
    """Count *run*; *objectives* are milliseconds by metric, for the goodput."""
    warm_up_ns = round(run.spec.warm_up_s * SECOND_NS)
    measured = [each for each in run.answered if (each.observation.sent_ns or 0) >= warm_up_ns]
    seen = [each.observation for each in measured]
    seconds = _seconds(run, seen)
    complete = [each for each in seen if each.outcome is Outcome.COMPLETE]
    latencies = {
        metric: Sample(latencies_ms(each, metric) for each in complete) for metric in METRICS
    }
    schedule = _schedule(run, seen, warm_up_ns) if run.spec.is_open else None
    busy, core_busy = max(run.busy, default=0.0), max(run.core_busy, default=0.0)
    end_ns = warm_up_ns + seconds * SECOND_NS
    # What ended in this time, whenever it was sent: else the first and the last would be missing.
    ended = [
        each.observation
        for each in run.answered
        if warm_up_ns <= _ended_ns(each.observation) <= end_ns
    ]
    return Summary(
        seconds=seconds,
        sent=len(seen),
        complete=len(complete),
        statuses=dict(Counter(map(_status, seen)).most_common()),
        short=sum(each.is_short for each in measured),
        request_rate=sum(each.outcome is Outcome.COMPLETE for each in ended) / seconds,
        token_rate=sum(each.output_tokens for each in ended) / seconds,
        prompt_tokens=sum(each.prompt_tokens or 0 for each in complete),
        latencies=latencies,
        schedule=schedule,
        goodput=goodput(seen, objectives, seconds=seconds) if objectives else None,
        busy=busy,
        core_busy=core_busy,
        bounds=tuple(_bounds(schedule, latencies["ttft"], busy, core_busy)),
    )


def _ended_ns(seen: Observation) -> int:
    return (seen.sent_ns or 0) + (seen.end_offset_ns or 0)


def _status(seen: Observation) -> str:
    return seen.error or seen.outcome.value


def _seconds(run: LoadRun, seen: Sequence[Observation]) -> float:
    """Return how long requests were sent after the warm-up, to the end of a closed loop's last."""
    spec = run.spec
    if spec.seconds is not None and spec.requests is None:
        return spec.seconds - spec.warm_up_s
    ends = [(each.sent_ns or 0) if spec.is_open else _ended_ns(each) for each in seen]
    return max(1e-9, max(ends, default=0) / SECOND_NS - spec.warm_up_s)


def _schedule(run: LoadRun, seen: Sequence[Observation], warm_up_ns: int) -> Schedule:
    due_ns = [due for due in run.spec.due_ns() if due >= warm_up_ns]
    delays = [(each.schedule_delay_ns or 0) / 1e6 for each in seen]
    control = run.control_ns[-len(due_ns) :] if due_ns else ()
    sent_ns = [each.sent_ns for each in seen if each.sent_ns is not None]
    # N requests are N - 1 gaps.  One that was not sent has widened the gap that it left.
    span_s = max(1, due_ns[-1] - due_ns[0]) / SECOND_NS if due_ns else 1.0
    sent_s = max(1, max(sent_ns) - min(sent_ns)) / SECOND_NS if sent_ns else 1.0
    return Schedule(
        scheduled_rate=max(1, len(due_ns) - 1) / span_s,
        achieved_rate=max(0, len(seen) - 1) / max(sent_s, span_s),
        delay=Sample(delays),
        control=Sample(late / 1e6 for late in control),
        late=sum(delay > LATE_MS for delay in delays),
        not_sent=(run.planned or 0) - len(run.answered),
    )


def _bounds(schedule: Schedule | None, ttft: Sample, busy: float, core_busy: float) -> list[str]:
    found = []
    if schedule is None:
        if core_busy > BUSY_SHARE:
            found.append(
                f"the client's core was busy {core_busy:.0%} of the time, with the client "
                f"{busy:.0%}"
            )
        return found
    if schedule.kept_share < KEPT_RATE:
        found.append(
            f"{schedule.achieved_rate:,.1f} requests a second were sent instead of "
            f"{schedule.scheduled_rate:,.1f}"
        )
    for share in _JUDGED:
        delay, first = schedule.delay.quantile(share), ttft.quantile(share)
        if delay is not None and first is not None and delay > DELAY_SHARE * first:
            found.append(
                f"the schedule delay's p{share * 100:g}, {delay:.2f} ms, is above "
                f"{DELAY_SHARE:.0%} of the first token's, {first:.2f} ms"
            )
    return found
