"""Clients that mean harm, or behave as if: what they cost is bounded, and others are served."""

import json
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from itertools import count, repeat

import pytest
import trio
from worker_process import running_worker

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.engines.methods import GENERATE, METHODS
from replay.rpc.client import open_channel
from replay.rpc.http2 import Http2Limits
from tests.engines.requests import generate_request
from tests.rpc.raw_client import (
    DATA,
    END_STREAM,
    HEADERS,
    MOST,
    PREFACE,
    RawClient,
    assert_answers,
    frame,
    headers,
    message,
    ping,
    raw_client,
    request,
    rst_stream,
    settings,
    window_update,
)
from tests.rpc.resident import resident_bytes
from tests.rpc.serving import Served, serving
from tests.worker.running import until

ENHANCE_YOUR_CALM, FLOW_CONTROL_ERROR, RESOURCE_EXHAUSTED = 11, 3, 8
MIB = 1 << 20


@asynccontextmanager
async def served_meanwhile(served: Served) -> AsyncIterator[None]:
    """Call on connections of its own for as long as the block lasts; each is answered at once."""
    answered = 0

    async def go_on() -> None:
        nonlocal answered
        while True:
            await assert_answers(served.port)
            answered += 1

    async with trio.open_nursery() as others:
        others.start_soon(go_on)
        yield
        before = answered
        await until(lambda: answered > before)
        others.cancel_scope.cancel()


async def send_until_closed(client: RawClient, pieces: Iterable[bytes]) -> None:
    """Send *pieces*, which have no end, without reading, until the server has closed."""
    with trio.fail_after(10), suppress(trio.BrokenResourceError):
        for piece in pieces:
            await client.send(piece)


def tasks_living() -> int:
    return trio.lowlevel.current_statistics().tasks_living


@pytest.mark.parametrize("batch", [1, 500], ids=["one by one", "in the same bytes"])
async def test_10000_requests_that_are_reset_leave_no_task_and_no_memory_behind(batch):
    limits = Http2Limits(reset_burst=100_000)

    async def abuse(client: RawClient, first: int) -> None:
        for at in range(first, first + 10_000, 2 * batch):
            ids = range(at, at + 2 * batch, 2)
            await client.send(*(request(each, "Hold") + rst_stream(each) for each in ids))
        await client.send(request(first + 10_000))
        await client.answer(first + 10_000, seconds=20)

    async with serving(limits=limits) as served, raw_client(served.port) as client:
        tasks = tasks_living()
        async with served_meanwhile(served):
            await abuse(client, 1)
            before = resident_bytes()
            await abuse(client, 30_001)
            assert resident_bytes() - before < 4 * MIB
        await until(lambda: tasks_living() <= tasks)
        assert not served.server.calls
        assert not served.handlers.held


async def test_the_reset_limit_closes_only_the_abuser():
    async with serving() as served, served_meanwhile(served), raw_client(served.port) as client:
        pieces = (request(each, "Hold") + rst_stream(each) for each in count(1, 2))
        await send_until_closed(client, pieces)
        await client.end()
        assert client.goaway.code == ENHANCE_YOUR_CALM
        last = int.from_bytes(client.goaway.payload[:4], "big")
        assert 4000 <= last <= 8000  # 2,000 at once, and what came in the time of the test
        await until(lambda: not served.server.calls)


async def test_a_burst_below_the_reset_limit_is_served():
    async with serving() as served, raw_client(served.port) as client:
        for each in range(1, 3900, 2):
            await client.send(request(each, "Hold") + rst_stream(each))
        await client.send(request(9999, value=b"lives"))
        assert (await client.answer(9999)).values == [b"lives"]


async def test_resets_that_a_client_provokes_count_too():
    """A window update of 0 makes the server reset the stream: as cheap as to reset it oneself."""
    async with serving() as served, served_meanwhile(served), raw_client(served.port) as client:
        pieces = (headers(each) + window_update(each, 0) for each in count(1, 2))
        await send_until_closed(client, pieces)
        await client.end()
        assert client.goaway.code == ENHANCE_YOUR_CALM


@pytest.mark.parametrize("piece", [ping(), settings(_4=65535)], ids=["pings", "settings"])
async def test_a_flood_of_frames_that_want_an_answer_ends_its_connection(piece):
    async with serving() as served, served_meanwhile(served), raw_client(served.port) as client:
        before = resident_bytes()
        await send_until_closed(client, repeat(piece * 100))
        assert resident_bytes() - before < 8 * MIB
        await until(lambda: served.server.connections <= 1)


async def test_pings_of_a_busy_client_are_no_flood():
    async with serving() as served, raw_client(served.port) as client:
        for number in range(500):
            stream_id = 2 * number + 1
            await client.send(*[ping()] * 3, request(stream_id))
            assert (await client.answer(stream_id)).status == 0


async def test_settings_that_go_on_moving_the_windows_of_many_streams_end_the_connection():
    async with serving() as served, raw_client(served.port, PREFACE, settings(_4=0)) as client:
        ids = range(1, 2001, 2)
        await client.send(*(request(each, "Produce", b"1 60000") for each in ids))
        await client.until(lambda: len(client.of_kind(HEADERS)) == 1000)
        floods = (
            b"".join(settings(_4=each) for each in range(size, size + 1000))
            for size in count(1, 1000)
        )
        await send_until_closed(client, floods)
        await until(lambda: served.server.connections == 0)
        await assert_answers(served.port)


@pytest.mark.parametrize(
    "piece",
    [
        frame(0x77, 0xFF, 3, b"unknown"),
        frame(DATA, 0, 1),
        window_update(0, 1),
    ],
    ids=["unknown", "empty data", "windows"],
)
async def test_a_flood_of_frames_that_mean_nothing_delays_nobody(piece):
    async with serving() as served, raw_client(served.port) as client:
        await client.send(headers(1))
        async with served_meanwhile(served):
            for _ in range(300):
                await client.send(piece * 500)
        await client.send(frame(DATA, END_STREAM, 1, message(b"lives")))
        assert (await client.answer(1)).values == [b"lives"]


@pytest.mark.parametrize("method", ["Echo", "Nothing", "Hold"])
async def test_a_client_that_sends_requests_and_never_reads_is_not_read_any_more(method):
    hello = (PREFACE, settings(_4=MOST), window_update(0, MOST - 65535))
    async with serving() as served:
        async with raw_client(served.port, *hello, buffer=4096) as client:
            before, sent, stream_id = resident_bytes(), 0, 1
            async with served_meanwhile(served):
                # A second is enough to send some hundred MB, if somebody took them.
                with trio.move_on_after(1) as patience:
                    while True:
                        data = b""
                        for each in range(stream_id, stream_id + 400, 2):
                            data += request(each, method, bytes(2000))
                        stream_id += 400
                        await client.send(data)
                        sent += len(data)
            assert patience.cancelled_caught
            assert resident_bytes() - before < 24 * MIB
        await until(lambda: not served.server.connections)


async def read_by_window(client: RawClient, stream_id: int, window: int) -> None:
    """Read a whole answer; grant what has come when half of the window has."""
    granted, answer = 0, client.answers[stream_id]
    with trio.fail_after(30):
        while not answer.ended:
            come = len(answer.body) - granted
            if come >= window // 2:
                granted += come
                await client.send(window_update(0, come), window_update(stream_id, come))
            assert await client.read()


def assert_whole(client: RawClient, stream_id: int) -> None:
    answer = client.answers[stream_id]
    assert answer.status == 0
    assert answer.values == [bytes((number,)) * MIB for number in range(20)]


async def test_a_client_with_windows_of_65535_gets_every_byte():
    async with serving() as served, raw_client(served.port) as client:
        await client.send(request(1, "Produce", b"20 %d" % MIB))
        await client.until(lambda: client.of_kind(HEADERS))
        await read_by_window(client, 1, 65535)
        assert_whole(client, 1)


async def test_a_client_whose_windows_shrink_below_nothing_gets_every_byte():
    hello = (PREFACE, settings(_4=3 * MIB), window_update(0, MOST - 65535))
    async with serving() as served, raw_client(served.port, *hello) as client:
        await client.send(request(1, "Produce", b"20 %d" % MIB))
        await client.until(lambda: 1 in client.answers and len(client.answers[1].body) > MIB)
        answer, credit, initial = client.answers[1], 3 * MIB, 3 * MIB
        for size in (1000, 0, 70_000, 1):
            # What has come was granted before; the smaller window takes that back.
            await client.send(settings(_4=size), window_update(1, 4 * MIB))
            credit += size - initial + 4 * MIB
            initial = size
            await client.until(lambda most=credit: len(answer.body) >= most)
            assert len(answer.body) == credit
        await client.send(window_update(1, 20 * MIB))
        await client.until(lambda: answer.ended, seconds=20)
        assert_whole(client, 1)


async def test_a_window_of_nothing_sends_nothing_until_it_opens():
    async with serving() as served, raw_client(served.port, PREFACE, settings(_4=0)) as client:
        await client.send(request(1, value=b"held back"), request(3, "Nothing"))
        assert (await client.answer(3)).status == 12  # trailers need no window
        assert not client.of_kind(DATA)
        size = len(message(b"held back"))
        for _ in range(size):
            await client.send(window_update(1, 1))
        answer = await client.answer(1)
        assert answer.values == [b"held back"]
        assert len(client.of_kind(DATA)) == size


async def test_a_client_that_sends_more_than_a_streams_window_loses_the_stream():
    limits = Http2Limits(stream_window=1000)
    async with serving(limits=limits) as served, raw_client(served.port) as client:
        await client.send(headers(1), frame(DATA, 0, 1, bytes(2000)))
        assert (await client.answer(1)).reset == FLOW_CONTROL_ERROR
        await client.send(request(3, value=b"lives"))
        assert (await client.answer(3)).values == [b"lives"]


async def test_unfinished_requests_over_the_budget_are_refused_and_the_others_go_on():
    limits, wide = Http2Limits(buffered_bytes=100_000), (PREFACE, settings(_4=MIB))
    whole = message(b"x" * 30_000)
    begin, end = whole[:16_000], whole[16_000:]
    async with serving(limits=limits) as served, raw_client(served.port, *wide) as client:
        await client.send(window_update(0, MIB))
        for stream_id in (1, 3, 5, 7, 9, 11):  # 96,000 bytes
            await client.send(headers(stream_id), frame(DATA, 0, stream_id, begin))
        await client.send(headers(13), frame(DATA, 0, 13, begin))
        answer = await client.answer(13)
        assert answer.status == RESOURCE_EXHAUSTED
        assert answer.fields["grpc-message"] == "too many bytes of unfinished requests"
        # What has been reset or has ended counts no more.
        await client.send(rst_stream(1), rst_stream(3))
        for stream_id in (5, 7, 9, 11):
            await client.send(frame(DATA, END_STREAM, stream_id, end))
            assert (await client.answer(stream_id)).values == [b"x" * 30_000]
        for stream_id in (15, 17, 19, 21, 23, 25):
            await client.send(headers(stream_id), frame(DATA, 0, stream_id, begin))
        await client.send(rst_stream(15), rst_stream(17), frame(DATA, END_STREAM, 25, end))
        assert (await client.answer(25)).status == 0


# ---- a worker, and a reader that stops


def generate_bytes(stream_id: int, tokens: int) -> bytes:
    body = generate_request(
        request_id=f"stops-{stream_id}", max_new_tokens=tokens
    ).SerializeToString()
    return headers(stream_id, {":path": GENERATE.path}) + frame(
        DATA, END_STREAM, stream_id, b"\0" + len(body).to_bytes(4, "big") + body
    )


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--token-ms", "1")], ids=["at once", "paced"])
def test_eight_long_streams_to_a_reader_that_stops_cost_little_and_freeze_nobody(tmp_path, flags):
    hello = (PREFACE, settings(_4=MOST), window_update(0, MOST - 65535))
    slowest = 0.0

    async def call_meanwhile(address: str, seconds: float) -> None:
        nonlocal slowest
        async with open_channel(address) as channel:
            ends = trio.current_time() + seconds
            while trio.current_time() < ends:
                started = time.monotonic()
                await channel.unary(METHODS["HealthCheck"], pb.HealthCheckRequest())
                async with channel.stream(GENERATE, generate_request(max_new_tokens=5)) as answers:
                    tokens = [each async for each in answers]
                assert tokens[-1].complete.finish_reason == "length"
                slowest = max(slowest, time.monotonic() - started)

    async def stop_reading(address: str, process: int) -> int:
        await call_meanwhile(address, 0.3)
        before = resident_bytes(process)
        async with raw_client(int(address.rpartition(":")[2]), *hello, buffer=4096) as client:
            await client.send(*(generate_bytes(each, 100_000) for each in range(1, 17, 2)))
            await client.until(lambda: client.of_kind(DATA))
            await call_meanwhile(address, 2)
            return resident_bytes(process) - before

    with running_worker(*flags, log=tmp_path / "log") as worker:
        cost = trio.run(stop_reading, worker.address, worker.process.pid)
    assert cost < 64 * MIB
    assert slowest < 1
    events = [json.loads(line)["event"] for line in worker.log.read_text().splitlines()]
    assert "handler failed" not in events
    assert "connection failed" not in events
