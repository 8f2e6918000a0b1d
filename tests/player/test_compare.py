"""Whole comparisons: what counts as a difference and what is noise."""

import random
import time
from collections.abc import Callable

import attrs
import pytest
from runs import noisy_run, observation

from replay.player.compare import CompareSettings, Comparison, Side, compare
from replay.player.fail_on import Measure
from replay.player.numbers import numbers_of
from replay.player.observation import Observation, Outcome
from replay.player.statistics import Difference


def side(*observations: Observation, measured_at: str | None = None) -> Side:
    placed = [attrs.evolve(each, position=at) for at, each in enumerate(observations)]
    return Side(name="run", observations=placed, measured_at=measured_at)


def flags(comparison: Comparison) -> set[str]:
    found = {count.kind for count in comparison.counts if count.is_flagged}
    return found | {
        f"{each.metric} {each.statistic}"
        for each in comparison.latencies.differences
        if each.is_flagged
    }


def test_a_run_differs_from_itself_in_nothing() -> None:
    run = noisy_run(1, 200)
    comparison = compare(run, run)
    assert not comparison.is_flagged
    assert all(each.difference_ms == 0 for each in comparison.latencies.differences)


def test_twenty_runs_of_one_engine_with_a_control_flag_nothing() -> None:
    """Twenty at a chance of one in a thousand each: one alarm in fifty such tests at most."""
    for trial in range(20):
        runs = [noisy_run(3 * trial + number, 300) for number in (1, 2, 3)]
        assert flags(compare(runs[0], runs[1], control=runs[2])) == set()


def test_what_one_control_might_have_differed_by_is_noise_too() -> None:
    """The gaps vary by more in the candidate, as beside other work: one control is one draw."""

    def spread(seed: int, gap_ms: float) -> Side:
        noise = random.Random(seed)
        return Side(
            name=str(seed),
            observations=[
                observation(
                    f"r{at}",
                    position=at,
                    ids=range(8),
                    gap_ms=6 + abs(noise.gauss(0, gap_ms)),
                )
                for at in range(200)
            ],
        )

    def found(gap_ms: float) -> Difference:
        comparison = compare(spread(14, 1.5), spread(54, gap_ms), control=spread(94, 1.5))
        [difference] = [
            each
            for each in comparison.latencies.differences
            if (each.metric, each.statistic) == ("itl", "p90")
        ]
        return difference

    little, much = found(3.0), found(7.5)
    # The control's own difference is below the threshold, its interval reaches further.
    assert abs(little.control_difference_ms or 0) < 0.5
    assert 0.5 < little.interval_ms.low < little.threshold_ms
    assert (little.is_flagged, much.is_flagged) == (False, True)


@pytest.mark.parametrize("slower_ms", [20.0, -20.0])
def test_twenty_milliseconds_at_the_first_token_are_flagged_and_tokens_stay_equal(
    slower_ms: float,
) -> None:
    for trial in range(5):
        runs = [noisy_run(10 * trial + number, 300) for number in (1, 2)]
        moved = noisy_run(10 * trial + 3, 300, slower_ms=slower_ms)
        found = flags(compare(runs[0], moved, control=runs[1]))
        assert {"ttft shift", "e2e shift"} <= found
        assert not any(name.startswith(("tpot", "itl", "tokens")) for name in found)


def test_a_large_difference_is_shown_by_few_requests() -> None:
    found = flags(compare(noisy_run(1, 30), noisy_run(2, 30, slower_ms=20)))
    assert "ttft shift" in found


def test_another_seed_differs_in_each_request_at_its_first_token() -> None:
    comparison = compare(noisy_run(1, 50), noisy_run(2, 50, token_seed=1), control=noisy_run(3, 50))
    assert flags(comparison) == {"tokens"}
    assert all(row.answer.first_index == 0 for row in comparison.rows)
    assert comparison.counts[0].differing == 50


def test_one_differing_request_counts_if_the_baseline_repeats_itself() -> None:
    run = side(*(observation(f"r{at}") for at in range(100)))
    other = side(observation("r0", ids=(9,) * 3), *run.observations[1:])
    assert flags(compare(run, other)) == {"tokens"}
    assert flags(compare(run, other, control=run)) == {"tokens"}


def sampled(run: Side, differs: Callable[[int], bool]) -> Side:
    return side(
        *(
            observation(each.request_id, ids=(9, 9, 9) if differs(at) else (1, 2, 3))
            for at, each in enumerate(run.observations)
        )
    )


def test_an_engine_that_does_not_repeat_itself_is_held_against_its_own_noise() -> None:
    run = side(*(observation(f"r{at}") for at in range(400)))
    control = sampled(run, lambda at: at % 10 == 0)
    as_noisy = sampled(run, lambda at: at % 10 == 5)
    assert flags(compare(run, as_noisy, control=control)) == set()
    noisier = sampled(run, lambda at: at % 3 == 0)
    assert flags(compare(run, noisier, control=control)) == {"tokens"}


def test_what_the_candidate_lacks_or_did_not_send_is_missing_and_counts() -> None:
    run = side(observation("a"), observation("b"), observation("c"))
    other = side(observation("a"), observation("b", outcome=Outcome.NOT_SENT), observation("x"))
    comparison = compare(run, other)
    assert sorted(comparison.missing) == ["b", "c"]
    assert list(comparison.extra) == ["x"]
    assert comparison.is_flagged


def test_latencies_are_those_of_requests_that_are_complete_in_every_run() -> None:
    run = side(*(observation(f"r{at}") for at in range(10)))
    failed = side(
        *(
            observation(f"r{at}", outcome=Outcome.ERROR if at < 4 else Outcome.COMPLETE)
            for at in range(10)
        )
    )
    comparison = compare(run, failed, control=run)
    assert comparison.latencies.requests == 6
    assert flags(comparison) == {"outcomes"}


def test_the_first_requests_are_left_out_as_warm_up() -> None:
    cold = side(*(observation(f"r{at}", ttft_ms=500 if at < 60 else 10) for at in range(200)))
    warm = side(*(observation(f"r{at}") for at in range(200)))
    assert "ttft p90" in flags(compare(warm, cold))
    assert flags(compare(warm, cold, settings=CompareSettings(warm_up=60))) == set()


def test_a_metric_that_one_side_does_not_tell_of_any_request_is_left_out() -> None:
    run = side(*(observation(f"r{at}") for at in range(5)))
    untold = side(*(attrs.evolve(each, chunk_offsets_ns=None) for each in run.observations))
    latencies = compare(run, untold).latencies
    assert latencies.left_out == {"itl": 5}
    assert {each.metric for each in latencies.differences} == {"ttft", "tpot", "e2e"}


def test_the_way_from_the_client_to_the_worker_is_no_difference() -> None:
    worker = attrs.evolve(noisy_run(1, 200), measured_at="worker")
    near = attrs.evolve(noisy_run(2, 200, slower_ms=6), measured_at="client")
    far = attrs.evolve(noisy_run(2, 200, slower_ms=20), measured_at="client")
    assert flags(compare(attrs.evolve(worker, measured_at="client"), near)) != set()
    comparison = compare(worker, near)
    assert flags(comparison) == set()
    assert "the way between them" in comparison.warnings[0]
    assert "ttft shift" in flags(compare(worker, far))


def test_the_chance_of_error_is_shared_by_all_intervals_and_tests() -> None:
    comparison = compare(noisy_run(1, 50), noisy_run(2, 50), control=noisy_run(3, 50))
    latencies = comparison.latencies
    assert latencies.intervals == 2 * len(latencies.differences) + len(comparison.counts) == 35
    assert latencies.error * latencies.intervals == pytest.approx(0.001)


def test_two_runs_with_nothing_in_common_are_compared_without_a_crash() -> None:
    comparison = compare(side(observation("a")), side(observation("b")))
    assert list(comparison.missing) == ["a"]
    assert comparison.latencies.differences == []
    assert compare(side(), side()).is_flagged is False


def test_numbers_for_rules_are_those_of_the_comparison() -> None:
    run = side(*(observation(f"r{at}", ttft_ms=10) for at in range(40)))
    slow = side(
        *(observation(f"r{at}", ttft_ms=15) for at in range(39)), observation("r39", ids=(7,))
    )
    numbers = numbers_of(compare(run, slow, settings=CompareSettings(objectives={"ttft": 12.0})))
    assert numbers["ttft.p50", Measure.MILLISECONDS] == pytest.approx(15)
    assert numbers["ttft.p50", Measure.CHANGE_MS] == pytest.approx(5)
    assert numbers["ttft.p50", Measure.CHANGE_SHARE] == pytest.approx(0.5)
    assert numbers["ttft.shift", Measure.CHANGE_MS] == pytest.approx(5)
    assert numbers["tokens", Measure.NUMBER] == 1
    assert numbers["tokens", Measure.SHARE] == pytest.approx(1 / 40)
    assert numbers["goodput", Measure.SHARE] == pytest.approx(1 / 40)
    assert numbers["failed", Measure.NUMBER] == 0
    assert ("schedule_delay.p99", Measure.MILLISECONDS) not in numbers


@pytest.mark.timed
def test_ten_thousand_requests_are_compared_in_a_moment() -> None:
    runs = [noisy_run(number, 10_000) for number in (1, 2, 3)]
    started = time.perf_counter()
    compare(runs[0], runs[1], control=runs[2])
    assert time.perf_counter() - started < 10
