"""Order among the messages of one publisher while gaps are being filled."""

from hypothesis import given
from hypothesis import strategies as st

from replay.plane.ordering import Orderer


def orderer(
    expected: int = 0, *, most_held: int = 100, most_held_bytes: int = 10**6
) -> Orderer[int]:
    return Orderer(expected, most_held=most_held, most_held_bytes=most_held_bytes)


def test_what_is_behind_a_gap_waits_until_it_is_filled() -> None:
    order = orderer(4)
    assert order.push(4, 4, 1) == [4]
    assert order.push(7, 7, 1) == []
    assert order.push(8, 8, 1) == []
    assert order.gap == (5, 6)
    assert order.push(6, 6, 1) == []
    assert order.gap == (5, 5)
    assert order.push(5, 5, 1) == [5, 6, 7, 8]
    assert order.gap is None


def test_what_is_behind_a_gap_comes_out_when_the_gap_is_given_up() -> None:
    order = orderer(0)
    assert order.push(3, 3, 1) == order.push(1, 1, 1) == order.push(6, 6, 1) == []
    assert order.give_up(2) == [1, 3]
    assert order.gap == (4, 5)
    assert order.give_up(9) == [6]
    assert order.push(10, 10, 1) == [10]


def test_at_the_end_nothing_is_held_back() -> None:
    order = orderer(0)
    assert order.give_up_all() == []
    for number in (3, 1, 6):
        order.push(number, number, 1)
    assert order.give_up_all() == [1, 3, 6]
    assert order.give_up_all() == []


def test_a_late_one_comes_out_at_once() -> None:
    order = orderer(5)
    assert order.push(2, 2, 1) == [2]
    assert order.give_up(7) == []
    assert order.push(6, 6, 1) == [6]
    assert order.push(8, 8, 1) == [8]


def test_a_gap_is_given_up_when_too_many_or_too_large_ones_wait_behind_it() -> None:
    order = orderer(0, most_held=2)
    assert order.push(5, 5, 1) == order.push(6, 6, 1) == []
    assert order.push(9, 9, 1) == [5, 6]
    assert order.gap == (7, 8)
    heavy = orderer(0, most_held_bytes=10)
    assert heavy.push(1, 1, 10) == []
    assert heavy.push(2, 2, 1) == [1, 2]
    assert heavy.push(4, 4, 10) == []  # what has left weighs no more


@given(st.permutations(range(12)), st.integers(1, 12))
def test_each_comes_out_once_and_in_order_if_none_is_given_up(
    numbers: list[int], most_held: int
) -> None:
    order = orderer(most_held=most_held)
    out = [item for number in numbers for item in order.push(number, number, 1)]
    assert sorted(out) == list(range(12))
    if most_held == 12:
        assert out == sorted(out)
