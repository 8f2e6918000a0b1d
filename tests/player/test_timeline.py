"""Rows on one time line: what is refused, what is only doubted."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.player.arrival import Arrival, LengthPrompt
from replay.player.timeline import doubt_about, look_ahead, place
from replay.player.traces.fault import Notes, TraceError

YEAR_NS = 366 * 86_400 * 10**9


def row(position: int, time_ns: int | None, **other: object) -> Arrival:
    prompt = LengthPrompt(length=1, own=position)
    values = {"request_id": f"r{position}", "prompt": prompt} | other
    return Arrival(position=position, time_ns=time_ns, **values)  # type: ignore[arg-type]


def rows(*times: int | None) -> list[Arrival]:
    return [row(number, time) for number, time in enumerate(times, 1)]


def offsets(*times: int | None, reorder: int = 0) -> list[int | None]:
    return [each.offset_ns for each in place(rows(*times), reorder=reorder)]


def test_the_first_arrival_is_at_zero_and_ties_are_allowed() -> None:
    assert offsets(1_000, 1_000, 1_007) == [0, 0, 7]


def test_one_row_and_no_row_are_time_lines() -> None:
    assert offsets(5) == [0]
    assert offsets() == []


def test_a_source_without_any_time_has_no_offsets() -> None:
    """They are not all at 0: a pace that needs times refuses them."""
    assert offsets(None, None) == [None, None]


@pytest.mark.parametrize(
    ("times", "reason"),
    [
        ((None, 100), "has a time, but line 1 has none"),
        ((100, None), "has no time, but line 1 has one"),
        ((100, 99), "is 1e-06 ms before that of line 1: the source is not sorted"),
        ((0, YEAR_NS + 1), "1.0 years after that of line 1: two units or two clocks"),
        ((1_700_000_000_000_000_000, 5), "is not sorted"),
    ],
)
def test_times_that_cannot_be_meant_are_refused_with_both_lines(
    times: tuple[int | None, ...], reason: str
) -> None:
    with pytest.raises(TraceError) as caught:
        offsets(*times)
    assert caught.value.line == 2
    assert reason.replace("1.0 years", "") in caught.value.reason.replace("366.0 days", "")


def test_a_later_turn_may_have_a_delay_instead_of_a_time() -> None:
    turn = row(2, None, session="a", turn=1, think_ns=5)
    placed = list(place([row(1, 50, session="a"), turn, row(3, 60)]))
    assert [each.offset_ns for each in placed] == [0, None, 10]


def test_a_time_beside_a_delay_does_not_count() -> None:
    turn = row(2, 10, session="a", turn=1, think_ns=5)
    placed = list(place([row(1, 50, session="a"), turn, row(3, 60)]))
    assert [each.offset_ns for each in placed] == [0, None, 10]


def test_rows_that_come_late_are_put_in_their_place_within_the_window() -> None:
    assert offsets(0, 30, 10, 20, 40, reorder=2) == [0, 10, 20, 30, 40]
    with pytest.raises(TraceError, match="not sorted"):
        offsets(0, 30, 40, 50, 10, reorder=2)


@given(st.lists(st.integers(0, 10**12)))
def test_a_window_as_large_as_the_source_sorts_any_source(times: list[int]) -> None:
    first = min(times, default=0)
    assert offsets(*times, reorder=len(times)) == [time - first for time in sorted(times)]


@pytest.mark.parametrize(
    ("rows", "span_ns", "reason"),
    [
        (1_000, 330_000_000_000, None),
        (1_000, 330_000_000, "3,030 a second: are the times really in ms"),
        (1_000, 330_000_000_000_000, "less than one a minute: are the times really in ms"),
        (100, 0, "all at one moment"),
        (99, 1, None),
    ],
)
def test_a_span_that_is_unlikely_is_a_warning_that_names_the_unit(
    rows: int, span_ns: int, reason: str | None
) -> None:
    doubt = doubt_about(rows, span_ns, "ms")
    assert (doubt is None) if reason is None else reason in (doubt or "")


def test_a_source_is_judged_by_its_head_and_still_read_whole() -> None:
    notes = Notes()
    placed = place(rows(*range(0, 3_000_000, 1_000)))
    preview, everything = look_ahead(placed, notes, unit="ms")
    assert (preview.rows, preview.is_whole, preview.has_times) == (1_000, False, True)
    assert [each.position for each in everything] == [*range(1, 3_001)]
    assert "are the times really in ms" in notes.warnings[0]


def test_a_source_without_a_request_is_refused() -> None:
    with pytest.raises(TraceError, match="has no request"):
        look_ahead(iter(()), Notes(), unit="ms")


def test_placing_changes_nothing_but_the_offset() -> None:
    [placed] = place(rows(5))
    assert attrs.evolve(placed, offset_ns=None) == rows(5)[0]
