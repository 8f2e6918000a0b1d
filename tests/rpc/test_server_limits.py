"""What a request or a connection may not be: the right status, reset or GOAWAY, and nobody else
notices."""

import gzip
import socket
import ssl
import struct
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from replay.rpc import peer
from replay.rpc.http2 import Http2Limits
from tests.rpc.raw_client import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    RawClient,
    assert_answers,
    block_of,
    fields_with,
    frame,
    headers,
    message,
    raw_client,
    request,
    rst_stream,
    settings,
    window_update,
)
from tests.rpc.serving import Served, path_of, serving
from tests.worker.running import until

NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR = 0, 1, 3, 5, 6
COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 9, 11
DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL = 4, 8, 12, 13
HELLO = PREFACE + settings()


@asynccontextmanager
async def serving_a_bystander(**options: object) -> AsyncIterator[Served]:
    """Serve, with somebody whose connection and stream outlive whatever the block does."""
    async with serving(**options) as served, raw_client(served.port) as bystander:
        await bystander.send(request(1, "Hold", b"bystander"), request(3, value=b"before"))
        assert (await bystander.answer(3)).values == [b"before"]
        yield served
        await bystander.send(request(5, value=b"after"))
        assert (await bystander.answer(5, seconds=1)).values == [b"after"]
        assert not bystander.of_kind(GOAWAY)
        assert b"bystander" in served.handlers.held


async def assert_lives(client: RawClient) -> None:
    await client.send(request(99, value=b"lives"))
    assert (await client.answer(99)).values == [b"lives"]
    assert not client.of_kind(GOAWAY)


# ---- messages


async def test_a_message_over_the_limit_is_refused_before_its_body_has_come():
    async with (
        serving_a_bystander(message_limit=1000) as served,
        raw_client(served.port) as client,
    ):
        await client.send(headers(1), frame(DATA, 0, 1, struct.pack(">BI", 0, 1001)))
        answer = await client.answer(1)
        assert answer.status == RESOURCE_EXHAUSTED
        assert answer.fields["grpc-message"] == "the message of 1001 bytes is larger than 1000"
        await client.until(lambda: answer.reset is not None)
        assert answer.reset == NO_ERROR
        # What was on its way does no harm, and a message at the limit passes.
        await client.send(frame(DATA, END_STREAM, 1, b"x" * 1001))
        await client.send(request(3, value=b"y" * 997))
        assert (await client.answer(3)).values == [b"y" * 997]


async def test_a_message_over_the_limit_in_one_piece_is_refused():
    async with (
        serving_a_bystander(message_limit=1000) as served,
        raw_client(served.port) as client,
    ):
        await client.send(request(1, value=b"x" * 2000))
        assert (await client.answer(1)).status == RESOURCE_EXHAUSTED
        await assert_lives(client)


def compressed(data: bytes, *, cut: int = 0, flag: int = 1) -> bytes:
    return struct.pack(">BI", flag, len(data) - cut) + data[: len(data) - cut]


PLAIN = message(b"squeezed")[5:]
ZEROS = gzip.compress(bytes(64 << 20))


@pytest.mark.parametrize("data", [gzip.compress(PLAIN, mtime=0), zlib.compress(PLAIN)])
async def test_a_compressed_message_is_read(data):
    async with serving_a_bystander() as served, raw_client(served.port) as client:
        fields = {"grpc-encoding": "gzip" if data[:1] == b"\x1f" else "deflate"}
        await client.send(headers(1, fields), frame(DATA, END_STREAM, 1, compressed(data)))
        answer = await client.answer(1)
        assert (answer.status, answer.values) == (0, [b"squeezed"])
        assert "grpc-encoding" not in answer.fields


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [
        ("gzip", compressed(ZEROS), RESOURCE_EXHAUSTED),
        ("gzip", compressed(gzip.compress(PLAIN, mtime=0), cut=3), INTERNAL),
        ("gzip", compressed(b"no gzip at all"), INTERNAL),
        ("br", compressed(b"whatever"), UNIMPLEMENTED),
        (None, compressed(gzip.compress(PLAIN, mtime=0)), INTERNAL),
        ("identity", compressed(gzip.compress(PLAIN, mtime=0)), INTERNAL),
        ("gzip", compressed(PLAIN, flag=2), INTERNAL),
        (None, b"", INTERNAL),
        (None, message(b"short")[:-1], INTERNAL),
        (None, message(b"long") + b"x", INTERNAL),
        (None, message(b"one") + message(b"two"), INTERNAL),
        (None, struct.pack(">BI", 0, 3) + b"\xff\xff\xff", INTERNAL),
    ],
)
async def test_a_body_that_is_not_one_message_ends_its_stream_only(encoding, body, status):
    async with (
        serving_a_bystander(message_limit=1 << 20) as served,
        raw_client(served.port) as client,
    ):
        await client.send(headers(1, {"grpc-encoding": encoding}))
        pieces = [body[at : at + 16384] for at in range(0, len(body), 16384)] or [b""]
        for piece in pieces[:-1]:
            await client.send(frame(DATA, 0, 1, piece))
        await client.send(frame(DATA, END_STREAM, 1, pieces[-1]))
        assert (await client.answer(1)).status == status
        await assert_lives(client)


async def test_without_a_message_limit_a_bomb_is_stopped_by_the_budget():
    limits = Http2Limits(buffered_bytes=1 << 20)
    async with serving_a_bystander(limits=limits) as served, raw_client(served.port) as client:
        await client.send(headers(1, {"grpc-encoding": "gzip"}))
        body = compressed(ZEROS)
        for at in range(0, len(body), 16384):
            last = END_STREAM if at + 16384 >= len(body) else 0
            await client.send(frame(DATA, last, 1, body[at : at + 16384]))
        assert (await client.answer(1)).status == RESOURCE_EXHAUSTED
        await assert_lives(client)


# ---- headers


@pytest.mark.parametrize(
    "changes",
    [
        {":path": None},
        {":path": ""},
        {":method": None},
        {":scheme": None},
        {"te": "gzip"},
        {"Upper": "case"},
        {":unknown": "x"},
        {"connection": "close"},
        {"transfer-encoding": "chunked"},
        {"a": "line\nbreak"},
        {"a b": "space"},
        {"": "no name"},
    ],
)
async def test_headers_that_are_not_http2_reset_their_stream_only(changes):
    async with serving_a_bystander() as served, raw_client(served.port) as client:
        await client.send(headers(1, changes), frame(DATA, END_STREAM, 1, message()))
        answer = await client.answer(1)
        assert answer.reset == PROTOCOL_ERROR
        assert not answer.fields
        await assert_lives(client)


async def test_pseudo_headers_that_come_late_or_twice_reset_their_stream_only():
    usual = fields_with()
    async with serving_a_bystander() as served, raw_client(served.port) as client:
        for stream_id, fields in ((1, usual[::-1]), (3, usual[:1] + usual)):
            await client.send(frame(HEADERS, END_HEADERS, stream_id, block_of(fields)))
            assert (await client.answer(stream_id)).reset == PROTOCOL_ERROR
        await assert_lives(client)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({":method": "GET"}, "405"),
        ({":method": "OPTIONS"}, "405"),
        ({"content-type": "application/json"}, "415"),
        ({"content-type": "application/grpcish"}, "415"),
        ({"content-type": None}, "415"),
    ],
)
@pytest.mark.parametrize("whole", [True, False])
async def test_what_is_not_grpc_gets_a_status_of_http(changes, status, whole):
    async with serving_a_bystander() as served, raw_client(served.port) as client:
        await client.send(headers(1, changes, flags=END_HEADERS | (END_STREAM if whole else 0)))
        answer = await client.answer(1)
        assert answer.fields == {":status": status}
        assert answer.ended
        await assert_lives(client)


@pytest.mark.parametrize("timeout", ["", "5", "S", "5s", "-1S", "1.5S", "123456789S", "1 S"])
@pytest.mark.parametrize("whole", [True, False])
async def test_a_bad_timeout_is_internal(timeout, whole):
    async with serving_a_bystander() as served, raw_client(served.port) as client:
        await client.send(headers(1, {"grpc-timeout": timeout}))
        if whole:
            await client.send(frame(DATA, END_STREAM, 1, message()))
        answer = await client.answer(1)
        assert answer.status == INTERNAL
        assert answer.fields["grpc-message"] == "bad grpc-timeout"
        await assert_lives(client)


@pytest.mark.parametrize("path", ["no-slash", "/", "//", "/a", "*"])
async def test_a_path_of_no_method_is_unimplemented(path):
    async with serving_a_bystander() as served, raw_client(served.port) as client:
        await client.send(request(1, **{":path": path}))
        assert (await client.answer(1)).status == UNIMPLEMENTED
        await assert_lives(client)


async def test_a_header_list_that_is_large_only_when_decoded_resets_its_stream():
    """One entry of the table, named by a byte each time."""
    entry = b"\x40" + b"\x01a" + b"\x7f\xa1\x1e" + b"v" * 4000
    block = block_of(fields_with()) + entry + b"\xbe" * 20
    async with serving_a_bystander() as served, raw_client(served.port) as client:
        await client.send(frame(HEADERS, END_HEADERS, 1, block))
        assert (await client.answer(1)).reset == ENHANCE_YOUR_CALM
        await assert_lives(client)


# ---- deadlines and early answers


async def test_a_deadline_holds_for_a_request_whose_body_never_comes():
    async with serving_a_bystander() as served, raw_client(served.port) as client:
        started = trio.current_time()
        await client.send(headers(1, {"grpc-timeout": "100m"}))
        answer = await client.answer(1)
        assert 0.09 <= trio.current_time() - started < 1
        assert answer.status == DEADLINE_EXCEEDED
        await client.until(lambda: answer.reset is not None)
        assert answer.reset == NO_ERROR
        await assert_lives(client)


@pytest.mark.timed
async def test_a_deadline_runs_from_the_headers_also_when_the_body_comes_late():
    async with serving_a_bystander() as served, raw_client(served.port) as client:
        started = trio.current_time()
        fields = {":path": path_of("Hold"), "grpc-timeout": "1S"}
        await client.send(headers(1, fields))
        await trio.sleep(0.8)
        await client.send(frame(DATA, END_STREAM, 1, message(b"late")))
        answer = await client.answer(1)
        took = trio.current_time() - started
        assert answer.status == 4
        assert served.handlers.ended  # the call had begun
        assert 0.95 <= took < 1.6  # and not 1.8


@pytest.mark.parametrize("end", ["body", "reset", "fault"])
async def test_a_request_that_has_ended_leaves_no_timer(end):
    """Its deadline of a year must not keep a task for that long."""
    async with serving_a_bystander() as served, raw_client(served.port) as client:
        before = trio.lowlevel.current_statistics().tasks_living
        for number in range(50):
            stream_id = 2 * number + 1
            await client.send(headers(stream_id, {"grpc-timeout": "8760H"}))
            await until(lambda: trio.lowlevel.current_statistics().tasks_living > before)
            if end == "body":
                await client.send(frame(DATA, END_STREAM, stream_id, message()))
            elif end == "reset":
                await client.send(rst_stream(stream_id))
            else:
                await client.send(window_update(stream_id, 0))
            await until(lambda: trio.lowlevel.current_statistics().tasks_living == before)


@pytest.mark.parametrize("path", ["/no.such/Method", path_of("Echo")])
async def test_an_answer_before_the_end_of_the_request_is_followed_by_a_reset(path):
    fields = {":path": path, "grpc-timeout": "1n"}
    async with serving_a_bystander() as served, raw_client(served.port) as client:
        await client.send(headers(1, fields))
        answer = await client.answer(1)
        await client.until(lambda: answer.reset is not None)
        assert answer.ended
        assert answer.reset == NO_ERROR
        kinds = [each.kind for each in client.frames if each.stream_id == 1]
        assert kinds == [HEADERS, RST_STREAM]


# ---- connections that end


async def assert_ends(port: int, *data: bytes, code: int | None) -> None:
    """The server says goodbye with *code* and closes; None: it only closes."""
    async with raw_client(port, *data) as client:
        await client.end(seconds=2)
        if code is None:
            assert not client.of_kind(GOAWAY)
        else:
            assert client.goaway.code == code, client.goaway


def tls_hello() -> bytes:
    context = ssl.create_default_context()
    out = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost").do_handshake()
    return out.read()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /x HTTP/1.0\r\n\r\n",
        tls_hello(),
        b"\0" * 24,
        PREFACE[:-1] + b"x",
        b"PRI * HTTP/2.0\r\n\r\nXX",
    ],
    ids=["get", "post", "tls", "zeros", "last byte", "other magic"],
)
async def test_what_is_not_http2_is_told_so_and_closed(data):
    async with serving_a_bystander() as served:
        await assert_ends(served.port, data, code=PROTOCOL_ERROR)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(PING, 0, 0, b"before!!"), PROTOCOL_ERROR),
        (frame(SETTINGS, 1), PROTOCOL_ERROR),
        (HELLO + frame(SETTINGS, 0, 0, b"12345"), FRAME_SIZE_ERROR),
        (HELLO + frame(SETTINGS, 1, 0, b"123456"), FRAME_SIZE_ERROR),
        (HELLO + frame(SETTINGS, 0, 1), PROTOCOL_ERROR),
        (HELLO + settings(_2=2), PROTOCOL_ERROR),
        (HELLO + settings(_4=1 << 31), FLOW_CONTROL_ERROR),
        (HELLO + settings(_5=16383), PROTOCOL_ERROR),
        (HELLO + settings(_5=1 << 24), PROTOCOL_ERROR),
        (HELLO + frame(DATA, 0, 0, b"x"), PROTOCOL_ERROR),
        (HELLO + frame(DATA, 0, 1, b"x"), PROTOCOL_ERROR),
        (HELLO + headers(0), PROTOCOL_ERROR),
        (HELLO + headers(2), PROTOCOL_ERROR),
        (HELLO + headers(5) + headers(3), PROTOCOL_ERROR),
        (HELLO + frame(HEADERS, END_HEADERS | 8, 1), FRAME_SIZE_ERROR),
        (HELLO + frame(HEADERS, END_HEADERS | 8, 1, b"\xff"), PROTOCOL_ERROR),
        (HELLO + frame(HEADERS, END_HEADERS | 32, 1, b"abc"), FRAME_SIZE_ERROR),
        (HELLO + headers(1) + frame(DATA, 8, 1), FRAME_SIZE_ERROR),
        (HELLO + headers(1) + frame(DATA, 8, 1, b"\x05abc"), PROTOCOL_ERROR),
        (HELLO + frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff"), COMPRESSION_ERROR),
        (HELLO + frame(HEADERS, END_HEADERS, 1, b"\x80"), COMPRESSION_ERROR),
        (HELLO + frame(HEADERS, END_HEADERS, 1, b"\x00\x05ab"), COMPRESSION_ERROR),
        (HELLO + frame(CONTINUATION, END_HEADERS, 1, b""), PROTOCOL_ERROR),
        (HELLO + headers(1, flags=0) + frame(PING, 0, 0, bytes(8)), PROTOCOL_ERROR),
        (HELLO + headers(1, flags=0) + frame(CONTINUATION, 4, 3, b""), PROTOCOL_ERROR),
        (HELLO + frame(PUSH_PROMISE, 4, 1, bytes(4)), PROTOCOL_ERROR),
        (HELLO + frame(PRIORITY, 0, 0, bytes(5)), PROTOCOL_ERROR),
        (HELLO + frame(PRIORITY, 0, 1, bytes(4)), FRAME_SIZE_ERROR),
        (HELLO + frame(RST_STREAM, 0, 0, bytes(4)), PROTOCOL_ERROR),
        (HELLO + rst_stream(1), PROTOCOL_ERROR),
        (HELLO + headers(1) + frame(RST_STREAM, 0, 1, bytes(3)), FRAME_SIZE_ERROR),
        (HELLO + frame(PING, 0, 1, bytes(8)), PROTOCOL_ERROR),
        (HELLO + frame(PING, 0, 0, bytes(7)), FRAME_SIZE_ERROR),
        (HELLO + frame(GOAWAY, 0, 1, bytes(8)), PROTOCOL_ERROR),
        (HELLO + frame(GOAWAY, 0, 0, bytes(7)), FRAME_SIZE_ERROR),
        (HELLO + window_update(0, 0), PROTOCOL_ERROR),
        (HELLO + window_update(1, 1), PROTOCOL_ERROR),
        (HELLO + window_update(0, 2**31 - 1), FLOW_CONTROL_ERROR),
        (HELLO + frame(WINDOW_UPDATE, 0, 0, bytes(3)), FRAME_SIZE_ERROR),
        (HELLO + frame(PING, 0, 0, bytes(16385)), FRAME_SIZE_ERROR),
        (HELLO + b"\xff\xff\xff\x00", None),  # cut off: nothing to say yet, see below
    ],
)
async def test_a_malformed_frame_ends_its_connection(data, code):
    if not data.startswith(PREFACE):
        data = PREFACE + data
    async with serving_a_bystander() as served:
        if code is not None:
            await assert_ends(served.port, data, code=code)
            return
        async with raw_client(served.port, data) as client:
            await client.stream.send_eof()
            await client.end()
            assert not client.of_kind(GOAWAY)


@pytest.mark.parametrize("cut", [0, 1, 8, 9, 20, 23])
async def test_a_connection_that_ends_in_the_middle_of_anything_is_closed(cut):
    data = HELLO + request(1, "Hold", b"cut off")
    async with serving_a_bystander() as served:
        async with raw_client(served.port, data[: len(data) - cut]) as client:
            await client.stream.send_eof()
            await client.end()
        await until(lambda: served.server.connections == 1)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (window_update(1, 0), PROTOCOL_ERROR),
        (window_update(1, 2**31 - 1), FLOW_CONTROL_ERROR),
        (frame(DATA, END_STREAM, 1, b"after the end"), STREAM_CLOSED),
        (headers(1, flags=END_HEADERS | END_STREAM), STREAM_CLOSED),
    ],
)
async def test_a_fault_of_a_stream_resets_it_and_nothing_else(data, code):
    async with serving_a_bystander() as served, raw_client(served.port) as client:
        await client.send(request(1, "Hold", b"faulty"))
        await client.until(lambda: client.of_kind(HEADERS))
        await client.send(data)
        assert (await client.answer(1)).reset == code
        await until(lambda: served.handlers.ended)
        await assert_lives(client)


async def test_96_kb_of_headers_end_the_connection():
    block = block_of([*fields_with(), ("a", "v" * 96 * 1024)])
    pieces = [block[at : at + 16384] for at in range(0, len(block), 16384)]
    data = frame(HEADERS, 0, 1, pieces[0])
    data += b"".join(frame(CONTINUATION, 0, 1, piece) for piece in pieces[1:-1])
    data += frame(CONTINUATION, END_HEADERS, 1, pieces[-1])
    async with serving_a_bystander() as served:
        await assert_ends(served.port, HELLO, data, code=ENHANCE_YOUR_CALM)


async def test_60_kb_of_headers_in_many_pieces_are_served():
    block = block_of([*fields_with(), ("a", "v" * 60 * 1024)])
    data = frame(HEADERS, 0, 1, block[:1])
    data += b"".join(
        frame(CONTINUATION, 0, 1, block[at : at + 500]) for at in range(1, len(block), 500)
    )
    data += frame(CONTINUATION, END_HEADERS, 1) + frame(DATA, END_STREAM, 1, message(b"large"))
    async with serving_a_bystander() as served, raw_client(served.port) as client:
        await client.send(data)
        assert (await client.answer(1)).values == [b"large"]


@pytest.mark.parametrize("piece", [b"", b"\0\1a\1b"])
async def test_a_flood_of_continuations_ends_the_connection(piece):
    async with serving_a_bystander() as served:
        flood = frame(CONTINUATION, 0, 1, piece) * 20_000
        await assert_ends(served.port, HELLO, headers(1, flags=0), flood, code=ENHANCE_YOUR_CALM)


async def test_a_connection_over_the_limit_is_told_so():
    async with serving_a_bystander(connection_limit=2) as served:
        async with raw_client(served.port) as second:
            await assert_lives(second)
            await assert_ends(served.port, HELLO, request(1), code=ENHANCE_YOUR_CALM)
            await assert_lives_still(second)
        await until(lambda: served.server.connections == 1)
        await assert_answers(served.port)


async def assert_lives_still(client: RawClient) -> None:
    await client.send(request(101, value=b"still"))
    assert (await client.answer(101)).values == [b"still"]


async def test_a_client_that_resets_while_it_is_refused_costs_nobody_anything():
    async with serving_a_bystander(connection_limit=1) as served:
        for _ in range(100):
            refused = socket.create_connection(("127.0.0.1", served.port))
            refused.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            refused.close()
        await assert_ends(served.port, HELLO, code=ENHANCE_YOUR_CALM)


@pytest.mark.parametrize("hello", [b"PRI", PREFACE])
async def test_a_client_that_does_not_greet_is_closed(hello, monkeypatch):
    monkeypatch.setattr(peer, "GREETING_SECONDS", 0.1)
    async with serving_a_bystander() as served, raw_client(served.port) as greeted:
        await assert_lives(greeted)
        started = trio.current_time()
        await assert_ends(served.port, hello, code=None)
        assert trio.current_time() - started >= 0.09
        await assert_lives_still(greeted)


async def test_streams_over_the_limit_are_refused_and_may_be_tried_again():
    limits = Http2Limits(streams=2)
    async with serving_a_bystander(limits=limits) as served, raw_client(served.port) as client:
        await client.send(*(request(each, "Hold", b"%d" % each) for each in (1, 3, 5)))
        assert (await client.answer(5)).reset == 7  # REFUSED_STREAM
        await client.send(rst_stream(1), request(7, value=b"again"))
        assert (await client.answer(7)).values == [b"again"]
