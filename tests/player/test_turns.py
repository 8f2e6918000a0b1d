"""Turns that wait for each other, and a closed loop that keeps its number in flight."""

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.player.arrival import Arrival
from replay.player.schedule import Planned, ScheduleError
from replay.player.sessions import Dispatcher, OnFailure, Sessions, Start


def turn(number: int, *, session: str | None = "s", think_ns: int | None = 100) -> Arrival:
    return Arrival(
        position=number + 1,
        request_id=f"{session}-{number}",
        session=session,
        turn=number,
        think_ns=think_ns if number else None,
    )


def test_a_request_without_a_session_passes() -> None:
    sessions = Sessions()
    alone = turn(0, session=None)
    assert sessions.admit(Planned(alone, 7)) == Start(7, alone)
    assert sessions.ended(alone, 9, failed=True) is None


def test_a_turn_starts_after_the_end_of_the_one_before_and_its_think_time() -> None:
    sessions = Sessions()
    assert sessions.admit(Planned(turn(0), 5)) == Start(5, turn(0))
    assert sessions.admit(Planned(turn(1), None)) is None
    assert sessions.admit(Planned(turn(2), None)) is None
    assert sessions.held == 2
    assert sessions.ended(turn(0), 1_000, failed=False) == Start(1_100, turn(1))
    assert sessions.ended(turn(1), 3_000, failed=False) == Start(3_100, turn(2))
    assert sessions.ended(turn(2), 4_000, failed=False) is None
    assert sessions.held == 0


def test_a_turn_that_is_read_late_still_starts_by_the_end_of_the_one_before() -> None:
    sessions = Sessions()
    sessions.admit(Planned(turn(0), 5))
    sessions.ended(turn(0), 1_000, failed=False)
    assert sessions.admit(Planned(turn(1), None)) == Start(1_100, turn(1))


def test_a_turn_with_a_time_of_its_own_keeps_it_unless_the_one_before_runs_on() -> None:
    for ended_ns, due_ns in ((50, 300), (900, 900)):
        sessions = Sessions()
        sessions.admit(Planned(turn(0), 0))
        sessions.admit(Planned(turn(1, think_ns=None), 300))
        start = sessions.ended(turn(0), ended_ns, failed=False)
        assert start is not None
        assert start.due_ns == due_ns


def test_a_think_time_is_scaled_and_capped() -> None:
    sessions = Sessions(speed=10.0, max_gap_ns=5)
    sessions.admit(Planned(turn(0), 0))
    sessions.admit(Planned(turn(1), None))
    start = sessions.ended(turn(0), 1_000, failed=False)
    assert start is not None
    assert start.due_ns == 1_005


def test_a_failed_turn_ends_its_session_and_no_other() -> None:
    sessions = Sessions(on_failure=OnFailure.END)
    for name in ("a", "b"):
        sessions.admit(Planned(turn(0, session=name), 0))
        sessions.admit(Planned(turn(1, session=name), None))
    assert sessions.ended(turn(0, session="a"), 10, failed=True) is None
    assert sessions.admit(Planned(turn(2, session="a"), None)) is None
    assert [each.request_id for each in sessions.abandoned] == ["a-1", "a-2"]
    assert sessions.held == 1
    assert sessions.ended(turn(0, session="b"), 10, failed=False) is not None


def test_a_failed_turn_may_be_followed_by_the_next() -> None:
    sessions = Sessions(on_failure=OnFailure.CONTINUE)
    sessions.admit(Planned(turn(0), 0))
    sessions.admit(Planned(turn(1), None))
    assert sessions.ended(turn(0), 10, failed=True) == Start(110, turn(1))
    assert sessions.abandoned == []


def test_a_closed_loop_hands_out_what_came_first_and_no_more_than_its_number() -> None:
    loop = Dispatcher(2)
    starts = [Start(due, turn(0, session=str(due))) for due in (30, 10, 20)]
    for start in starts:
        loop.offer(start)
    assert loop.take(5) is None
    assert loop.wakes_at_ns() == 10
    assert loop.lacks_work(5)
    assert loop.take(40) == starts[1]
    assert loop.take(40) == starts[2]
    assert loop.take(40) is None
    assert not loop.lacks_work(40)
    loop.release()
    assert loop.take(40) == starts[0]
    assert (loop.waiting, loop.wakes_at_ns()) == (0, None)


def test_without_a_bound_nothing_in_flight_holds_a_later_arrival_up() -> None:
    loop = Dispatcher()
    for number in range(5_000):
        loop.offer(Start(number, turn(0, session=str(number))))
    assert loop.lacks_work(0)
    taken = [loop.take(4_999) for _ in range(5_000)]
    assert None not in taken
    assert loop.in_flight == 5_000


def test_what_waits_can_be_given_up() -> None:
    loop, sessions = Dispatcher(1), Sessions()
    for due in (5, 1):
        loop.offer(Start(due, turn(0, session=str(due))))
    loop.take(1)
    assert [each.session for each in loop.give_up()] == ["5"]
    assert loop.waiting == 0
    sessions.admit(Planned(turn(0), 0))
    sessions.admit(Planned(turn(1), None))
    assert [each.turn for each in sessions.give_up()] == [1]
    assert sessions.held == 0


def test_a_closed_loop_needs_a_place() -> None:
    with pytest.raises(ScheduleError, match="at least 1"):
        Dispatcher(0)


@given(
    sessions=st.integers(1, 12),
    turns=st.integers(1, 6),
    concurrency=st.integers(1, 8),
    think_ns=st.integers(0, 50),
    service_ns=st.integers(1, 50),
)
def test_sessions_that_think_do_not_starve_a_closed_loop(
    sessions: int, turns: int, concurrency: int, think_ns: int, service_ns: int
) -> None:
    """All is sent, turns stay in order, and no place stays free that a request could take."""
    source = iter(
        Planned(turn(number, session=str(name), think_ns=think_ns), None if number else 0)
        for name in range(sessions)
        for number in range(turns)
    )
    ledger, loop = Sessions(), Dispatcher(concurrency)
    running: list[tuple[int, int, Arrival]] = []
    ended: dict[str, int] = {}
    sent: list[Arrival] = []
    now, exhausted = 0, False
    while True:
        while not exhausted and loop.lacks_work(now):
            planned = next(source, None)
            if planned is None:
                exhausted = True
            elif (start := ledger.admit(planned)) is not None:
                loop.offer(start)
        while (taken := loop.take(now)) is not None:
            arrival = taken.arrival
            assert arrival.session is not None
            if arrival.turn:
                assert now >= ended[arrival.session] + think_ns
            sent.append(arrival)
            heapq.heappush(running, (now + service_ns, len(sent), arrival))
        assert loop.in_flight == len(running) <= concurrency
        if len(running) < concurrency:
            assert exhausted
            wakes_at = loop.wakes_at_ns()
            assert wakes_at is None or wakes_at > now
        moments = [running[0][0]] if running else []
        if (wakes_at := loop.wakes_at_ns()) is not None:
            moments.append(wakes_at)
        if not moments:
            break
        now = min(moments)
        while running and running[0][0] <= now:
            arrival = heapq.heappop(running)[2]
            assert arrival.session is not None
            ended[arrival.session] = now
            loop.release()
            if (start := ledger.ended(arrival, now, failed=False)) is not None:
                loop.offer(start)
    assert len(sent) == sessions * turns
    for name in range(sessions):
        own = [each.turn for each in sent if each.session == str(name)]
        assert own == [*range(turns)]
