"""Which sequence numbers are missing (rules 64 and 65)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.consumer import gaps
from replay.consumer.gaps import SequenceRanges


def ranges(*numbers: int) -> SequenceRanges:
    seen = SequenceRanges()
    for number in numbers:
        seen.add(number)
    return seen


def test_reordering_is_no_gap_and_a_late_join_misses_nothing() -> None:
    """Rule 64, with its own numbers."""
    seen = ranges(4, 6, 5, 7)
    assert seen.missing == 0
    seen.add(10)
    assert seen.missing == 2
    assert list(seen.holes()) == [(8, 9)]


def test_a_duplicate_hides_no_hole() -> None:
    seen = ranges(0, 3)
    assert [seen.add(number) for number in (0, 3, 0)] == [False, False, False]
    assert seen.missing == 2
    assert seen.count == 2


def test_nothing_seen_misses_nothing() -> None:
    seen = SequenceRanges()
    assert (seen.missing, seen.first, seen.end, list(seen.holes())) == (0, None, None, [])
    assert seen.missing_between(3, 5) == 3


@given(st.lists(st.integers(0, 60), max_size=120), st.integers(0, 60), st.integers(0, 60))
def test_it_agrees_with_a_set_of_numbers(numbers: list[int], first: int, last: int) -> None:
    seen, known = SequenceRanges(), set[int]()
    for number in numbers:
        assert seen.add(number) == (number not in known)
        known.add(number)
    assert seen.count == len(known)
    assert [number in seen for number in range(62)] == [number in known for number in range(62)]
    if known:
        assert (seen.first, seen.end) == (min(known), max(known) + 1)
        assert seen.missing == max(known) - min(known) + 1 - len(known)
        holes = [n for start, end in seen.holes() for n in range(start, end + 1)]
        assert holes == [n for n in range(min(known), max(known)) if n not in known]
    if first <= last:
        expected = sum(number not in known for number in range(first, last + 1))
        assert seen.missing_between(first, last) == expected


@given(st.permutations(range(0, 40, 2)), st.integers(1, 10))
def test_a_hole_that_is_not_remembered_any_more_stays_missing(
    numbers: list[int], most: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gaps, "MOST_HOLES", most)
        seen = ranges(*numbers)
    # What fell into a closed hole was taken for a duplicate: more is missing, never less.
    assert seen.missing == 39 - seen.count
    assert seen.missing >= 19
    assert len(list(seen.holes())) <= most


def test_a_million_numbers_in_order_are_one_range() -> None:
    seen = ranges(*range(5, 100_005))
    assert (seen.first, seen.end, seen.count, seen.missing) == (5, 100_005, 100_000, 0)
    assert list(seen.holes()) == []
