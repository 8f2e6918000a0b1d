import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.engines.pass_grid import (
    MAX_LATENESS_SECONDS,
    MIN_PERIOD_SECONDS,
    PacedStream,
    PassGrid,
)


def take(grid: PassGrid[PacedStream], now: float) -> dict[PacedStream, int]:
    return {stream: count for streams, count in grid.take_due(now) for stream in streams}


def test_an_empty_grid_has_no_next_pass() -> None:
    assert PassGrid[PacedStream](0.005, 0.0).next_pass() == math.inf


def test_streams_that_come_within_a_period_share_a_pass() -> None:
    grid, first, second = PassGrid[PacedStream](0.005, 0.0), PacedStream(), PacedStream()
    grid.enter(first, 0.0061)
    grid.enter(second, 0.0099)
    assert grid.next_pass() == pytest.approx(0.010)
    assert take(grid, 0.00999) == {}
    assert take(grid, 0.010) == {first: 1, second: 1}
    assert grid.next_pass() == pytest.approx(0.015)


def test_a_late_pass_hands_out_what_was_missed_and_keeps_the_grid() -> None:
    grid, stream = PassGrid[PacedStream](0.005, 0.0), PacedStream()
    grid.enter(stream, 0.0)
    assert take(grid, 0.0) == {stream: 1}
    assert take(grid, 0.0234) == {stream: 4}
    assert grid.next_pass() == pytest.approx(0.025)


def test_a_long_pause_between_tokens_does_not_make_a_stream_late() -> None:
    grid, stream = PassGrid[PacedStream](1.0, 0.0), PacedStream()
    grid.enter(stream, 0.0123)
    assert grid.next_pass() == pytest.approx(0.015)
    assert take(grid, 0.015) == {stream: 1}
    assert grid.next_pass() == pytest.approx(1.015)


def test_a_tiny_pause_makes_passes_with_several_tokens() -> None:
    grid, stream = PassGrid[PacedStream](0.0001, 0.0), PacedStream()
    grid.enter(stream, 0.0)
    assert take(grid, 0.0) == {stream: 10}
    assert grid.next_pass() == pytest.approx(MIN_PERIOD_SECONDS)


def test_a_stream_that_left_is_not_due() -> None:
    grid, stream, other = PassGrid[PacedStream](0.005, 0.0), PacedStream(), PacedStream()
    grid.enter(stream, 0.0)
    grid.enter(other, 0.0)
    grid.leave(stream)
    grid.leave(stream)
    assert take(grid, 0.0) == {other: 1}
    grid.leave(other)
    assert take(grid, 1.0) == {}
    assert grid.next_pass() == math.inf


def test_streams_of_a_late_pass_join_those_that_are_on_time() -> None:
    grid, late, new = PassGrid[PacedStream](0.010, 0.0), PacedStream(), PacedStream()
    grid.enter(late, 0.0)
    grid.enter(new, 0.030)
    assert take(grid, 0.021) == {late: 3}
    assert take(grid, 0.030) == {late: 1, new: 1}
    grid.leave(late)
    assert take(grid, 0.040) == {new: 1}


@given(
    token_ms=st.floats(0.05, 100),
    entries=st.lists(st.floats(0, 1), min_size=1, max_size=8),
    wakes=st.lists(st.floats(0, 0.2), min_size=1, max_size=40),
)
def test_each_stream_has_what_is_due_and_never_more_than_a_pass_early(
    token_ms: float, entries: list[float], wakes: list[float]
) -> None:
    token_seconds = token_ms / 1000
    grid: PassGrid[PacedStream] = PassGrid(token_seconds, 0.0)
    due_of = {PacedStream(): due for due in entries}
    for stream, due in due_of.items():
        grid.enter(stream, due)
    had = dict.fromkeys(due_of, 0)
    now = 0.0
    for pause in wakes:
        now = max(now + pause, grid.next_pass())
        for stream, count in take(grid, now).items():
            assert count > 0
            had[stream] += count
    per_pass = max(1, math.ceil(MIN_PERIOD_SECONDS / token_seconds))
    for stream, due in due_of.items():
        exact = (now - due) / token_seconds
        assert had[stream] <= max(0, math.floor(exact + 1e-3) + per_pass)
        late = max(MAX_LATENESS_SECONDS, token_seconds * per_pass) / token_seconds
        assert had[stream] >= exact - late - 1e-3
