"""Ordinary calls of a grpc.aio client: all are answered, and what ends one reaches its handler."""

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import grpc
import grpc.aio
import purerpc
import pytest
import trio
from google.protobuf.wrappers_pb2 import BytesValue
from purerpc.grpclib.exceptions import RpcFailedError

from replay.rpc.calls import Call, Ending
from tests.logs import capture_logs
from tests.rpc.raw_client import (
    DATA,
    HEADERS,
    PREFACE,
    Frame,
    frame,
    headers,
    message,
    raw_client,
    request,
    settings,
    window_update,
)
from tests.rpc.resident import resident_bytes
from tests.rpc.serving import (
    NAME,
    SECRET,
    both_ways,
    path_of,
    service_of,
    serving,
    stream,
    unary,
    with_aio,
)
from tests.worker.running import until


async def test_400_calls_16_at_a_time_on_one_connection_none_fails_ten_times_over():
    async def client(channel):
        waiting = list(range(400))

        async def some() -> int:
            answered = 0
            while waiting:
                number = waiting.pop()
                if number % 2:
                    value = b"%d" % number
                    answered += (await unary(channel, path_of("Echo"), value)).value == value
                else:
                    got = [
                        each.value async for each in stream(channel, path_of("Produce"), b"5 99")
                    ]
                    answered += got == [bytes((each,)) * 99 for each in range(5)]
            return answered

        return sum(await asyncio.gather(*(some() for _ in range(16))))

    async with serving() as served:
        for _ in range(10):
            assert await with_aio(served.address, client) == 400
        assert not served.server.calls


@pytest.mark.timed
async def test_a_cancel_reaches_the_handler_before_anything_that_is_sent_after_it():
    async def client(channel):
        call = stream(channel, path_of("Hold"), b"cancelled")
        await call.initial_metadata()
        before = trio_time()
        call.cancel()
        # On the same connection, so it is read after the cancel.
        await unary(channel, path_of("Echo"))
        return trio_time() - before, [each.ending for each in served.handlers.ended]

    async with serving() as served:
        trio_time = trio.lowlevel.current_clock().current_time
        took, endings = await with_aio(served.address, client)
    assert endings == [Ending.RESET]
    assert took < 1


async def test_a_closed_connection_ends_its_requests():
    async with serving() as served:
        async with raw_client(served.port) as client:
            await client.send(request(1, "Hold", b"a"), request(3, "Hold", b"b"))
            await client.send(headers(5))  # one without its body
            await until(lambda: len(served.handlers.held) == 2)
        await until(lambda: len(served.handlers.ended) == 2)
        await until(lambda: served.server.connections == 0)
        assert {call.ending for call in served.handlers.ended} == {Ending.CLOSED}
        assert {call.status for call in served.handlers.ended} == {None}


async def test_a_client_that_ends_its_side_ends_its_requests():
    async with serving() as served, raw_client(served.port) as client:
        await client.send(request(1, "Hold", b"a"))
        await until(lambda: served.handlers.held)
        await client.stream.send_eof()
        await client.end()
        assert [call.ending for call in served.handlers.ended] == [Ending.CLOSED]


@pytest.mark.parametrize(
    "metadata",
    [
        [("text", "not bytes")],
        [(b"Upper", b"case")],
        [(b"a blank", b"")],
        [(b":status", b"200")],
        [(b"connection", b"close")],
        [(b"line", b"break\r\nx: y")],
    ],
)
@pytest.mark.parametrize("where", ["before", "behind"])
async def test_metadata_that_cannot_be_sent_fail_their_call_alone(metadata, where):
    async def say(message: BytesValue, request: Call) -> BytesValue:
        if where == "before":
            request.respond(metadata)
        else:
            request.trailing_metadata = metadata
        return message

    async with serving(services=[service_of(say)]) as served, raw_client(served.port) as client:
        await client.send(request(1, "Hold", b"goes on"))
        await client.send(request(3, **{":path": "/test.Own/Call"}))
        answer = await client.answer(3)
        assert (answer.status, answer.values) == (13, [])
        await until(lambda: [call.stream.id for call in served.server.calls] == [1])


async def test_a_status_that_is_none_fails_its_call_alone():
    async def fail(message: BytesValue) -> BytesValue:
        raise RpcFailedError(None)

    async with serving(services=[service_of(fail)]) as served, raw_client(served.port) as client:
        await client.send(request(1, "Hold", b"goes on"))
        await client.send(request(3, **{":path": "/test.Own/Call"}))
        assert (await client.answer(3)).status == 13
        assert [call.stream.id for call in served.server.calls] == [1]


async def test_a_call_that_ends_the_process_has_no_whole_answer():
    """As Ctrl-C does, which Trio may raise in any task."""

    async def leave(message: BytesValue) -> AsyncIterator[BytesValue]:
        yield message
        raise SystemExit(3)

    ended: list[Call] = []
    service = service_of(leave, purerpc.Cardinality.UNARY_STREAM)

    async def ask() -> None:
        async with (
            serving(services=[service], on_call_ended=ended.append) as served,
            raw_client(served.port) as client,
        ):
            await client.send(request(1, **{":path": "/test.Own/Call"}))
            await client.end()
            await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        await ask()
    assert caught.group_contains(SystemExit)
    assert [call.status.status_code.name for call in ended] == ["UNAVAILABLE"]


async def test_a_handler_that_raises_is_internal_without_its_text_and_the_connection_lives():
    async def client(channel):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel, path_of("Fail"))
        return caught.value, await unary(channel, path_of("Echo"), b"lives")

    async with serving() as served:
        error, after = await with_aio(served.address, client)
        assert after.value == b"lives"
    assert error.code() is grpc.StatusCode.INTERNAL
    assert error.details() == "internal error (RuntimeError)"
    assert SECRET not in error.debug_error_string()


async def test_a_fault_of_our_own_costs_one_connection_and_is_logged_without_its_text():
    def on_call_ended(call: Call) -> None:
        if call.method.path == path_of("Fail"):
            raise RuntimeError(SECRET)

    with capture_logs() as logs:
        async with (
            serving(on_call_ended=on_call_ended) as served,
            raw_client(served.port) as other,
            raw_client(served.port) as client,
        ):
            await other.send(request(1, "Hold", b"goes on"))
            await client.send(request(1, "Fail"))
            await client.end()
            await other.send(request(3, value=b"lives"))
            assert (await other.answer(3)).values == [b"lives"]
            assert b"goes on" in served.handlers.held
    (failed,) = [each for each in logs if each["event"] == "connection failed"]
    assert failed["error"] == "RuntimeError"
    assert failed["at"].endswith("in on_call_ended")
    assert SECRET not in str(logs)


async def test_a_message_that_does_not_parse_is_internal_and_the_connection_lives():
    async def client(channel):
        call = channel.unary_unary(path_of("Echo"))(b"\xff\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        return caught.value.code(), (await unary(channel, path_of("Echo"), b"lives")).value

    async with serving() as served:
        assert await with_aio(served.address, client) == (grpc.StatusCode.INTERNAL, b"lives")


async def test_metadata_goes_both_ways_before_and_behind_the_answer():
    sent = (("own-text", "plain"), ("own-data-bin", bytes(range(256))), ("own-text", "twice"))

    async def client(channel):
        call = unary(channel, path_of("Metadata"), metadata=(*sent, ("other", "kept back")))
        await call
        return tuple(await call.initial_metadata()), tuple(await call.trailing_metadata())

    async with serving() as served:
        initial, trailing = await with_aio(served.address, client)
    assert sorted(map(tuple, initial)) == sorted(sent)
    assert sorted(map(tuple, trailing)) == sorted(sent)


@pytest.mark.parametrize(
    "path", [path_of("Nothing"), "/no.such.Service/Echo", f"/{NAME}", f"/{NAME}/Echo/", "/"]
)
async def test_what_is_not_there_is_unimplemented_and_the_connection_lives(path):
    async def client(channel):
        held = stream(channel, path_of("Hold"), b"same connection")
        await held.initial_metadata()
        codes = []
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel, path)
        codes.append(caught.value.code())
        # A stream of requests that stays open is refused before anything has come of it.
        call = both_ways(channel, path)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        codes.append(caught.value.code())
        assert (await unary(channel, path_of("Echo"), b"lives")).value == b"lives"
        assert not held.done()
        held.cancel()
        return codes

    async with serving() as served:
        codes = await with_aio(served.address, client)
    assert codes == [grpc.StatusCode.UNIMPLEMENTED] * 2


async def test_initial_headers_come_before_the_first_message():
    async def client(channel):
        call = stream(channel, path_of("Hold"), b"nothing yet")
        await call.initial_metadata()
        running = not call.done()
        call.cancel()
        return running

    async with serving() as served:
        assert await with_aio(served.address, client)


async def test_a_stream_both_ways_answers_each_message_as_it_comes():
    async def client(channel):
        call = both_ways(channel, path_of("Chat"))
        got = []
        for number in range(200):
            await call.write(BytesValue(value=b"%d" % number))
            got.append((await call.read()).value)
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        return got, await call.code()

    async with serving() as served:
        got, code = await with_aio(served.address, client)
    assert got == [b"%d" % number for number in range(200)]
    assert code is grpc.StatusCode.OK


async def test_a_stream_both_ways_of_no_messages_is_ok_and_a_cancelled_one_ends_its_handler():
    async def client(channel):
        call = both_ways(channel, path_of("Chat"))
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        cancelled = both_ways(channel, path_of("Chat"))
        await cancelled.write(BytesValue(value=b"one"))
        await cancelled.read()
        cancelled.cancel()
        await unary(channel, path_of("Echo"))
        return await call.code(), len(served.server.calls)

    async with serving() as served:
        assert await with_aio(served.address, client) == (grpc.StatusCode.OK, 0)


async def test_messages_that_the_handler_does_not_read_are_refused_and_then_thrown_away():
    """The handler's answers are not read, so that it waits and leaves its messages unread."""
    piece = frame(DATA, 0, 1, message(b"x" * 16_000))
    async with serving() as served, raw_client(served.port) as client:
        await client.send(headers(1, {":path": path_of("Chat")}))
        before = resident_bytes()
        async with trio.open_nursery() as reading:
            reading.start_soon(client.read_on)
            for _ in range(4096):  # 64 MB in all, as fast as the server lets us
                await until(lambda: client.granted(1) > len(piece))
                await client.send(piece)
                client.spent += len(piece)
            assert not served.server.calls
            assert resident_bytes() - before < 20 << 20
            await client.send(window_update(0, 1 << 24), window_update(1, 1 << 24))
            await until(lambda: 1 in client.answers and client.answers[1].ended)
            assert client.answers[1].status == 8
            await client.send(request(3, value=b"lives"))
            await until(lambda: 3 in client.answers and client.answers[3].ended)
            reading.cancel_scope.cancel()


async def test_a_message_of_a_stream_that_does_not_inflate_ends_the_call():
    async with serving() as served, raw_client(served.port) as client:
        await client.send(
            headers(1, {":path": path_of("Chat"), "grpc-encoding": "gzip"}),
            frame(DATA, 0, 1, b"\1\0\0\0\4oops"),
        )
        answer = await client.answer(1)
        assert answer.status == 13
        await until(lambda: not served.server.calls)


async def test_a_deadline_ends_a_stream_both_ways():
    async with serving() as served, raw_client(served.port) as client:
        fields = {":path": path_of("Chat"), "grpc-timeout": "50m"}
        await client.send(headers(1, fields), frame(DATA, 0, 1, message(b"one")))
        answer = await client.answer(1)
        assert answer.values == [b"one"]
        assert answer.status == 4
        await until(lambda: not served.server.calls)


async def test_a_thousand_streams_at_once_on_one_connection():
    async with serving() as served:
        async with raw_client(served.port) as client:
            ids = range(1, 2001, 2)
            await client.send(*(request(each, "Hold", b"%d" % each) for each in ids))

            def with_headers() -> list[Frame]:
                return client.of_kind(HEADERS)

            await client.until(lambda: len(with_headers()) == 1000)
            assert len(served.handlers.held) == 1000
            await client.send(request(2001, value=b"one more"))
            assert (await client.answer(2001)).values == [b"one more"]
        await until(lambda: len(served.handlers.ended) == 1000)


async def test_a_thousand_connections_with_one_stream_each():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    try:
        async with serving() as served, AsyncExitStack() as stack:
            clients = []
            for number in range(1000):
                hello = (PREFACE, settings(), request(1, "Hold", b"%d" % number))
                client = await stack.enter_async_context(raw_client(served.port, *hello))
                clients.append(client)
            for client in clients:
                await client.until(lambda client=client: client.of_kind(HEADERS))
            assert served.server.connections == len(served.handlers.held) == 1000
            await stack.aclose()
            await until(lambda: served.server.connections == 0)
            assert len(served.handlers.ended) == 1000
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
