"""The pause after attempts that failed."""

import pytest

from replay.rpc.backoff import FIRST_SECONDS, MOST_SECONDS, Backoff


def test_the_first_attempt_may_begin_at_once():
    assert Backoff().left(0.0) == 0
    assert Backoff().left(-1e9) == 0


def test_the_pause_doubles_with_each_failure_up_to_the_most():
    backoff, now, pauses = Backoff(), 100.0, []
    for _ in range(8):
        backoff.failed(now)
        pauses.append(backoff.left(now))
        now += pauses[-1]
        assert backoff.left(now) == 0
    doubled = [min(FIRST_SECONDS * 2**power, MOST_SECONDS) for power in range(8)]
    assert pauses == pytest.approx(doubled)


def test_a_success_forgets_the_failures():
    backoff = Backoff()
    for _ in range(5):
        backoff.failed(0.0)
    backoff.succeeded()
    assert backoff.left(0.0) == 0
    backoff.failed(7.0)
    assert backoff.left(7.0) == pytest.approx(FIRST_SECONDS)
