"""Our client beside servers that are not ours, and beside our own."""

import math

import grpc
import pytest
import trio
from google.protobuf.wrappers_pb2 import BytesValue
from purerpc.grpclib.exceptions import (
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    RpcFailedError,
    UnavailableError,
    UnimplementedError,
)
from purerpc.grpclib.status import StatusCode

from replay.rpc.client import UNREAD_BYTES, ClientMethod, open_channel, percent_decode
from replay.rpc.http2 import Http2Limits
from replay.rpc.listeners import Address
from tests.rpc.other_servers import aio_serving
from tests.rpc.serving import path_of, serving
from tests.worker.running import until

ECHO, FAIL, HOLD, PRODUCE, CHAT, METADATA, NOTHING = (
    ClientMethod(path_of(name), BytesValue.FromString)
    for name in ("Echo", "Fail", "Hold", "Produce", "Chat", "Metadata", "Nothing")
)


def value(data: bytes = b"") -> BytesValue:
    return BytesValue(value=data)


# ---- a server of grpc.aio


async def test_an_answer_with_metadata_before_and_behind_it():
    sent = [(b"own-text", b"plain"), (b"own-data-bin", b"AP8"), (b"Own-Upper", b"x")]
    async with (
        aio_serving() as (servicer, address),
        open_channel(address) as channel,
        channel.stream(ECHO, value(b"hello"), metadata=sent) as answers,
    ):
        head = await answers.wait_head()
        got = [each.value async for each in answers]
        assert got == [b"hello"]
        assert (b"own-initial", b"1") in head
        assert (b"own-bin", b"AP8") in head  # as it is on the wire
        assert (b"own-trailing", b"2") in answers.trailing_metadata
        assert answers.status.status_code is StatusCode.OK
    (told,) = servicer.metadata
    assert {("own-text", "plain"), ("own-data-bin", b"\0\xff"), ("own-upper", "x")} <= set(told)


async def test_a_failure_comes_as_its_status_with_text_and_trailers():
    async with aio_serving() as (_, address), open_channel(address) as channel:
        async with channel.stream(FAIL, value()) as answers:
            with pytest.raises(FailedPreconditionError) as caught:
                await answers.receive()
            assert (b"own-trailing", b"3") in answers.trailing_metadata
        assert caught.value.status.status_message == "50 % is not enough: é\n"
        with pytest.raises(UnimplementedError):
            await channel.unary(NOTHING, value())


async def test_a_long_stream_comes_whole_and_in_order():
    async with (
        aio_serving() as (_, address),
        open_channel(address) as channel,
        channel.stream(PRODUCE, value(b"1000 10000")) as answers,
    ):
        got = [each.value async for each in answers]
    assert got == [bytes((number & 255,)) * 10_000 for number in range(1000)]


async def test_large_messages_go_both_ways():
    large = bytes(range(256)) * 14_000  # grpc.aio takes up to 4 MiB
    async with aio_serving() as (_, address), open_channel(address) as channel:
        assert (await channel.unary(ECHO, value(large))).value == large


async def test_a_stream_both_ways():
    async with (
        aio_serving() as (_, address),
        open_channel(address) as channel,
        channel.stream(CHAT) as answers,
    ):
        for number in range(50):
            answers.send(value(b"%d" % number))
            assert (await answers.receive()).value == b"%d" % number
        answers.end_requests()
        assert await answers.receive() is None


async def test_leaving_a_block_cancels_the_call_at_the_server():
    async with aio_serving() as (servicer, address), open_channel(address) as channel:
        async with channel.stream(HOLD, value()) as answers:
            await answers.receive()
        await until(lambda: servicer.cancelled == 1)
        with trio.move_on_after(0.05):
            async with channel.stream(HOLD, value()) as answers:
                await answers.receive()
                await answers.receive()
        await until(lambda: servicer.cancelled == 2)
        # The connection lives.
        assert (await channel.unary(ECHO, value(b"on"))).value == b"on"


async def test_a_deadline_is_sent_and_enforced_here_too():
    async with aio_serving() as (servicer, address), open_channel(address) as channel:
        await channel.unary(ECHO, value(), timeout=5)
        await channel.unary(ECHO, value())
        assert 3 < servicer.left[0] <= 5
        assert servicer.left[1] is None or servicer.left[1] > 1e6
        started = trio.current_time()
        with pytest.raises(DeadlineExceededError):
            await channel.unary(HOLD, value(), timeout=0.2)
        assert 0.15 < trio.current_time() - started < 2


async def test_400_calls_at_once_on_one_connection():
    async with aio_serving() as (_, address), open_channel(address) as channel:
        got = set()

        async def call(number: int) -> None:
            got.add((await channel.unary(ECHO, value(b"%d" % number))).value)

        async with trio.open_nursery() as calls:
            for number in range(400):
                calls.start_soon(call, number)
    assert got == {b"%d" % number for number in range(400)}


async def test_compressed_answers_are_read():
    """Our client does not ask for them by itself."""
    metadata = [(b"grpc-accept-encoding", b"identity,deflate,gzip")]
    async with (
        aio_serving(compression=grpc.Compression.Gzip) as (_, address),
        open_channel(address) as channel,
        channel.stream(ECHO, value(b"a" * 10_000), metadata=metadata) as answers,
    ):
        assert (b"grpc-encoding", b"gzip") in await answers.wait_head()
        assert (await answers.receive()).value == b"a" * 10_000


# ---- a server of ours


async def test_a_deadline_of_nothing_ends_at_once():
    async with serving() as served, open_channel(served.address) as channel:
        await channel.unary(ECHO, value())
        with pytest.raises(DeadlineExceededError), trio.fail_after(1):
            await channel.unary(HOLD, value(), timeout=0)


async def test_cancelling_the_scope_around_a_call_resets_its_stream_and_no_other():
    async with (
        serving() as served,
        open_channel(served.address) as channel,
        channel.stream(HOLD, value(b"stays")) as stays,
    ):
        await stays.wait_head()
        with trio.CancelScope() as scope:
            async with channel.stream(HOLD, value(b"goes")) as goes:
                await goes.wait_head()
                scope.cancel()
                await goes.receive()
        await until(lambda: len(served.handlers.ended) == 1)
        assert list(served.handlers.held) == [b"stays"]
        assert goes.status.status_code is StatusCode.CANCELLED


async def test_an_answer_that_nobody_reads_is_bounded_and_comes_whole_later():
    async with (
        serving() as served,
        open_channel(served.address) as channel,
        channel.stream(PRODUCE, value(b"100 100000")) as answers,
    ):
        await answers.receive()
        # The server's handler waits, for our windows are shut.
        await until(lambda: any(call.is_full for call in served.server.calls))
        # Other calls of the same connection go on.
        assert (await channel.unary(ECHO, value(b"past it"))).value == b"past it"
        held = sum(len(message) for _, message in answers._messages)
        assert held < 3 * UNREAD_BYTES
        got = 1
        async for answer in answers:
            assert answer.value == bytes((got,)) * 100_000
            got += 1
        assert got == 100


async def test_a_message_larger_than_what_may_be_unread_comes_whole():
    async with (
        serving() as served,
        open_channel(served.address) as channel,
        channel.stream(PRODUCE, value(b"3 20000000")) as answers,
    ):
        assert [len(each.value) async for each in answers] == [20_000_000] * 3


async def test_each_message_knows_when_it_came():
    async with serving() as served, open_channel(served.address) as channel:
        before = trio.current_time()
        async with channel.stream(PRODUCE, value(b"5 5")) as answers:
            assert answers.received_at == -math.inf
            times = []
            while await answers.receive() is not None:
                times.append(answers.received_at)
        assert before <= times[0]
        assert times == sorted(times)
        assert times[-1] <= trio.current_time()


async def test_when_the_connection_is_lost_calls_are_unavailable_and_the_next_one_connects_again():
    async with serving() as served, open_channel(served.address) as channel:
        async with (
            channel.stream(HOLD, value(b"a")) as one,
            channel.stream(HOLD, value(b"b")) as two,
        ):
            await one.wait_head()
            await two.wait_head()
            for peer in list(served.server._peers):
                peer._transport._socket.shutdown(trio.socket.SHUT_RDWR)
            for answers in (one, two):
                with pytest.raises(UnavailableError):
                    await answers.receive()
        assert (await channel.unary(ECHO, value(b"again"))).value == b"again"


async def test_more_streams_than_the_server_allows_open_another_connection():
    limits = Http2Limits(streams=3)
    async with serving(limits=limits) as served, open_channel(served.address) as channel:
        await channel.unary(ECHO, value())
        async with trio.open_nursery() as calls:

            async def hold(number: int) -> None:
                async with channel.stream(HOLD, value(b"%d" % number)) as answers:
                    await answers.receive()

            for number in range(10):
                calls.start_soon(hold, number)
            await until(lambda: len(served.handlers.held) == 10)
            assert served.server.connections == 4
            calls.cancel_scope.cancel()


async def test_the_connections_of_a_channel_are_used_in_turn():
    async with serving() as served, open_channel(served.address, connections=4) as channel:
        for _ in range(12):
            await channel.unary(ECHO, value())
        assert served.server.connections == 4


async def test_a_server_that_drains_finishes_what_it_has_and_a_new_call_goes_elsewhere():
    async with serving() as served, open_channel(served.address) as channel:
        async with channel.stream(CHAT) as answers:
            answers.send(value(b"before"))
            assert (await answers.receive()).value == b"before"
            (peer,) = served.server._peers
            peer.connection.begin_drain()
            peer.flush()
            await until(lambda: not channel._links[0].has_room)
            # The old connection's stream goes on, the next call has a connection of its own.
            assert (await channel.unary(ECHO, value(b"new"))).value == b"new"
            assert served.server.connections == 2
            answers.send(value(b"after"))
            assert (await answers.receive()).value == b"after"
            answers.end_requests()
            assert await answers.receive() is None
        await until(lambda: served.server.connections == 1)


async def test_leaving_a_channel_ends_its_calls_and_closes_its_connections():
    async with serving() as served, trio.open_nursery() as calls:
        failed = []

        async def hold(channel) -> None:
            try:
                async with channel.stream(HOLD, value()) as answers:
                    await answers.receive()
            except UnavailableError:
                failed.append(True)

        async with open_channel(served.address) as channel:
            calls.start_soon(hold, channel)
            await until(lambda: served.handlers.held)
        await until(lambda: failed)
        await until(lambda: served.server.connections == 0)


async def test_metadata_of_our_own_server_comes_back():
    sent = [(b"own-text", b"plain"), (b"own-text", b"twice"), (b"own-data-bin", b"AAEC")]
    async with serving() as served, open_channel(served.address) as channel:
        async with channel.stream(METADATA, value(), metadata=sent) as answers:
            head = await answers.wait_head()
            await answers.receive()
            assert await answers.receive() is None
        assert [field for field in head if field[0].startswith(b"own-")] == sent
        assert list(answers.trailing_metadata) == sent


@pytest.mark.parametrize(
    "target", ["127.0.0.1", "http://127.0.0.1:1", "::1:50", "127.0.0.1:99999", ":50", "127.0.0.1:x"]
)
async def test_what_is_no_target_is_refused(target):
    with pytest.raises(ValueError, match=r"not an address|not a gRPC target|brackets"):
        async with open_channel(target):
            pass


async def test_metadata_that_is_no_bytes_is_the_callers_own_mistake():
    async with serving() as served, open_channel(served.address) as channel:
        with pytest.raises(TypeError):
            await channel.unary(ECHO, value(), metadata=[("own-name", "text")])
        assert (await channel.unary(ECHO, value(b"goes on"))).value == b"goes on"


async def test_a_unix_socket_is_a_target(tmp_path):
    async with serving(address=Address(f"unix:{tmp_path}/socket")) as served:
        assert served.address.startswith("unix:")
        async with open_channel(served.address) as channel:
            assert (await channel.unary(ECHO, value(b"file"))).value == b"file"


async def test_a_unary_call_wants_exactly_one_answer():
    async with serving() as served, open_channel(served.address) as channel:
        for count, text in ((b"0 1", "no answer"), (b"2 1", "more than one")):
            with pytest.raises(RpcFailedError, match=text) as caught:
                await channel.unary(PRODUCE, value(count))
            assert caught.value.status.status_code is StatusCode.INTERNAL


async def test_a_call_that_was_cancelled_here_says_so():
    async with (
        serving() as served,
        open_channel(served.address) as channel,
        channel.stream(HOLD, value()) as answers,
    ):
        await answers.wait_head()
        answers.cancel()
        with pytest.raises(CancelledError):
            await answers.receive()


@pytest.mark.parametrize(
    ("text", "decoded"),
    [
        (b"plain", "plain"),
        (b"50 %25%0A%C3%A9", "50 %\né"),
        (b"%", "%"),
        (b"%zz", "%zz"),
        (b"%4", "%4"),
        (b"\xff", "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_a_status_message_is_decoded_as_far_as_it_goes(text, decoded):
    assert percent_decode(text) == decoded
