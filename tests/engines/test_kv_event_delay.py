import trio
from trio.testing import MockClock

from replay.engines.kv_event_delay import KvEventDelay
from replay.engines.kv_event_log import KvEventLog


async def test_without_a_delay_a_batch_is_in_the_log_at_once() -> None:
    log = KvEventLog(9)
    KvEventDelay(log).append([], 1.0)
    assert log.last == 1


async def test_batches_come_late_in_order_and_with_their_own_time(
    autojump_clock: MockClock,
) -> None:
    log = KvEventLog(9)
    delay = KvEventDelay(log)
    came: list[tuple[int, float]] = []
    start = trio.current_time()
    async with trio.open_nursery() as tasks:
        tasks.start_soon(delay.run)
        with log.listening(lambda: came.append((log.last, trio.current_time() - start))):
            delay.seconds = 2.0
            delay.append([], 7.0)
            await trio.sleep(1)
            delay.append([], 8.0)
            await trio.sleep(9)
            delay.append([], 9.0)
            await trio.sleep(9)
        tasks.cancel_scope.cancel()
    assert came == [(1, 2.0), (2, 3.0), (3, 12.0)]
    assert [batch.unix_seconds for batch in log.after(0, 9)] == [7.0, 8.0, 9.0]


async def test_another_delay_counts_for_what_waits_too(autojump_clock: MockClock) -> None:
    log = KvEventLog(9)
    delay = KvEventDelay(log)
    came: list[tuple[int, float]] = []
    start = trio.current_time()
    async with trio.open_nursery() as tasks:
        tasks.start_soon(delay.run)
        with log.listening(lambda: came.append((log.last, trio.current_time() - start))):
            delay.seconds = 600.0
            delay.append([], 0.0)
            await trio.sleep(1)
            delay.append([], 0.0)
            delay.seconds = 0.5
            assert log.last == 1
            delay.seconds = 5.0
            await trio.sleep(9)
        tasks.cancel_scope.cancel()
    assert came == [(1, 1.0), (2, 6.0)]


async def test_what_waits_leaves_when_the_delay_ends(autojump_clock: MockClock) -> None:
    log = KvEventLog(9)
    delay = KvEventDelay(log)
    async with trio.open_nursery() as tasks:
        tasks.start_soon(delay.run)
        delay.seconds = 1000.0
        delay.append([], 1.0)
        await trio.sleep(1)
        delay.seconds = 0.0
        assert log.last == 1
        delay.seconds = 3.0
        delay.append([], 2.0)
        start = trio.current_time()
        with log.listening(tasks.cancel_scope.cancel):
            await trio.sleep(100)
    assert trio.current_time() - start == 3.0
