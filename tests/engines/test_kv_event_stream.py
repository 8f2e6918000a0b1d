"""`SubscribeKvEvents` over a real connection."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from purerpc.grpclib.exceptions import OutOfRangeError
from trio.testing import wait_all_tasks_blocked

from replay._proto import common_pb2 as common
from replay.config.engines import RealisticConfig
from replay.engines import kv_event_stream
from replay.engines.base import Model
from replay.engines.methods import METHODS
from replay.engines.realistic import RealisticEngine
from tests.engines.requests import generate_request
from tests.worker.running import Running, running, until


@attrs.frozen
class Worker:
    worker: Running
    engine: RealisticEngine

    async def ask(self, prompt: Any, *, tokens: int = 1) -> list[Any]:
        return await self.worker.generate(generate_request(prompt, max_new_tokens=tokens))

    @asynccontextmanager
    async def subscribed(self, start: int = 0, **options: Any) -> AsyncIterator["Subscription"]:
        request = common.SubscribeKvEventsRequest(start_sequence_number=start, **options)
        with trio.fail_after(5):
            async with self.worker.channel.stream(METHODS["SubscribeKvEvents"], request) as stream:
                yield Subscription(stream)


@attrs.frozen
class Subscription:
    stream: Any

    async def any(self) -> common.KvEventBatch:
        message = await self.stream.receive()
        assert message is not None
        return message

    async def batch(self) -> common.KvEventBatch:
        """Return the next message that is more than a load."""
        while (message := await self.any()).load.load_only:
            pass
        return message


@asynccontextmanager
async def worker(**config: Any) -> AsyncIterator[Worker]:
    engine = RealisticEngine(Model(), RealisticConfig(speedup=1000, **config))
    async with running(engine=engine) as runtime:
        yield Worker(runtime, engine)


def hashes(batch: common.KvEventBatch) -> list[int]:
    return [block.block_hash for event in batch.events for block in event.stored.blocks]


async def test_the_initial_headers_come_at_once() -> None:
    async with worker() as it, it.subscribed() as subscription:
        await subscription.stream.wait_head()


async def test_events_come_with_the_load_as_they_happen() -> None:
    async with worker() as it, it.subscribed() as subscription:
        await it.ask(range(40))
        batch = await subscription.batch()
    assert (batch.sequence_number, batch.dp_rank) == (1, 0)
    assert [list(block.token_ids) for block in batch.events[0].stored.blocks] == [
        list(range(16)),
        list(range(16, 32)),
    ]
    assert batch.timestamp > 1e9
    assert batch.load.max_running_requests == 256
    assert batch.load.HasField("num_used_tokens")  # a stream's first record has everything


async def test_a_subscriber_resumes_behind_what_it_has_applied() -> None:
    async with worker() as it:
        for number in range(5):
            await it.ask(range(number * 100, number * 100 + 16))
        async with it.subscribed(3) as subscription:
            first, second = await subscription.batch(), await subscription.batch()
            assert (first.sequence_number, second.sequence_number) == (4, 5)
            assert [first.load.sample, second.load.sample] == [1, 2]
            await it.ask(range(1000, 1016))
            assert (await subscription.batch()).sequence_number == 6


async def test_resumed_batches_are_the_same_as_they_were_live() -> None:
    async with worker() as it:
        async with it.subscribed() as subscription:
            await it.ask(range(40))
            live = await subscription.batch()
        async with it.subscribed() as subscription:
            again = await subscription.batch()
    live.ClearField("load")
    again.ClearField("load")
    assert again == live


@pytest.mark.parametrize("cursor", [1, 9])
async def test_a_cursor_that_the_log_does_not_reach_is_out_of_range(cursor: int) -> None:
    """9 was given by an earlier life of the worker, 1 is no longer kept."""
    async with worker(kv_events_buffer_steps=2) as it:
        for number in range(5):
            await it.ask(range(number * 100, number * 100 + 16))
        with pytest.raises(OutOfRangeError, match=f"sequence {cursor} is not between 3 and 5"):
            async with it.subscribed(cursor) as subscription:
                await subscription.any()
        async with it.subscribed(3) as subscription:
            assert (await subscription.batch()).sequence_number == 4


async def test_who_comes_when_the_first_batches_are_gone_gets_a_snapshot() -> None:
    async with worker(kv_events_buffer_steps=2) as it:
        for number in range(5):
            await it.ask(range(number * 100, number * 100 + 32))
        async with it.subscribed() as subscription:
            snapshot = await subscription.batch()
            await it.ask(range(1000, 1016))
            live = await subscription.batch()
    assert (snapshot.snapshot.count, snapshot.snapshot.blocks) == (1, 10)
    assert set(hashes(snapshot)) == set(it.engine.kv_events.content()) - set(hashes(live))
    assert (snapshot.sequence_number, live.sequence_number) == (5, 6)


class StuckCall:
    """A call whose client does not read until `gate` is set."""

    def __init__(self) -> None:
        self.gate = trio.Event()
        self.numbers: list[int] = []
        self.standing = False
        self.is_full = False

    def respond(self) -> None:
        pass

    def write(self, payload: bytes) -> None:
        self.numbers.append(common.KvEventBatch.FromString(payload[5:]).sequence_number)
        self.is_full = not self.gate.is_set()

    async def room(self) -> None:
        await self.gate.wait()


async def test_a_subscriber_that_does_not_read_gets_a_gap_and_can_come_again() -> None:
    engine = RealisticEngine(Model(), RealisticConfig(kv_events_buffer_steps=3))
    log, call = engine.kv_events, StuckCall()
    subscribe = engine.methods()["SubscribeKvEvents"]
    async with trio.open_nursery() as tasks:
        tasks.start_soon(subscribe, common.SubscribeKvEventsRequest(), call)
        await wait_all_tasks_blocked()
        for _ in range(9):
            engine.clear_cache()
            await wait_all_tasks_blocked()
        assert call.numbers == [1]
        call.gate.set()
        await wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert call.numbers == [1, 7, 8, 9]
    assert call.standing, "a drain must not wait for it"
    with pytest.raises(OutOfRangeError):
        await subscribe(common.SubscribeKvEventsRequest(start_sequence_number=1), StuckCall())
    assert log.last == 9


async def test_a_restart_reaches_who_is_still_reading_a_snapshot() -> None:
    engine = RealisticEngine(Model(), RealisticConfig(kv_events_buffer_steps=3))
    call = StuckCall()
    for _ in range(9):
        engine.clear_cache()
    async with trio.open_nursery() as tasks:
        subscribe = engine.methods()["SubscribeKvEvents"]
        tasks.start_soon(subscribe, common.SubscribeKvEventsRequest(), call)
        await wait_all_tasks_blocked()
        assert call.numbers == [9]
        engine.kv_events.restart(0.0)
        call.gate.set()
        await wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert call.numbers == [9, 1]


async def test_withheld_batches_are_skipped_live_and_there_for_who_resumes() -> None:
    async with worker() as it:
        async with it.subscribed() as subscription:
            await it.ask(range(16))
            assert (await subscription.batch()).sequence_number == 1
            it.engine.kv_events.withhold(1)
            await it.ask(range(100, 116))
            assert (await subscription.any()).sequence_number == 1  # a load, and no more
            await it.ask(range(200, 216))
            assert (await subscription.batch()).sequence_number == 3
        async with it.subscribed(1) as subscription:
            assert (await subscription.batch()).sequence_number == 2


async def test_a_publisher_that_restarts_counts_from_one_on_open_streams() -> None:
    async with worker() as it, it.subscribed() as subscription:
        for number in range(3):
            await it.ask(range(number * 100, number * 100 + 16))
        assert [(await subscription.batch()).sequence_number for _ in range(3)] == [1, 2, 3]
        it.engine.kv_events.restart(0.0)
        await it.ask(range(1000, 1016))
        cleared, told, fresh = [await subscription.batch() for _ in range(3)]
        assert [each.sequence_number for each in (cleared, told, fresh)] == [1, 2, 3]
        assert [event.WhichOneof("data") for event in cleared.events] == ["cleared"]
        assert len(hashes(told)) == 3
        assert set(hashes(told) + hashes(fresh)) == set(it.engine.kv_events.content())


async def test_the_load_is_told_when_requests_come_and_go_without_events() -> None:
    async with worker(prefix_cache=True, block_size=64) as it:
        request = {"load_records_before_first_batch": True}
        async with it.subscribed(**request) as subscription:
            assert (await subscription.any()).load.running_requests == 0
            async with trio.open_nursery() as tasks:
                tasks.start_soon(lambda: it.ask(range(10), tokens=2000))
                record = await subscription.any()
                while not record.load.running_requests:
                    record = await subscription.any()
                assert record.load.load_only
                assert record.sequence_number == 0
                assert not record.events
                tasks.cancel_scope.cancel()
            while record.load.running_requests or record.load.waiting_requests:
                record = await subscription.any()


async def test_a_heartbeat_repeats_the_last_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_event_stream, "HEARTBEAT_SECONDS", 0.05)
    async with worker() as it, it.subscribed() as subscription:
        await it.ask(range(16))
        batch = await subscription.batch()
        samples = [(await subscription.any()) for _ in range(3)]
    assert {each.sequence_number for each in samples} == {batch.sequence_number}
    assert all(each.load.load_only and each.load.HasField("cache_hit_rate") for each in samples)
    assert [each.load.sample for each in samples] == [2, 3, 4]


async def test_no_load_comes_before_the_first_batch_unless_it_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv_event_stream, "HEARTBEAT_SECONDS", 0.01)
    async with worker() as it, it.subscribed() as subscription:
        with trio.move_on_after(0.1) as patience:
            await subscription.any()
        assert patience.cancelled_caught


async def test_a_subscriber_that_leaves_is_forgotten() -> None:
    async with worker() as it:
        async with it.subscribed() as subscription:
            await subscription.stream.wait_head()
            await until(lambda: it.engine.kv_events._listeners)
        await until(lambda: not it.engine.kv_events._listeners)


async def test_flush_cache_is_a_method_of_the_worker() -> None:
    async with worker() as it, it.subscribed() as subscription:
        await it.ask(range(16))
        await subscription.batch()
        response = await it.worker.call("FlushCache", common.FlushCacheRequest())
        assert response.success
        assert (await subscription.batch()).events[0].WhichOneof("data") == "cleared"
