import pytest
import trio
import trio.testing

from replay.exact_timer import ExactTimer


@pytest.mark.timed
async def test_it_is_not_early_and_not_a_millisecond_late() -> None:
    """A wait of 1.1 ms would be one of 2 ms in epoll; the best of many tells them apart."""
    late = []
    with ExactTimer() as timer:
        for _ in range(50):
            due = trio.current_time() + 0.0011
            await timer.sleep_until(due)
            late.append(trio.current_time() - due)
    assert min(late) >= 0
    assert sorted(late)[5] < 0.0004


async def test_a_moment_that_has_passed_is_a_checkpoint_and_no_wait() -> None:
    with ExactTimer() as timer, trio.testing.assert_checkpoints():
        await timer.sleep_until(trio.current_time() - 1)


async def test_a_sleep_that_was_cancelled_does_not_shorten_the_next_one() -> None:
    with ExactTimer() as timer:
        with trio.move_on_after(0.001):
            await timer.sleep_until(trio.current_time() + 0.002)
        await trio.sleep(0.002)  # it is due, and nobody has read it
        due = trio.current_time() + 0.005
        await timer.sleep_until(due)
        assert trio.current_time() >= due


async def test_a_clock_that_jumps_is_followed(autojump_clock: trio.testing.MockClock) -> None:
    with ExactTimer() as timer:
        due = trio.current_time() + 100
        await timer.sleep_until(due)
        assert trio.current_time() == due


async def test_without_a_descriptor_it_sleeps_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExactTimer() as timer:
        monkeypatch.setattr(timer, "_descriptor", -1)
        due = trio.current_time() + 0.003
        await timer.sleep_until(due)
        assert trio.current_time() >= due
