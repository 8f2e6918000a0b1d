"""Handlers that wait for their client to read: who wakes them, and that the others go on."""

import trio
from google.protobuf.wrappers_pb2 import BytesValue
from trio.testing import assert_checkpoints, wait_all_tasks_blocked

from replay.rpc.calls import Call
from tests.rpc.raw_client import (
    DATA,
    END_STREAM,
    PREFACE,
    frame,
    headers,
    message,
    raw_client,
    request,
    settings,
    window_update,
)
from tests.rpc.serving import path_of, service_of, serving
from tests.worker.running import until


def full_calls(served):
    return [call for call in served.server.calls if call.is_full]


async def test_a_stream_both_ways_goes_on_when_the_window_of_its_client_opens():
    async with serving() as served, raw_client(served.port, PREFACE, settings(_4=1000)) as client:
        await client.send(headers(1, {":path": path_of("Chat")}))
        piece = message(b"x" * 16_000)
        for _ in range(3):
            await client.send(frame(DATA, 0, 1, piece) * 5)
            # More than it may hold is unsent, so its handler waits as soon as it has its turn.
            await until(lambda: full_calls(served))
            await wait_all_tasks_blocked()
            await client.send(*(window_update(each, 5 * len(piece)) for each in (0, 1)))
            await until(lambda: not full_calls(served))
        await client.send(frame(DATA, END_STREAM, 1))
        answer = await client.answer(1)
        assert len(answer.values) == 15
        assert answer.status == 0


async def test_a_stream_goes_on_when_the_window_of_its_connection_opens():
    async with (
        serving() as served,
        raw_client(served.port, PREFACE, settings(_4=1 << 30)) as client,
    ):
        await client.send(request(1, "Produce", b"100 50000"), request(3, "Produce", b"100 50000"))
        await until(lambda: len(full_calls(served)) == 2)
        read = 0
        while not (client.answers and all(each.ended for each in client.answers.values())):
            assert await client.read()
            now = sum(len(answer.body) for answer in client.answers.values())
            if now > read:
                await client.send(window_update(0, now - read))
                read = now
        for stream_id in (1, 3):
            assert client.answers[stream_id].values == [
                bytes((each,)) * 50_000 for each in range(100)
            ]


async def test_long_streams_share_the_window_of_their_connection():
    """Neither may starve: a gateway multiplexes strangers over one connection."""
    async with (
        serving() as served,
        raw_client(served.port, PREFACE, settings(_4=1 << 30)) as client,
    ):
        ids = (1, 3, 5, 7)
        await client.send(*(request(each, "Produce", b"1000 5000") for each in ids))
        await until(lambda: len(full_calls(served)) == 4)
        # What was sent so far is whose turn it was when the window closed.
        for _ in range(60):
            await client.send(window_update(0, 32_768))
        total = 65_535 + 60 * 32_768
        await client.until(
            lambda: sum(len(answer.body) for answer in client.answers.values()) == total
        )
        bodies = [len(client.answers[each].body) for each in ids]
        assert min(bodies) > total / 8, bodies


async def test_a_stream_whose_window_stays_shut_delays_nobody():
    async with serving() as served, raw_client(served.port, PREFACE, settings(_4=0)) as client:
        await client.send(request(1, "Produce", b"1000 10000"))
        await until(lambda: full_calls(served))
        await client.send(request(3, value=b"past it"), window_update(3, 1000))
        assert (await client.answer(3, seconds=1)).values == [b"past it"]
        await client.send(request(5, "Produce", b"10 10000"), window_update(5, 200_000))
        await client.send(window_update(0, 1 << 20))
        assert len((await client.answer(5, seconds=1)).values) == 10
        assert not client.answers[1].ended


async def test_a_handler_that_waits_for_its_client_ends_with_a_reset_and_with_its_deadline():
    async with serving() as served, raw_client(served.port, PREFACE, settings(_4=0)) as client:
        await client.send(request(1, "Produce", b"1000 10000"))
        await client.send(request(3, "Produce", b"1000 10000", **{"grpc-timeout": "100m"}))
        await until(lambda: len(full_calls(served)) == 2)
        await client.send(frame(3, 0, 1, (8).to_bytes(4, "big")))
        await until(lambda: not served.server.calls)
        # The trailers of the second wait behind its messages, and its task is gone.
        assert 3 not in client.answers or not client.answers[3].ended


async def test_a_client_that_reads_on_wakes_all_that_waited_for_the_socket():
    """Windows are wide open here: it is the socket that is full, and then has room again."""
    hello = (PREFACE, settings(_4=1 << 30), window_update(0, 1 << 30))
    async with serving() as served, raw_client(served.port, *hello, buffer=4096) as client:
        ids = range(1, 17, 2)
        await client.send(*(request(each, "Produce", b"100 50000") for each in ids))
        await until(lambda: len(full_calls(served)) == 8)
        with trio.fail_after(20):
            for each in ids:
                answer = await client.answer(each, seconds=20)
                assert len(answer.values) == 100
                assert answer.status == 0


async def test_a_handler_that_asks_for_room_gives_others_a_turn_also_when_there_is_some():
    async def ask(message: BytesValue, request: Call) -> BytesValue:
        with assert_checkpoints():
            await request.room()
        return message

    async with serving(services=[service_of(ask)]) as served, raw_client(served.port) as client:
        await client.send(request(1, **{":path": "/test.Own/Call"}))
        assert (await client.answer(1)).status == 0
