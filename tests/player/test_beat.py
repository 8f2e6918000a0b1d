"""Evenly spaced requests, and what a comparison allows for them."""

import attrs
import pytest
from runs import noisy_run

from replay.player.beat import are_even, beat_ms
from replay.player.compare import Side, compare

MS = 1_000_000


def due(side: Side, *steps_ms: float) -> Side:
    """Return the run with its requests due in these steps, over and over."""
    moments = [0.0]
    while len(moments) < len(side.observations):
        moments.append(moments[-1] + steps_ms[len(moments) % len(steps_ms)])
    return attrs.evolve(
        side,
        observations=[
            attrs.evolve(each, scheduled_ns=round(moment * MS), sent_ns=round(moment * MS))
            for each, moment in zip(side.observations, moments, strict=True)
        ],
    )


@pytest.mark.parametrize(
    ("steps_ms", "even"),
    [((10.0,), True), ((10.0, 10.05), True), ((10.0, 11.0), False), ((0.0,), False)],
)
def test_even_steps_are_known(steps_ms: tuple[float, ...], even: bool) -> None:
    assert are_even(due(noisy_run(1, 50), *steps_ms).observations) is even


def test_few_requests_and_recordings_have_no_steps() -> None:
    assert not are_even(due(noisy_run(1, 5), 10.0).observations)
    assert not are_even(noisy_run(1, 50).observations)


def test_the_beat_is_the_time_between_tokens() -> None:
    assert beat_ms(noisy_run(1, 50).observations) == pytest.approx(6.2, abs=0.3)
    assert beat_ms([]) == 0.0


def test_a_tokens_time_is_allowed_for_where_requests_came_in_even_steps() -> None:
    """One run met the engine 4.5 ms later in its beat; a real difference is larger."""
    for steps_ms, slower_ms, flagged in (
        ((10.0,), 5.5, False),
        ((10.0,), 20.0, True),
        ((10.0, 13.0, 4.0), 5.5, True),
    ):
        before, control, after = (
            due(noisy_run(seed, 600, slower_ms=slower), *steps_ms)
            for seed, slower in ((1, 0.0), (2, 0.0), (3, slower_ms))
        )
        comparison = compare(before, after, control=control)
        assert comparison.is_flagged is flagged
        assert any("even steps" in each for each in comparison.warnings) is (len(steps_ms) == 1)
