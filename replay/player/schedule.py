"""PURE.  When each request is due, in nanoseconds from the start of a run.

Every deadline is computed from the start, never from the deadline before plus a pause, so no error
adds up.  Deadlines do not go down.  A request that is due by the end of another (a later turn with
a think time) has none.
"""

import math
import random
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import attrs

from replay.errors import ReplayError
from replay.player.arrival import Arrival
from replay.player.timeline import follows_its_session

_SECOND_NS = 1_000_000_000


class ScheduleError(ReplayError):
    """The requests cannot be paced as asked."""


class Planned(NamedTuple):
    """A request and when it is due."""

    arrival: Arrival
    deadline_ns: int | None
    """From the start of the run.

    None: when the turn before has ended and its think time has passed.
    """


@attrs.frozen(kw_only=True)
class Window:
    """The part of a source that is played, by the source's own time."""

    start_ns: int = 0
    end_ns: int | None = None
    """The first moment that is left out."""
    limit: int | None = None
    """At most this many requests."""

    def __attrs_post_init__(self) -> None:
        if self.start_ns < 0:
            raise ScheduleError("start: must be at least 0")
        if self.end_ns is not None and self.end_ns <= self.start_ns:
            raise ScheduleError("end: must lie after the start")
        if self.limit is not None and self.limit < 1:
            raise ScheduleError("limit: must be at least 1")

    @property
    def needs_times(self) -> bool:
        """Whether it cuts by time."""
        return self.start_ns > 0 or self.end_ns is not None


def select(arrivals: Iterable[Arrival], window: Window) -> Iterator[Arrival]:
    """Keep what lies in *window*, with offsets that count from its start.

    A session belongs to the window if its first turn does: later turns are not played without it,
    but they are played to their end.
    """
    kept: set[str] = set()
    count = 0
    for arrival in arrivals:
        offset_ns = arrival.offset_ns
        if window.needs_times and offset_ns is None and not follows_its_session(arrival):
            raise ScheduleError(f"line {arrival.position} has no time to select it by")
        if arrival.session is not None and arrival.turn > 0:
            if arrival.session not in kept:
                continue
        elif offset_ns is not None:
            if window.end_ns is not None and offset_ns >= window.end_ns:
                # Sorted, so only later turns can still belong to the window.
                if not kept:
                    return
                continue
            if offset_ns < window.start_ns:
                continue
        if arrival.session is not None:
            kept.add(arrival.session)
        if offset_ns is not None and window.start_ns:
            arrival = attrs.evolve(arrival, offset_ns=offset_ns - window.start_ns)
        yield arrival
        count += 1
        if count == window.limit:
            return


def original(
    arrivals: Iterable[Arrival], *, speed: float = 1.0, max_gap_ns: int | None = None
) -> Iterator[Planned]:
    """Plan the source's own times, *speed* times as fast.

    No two neighbours are more than *max_gap_ns* apart; that is wall time, after the speed has been
    applied.  Raises ScheduleError for a row that has no time.
    """
    check_positive("speed", speed)
    if max_gap_ns is not None and max_gap_ns < 0:
        raise ScheduleError("max gap: must be at least 0")
    cut_ns = 0
    last_ns = 0
    for arrival in arrivals:
        if follows_its_session(arrival):
            yield Planned(arrival, None)
            continue
        if arrival.offset_ns is None:
            raise ScheduleError(
                f"line {arrival.position} has no time of its own: give a rate or a concurrency"
            )
        due_ns = round(arrival.offset_ns / speed) - cut_ns
        if max_gap_ns is not None and due_ns - last_ns > max_gap_ns:
            cut_ns += due_ns - last_ns - max_gap_ns
            due_ns = last_ns + max_gap_ns
        last_ns = max(due_ns, last_ns)
        yield Planned(arrival, last_ns)


def constant(arrivals: Iterable[Arrival], *, rate: float) -> Iterator[Planned]:
    """Plan *rate* requests a second, evenly."""
    check_positive("rate", rate)
    number = 0
    for arrival in arrivals:
        if follows_its_session(arrival):
            yield Planned(arrival, None)
            continue
        yield Planned(arrival, round(number * _SECOND_NS / rate))
        number += 1


def poisson(arrivals: Iterable[Arrival], *, rate: float, seed: int = 0) -> Iterator[Planned]:
    """Plan *rate* requests a second on average, independent of each other.

    The same *seed* plans the same times.
    """
    check_positive("rate", rate)
    gaps = random.Random(seed)
    due_seconds = 0.0
    for arrival in arrivals:
        if follows_its_session(arrival):
            yield Planned(arrival, None)
            continue
        yield Planned(arrival, round(due_seconds * _SECOND_NS))
        due_seconds += gaps.expovariate(rate)


def unpaced(arrivals: Iterable[Arrival]) -> Iterator[Planned]:
    """Plan nothing: a closed loop sends the next request when one has ended."""
    for arrival in arrivals:
        yield Planned(arrival, None if follows_its_session(arrival) else 0)


def wall_ns(span_ns: int, *, speed: float = 1.0, max_gap_ns: int | None = None) -> int:
    """Return how long a recorded pause lasts in a run."""
    wall = round(span_ns / speed)
    return wall if max_gap_ns is None else min(wall, max_gap_ns)


def check_positive(name: str, value: float) -> None:
    """Raise ScheduleError unless *value* is finite and above 0."""
    if not (math.isfinite(value) and value > 0):
        raise ScheduleError(f"{name}: must be a finite number above 0")
