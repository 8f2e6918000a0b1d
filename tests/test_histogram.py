"""A histogram of integers, read the way Prometheus reads one."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.histogram import NanosecondHistogram


def test_a_bound_belongs_to_what_is_at_most_that_long() -> None:
    histogram = NanosecondHistogram([0.001, 0.01])
    for duration_ns in (0, 1_000_000, 1_000_001, 10_000_000, 10_000_001):
        histogram.observe(duration_ns)
    assert list(histogram.cumulated()) == [(0.001, 2), (0.01, 4), (math.inf, 5)]
    assert histogram.count == 5
    assert histogram.sum_ns == 22_000_002


@given(st.lists(st.integers(0, 10**10)))
def test_counts_are_cumulated_and_end_with_all(durations: list[int]) -> None:
    histogram = NanosecondHistogram([0.001, 0.1, 1.0])
    for duration_ns in durations:
        histogram.observe(duration_ns)
    counts = [count for _, count in histogram.cumulated()]
    assert counts == sorted(counts)
    assert counts[-1] == histogram.count == len(durations)
    for bound, count in histogram.cumulated():
        assert count == sum(duration <= bound * 1e9 for duration in durations)
    assert histogram.sum_ns == pytest.approx(sum(durations))
