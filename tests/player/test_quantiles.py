"""Quantiles and intervals: exact where a table tells, honest where only a simulation does."""

import math
import random
from collections.abc import Callable
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.player.binomial import binomial_quantile, sign_test
from replay.player.statistics import (
    QUANTILES,
    Interval,
    Sample,
    Threshold,
    Verdict,
    judge,
    quantile_difference,
    shift,
)

NUMBERS = st.floats(-1e6, 1e6)


@given(st.integers(1, 60), st.floats(0.01, 0.99), st.floats(1e-9, 1 - 1e-9))
def test_a_binomial_quantile_is_the_smallest_count_that_reaches_it(
    trials: int, share: float, probability: float
) -> None:
    weights = [
        math.comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(trials + 1)
    ]
    found = binomial_quantile(trials, share, probability)
    slack = 1e-9 * probability
    assert math.fsum(weights[: found + 1]) >= probability - slack
    assert math.fsum(weights[:found]) <= probability + slack


def test_a_binomial_quantile_is_right_for_a_million_draws_far_out() -> None:
    deviation = math.sqrt(1_000_000 * 0.99 * 0.01)
    reach = NormalDist().inv_cdf(1 - 1e-5)
    for probability, sign in ((1e-5, -1), (1 - 1e-5, 1)):
        found = binomial_quantile(1_000_000, 0.99, probability)
        assert found == pytest.approx(990_000 + sign * reach * deviation, abs=4)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_certain_draw_has_no_quantile(share: float) -> None:
    with pytest.raises(ValueError, match="strictly between"):
        binomial_quantile(10, share, 0.5)


@pytest.mark.parametrize(
    ("more", "less", "chance"),
    [(0, 0, 1.0), (1, 0, 0.5), (10, 0, 2.0**-10), (0, 10, 1.0), (9, 1, 11 * 2.0**-10)],
)
def test_the_sign_test_is_that_of_a_fair_coin(more: int, less: int, chance: float) -> None:
    assert sign_test(more, less) == pytest.approx(chance)


# ---- quantiles


def shuffled(count: int) -> list[float]:
    """Return 0 .. count - 1 as independent arrivals have them: in no order."""
    values = [float(value) for value in range(count)]
    random.Random(5).shuffle(values)
    return values


@given(st.lists(NUMBERS, min_size=1), st.sampled_from([0.01, *QUANTILES, 1.0]))
def test_a_quantile_has_its_share_at_or_below_it_and_no_smaller_value_has(
    values: list[float], share: float
) -> None:
    found = Sample(values).quantile(share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    assert sum(value < found for value in values) < share * len(values) + 1e-9


def test_no_values_have_no_quantile_and_no_mean() -> None:
    empty = Sample([])
    assert (empty.quantile(0.5), empty.mean, len(empty)) == (None, None, 0)
    assert empty.interval(0.5, 0.05) == Interval(-math.inf, math.inf)
    assert quantile_difference(empty, Sample([1.0]), 0.5, 0.05) is None
    assert shift(empty, 0.05) is None


def test_requests_with_several_values_give_all_of_them() -> None:
    sample = Sample([[3.0, 1.0], [], [2.0]])
    assert list(sample.sorted_values) == [1.0, 2.0, 3.0]


@given(st.lists(NUMBERS, min_size=1, max_size=200), st.sampled_from(QUANTILES))
def test_an_interval_holds_its_quantile_and_grows_with_the_confidence(
    values: list[float], share: float
) -> None:
    sample = Sample(values)
    found = sample.quantile(share)
    narrow, wide = sample.interval(share, 0.05), sample.interval(share, 0.001)
    assert found is not None
    assert wide.low <= narrow.low <= found <= narrow.high <= wide.high


def test_too_few_values_have_no_bound_rather_than_a_wrong_one() -> None:
    sample = Sample(shuffled(100))
    assert sample.interval(0.99, 0.001).high == math.inf
    assert sample.interval(0.5, 0.001).high < 80


# ---- what the intervals promise, by simulation


def misses(draw: Callable[[random.Random], list[float]], share: float, true: float) -> int:
    """Return how many of 300 intervals of 95 % do not hold the true quantile."""
    dice = random.Random(7)
    found = 0
    for _ in range(300):
        interval = Sample(draw(dice)).interval(share, 0.05)
        found += not interval.low <= true <= interval.high
    return found


@pytest.mark.parametrize("share", QUANTILES)
def test_independent_values_are_covered_nineteen_times_in_twenty(share: float) -> None:
    true = -math.log(1 - share)
    assert misses(lambda dice: [dice.expovariate(1) for _ in range(400)], share, true) <= 21


def neighbours(dice: random.Random, count: int, memory: float) -> list[float]:
    value = dice.gauss(0, 1)
    values = []
    for _ in range(count):
        value = memory * value + math.sqrt(1 - memory**2) * dice.gauss(0, 1)
        values.append(value)
    return values


@pytest.mark.parametrize("share", QUANTILES)
def test_values_that_follow_their_neighbours_are_covered_as_well(share: float) -> None:
    """An interval that takes them for independent misses half the time here."""
    true = NormalDist().inv_cdf(share)
    found = misses(lambda dice: neighbours(dice, 600, 0.9), share, true)
    assert found <= 30


def test_gaps_of_one_request_count_as_one_cause() -> None:
    dice = random.Random(3)
    clusters = [[dice.gauss(0, 1)] * 20 for _ in range(200)]
    assert Sample(clusters).design_effect(0.5) == pytest.approx(20, rel=0.5)


def test_an_interval_is_the_bootstraps() -> None:
    """2,000 resamples, taken the slow way, end at the same values but for a few ranks."""
    dice = random.Random(11)
    values = sorted(dice.expovariate(1) for _ in range(400))
    sample = Sample(values)
    sample._effects[0.9] = 1.0
    drawn = sorted(Sample(dice.choices(values, k=400)).quantile(0.9) or 0 for _ in range(2_000))
    interval = sample.interval(0.9, 0.05)
    for end, simulated in ((interval.low, drawn[50]), (interval.high, drawn[1_949])):
        assert abs(values.index(end) - values.index(simulated)) <= 3


# ---- verdicts


#: What does not count.
AROUND = Interval(-3.0, 3.0)


def test_a_difference_has_to_lie_beyond_its_bound_as_a_whole() -> None:
    assert judge(AROUND, Interval(3.1, 9.0)) is Verdict.HIGHER
    assert judge(AROUND, Interval(2.9, 9.0)) is Verdict.NOT_SHOWN
    assert judge(AROUND, Interval(-9.0, -3.1)) is Verdict.LOWER
    assert judge(AROUND, Interval(-math.inf, math.inf)) is Verdict.TOO_FEW


def test_a_difference_has_to_show_against_baseline_and_control() -> None:
    assert judge(AROUND, Interval(5, 6), Interval(4, 7)) is Verdict.HIGHER
    assert judge(AROUND, Interval(5, 6), Interval(1, 7)) is Verdict.NOT_SHOWN
    assert judge(AROUND, Interval(5, 6), Interval(-7, -4)) is Verdict.NOT_SHOWN


def test_what_a_control_might_differ_by_counts_on_its_own_side_only() -> None:
    bounds = Interval(-3.0, 8.0)
    assert judge(bounds, Interval(5, 9)) is Verdict.NOT_SHOWN
    assert judge(bounds, Interval(9, 12)) is Verdict.HIGHER
    assert judge(bounds, Interval(-9, -4)) is Verdict.LOWER
    assert judge(Interval(-3.0, math.inf), Interval(9, 12)) is Verdict.NOT_SHOWN


def test_a_threshold_is_the_larger_of_a_time_and_a_share() -> None:
    threshold = Threshold(absolute_ms=3.0, relative=0.1)
    assert (threshold.at(10), threshold.at(100)) == (3.0, 10.0)


def test_the_difference_of_a_quantile_and_its_interval_have_the_candidates_sign() -> None:
    old = Sample(shuffled(1_000))
    new = Sample([value + 500 for value in shuffled(1_000)])
    found = quantile_difference(old, new, 0.5, 0.001)
    assert found is not None
    difference, interval = found
    assert difference == 500
    assert 300 < interval.low < 500 < interval.high < 700
