"""The ZMQ publisher of KV events, over real sockets."""

from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import msgpack
import pytest
import trio
import zmq

from replay.config.engines import KvEventsWire, RealisticConfig
from replay.engines.base import Model
from replay.engines.kv_event_log import KvEventLog
from replay.engines.kv_event_publisher import KvEventPublisher, open_kv_publisher
from replay.engines.kv_events import BlocksStored
from replay.engines.realistic import RealisticEngine
from replay.errors import BindError
from replay.plane.sockets import open_context, open_dealer, open_sub, receive_frames

END = b"\xff" * 8


def numbers(messages: list[list[bytes]]) -> list[int]:
    return [int.from_bytes(message[-2], "big") for message in messages]


@attrs.frozen
class Published:
    log: KvEventLog
    publisher: KvEventPublisher
    context: Any

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            number = self.log.last + 1
            self.log.append([BlocksStored(None, [number], array("I", [number] * 4), 4)], number)

    @asynccontextmanager
    async def subscribed(self, topic: bytes = b"") -> AsyncIterator[Any]:
        """Yield a SUB socket whose subscription the publisher has: it has got a message."""
        socket = open_sub(self.context, topic)
        try:
            socket.connect(f"tcp://127.0.0.1:{self.publisher.port}")
            while not socket.poll(0):
                self.append()
                await trio.sleep(0.01)
            while socket.poll(0):
                last = socket.recv_multipart(zmq.DONTWAIT)
            assert numbers([last]) == [self.log.last - 1]
            yield socket
        finally:
            socket.close(linger=0)

    async def replayed(self, start: int) -> list[list[bytes]]:
        """Ask for a replay; return the answers without the end."""
        socket = open_dealer(self.context)
        try:
            socket.connect(f"tcp://127.0.0.1:{self.publisher.replay_port}")
            socket.send_multipart([b"", start.to_bytes(8, "big")])
            answers = []
            while (answer := await receive_frames(socket))[-2] != END:
                assert answer[0] == b""
                answers.append(answer[1:])
            assert answer[-1] == b""
            return answers
        finally:
            socket.close(linger=0)


@asynccontextmanager
async def publishing(**config: Any) -> AsyncIterator[Published]:
    settings = RealisticConfig(**config)
    log = KvEventLog(settings.kv_events_buffer_steps)

    with trio.fail_after(10):
        async with (
            open_context(term_seconds=1) as context,
            open_kv_publisher(log, settings, host="127.0.0.1", port=None) as publisher,
            trio.open_nursery() as tasks,
        ):
            tasks.start_soon(publisher.run)
            yield Published(log, publisher, context)
            tasks.cancel_scope.cancel()


async def test_messages_count_from_zero_behind_the_topic() -> None:
    async with publishing(kv_events_topic="kv") as it, it.subscribed(b"kv") as socket:
        it.append(3)
        messages = [await receive_frames(socket) for _ in range(3)]
    last = it.log.last
    assert numbers(messages) == [last - 3, last - 2, last - 1]
    assert {message[0] for message in messages} == {b"kv"}
    seconds, events, rank = msgpack.unpackb(messages[-1][2])
    assert (seconds, rank) == (last, 0)
    assert events[0]["block_hashes"] == [last]


async def test_a_replay_gives_the_very_frames_that_were_published() -> None:
    async with publishing() as it, it.subscribed() as socket:
        first = it.log.last
        it.append(200)
        live = [await receive_frames(socket) for _ in range(200)]
        assert await it.replayed(first) == live
        assert await it.replayed(first + 150) == live[150:]


async def test_a_replay_has_what_is_kept_and_then_its_end() -> None:
    async with publishing(kv_events_buffer_steps=3) as it:
        assert await it.replayed(0) == []
        it.append(5)
        assert numbers(await it.replayed(0)) == [2, 3, 4]
        assert numbers(await it.replayed(4)) == [4]
        assert numbers(await it.replayed(5)) == []
        assert numbers(await it.replayed(2**64 - 2)) == []


async def test_what_is_no_request_gets_no_answer_and_harms_nobody() -> None:
    async with publishing() as it:
        socket = open_dealer(it.context)
        socket.connect(f"tcp://127.0.0.1:{it.publisher.replay_port}")
        socket.send_multipart([b"", b"x"])
        socket.send_multipart([b""])
        socket.send_multipart([b"", b"\0" * 8])
        assert await receive_frames(socket) == [b"", b"", END, b""]
        socket.close(linger=0)


async def test_withheld_batches_are_only_in_the_replay() -> None:
    async with publishing() as it, it.subscribed() as socket:
        first = it.log.last
        it.log.withhold(2)
        it.append(3)
        assert numbers([await receive_frames(socket)]) == [first + 2]
        assert numbers(await it.replayed(first)) == [first, first + 1, first + 2]


async def test_a_restart_counts_from_zero_and_tells_what_is_held() -> None:
    async with publishing() as it, it.subscribed() as socket:
        it.append(2)
        assert len([await receive_frames(socket) for _ in range(2)]) == 2
        held = len(it.log.content())
        it.log.restart(0.0)
        it.append(1)
        messages = [await receive_frames(socket) for _ in range(3)]
        assert numbers(messages) == [0, 1, 2]
        cleared, told, fresh = (msgpack.unpackb(message[-1])[1] for message in messages)
        assert cleared == [{"type": "AllBlocksCleared"}]
        assert [event["type"] for event in told] == ["BlockStored"] * held
        assert len(fresh) == 1
        assert await it.replayed(0) == messages


async def test_sglangs_publisher_clears_first_and_replays_without_the_topic() -> None:
    async with publishing(kv_events_wire=KvEventsWire.SGLANG, kv_events_topic="kv") as it:
        it.append(2)
        clearing, *rest = await it.replayed(0)
        assert numbers([clearing, *rest]) == [0, 1, 2]
        assert {len(each) for each in (clearing, *rest)} == {2}
        assert msgpack.unpackb(clearing[-1])[1:] == [[{"type": "AllBlocksCleared"}], None]
        assert numbers(await it.replayed(1)) == [1, 2]
        it.log.restart(0.0)
        clearing, _ = again = await it.replayed(0)
        assert numbers(again) == [0, 1]
        assert msgpack.unpackb(clearing[-1])[1:] == [[{"type": "AllBlocksCleared"}], None]


async def test_a_publisher_without_replay_listens_once() -> None:
    async with publishing(kv_events_replay=False) as it:
        assert it.publisher.replay_port is None


async def test_a_port_in_use_names_itself_and_leaves_nothing_bound() -> None:
    async with publishing() as it:
        taken = it.publisher.port
        config = RealisticConfig(kv_events_zmq_base_port=taken - 2)
        engine = RealisticEngine(Model(), config, number=1)
        with pytest.raises(BindError, match=f"127.0.0.1:{taken}"):
            await engine.run()


async def test_each_engine_of_a_process_has_two_ports() -> None:
    async with publishing() as it:
        base = it.publisher.port
    config = RealisticConfig(kv_events_zmq_base_port=base - 2, kv_events_replay=False)
    engine = RealisticEngine(Model(), config, number=1)
    with trio.fail_after(10):
        async with open_context(term_seconds=1) as context, trio.open_nursery() as tasks:
            await tasks.start(engine.run)
            socket = open_sub(context, b"")
            socket.connect(f"tcp://127.0.0.1:{base}")
            while not socket.poll(0):
                engine.clear_cache()
                await trio.sleep(0.01)
            socket.close(linger=0)
            tasks.cancel_scope.cancel()
