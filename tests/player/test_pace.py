"""When requests are due."""

import itertools
import math
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.player.arrival import Arrival
from replay.player.schedule import (
    Planned,
    ScheduleError,
    Window,
    constant,
    original,
    poisson,
    select,
    unpaced,
    wall_ns,
)

OFFSETS = st.lists(st.integers(0, 10**15)).map(sorted)
SECOND = 1_000_000_000


def arrivals(offsets: Iterable[int | None]) -> list[Arrival]:
    return [
        Arrival(position=number, request_id=f"r{number}", offset_ns=offset)
        for number, offset in enumerate(offsets, 1)
    ]


def due(planned: Iterable[Planned]) -> list[int]:
    return [each.deadline_ns for each in planned if each.deadline_ns is not None]


def later_turn(position: int) -> Arrival:
    return Arrival(position=position, request_id="t", session="s", turn=1, think_ns=5)


@given(OFFSETS, st.floats(0.001, 1_000), st.none() | st.integers(0, 10**12))
def test_deadlines_do_not_go_down_and_no_request_is_lost(
    offsets: list[int], speed: float, max_gap_ns: int | None
) -> None:
    planned = due(original(arrivals(offsets), speed=speed, max_gap_ns=max_gap_ns))
    assert len(planned) == len(offsets)
    assert planned == sorted(planned)


@given(OFFSETS)
def test_the_original_pace_is_exact(offsets: list[int]) -> None:
    assert due(original(arrivals(offsets))) == offsets


@given(OFFSETS, st.floats(0.01, 100))
def test_a_speed_divides_each_offset_so_that_no_error_adds_up(
    offsets: list[int], speed: float
) -> None:
    for planned, offset in zip(due(original(arrivals(offsets), speed=speed)), offsets, strict=True):
        assert planned == round(offset / speed)


@given(OFFSETS, st.floats(0.1, 100), st.integers(1, 10**12))
def test_a_gap_is_capped_in_wall_time_after_the_speed(
    offsets: list[int], speed: float, max_gap_ns: int
) -> None:
    plain = [0, *due(original(arrivals(offsets), speed=speed))]
    capped = [0, *due(original(arrivals(offsets), speed=speed, max_gap_ns=max_gap_ns))]
    gaps = [after - before for before, after in itertools.pairwise(plain)]
    capped_gaps = [after - before for before, after in itertools.pairwise(capped)]
    assert capped_gaps == [min(gap, max_gap_ns) for gap in gaps]


def test_ten_times_the_speed_with_a_cap_of_a_minute_waits_a_minute() -> None:
    """An hour without traffic is six minutes at that speed, and one with the cap."""
    offsets = [0, 3_600 * SECOND, 3_601 * SECOND]
    planned = due(original(arrivals(offsets), speed=10, max_gap_ns=60 * SECOND))
    assert planned == [0, 60 * SECOND, 60 * SECOND + SECOND // 10]


def test_a_row_without_a_time_is_refused_rather_than_sent_at_once() -> None:
    with pytest.raises(ScheduleError, match="line 1 has no time of its own"):
        due(original(arrivals([None])))


def test_a_constant_rate_does_not_drift() -> None:
    planned = due(constant(arrivals([None] * 10_001), rate=3.0))
    assert planned[:3] == [0, 333_333_333, 666_666_667]
    assert planned[-1] == round(10_000 * SECOND / 3)


def test_poisson_arrivals_have_the_rate_and_the_spread_and_repeat_with_the_seed() -> None:
    planned = due(poisson(arrivals([None] * 20_000), rate=100.0, seed=3))
    assert planned == due(poisson(arrivals([None] * 20_000), rate=100.0, seed=3))
    assert planned != due(poisson(arrivals([None] * 20_000), rate=100.0, seed=4))
    gaps = [after - before for before, after in itertools.pairwise(planned)]
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert mean == pytest.approx(SECOND / 100, rel=0.03)
    assert deviation == pytest.approx(mean, rel=0.05)


def test_a_turn_that_follows_on_another_takes_no_place_in_any_pace() -> None:
    rows = [*arrivals([0]), later_turn(2), *arrivals([10])]
    for planned in (
        original(rows),
        constant(rows, rate=1.0),
        poisson(rows, rate=1.0),
        unpaced(rows),
    ):
        found = list(planned)
        assert found[0].deadline_ns == 0
        assert found[1].deadline_ns is None
        assert found[2].deadline_ns is not None
    assert due(constant(rows, rate=1.0)) == [0, SECOND]


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_pace_is_a_finite_number_above_zero(value: float) -> None:
    for plan in (
        original([], speed=value),
        constant([], rate=value),
        poisson([], rate=value),
    ):
        with pytest.raises(ScheduleError, match="finite number above 0"):
            list(plan)
    with pytest.raises(ScheduleError, match="max gap"):
        list(original([], max_gap_ns=-1))


# ---- windows


def test_a_window_is_cut_by_the_sources_time_and_begins_at_zero() -> None:
    chosen = select(arrivals([0, 5, 7, 9, 12]), Window(start_ns=5, end_ns=12))
    assert [(each.position, each.offset_ns) for each in chosen] == [(2, 0), (3, 2), (4, 4)]


def test_a_limit_counts_requests_and_reads_no_further() -> None:
    source = iter(arrivals([0, 1, 2, 3]))
    assert len(list(select(source, Window(limit=2)))) == 2
    assert next(source).position == 3


def test_a_session_is_in_the_window_if_its_first_turn_is() -> None:
    inside = Arrival(position=1, request_id="a", offset_ns=5, session="in")
    outside = Arrival(position=2, request_id="b", offset_ns=20, session="out")
    turns = [
        Arrival(position=3, request_id="c", session="in", turn=1, think_ns=1),
        Arrival(position=4, request_id="d", session="out", turn=1, think_ns=1),
    ]
    chosen = select([inside, outside, *turns], Window(end_ns=10))
    assert [each.request_id for each in chosen] == ["a", "c"]


def test_a_window_of_a_source_without_times_is_refused() -> None:
    with pytest.raises(ScheduleError, match="line 1 has no time to select it by"):
        list(select(arrivals([None]), Window(start_ns=1)))


@pytest.mark.parametrize("values", [{"start_ns": -1}, {"start_ns": 5, "end_ns": 5}, {"limit": 0}])
def test_a_window_without_room_is_refused(values: dict[str, int]) -> None:
    with pytest.raises(ScheduleError):
        Window(**values)


def test_a_pause_is_scaled_and_capped_like_a_gap() -> None:
    assert wall_ns(100, speed=4.0) == 25
    assert wall_ns(100, speed=4.0, max_gap_ns=10) == 10
