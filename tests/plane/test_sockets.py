"""Sockets on the loopback: binding, high-water marks, IPv6, closing, the sinks on them."""

import socket as system_socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgpack
import pytest
import trio
import zmq

from replay.errors import BindError
from replay.plane.codec import decode_message
from replay.plane.record_file import RecordFiles
from replay.plane.record_writer import RecordFileWriter
from replay.plane.replay_buffer import ReplayBuffer
from replay.plane.sinks import PlaneSink, SinkError
from replay.plane.sockets import (
    LONGEST_SUBSCRIPTION,
    Bound,
    bind_pub,
    bind_router,
    close_after_linger,
    open_context,
    open_sub,
    receive_frames,
)

Context = zmq.Context[zmq.Socket[bytes]]


@pytest.fixture
async def context() -> AsyncIterator[Context]:
    async with open_context(term_seconds=5) as context:
        yield context


async def subscribed(pub: Bound, *, receive_mark: int = 10_000) -> zmq.Socket[bytes]:
    """Return a reader that the publisher knows.

    A PUB tells nobody who subscribes, so messages of the topic's own kind are sent until one of
    them comes; what is left of them is taken out.
    """
    host = f"[{pub.host}]" if ":" in pub.host else pub.host
    sub = open_sub(pub.socket.context, b"shadow")
    sub.rcvhwm = receive_mark
    sub.connect(f"tcp://{host}:{pub.port}")
    with trio.fail_after(5):
        while True:
            pub.socket.send_multipart([b"shadow", b"are you there"])
            with trio.move_on_after(0.01):
                await receive_frames(sub)
                break
    pub.socket.send_multipart([b"shadow", b"last"])
    with trio.fail_after(5):
        while (await receive_frames(sub))[1] != b"last":
            pass
    return sub


@pytest.mark.parametrize("mark", [0, -1])
async def test_a_high_water_mark_below_one_is_refused(context: Context, mark: int) -> None:
    """Rule 55; 0 would mean unlimited."""
    with pytest.raises(ValueError, match="at least 1"):
        bind_pub(context, "127.0.0.1", None, high_water_mark=mark)


async def test_a_subscription_longer_than_any_topic_ends_its_connection(context: Context) -> None:
    """Nobody else is touched, and what is sent may be as long as it likes."""
    pub = bind_pub(context, "127.0.0.1", None, high_water_mark=10)
    with await subscribed(pub) as reader, context.socket(zmq.XSUB) as stranger:
        stranger.linger = 0
        stranger.reconnect_ivl = -1
        with stranger.get_monitor_socket(zmq.Event.DISCONNECTED) as monitor:
            stranger.connect(f"tcp://127.0.0.1:{pub.port}")
            stranger.send(b"\x01" + bytes(LONGEST_SUBSCRIPTION))
            with trio.fail_after(5):
                await receive_frames(monitor)
        pub.socket.send_multipart([b"shadow", bytes(1 << 20)])
        with trio.fail_after(5):
            assert len((await receive_frames(reader))[1]) == 1 << 20
        stranger.disable_monitor()
    close_after_linger(pub.socket, 0)


async def test_the_high_water_mark_is_the_one_that_was_asked_for(context: Context) -> None:
    """Rule 54: the capacity of the tap, not ZeroMQ's or Dynamo's default."""
    with bind_pub(context, "127.0.0.1", None, high_water_mark=17).socket as socket:
        assert socket.sndhwm == 17
        assert socket.type == zmq.PUB


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0", "::"])
async def test_a_socket_listens_where_it_was_asked_to_and_nowhere_else(
    context: Context, host: str
) -> None:
    """Rule 63 and case 43: IPv6 too."""
    bound = bind_pub(context, host, None, high_water_mark=1)
    with bound.socket:
        assert bound.host == host
        reachable = set()
        for family, address in (
            (system_socket.AF_INET, "127.0.0.1"),
            (system_socket.AF_INET, "127.0.0.2"),
            (system_socket.AF_INET6, "::1"),
        ):
            with system_socket.socket(family) as probe:
                if probe.connect_ex((address, bound.port)) == 0:
                    reachable.add(address)
    assert (
        reachable
        == {
            "127.0.0.1": {"127.0.0.1"},
            "::1": {"::1"},
            "0.0.0.0": {"127.0.0.1", "127.0.0.2"},
            "::": {"127.0.0.1", "127.0.0.2", "::1"},
        }[host]
    )


async def test_a_port_in_use_is_an_error_that_names_the_address(context: Context) -> None:
    bound = bind_pub(context, "127.0.0.1", None, high_water_mark=1)
    with bound.socket:
        text = f"tcp://127.0.0.1:{bound.port}: Address already in use"
        with pytest.raises(BindError, match=text):
            bind_pub(context, "127.0.0.1", bound.port, high_water_mark=1)


async def test_an_address_of_another_machine_is_an_error(context: Context) -> None:
    with pytest.raises(BindError, match=r"\[2001:db8::1\]:5600: Cannot assign"):
        bind_router(context, "2001:db8::1", 5600, high_water_mark=1, longest_request=8)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_messages_travel_over_ipv4_and_ipv6(context: Context, host: str) -> None:
    pub = bind_pub(context, host, None, high_water_mark=10)
    sink = PlaneSink("shadow", 7, socket=pub.socket)
    with await subscribed(pub) as sub:
        for payload in (b"one", b"two"):
            await sink.publish(payload)
        with trio.fail_after(5):
            received = [decode_message(await receive_frames(sub)) for _ in range(2)]
    sink.close(linger_seconds=0)
    assert [(each.sequence, each.payload) for each in received] == [(0, b"one"), (1, b"two")]
    assert {(each.publisher_id, each.topic) for each in received} == {(7, "shadow")}
    assert abs(time.time() * 1000 - received[0].published_at_ms) < 10_000


async def test_a_burst_that_came_while_nobody_waited_is_received_whole(context: Context) -> None:
    """The descriptor tells once for all five: whoever waits first gets one and is stuck."""
    pub = bind_pub(context, "127.0.0.1", None, high_water_mark=1000)
    with await subscribed(pub) as sub, pub.socket:
        for burst in range(20):
            for number in range(5):
                pub.socket.send_multipart([b"shadow", bytes([burst, number])])
            with trio.fail_after(5):
                for number in range(5):
                    assert (await receive_frames(sub))[1] == bytes([burst, number])


async def test_a_stopped_reader_costs_the_publisher_no_time_and_its_capacity(
    context: Context,
) -> None:
    """Rule 54: beyond the mark ZeroMQ drops for this reader alone, and the sequence shows it."""
    pub = bind_pub(context, "127.0.0.1", None, high_water_mark=5)
    sink = PlaneSink("shadow", 7, socket=pub.socket)
    with await subscribed(pub, receive_mark=1) as stopped:
        count, size = 600, 1 << 16  # 39 MB: more than the system's buffers hold
        with trio.fail_after(10):
            for _ in range(count):
                await sink.publish(bytes(size))
        assert sink.next_sequence == count
        sequences = []
        silence = trio.CancelScope()
        while not silence.cancelled_caught:
            with trio.move_on_after(0.5) as silence:
                sequences.append(decode_message(await receive_frames(stopped)).sequence)
    sink.close(linger_seconds=0)
    assert sequences == sorted(set(sequences))
    assert 5 <= len(sequences) < count / 2


async def test_without_a_reader_publishing_succeeds_and_spends_numbers(context: Context) -> None:
    sink = PlaneSink(
        "shadow", 7, socket=bind_pub(context, "127.0.0.1", None, high_water_mark=1).socket
    )
    for _ in range(3):
        await sink.publish(b"")
    assert sink.next_sequence == 3
    sink.close(linger_seconds=0)


async def test_a_failed_send_is_a_sink_error_that_spends_a_number_and_is_not_kept(
    context: Context,
) -> None:
    buffer = ReplayBuffer(10)
    bound = bind_pub(context, "127.0.0.1", None, high_water_mark=1)
    sink = PlaneSink("shadow", 7, socket=bound.socket, replay_buffer=buffer)
    await sink.publish(b"first")
    bound.socket.close(linger=0)
    with pytest.raises(SinkError, match="cannot send"):
        await sink.publish(b"second")
    assert sink.next_sequence == 2
    assert [decode_message(each).payload for each in buffer.between(0, 9)] == [b"first"]


class HugeBytes(bytes):
    def __len__(self) -> int:
        return 2**32


async def test_a_record_that_fits_into_no_message_spends_no_number() -> None:
    sink = PlaneSink("shadow", 7)
    with pytest.raises(SinkError, match="fit"):
        await sink.publish(HugeBytes())
    assert sink.next_sequence == 0


async def test_one_sink_writes_the_same_messages_to_socket_buffer_and_file(
    context: Context, tmp_path: Path
) -> None:
    pub = bind_pub(context, "127.0.0.1", None, high_water_mark=10)
    buffer = ReplayBuffer(10)
    async with RecordFileWriter.open(tmp_path / "tap.rec") as record_file:
        sink = PlaneSink(
            "shadow", 7, socket=pub.socket, replay_buffer=buffer, record_file=record_file
        )
        with await subscribed(pub) as sub:
            for number in range(3):
                await sink.publish(msgpack.packb(number))
            with trio.fail_after(5):
                received = [await receive_frames(sub) for _ in range(3)]
        sink.close(linger_seconds=0)
    assert received == list(RecordFiles(tmp_path / "tap.rec"))
    assert received == [list(frames) for frames in buffer.between(0, 9)]


async def test_a_file_alone_is_a_sink_and_says_when_it_takes_no_record(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    async with RecordFileWriter.open(folder / "tap.rec", rotate_bytes=1) as record_file:
        sink = PlaneSink("shadow", 7, record_file=record_file)
        await sink.publish(b"first")
        folder.rename(tmp_path / "moved")
        with pytest.raises(SinkError, match="record file: cannot write: No such file"):
            await sink.publish(b"second")
        (tmp_path / "moved").rename(folder)
        await sink.publish(b"third")
        sink.close(linger_seconds=0)
    found = [decode_message(frames) for frames in RecordFiles(folder / "tap.rec")]
    assert [(each.sequence, each.payload) for each in found] == [(0, b"first"), (2, b"third")]


async def test_what_is_queued_at_the_end_still_leaves_within_the_linger() -> None:
    """With a linger of 0 a close was measured to deliver 277 of 1,000 messages."""
    async with open_context(term_seconds=5) as readers:
        async with open_context(term_seconds=5) as context:
            pub = bind_pub(context, "127.0.0.1", None, high_water_mark=5000)
            sub = open_sub(readers, b"shadow")
            sub.connect(f"tcp://127.0.0.1:{pub.port}")
            with trio.fail_after(5):
                while True:
                    pub.socket.send_multipart([b"shadow", b"are you there"])
                    with trio.move_on_after(0.01):
                        await receive_frames(sub)
                        break
            for number in range(1000):
                pub.socket.send_multipart([b"shadow", b"%d" % number, bytes(2000)])
            close_after_linger(pub.socket, 0)
        with sub, trio.fail_after(5):
            numbers = [frames[1] async for frames in _until(sub, b"999")]
    assert numbers[-1000:] == [b"%d" % number for number in range(1000)]


async def _until(sub: zmq.Socket[bytes], last: bytes) -> AsyncIterator[list[bytes]]:
    while True:
        frames = await receive_frames(sub)
        yield frames
        if frames[1] == last:
            return


async def test_an_end_that_something_holds_up_is_left_behind_at_its_deadline() -> None:
    started = time.monotonic()
    async with open_context(term_seconds=0.2) as context:
        forgotten = bind_pub(context, "127.0.0.1", None, high_water_mark=1).socket
    assert 0.15 < time.monotonic() - started < 3
    forgotten.close(linger=0)  # lets the thread that still waits come to its end


async def test_the_loop_runs_on_while_a_context_ends() -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await trio.sleep(0.01)
            ticks += 1

    async with trio.open_nursery() as ticking:
        ticking.start_soon(tick)
        async with open_context(term_seconds=0.3) as context:
            forgotten = bind_pub(context, "127.0.0.1", None, high_water_mark=1).socket
        ticking.cancel_scope.cancel()
    forgotten.close(linger=0)
    assert ticks > 5


async def test_two_contexts_live_in_one_process() -> None:
    async with open_context(term_seconds=5) as one, open_context(term_seconds=5) as two:
        assert one is not two
        assert zmq.Context.instance() not in (one, two)
        zmq.Context.instance().term()
