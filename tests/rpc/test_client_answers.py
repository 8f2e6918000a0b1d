"""Answers that no gRPC server should give: what the client makes of them, and that it lives on."""

import gzip
from contextlib import asynccontextmanager

import pytest
import trio
from google.protobuf.wrappers_pb2 import BytesValue
from purerpc.grpclib.exceptions import RpcFailedError, UnavailableError
from purerpc.grpclib.status import StatusCode

from replay.rpc.client import ClientMethod, open_channel
from tests.rpc.other_servers import goaway, head, raw_serving, trailers
from tests.rpc.raw_client import (
    DATA,
    END_STREAM,
    HEADERS,
    PREFACE,
    RST_STREAM,
    RawClient,
    block_of,
    frame,
    message,
    rst_stream,
    settings,
)
from tests.worker.running import until

ECHO = ClientMethod("/test.Peers/Echo", BytesValue.FromString)
GRPC = ("content-type", "application/grpc")


def value(data: bytes = b"") -> BytesValue:
    return BytesValue(value=data)


def data(stream_id: int, body: bytes, flags: int = 0) -> bytes:
    return frame(DATA, flags, stream_id, body)


def whole(stream_id: int, text: bytes = b"fine") -> bytes:
    return head(stream_id, GRPC) + data(stream_id, message(text)) + trailers(stream_id)


@asynccontextmanager
async def answering(*answers):
    """Serve with the *answers* in turn, functions of a stream's id, then with good ones."""
    waiting = list(answers)

    async def answer(client, stream_id):
        made = waiting.pop(0) if waiting else whole
        await client.send(made(stream_id))

    async with raw_serving(answer) as (server, address), open_channel(address) as channel:
        yield server, channel


def one_frame(kind, flags, payload):
    return lambda stream_id: frame(kind, flags, stream_id, payload)


ANSWERS = {
    "trailers only": (
        lambda each: frame(
            HEADERS, 5, each, block_of(((":status", "200"), GRPC, ("grpc-status", "5")))
        ),
        StatusCode.NOT_FOUND,
    ),
    "a status nobody knows": (
        lambda each: head(each, GRPC) + trailers(each, status="99"),
        StatusCode.UNKNOWN,
    ),
    "a status of 5,000 digits": (
        lambda each: head(each, GRPC) + trailers(each, status="9" * 5000),
        StatusCode.UNKNOWN,
    ),
    "a status that is no number": (
        lambda each: head(each, GRPC) + trailers(each, status="-1"),
        StatusCode.UNKNOWN,
    ),
    "trailers without a status": (
        lambda each: head(each, GRPC) + frame(HEADERS, 5, each, block_of((("x", "y"),))),
        StatusCode.UNKNOWN,
    ),
    "no trailers": (
        lambda each: head(each, GRPC) + data(each, message(b"a"), END_STREAM),
        StatusCode.UNKNOWN,
    ),
    "OK in the middle of a message": (
        lambda each: head(each, GRPC) + data(each, message(b"abc")[:-1]) + trailers(each),
        StatusCode.INTERNAL,
    ),
    "compression without a name": (
        lambda each: head(each, GRPC) + data(each, b"\1" + message(b"a")[1:]) + trailers(each),
        StatusCode.INTERNAL,
    ),
    "compression of another kind": (
        lambda each: (
            head(each, GRPC, ("grpc-encoding", "snappy"))
            + data(each, b"\1" + message(b"a")[1:])
            + trailers(each)
        ),
        StatusCode.UNIMPLEMENTED,
    ),
    "gzip that is none": (
        lambda each: (
            head(each, GRPC, ("grpc-encoding", "gzip"))
            + data(each, b"\1" + message(b"a")[1:])
            + trailers(each)
        ),
        StatusCode.INTERNAL,
    ),
    "a prefix that is none": (
        lambda each: head(each, GRPC) + data(each, b"\7" + message(b"a")[1:]) + trailers(each),
        StatusCode.INTERNAL,
    ),
    "reset with CANCEL": (lambda each: rst_stream(each, 8), StatusCode.CANCELLED),
    "refused": (lambda each: rst_stream(each, 7), StatusCode.UNAVAILABLE),
    "reset with an internal error": (lambda each: rst_stream(each, 2), StatusCode.INTERNAL),
    "too much for the server": (lambda each: rst_stream(each, 11), StatusCode.RESOURCE_EXHAUSTED),
    "DATA before HEADERS": (lambda each: data(each, message(b"a")), StatusCode.INTERNAL),
    "HEADERS without a status": (
        lambda each: frame(HEADERS, 4, each, block_of((GRPC,))),
        StatusCode.INTERNAL,
    ),
    "trailers that do not end": (
        lambda each: head(each, GRPC) + head(each, GRPC),
        StatusCode.INTERNAL,
    ),
}


@pytest.mark.parametrize("kind", ANSWERS)
async def test_a_bad_answer_is_a_status_of_its_call_and_the_connection_lives(kind):
    answer, code = ANSWERS[kind]
    async with answering(answer) as (server, channel):
        with pytest.raises(RpcFailedError) as caught, trio.fail_after(2):
            await channel.unary(ECHO, value())
        assert caught.value.status.status_code is code
        assert (await channel.unary(ECHO, value())).value == b"fine"
        assert server.connections == 1


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("400", StatusCode.INTERNAL),
        ("401", StatusCode.UNAUTHENTICATED),
        ("403", StatusCode.PERMISSION_DENIED),
        ("404", StatusCode.UNIMPLEMENTED),
        ("429", StatusCode.UNAVAILABLE),
        ("500", StatusCode.UNKNOWN),
        ("502", StatusCode.UNAVAILABLE),
        ("503", StatusCode.UNAVAILABLE),
    ],
)
@pytest.mark.parametrize("ends", [True, False])
async def test_an_answer_of_a_proxy_is_told_by_its_http_status(status, code, ends):
    """Whatever its body looks like, and also when that never ends."""
    page = ("content-type", "text/html")
    body = b"\0\0\0\0\1page, or a message of one byte?"
    async with answering(
        lambda each: head(each, page, status=status) + data(each, body, int(ends))
    ) as (_, channel):
        with pytest.raises(RpcFailedError, match=f"HTTP status {status}") as caught:
            with trio.fail_after(2):
                await channel.unary(ECHO, value())
        assert caught.value.status.status_code is code
        assert (await channel.unary(ECHO, value())).value == b"fine"


async def test_a_page_with_status_200_is_no_answer():
    page = head(1, ("content-type", "text/html")) + data(1, b"<html>" * 1000)
    async with answering(lambda each: page) as (_, channel):
        with pytest.raises(RpcFailedError, match="HTTP status 200") as caught, trio.fail_after(2):
            await channel.unary(ECHO, value())
    assert caught.value.status.status_code is StatusCode.UNKNOWN


async def test_a_stream_that_ends_inside_of_a_message_is_internal_behind_what_was_whole():
    async with (
        answering(
            lambda each: (
                head(each, GRPC) + data(each, message(b"a") + message(b"b")[:-1]) + trailers(each)
            )
        ) as (_, channel),
        channel.stream(ECHO, value()) as answers,
    ):
        assert (await answers.receive()).value == b"a"
        with pytest.raises(RpcFailedError, match="inside of a message") as caught:
            await answers.receive()
    assert caught.value.status.status_code is StatusCode.INTERNAL


async def test_informational_headers_are_passed_over():
    async with answering(
        lambda each: head(each, status="100") + head(each, status="103") + whole(each)
    ) as (_, channel):
        assert (await channel.unary(ECHO, value())).value == b"fine"


async def test_what_trailers_only_say_is_trailing_metadata():
    async with answering(
        lambda each: frame(
            HEADERS,
            5,
            each,
            block_of(((":status", "200"), GRPC, ("own", "1"), ("grpc-status", "0"))),
        )
    ) as (_, channel):
        async with channel.stream(ECHO, value()) as answers:
            assert await answers.receive() is None
        assert (b"own", b"1") in answers.trailing_metadata
        assert not answers.initial_metadata


async def test_a_gzip_answer_is_read_and_a_plain_one_beside_it():
    body = value(b"a" * 1000).SerializeToString()
    packed = gzip.compress(body)
    async with (
        answering(
            lambda each: (
                head(each, GRPC, ("grpc-encoding", "gzip"))
                + data(each, b"\1" + len(packed).to_bytes(4, "big") + packed + message(b"plain"))
                + trailers(each)
            )
        ) as (_, channel),
        channel.stream(ECHO, value()) as answers,
    ):
        assert [each.value async for each in answers] == [b"a" * 1000, b"plain"]


async def test_messages_may_be_cut_anywhere():
    body = b"".join(message(b"%d" % number) for number in range(20))

    def in_bytes(stream_id):
        pieces = (data(stream_id, body[at : at + 1]) for at in range(len(body)))
        return head(stream_id, GRPC) + b"".join(pieces) + trailers(stream_id)

    async with answering(in_bytes) as (_, channel), channel.stream(ECHO, value()) as answers:
        assert [each.value async for each in answers] == [b"%d" % each for each in range(20)]


async def test_an_answer_before_the_request_has_ended_is_taken_and_the_request_ended():
    """The server may answer without having read everything (RFC 9113, 8.1)."""
    resets = []

    async def serve(stream):
        await stream.receive_some(len(PREFACE))
        client = RawClient(stream)
        await client.send(settings())
        await client.until(lambda: client.of_kind(HEADERS))
        await client.send(head(1, GRPC), trailers(1, status="8"))
        await client.until(lambda: client.of_kind(RST_STREAM))
        resets.extend(client.of_kind(RST_STREAM))

    async with trio.open_nursery() as tasks:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        tasks.start_soon(trio.serve_listeners, serve, [listener])
        port = listener.socket.getsockname()[1]
        async with open_channel(f"127.0.0.1:{port}") as channel:
            async with channel.stream(ECHO) as answers:
                with pytest.raises(RpcFailedError) as caught:
                    await answers.receive()
                answers.send(value(b"too late"))
                answers.end_requests()
            await until(lambda: resets)
        tasks.cancel_scope.cancel()
    assert caught.value.status.status_code is StatusCode.RESOURCE_EXHAUSTED
    assert [each.stream_id for each in resets] == [1]


# ---- connections


async def test_streams_above_a_goaway_are_unavailable_those_below_finish():
    order = []

    async def answer(client, stream_id):
        order.append(stream_id)
        if len(order) > 3:
            await client.send(whole(stream_id, b"again"))
        elif len(order) == 3:
            await client.send(goaway(3), whole(1, b"one"), whole(3, b"three"))

    async with raw_serving(answer) as (server, address), open_channel(address) as channel:
        results = {}

        async def call(number):
            try:
                results[number] = (await channel.unary(ECHO, value())).value
            except UnavailableError as error:
                results[number] = error.status.status_message

        async with trio.open_nursery() as calls:
            for number in range(3):
                calls.start_soon(call, number)
                await until(lambda number=number: len(order) > number)
        assert results == {0: b"one", 1: b"three", 2: "the server is going away"}
        assert server.connections == 1
        order.extend(range(3))  # from here on, an answer at once
        assert (await channel.unary(ECHO, value())).value == b"again"
        assert server.connections == 2


BROKEN = {
    "a frame that is too large": b"\xff\xff\xff\0\0\0\0\0\1",
    "a header block that is none": frame(HEADERS, 4, 1, b"\xff\xff\xff\xff\xff\xff"),
    "DATA on a stream that is idle": data(99, b"x"),
    "a promise": frame(5, 4, 1, b"\0\0\0\2"),
    "HTTP/1": b"HTTP/1.1 400 Bad Request\r\n\r\n",
}


@pytest.mark.parametrize("kind", BROKEN)
async def test_a_broken_connection_makes_its_calls_unavailable_and_the_next_one_connects_again(
    kind,
):
    async with answering(lambda each: BROKEN[kind]) as (server, channel):
        with pytest.raises(UnavailableError), trio.fail_after(2):
            await channel.unary(ECHO, value())
        assert (await channel.unary(ECHO, value())).value == b"fine"
        assert server.connections == 2


async def test_many_pings_and_settings_of_a_server_are_answered():
    """A client chose its server, and gateways probe."""
    flood = frame(6, 0, 0, b"12345678") * 5000 + frame(4) * 100
    async with answering(lambda each: flood + whole(each)) as (_, channel):
        assert (await channel.unary(ECHO, value())).value == b"fine"
