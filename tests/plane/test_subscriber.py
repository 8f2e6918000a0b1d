"""Reading a topic from publishers that come and go: real sockets, no pauses."""

import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import trio
import zmq

from replay.plane import discovery, subscriber
from replay.plane.codec import MessageEncoder
from replay.plane.discovery import publish
from replay.plane.discovery_entry import Publisher
from replay.plane.sockets import open_context
from replay.plane.subscriber import (
    Remote,
    discovered_remotes,
    fixed_remotes,
    run_subscription,
)
from tests.plane.peers import Collector, Context, XPub, eventually

DYNAMO = Path(__file__).parents[1] / "data" / "dynamo" / "event_plane_frames.jsonl"


@pytest.fixture
async def context() -> AsyncIterator[Context]:
    async with open_context(term_seconds=5) as context:
        yield context


@pytest.fixture(autouse=True)
def quick_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        subscriber, "watch_publishers", partial(discovery.watch_publishers, interval_seconds=0.01)
    )


class Given:
    """Remotes that a test changes."""

    def __init__(self, *endpoints: str) -> None:
        self._send, self._receive = trio.open_memory_channel[frozenset[Remote]](10)
        self.set(*endpoints)

    def set(self, *endpoints: str) -> None:
        self.show(*map(Remote, endpoints))

    def show(self, *remotes: Remote) -> None:
        self._send.send_nowait(frozenset(remotes))

    async def changes(self) -> AsyncGenerator[frozenset[Remote], None]:
        async for remotes in self._receive:
            yield remotes


async def test_messages_of_all_publishers_come_in_their_order(context: Context) -> None:
    reader = Collector()
    with XPub(context, publisher_id=1) as one, XPub(context, publisher_id=2) as two:
        async with trio.open_nursery() as running:
            remotes = fixed_remotes([one.endpoint, two.endpoint])
            running.start_soon(run_subscription, context, "shadow", remotes, reader)
            for each in (one, two):
                assert await each.next_subscription() == b"\x01shadow"
            for sequence in range(300):
                for each in (one, two):
                    each.send(sequence, b"record")
            await reader.until(lambda it: len(it.messages) == 600)
            running.cancel_scope.cancel()
    for publisher_id in (1, 2):
        own = [each for each in reader.messages if each.envelope.publisher_id == publisher_id]
        assert [each.envelope.sequence for each in own] == list(range(300))
    assert [link.messages for link in reader.links] == [300, 300]


async def test_only_the_exact_topic_is_read_and_the_rest_is_foreign(context: Context) -> None:
    """ZeroMQ compares only how topics begin; frame 0 and the envelope are compared whole."""
    reader = Collector()
    with XPub(context) as pub:
        async with trio.open_nursery() as running:
            remotes = fixed_remotes([pub.endpoint])
            running.start_soon(run_subscription, context, "shadow", remotes, reader)
            await pub.next_subscription()
            pub.send(0, b"record", topic="shadow-history")
            other = MessageEncoder("other", 7).encode(1, 1, b"record")
            pub.socket.send_multipart([b"shadow", *other[1:]])
            pub.send(2, b"record")
            await reader.until(lambda it: bool(it.messages))
            running.cancel_scope.cancel()
    assert reader.sequences == [2]
    assert reader.links[0].foreign == 2
    assert reader.reasons == []


async def test_a_message_that_cannot_be_read_is_told_and_reading_goes_on(context: Context) -> None:
    """Rule 68."""
    reader = Collector()
    with XPub(context) as pub:
        async with trio.open_nursery() as running:
            remotes = fixed_remotes([pub.endpoint])
            running.start_soon(run_subscription, context, "shadow", remotes, reader)
            await pub.next_subscription()
            pub.socket.send_multipart([b"shadow", b"secret"])
            pub.socket.send_multipart([b"shadow", b"", b"", b"\x01\0\0\0\x06secret"])
            pub.send(3, b"record")
            await reader.until(lambda it: bool(it.messages))
            running.cancel_scope.cancel()
    assert reader.sequences == [3]
    assert len(reader.reasons) == reader.links[0].malformed == 2
    assert "secret" not in str(reader.reasons)


async def test_ipv6_endpoints_are_read(context: Context) -> None:
    """Rule 63, with the brackets of the endpoint."""
    reader = Collector()
    with XPub(context, host="::1") as pub:
        async with trio.open_nursery() as running:
            remotes = fixed_remotes([pub.endpoint])
            running.start_soon(run_subscription, context, "shadow", remotes, reader)
            await pub.next_subscription()
            pub.send(0, b"record")
            await reader.until(lambda it: bool(it.messages))
            running.cancel_scope.cancel()


async def test_a_publisher_that_appears_in_discovery_is_read(
    context: Context, tmp_path: Path
) -> None:
    reader = Collector()
    with XPub(context) as pub:
        async with trio.open_nursery() as running:
            remotes = discovered_remotes(tmp_path, "dynamo", "shadow")
            running.start_soon(run_subscription, context, "shadow", remotes, reader)
            publish(tmp_path, Publisher("dynamo", "shadow", 7, pub.endpoint))
            assert await pub.next_subscription() == b"\x01shadow"
            pub.send(0, b"record")
            await reader.until(lambda it: bool(it.messages))
            running.cancel_scope.cancel()
    assert reader.links[0].remote == Remote(pub.endpoint, 7)


async def test_a_publisher_that_only_vanished_from_discovery_is_read_on(context: Context) -> None:
    """Dynamo's processes delete the file of an owner that was stopped for ten seconds."""
    reader, given = Collector(), Given()
    with XPub(context) as pub, XPub(context, publisher_id=8) as other:
        given.set(pub.endpoint)
        async with trio.open_nursery() as running:
            running.start_soon(run_subscription, context, "shadow", given.changes(), reader)
            await pub.next_subscription()
            pub.send(0, b"record")
            await reader.until(lambda it: it.sequences == [0])
            given.set(other.endpoint)  # once the other is known, the first has been left
            await other.next_subscription()
            pub.send(1, b"record")
            await reader.until(lambda it: it.sequences == [0, 1])
            given.set(pub.endpoint, other.endpoint)
            pub.send(2, b"record")
            await reader.until(lambda it: it.sequences == [0, 1, 2])
            running.cancel_scope.cancel()
    assert len(reader.links) == 2
    assert not reader.links[0].is_over


@pytest.mark.parametrize("speaks", [True, False])
async def test_a_publisher_that_starts_again_at_its_address_is_not_read_twice(
    context: Context, speaks: bool
) -> None:
    """Its old file may stay for ten seconds, so both are connected to the new one for a while."""
    reader, given = Collector(), Given()
    with XPub(context) as pub:
        old, new = Remote(pub.endpoint, 7), Remote(pub.endpoint, 8)
        given.show(old)
        async with trio.open_nursery() as running:
            running.start_soon(run_subscription, context, "shadow", given.changes(), reader)
            await pub.next_subscription()
            pub.send(0, b"record")
            await reader.until(lambda it: it.sequences == [0])
            pub.publisher_id = 8
            given.show(old, new)
            await eventually(
                lambda: [each.connected_at is None for each in reader.links] == [False, False]
            )
            given.show(new)
            async with trio.open_nursery() as speaking:

                async def speak() -> None:
                    for sequence in range(1, 10_000):
                        pub.send(sequence, b"record")
                        await trio.sleep(0.01)

                if speaks:
                    speaking.start_soon(speak)
                await eventually(lambda: reader.links[0].is_over)
                speaking.cancel_scope.cancel()
            assert not reader.links[1].is_over
            running.cancel_scope.cancel()


async def test_what_a_publisher_sent_before_it_ended_is_read_and_then_the_link_is_over(
    context: Context,
) -> None:
    reader, given = Collector(), Given()
    pub = XPub(context)
    given.set(pub.endpoint)
    async with trio.open_nursery() as running:
        running.start_soon(run_subscription, context, "shadow", given.changes(), reader)
        await pub.next_subscription()
        for sequence in range(2000):
            pub.send(sequence, bytes(1000))
        given.set()
        pub.socket.close()
        await reader.until(lambda it: len(it.messages) == 2000)
        await eventually(lambda: reader.links[0].is_over)
        running.cancel_scope.cancel()
    assert reader.links[0].connected_at is None


async def test_a_publisher_that_never_answered_is_let_go(context: Context) -> None:
    reader, given = Collector(), Given("tcp://127.0.0.1:1", "tcp://nonsense")
    async with trio.open_nursery() as running:
        running.start_soon(run_subscription, context, "shadow", given.changes(), reader)
        await reader.until(lambda it: len(it.links) == 2)
        given.set()
        await eventually(lambda: all(link.is_over for link in reader.links))
        running.cancel_scope.cancel()


async def test_a_publisher_for_which_no_socket_is_left_does_not_end_the_others(
    context: Context,
) -> None:
    """A socket to read from, and two to watch its connection: four are enough for one publisher."""
    reader = Collector()
    few: Context = zmq.Context()
    few.set(zmq.MAX_SOCKETS, 4)
    with XPub(context) as one, XPub(context, publisher_id=8) as two:
        async with trio.open_nursery() as running:
            remotes = fixed_remotes([one.endpoint, two.endpoint])
            running.start_soon(run_subscription, few, "shadow", remotes, reader)
            await eventually(lambda: [link.is_over for link in reader.links].count(True) == 1)
            read = next(link for link in reader.links if not link.is_over).remote.endpoint
            pub = one if read == one.endpoint else two
            await pub.next_subscription()
            pub.send(0, b"record")
            await reader.until(lambda it: it.sequences == [0])
            running.cancel_scope.cancel()
    few.term()


async def test_a_link_knows_when_it_is_connected_and_when_nothing_is_waiting(
    context: Context,
) -> None:
    reader = Collector()
    started = trio.current_time()
    pub = XPub(context)
    async with trio.open_nursery() as running:
        remotes = fixed_remotes([pub.endpoint])
        running.start_soon(run_subscription, context, "shadow", remotes, reader)
        await reader.until(lambda it: bool(it.links))
        link = reader.links[0]
        assert link.connected_at is None
        await pub.next_subscription()
        pub.send(0, b"record")
        await reader.until(lambda it: bool(it.messages))
        await trio.testing.wait_all_tasks_blocked()
        assert link.connected_at is not None
        assert link.connected_at >= started
        assert link.is_waiting
        assert link.found_empty_at >= started
        pub.socket.close()
        await eventually(lambda: link.connected_at is None)
        running.cancel_scope.cancel()


async def test_a_reader_that_fails_ends_the_subscription(context: Context) -> None:
    class Failing(Collector):
        async def receive(self, link: object, messages: object) -> None:
            raise OSError("the disk is full")

    with (
        XPub(context) as pub,
        pytest.RaisesGroup(pytest.RaisesExc(OSError, match="disk"), flatten_subgroups=True),
    ):
        async with trio.open_nursery() as running:
            remotes = fixed_remotes([pub.endpoint])
            running.start_soon(run_subscription, context, "shadow", remotes, Failing())
            await pub.next_subscription()
            pub.send(0, b"record")


async def test_a_slow_reader_holds_its_publisher_up_and_loses_nothing(context: Context) -> None:
    """Nothing more of a publisher is taken while its reader has not finished."""
    gate = trio.Event()

    class Slow(Collector):
        async def receive(self, link: object, messages: list) -> None:  # type: ignore[override,type-arg]
            await gate.wait()
            await super().receive(link, messages)  # type: ignore[arg-type]

    reader = Slow()
    with XPub(context) as pub:
        async with trio.open_nursery() as running:
            remotes = fixed_remotes([pub.endpoint])
            running.start_soon(run_subscription, context, "shadow", remotes, reader)
            await pub.next_subscription()
            for sequence in range(500):
                pub.send(sequence, b"record")
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert reader.messages == []
            gate.set()
            await reader.until(lambda it: len(it.messages) == 500)
            running.cancel_scope.cancel()
    assert reader.sequences == list(range(500))


async def test_all_messages_of_a_real_dynamo_are_read_from_the_wire(context: Context) -> None:
    lines = DYNAMO.read_text().splitlines()
    frames = [[base64.b64decode(frame) for frame in json.loads(line)] for line in lines]
    topics = sorted({each[0].decode() for each in frames})
    readers = {topic: Collector() for topic in topics}
    with XPub(context) as pub:
        async with trio.open_nursery() as running:
            for topic in topics:
                remotes = fixed_remotes([pub.endpoint])
                running.start_soon(run_subscription, context, topic, remotes, readers[topic])
                await pub.next_subscription()
            for each in frames:
                pub.socket.send_multipart(each)
            for topic in topics:
                sent = [each for each in frames if each[0] == topic.encode()]
                await readers[topic].until(lambda it, sent=sent: len(it.messages) == len(sent))
                assert [message.frames for message in readers[topic].messages] == sent
            running.cancel_scope.cancel()
    assert sum(len(reader.messages) for reader in readers.values()) == 75
