"""A growing column: what went in comes out, and it takes little more than its numbers."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.taps.column import BLOCK, Column


def fill(column: Column, count: int, step: int) -> None:
    for start in range(0, count, step):
        column.open.extend(range(start, min(start + step, count)))
        if len(column.open) >= BLOCK:
            column.seal()


@given(st.integers(0, 3 * BLOCK), st.integers(1, 2 * BLOCK))
def test_what_went_in_comes_out(count: int, step: int) -> None:
    column = Column("Q")
    fill(column, count, step)
    assert len(column) == count
    assert list(column.numbers()) == list(range(count))


@pytest.mark.parametrize(("typecode", "size"), [("I", 4), ("Q", 8)])
@pytest.mark.parametrize("count", [BLOCK - 1, BLOCK, 10_000, 20_000])
def test_the_numbers_come_out_with_their_type(typecode: str, size: int, count: int) -> None:
    column = Column(typecode)
    fill(column, count, 7)
    numbers = column.numbers()
    assert (numbers.typecode, numbers.itemsize, len(numbers)) == (typecode, size, count)


def test_a_trimmed_column_has_no_reserve() -> None:
    column = Column("I")
    for number in range(1000):
        column.open.append(number)
    empty = sys.getsizeof(Column("I").open)
    assert sys.getsizeof(column.open) > empty + 4000
    column.trim()
    assert sys.getsizeof(column.open) == empty + 4000
    assert list(column.numbers()) == list(range(1000))
