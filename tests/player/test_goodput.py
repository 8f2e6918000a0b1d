"""Goodput: what met every objective."""

import attrs
import pytest
from runs import observation

from replay.player.goodput import ObjectiveError, goodput, read_objectives, share_interval
from replay.player.observation import Outcome


def test_objectives_are_read_into_milliseconds() -> None:
    assert read_objectives("ttft=200ms, tpot=0.05s,itl=900us,e2e:5s") == {
        "ttft": 200.0,
        "tpot": 50.0,
        "itl": 0.9,
        "e2e": 5000.0,
    }
    assert read_objectives("") == {}


@pytest.mark.parametrize("text", ["ttft", "ttft=5", "latency=5ms", "ttft=5h", "ttft=-5ms"])
def test_what_is_no_objective_is_refused(text: str) -> None:
    with pytest.raises(ObjectiveError, match="must be one of"):
        read_objectives(text)


def test_an_objective_is_set_once() -> None:
    with pytest.raises(ObjectiveError, match="is set twice"):
        read_objectives("ttft=5ms,ttft=6ms")


def test_what_failed_or_is_too_slow_meets_nothing_and_is_counted() -> None:
    runs = [
        observation("good"),
        observation("slow", ttft_ms=100),
        observation("failed", outcome=Outcome.ERROR),
        observation("left", outcome=Outcome.NOT_SENT),
    ]
    found = goodput(runs, {"ttft": 50.0, "e2e": 90.0}, seconds=2.0)
    assert (found.requests, found.met, found.per_second) == (4, 1, 0.5)
    assert found.share == 0.25
    assert found.missed == {"ttft": 1, "e2e": 1}


def test_a_metric_that_is_undefined_for_a_request_does_not_count_against_it() -> None:
    found = goodput([observation(ids=(1,)), observation(ids=())], {"tpot": 1.0, "itl": 1.0})
    assert found.share == 1.0


def test_a_metric_that_was_not_recorded_makes_the_share_unknown() -> None:
    untold = attrs.evolve(observation(), chunk_offsets_ns=None)
    found = goodput([observation(), untold], {"itl": 50.0})
    assert (found.met, found.unknown, found.share) == (1, 1, None)


def test_no_request_has_no_share() -> None:
    assert goodput([], {"ttft": 1.0}).share is None


def test_the_interval_of_a_share_is_wilsons() -> None:
    interval = share_interval(8, 10)
    assert (interval.low, interval.high) == (
        pytest.approx(0.4902, abs=1e-4),
        pytest.approx(0.9433, abs=1e-4),
    )
    assert share_interval(0, 0).high == 1.0
    assert share_interval(5, 5).high == 1.0
