"""PURE.  Which request may start when: turns wait for each other, a closed loop keeps its number in
flight.

Rules.  Turn n + 1 starts when turn n has ended and its think time has passed; a later turn with a
time of its own starts then, but not before turn n has ended.  A failed turn ends its session (the
turns that are left are abandoned) or not, as asked.  A session that thinks occupies no place of a
closed loop.  Time is an argument: nanoseconds from the start of the run.
"""

import heapq
from collections import deque
from enum import StrEnum
from typing import NamedTuple

import attrs

from replay.player.arrival import Arrival
from replay.player.schedule import Planned, ScheduleError, check_positive, wall_ns


class OnFailure(StrEnum):
    """What a failed turn does to the rest of its session."""

    END = "end"
    CONTINUE = "continue"


class Start(NamedTuple):
    """A request that may start, and the moment from which it may."""

    due_ns: int
    arrival: Arrival


@attrs.define
class _Session:
    waiting: deque[Planned] = attrs.field(factory=deque)
    is_running: bool = False
    has_failed: bool = False
    ended_ns: int = 0


class Sessions:
    """Holds the turns whose time has not come.  Requests without a session pass through."""

    def __init__(
        self,
        *,
        on_failure: OnFailure = OnFailure.END,
        speed: float = 1.0,
        max_gap_ns: int | None = None,
    ) -> None:
        check_positive("speed", speed)
        self._on_failure = on_failure
        self._speed = speed
        self._max_gap_ns = max_gap_ns
        self._sessions: dict[str, _Session] = {}
        self.held = 0
        """Turns that wait for the one before them."""
        self.abandoned: list[Arrival] = []
        """Turns that will not be sent, because one before them failed."""

    def admit(self, planned: Planned) -> Start | None:
        """Take the next request of the source; return it if only its moment has to come."""
        arrival = planned.arrival
        if arrival.session is None:
            return Start(planned.deadline_ns or 0, arrival)
        session = self._sessions.setdefault(arrival.session, _Session())
        if session.has_failed:
            self.abandoned.append(arrival)
            return None
        if session.is_running:
            session.waiting.append(planned)
            self.held += 1
            return None
        return self._start(session, planned)

    def ended(self, arrival: Arrival, now_ns: int, *, failed: bool) -> Start | None:
        """Note that *arrival* has ended; return the turn that may follow."""
        if arrival.session is None:
            return None
        session = self._sessions[arrival.session]
        session.is_running = False
        session.ended_ns = now_ns
        if failed and self._on_failure is OnFailure.END:
            session.has_failed = True
            self.held -= len(session.waiting)
            self.abandoned.extend(planned.arrival for planned in session.waiting)
            session.waiting.clear()
            return None
        if not session.waiting:
            return None
        self.held -= 1
        return self._start(session, session.waiting.popleft())

    def give_up(self) -> list[Arrival]:
        """Return the turns that wait, and wait for them no more."""
        left = [planned.arrival for each in self._sessions.values() for planned in each.waiting]
        for each in self._sessions.values():
            each.waiting.clear()
        self.held = 0
        return left

    def _start(self, session: _Session, planned: Planned) -> Start:
        session.is_running = True
        due_ns = planned.deadline_ns or 0
        if planned.arrival.turn > 0:
            think_ns = planned.arrival.think_ns or 0
            pause_ns = wall_ns(think_ns, speed=self._speed, max_gap_ns=self._max_gap_ns)
            due_ns = max(due_ns, session.ended_ns + pause_ns)
        return Start(due_ns, planned.arrival)


class Dispatcher:
    """Hands requests out in the order of their moments, to at most *concurrency* places.

    Without a *concurrency* there is no bound: nothing that is in flight holds a later arrival up.
    """

    def __init__(self, concurrency: int | None = None) -> None:
        if concurrency is not None and concurrency < 1:
            raise ScheduleError("concurrency: must be at least 1")
        self.concurrency = concurrency
        self.in_flight = 0
        self._due: deque[Start] = deque()
        self._later: list[tuple[int, int, Start]] = []
        self._number = 0

    def offer(self, start: Start) -> None:
        """Add a request that may start at its moment or later."""
        heapq.heappush(self._later, (start.due_ns, self._number, start))
        self._number += 1

    def take(self, now_ns: int) -> Start | None:
        """Return the request whose moment came first, if one has come and a place is free."""
        self._advance(now_ns)
        if not self._due or not self._has_place(self.in_flight):
            return None
        self.in_flight += 1
        return self._due.popleft()

    def release(self) -> None:
        """Free the place of a request that has ended."""
        self.in_flight -= 1

    def lacks_work(self, now_ns: int) -> bool:
        """Whether a place is free that no request here could take now."""
        self._advance(now_ns)
        return self._has_place(self.in_flight + len(self._due))

    @property
    def waiting(self) -> int:
        """Requests that may start, now or later."""
        return len(self._due) + len(self._later)

    def wakes_at_ns(self) -> int | None:
        """Return the moment at which a request can be taken if none ends before; None for never."""
        if not self._has_place(self.in_flight):
            return None
        if self._due:
            return self._due[0].due_ns
        return self._later[0][0] if self._later else None

    def give_up(self) -> list[Arrival]:
        """Return what is waiting, and wait for it no more."""
        left = [*(start for _, _, start in sorted(self._later)), *self._due]
        self._later.clear()
        self._due.clear()
        return [start.arrival for start in left]

    def _has_place(self, taken: int) -> bool:
        return self.concurrency is None or taken < self.concurrency

    def _advance(self, now_ns: int) -> None:
        while self._later and self._later[0][0] <= now_ns:
            self._due.append(heapq.heappop(self._later)[2])
