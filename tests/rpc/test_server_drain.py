"""How a server stops: what is on its way is answered, what runs has its grace, all that is left is
told."""

import grpc
import grpc.aio
import pytest
import trio

from replay._proto import health_pb2
from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.config.engines import CannedConfig
from replay.engines.methods import GENERATE, METHODS
from replay.rpc import server as server_module
from replay.rpc.calls import Ending
from replay.rpc.health import HEALTH_PATHS
from replay.rpc.listeners import Address, listen
from replay.rpc.server import Server
from replay.runtime import open_runtime
from tests.engines.requests import generate_request
from tests.rpc.raw_client import (
    ACK,
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    MOST,
    PING,
    PREFACE,
    RawClient,
    frame,
    headers,
    ping,
    raw_client,
    request,
    settings,
)
from tests.rpc.serving import Handlers, path_of, serving, stream, unary, with_aio
from tests.worker.running import config_of, until

UNAVAILABLE, REFUSED_STREAM = 14, 7
WIDE = (PREFACE, settings(_4=MOST))


def goaways(client: RawClient) -> list[int]:
    return [int.from_bytes(each.payload[:4], "big") for each in client.of_kind(GOAWAY)]


def last_ping(client: RawClient) -> bytes:
    return [each for each in client.of_kind(PING) if not each.flags & ACK][-1].payload


async def test_the_goodbye_has_two_halves_and_what_comes_between_them_is_answered():
    async with serving() as served, raw_client(served.port) as client:
        await client.send(request(1, "Hold", b"runs"))
        await until(lambda: served.handlers.held)
        async with trio.open_nursery() as tasks:
            tasks.start_soon(lambda: served.server.stop(grace_seconds=60))
            await client.until(lambda: client.of_kind(PING))
            assert goaways(client) == [MOST]
            await client.send(request(3))
            assert (await client.answer(3)).status == UNAVAILABLE
            await client.send(ping(last_ping(client), ACK))
            await client.until(lambda: len(goaways(client)) == 2)
            assert goaways(client) == [MOST, 3]
            assert {each.code for each in client.of_kind(GOAWAY)} == {0}
            await client.send(request(5))
            assert (await client.answer(5)).reset == REFUSED_STREAM
            assert b"runs" in served.handlers.held
            tasks.cancel_scope.cancel()
        answer = await client.answer(1)
        assert answer.status == UNAVAILABLE
        await client.end()


async def test_an_answer_to_another_ping_is_not_the_end_of_the_first_half():
    async with serving() as served, raw_client(served.port) as client:
        await until(lambda: served.server.connections == 1)
        served.server.refuse_new_calls()
        await client.until(lambda: client.of_kind(PING))
        await client.send(ping(b"another!", ACK), request(1))
        assert (await client.answer(1)).status == UNAVAILABLE
        assert goaways(client) == [MOST]


async def test_a_connection_that_comes_late_is_answered_unavailable():
    """A GOAWAY instead would make clients dial again and again and let their calls wait."""
    async with serving() as served:
        served.server.refuse_new_calls()
        async with raw_client(served.port) as client:
            await client.send(request(1))
            assert (await client.answer(1)).status == UNAVAILABLE
            assert goaways(client) == []


async def test_requests_whose_bodies_are_to_come_are_refused_while_the_server_drains():
    async with serving() as served, raw_client(served.port) as client:
        served.server.refuse_new_calls()
        await client.send(headers(1), headers(3, {":path": path_of("Chat")}))
        assert (await client.answer(1)).status == UNAVAILABLE
        assert (await client.answer(3)).status == UNAVAILABLE


async def test_a_short_stream_finishes_and_a_long_one_is_ended_at_the_grace():
    """Of a real worker: 200 tokens of 5 ms each are a second, 12,000 are a minute."""
    ends: dict[str, tuple[float, object]] = {}

    async def generate(address: str, name: str, tokens: int) -> None:
        async def client(channel):
            message = generate_request(request_id=name, max_new_tokens=tokens)
            call = channel.unary_stream(
                GENERATE.path,
                request_serializer=pb.GenerateRequest.SerializeToString,
                response_deserializer=pb.GenerateResponse.FromString,
            )(message)
            last = None
            try:
                async for each in call:
                    last = each
            except grpc.aio.AioRpcError as error:
                return error.code()
            return last.complete.finish_reason

        end = await with_aio(address, client)
        ends[name] = (trio.current_time(), end)

    config = config_of(engine=CannedConfig(token_ms=5), grace_seconds=1.5)
    async with trio.open_nursery() as clients, open_runtime(config) as runtime:
        clients.start_soon(generate, runtime.addresses[0], "short", 200)
        clients.start_soon(generate, runtime.addresses[0], "long", 12_000)
        await until(lambda: runtime.workers[0].scheduler.in_flight == 2)
        started = trio.current_time()
    assert ends["short"][1] == "length"
    assert ends["long"][1] is grpc.StatusCode.UNAVAILABLE
    assert 1.4 < ends["long"][0] - started < 4


async def test_standing_calls_do_not_hold_the_drain_and_hear_of_it_before_a_stream_is_cut():
    """The end of a stream and the news of a watch come on one connection, so they have an order."""
    watch = headers(1, {":path": HEALTH_PATHS[1]}) + frame(DATA, END_STREAM, 1, bytes(5))
    config = config_of(engine=CannedConfig(token_ms=5), grace_seconds=0.3)
    started = trio.current_time()
    async with trio.open_nursery() as clients:
        done = trio.Event()
        async with open_runtime(config) as runtime:
            port = int(runtime.addresses[0].rpartition(":")[2])

            async def client() -> None:
                async with raw_client(port, *WIDE) as raw:
                    body = generate_request(max_new_tokens=10**5).SerializeToString()
                    await raw.send(
                        watch,
                        headers(3, {":path": GENERATE.path}),
                        frame(DATA, END_STREAM, 3, b"\0" + len(body).to_bytes(4, "big") + body),
                    )
                    await raw.until(lambda: {1, 3} <= {each.stream_id for each in raw.frames})
                    done.set()
                    await raw.end(seconds=10)
                told = [each for each in raw.frames if each.kind == DATA and each.stream_id == 1]
                states = [
                    health_pb2.HealthCheckResponse.FromString(each.payload[5:]).status
                    for each in told
                ]
                assert states == [1, 2]  # SERVING, NOT_SERVING
                cut = [each for each in raw.of_kind(HEADERS) if each.flags & END_STREAM]
                of_stream = next(each for each in cut if each.stream_id == 3)
                assert raw.frames.index(told[1]) < raw.frames.index(of_stream)
                assert raw.answers[1].status == raw.answers[3].status == UNAVAILABLE

            clients.start_soon(client)
            await done.wait()
    assert trio.current_time() - started < 3


async def test_standing_calls_alone_end_at_once():
    watch = headers(1, {":path": HEALTH_PATHS[1]}) + frame(DATA, END_STREAM, 1, bytes(5))
    async with serving() as served, raw_client(served.port) as client:
        await client.send(watch)
        await client.until(lambda: client.of_kind(DATA))
        with trio.fail_after(2):
            assert await served.server.stop(grace_seconds=60) == 0
        assert (await client.answer(1)).status == UNAVAILABLE
        await client.end()


async def test_health_check_says_no_on_an_open_connection_while_streams_finish():
    config = config_of(engine=CannedConfig(token_ms=5), grace_seconds=5)
    path = METHODS["HealthCheck"].path

    def ask(stream_id: int) -> bytes:
        return headers(stream_id, {":path": path}) + frame(DATA, END_STREAM, stream_id, bytes(5))

    async def client(port: int, ready: trio.Event) -> None:
        async with raw_client(port, *WIDE) as raw:
            body = generate_request(max_new_tokens=100).SerializeToString()
            await raw.send(
                ask(1),
                headers(3, {":path": GENERATE.path}),
                frame(DATA, END_STREAM, 3, b"\0" + len(body).to_bytes(4, "big") + body),
            )
            before = await raw.answer(1)
            await raw.until(lambda: 3 in raw.answers)
            ready.set()
            await raw.until(lambda: raw.of_kind(PING))  # which it does not answer
            await raw.send(ask(5), request(7, **{":path": GENERATE.path}))
            during = await raw.answer(5)
            assert (await raw.answer(7)).status == UNAVAILABLE
            assert not raw.answers[3].ended
            assert (await raw.answer(3)).status == 0
            await raw.end()
        said = [
            pb.HealthCheckResponse.FromString(bytes(answer.body[5:])) for answer in (before, during)
        ]
        assert [each.healthy for each in said] == [True, False]
        assert said[1].message == "the worker shuts down"

    async with trio.open_nursery() as clients:
        ready = trio.Event()
        async with open_runtime(config) as runtime:
            port = int(runtime.addresses[0].rpartition(":")[2])
            clients.start_soon(client, port, ready)
            await ready.wait()


async def test_a_cancelled_stop_ends_the_grace_and_nothing_else():
    async with serving() as served, raw_client(served.port) as client:
        await client.send(request(1, "Hold", b"held"))
        await until(lambda: served.handlers.held)
        with trio.CancelScope() as around:
            around.cancel()
            await served.server.stop(grace_seconds=60)
        assert [call.ending for call in served.handlers.ended] == [Ending.SHUTDOWN]
        assert (await client.answer(1)).status == UNAVAILABLE


async def test_a_cancellation_around_the_server_is_not_its_end():
    """Only a stop ends it, so that calls get their status."""
    handlers, (listening,) = Handlers(), listen([Address("127.0.0.1")])
    server = Server([handlers.service()])
    async with trio.open_nursery() as tasks:
        await tasks.start(server.run, [listening])
        tasks.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            async with raw_client(listening.port) as client:
                await client.send(request(1, "Hold", b"held"), request(3, value=b"served"))
                assert (await client.answer(3)).values == [b"served"]
                assert await server.stop(grace_seconds=0) == 1
                assert (await client.answer(1)).status == UNAVAILABLE
                await client.end()
    assert [call.ending for call in handlers.ended] == [Ending.SHUTDOWN]


async def test_a_cancelled_runtime_tells_its_clients():
    async with trio.open_nursery() as clients:
        started, codes = trio.Event(), []

        async def client() -> None:
            async with raw_client(port, *WIDE) as raw:
                body = generate_request(max_new_tokens=10**5).SerializeToString()
                await raw.send(
                    headers(1, {":path": GENERATE.path}),
                    frame(DATA, END_STREAM, 1, b"\0" + len(body).to_bytes(4, "big") + body),
                )
                await raw.until(lambda: raw.of_kind(DATA))
                started.set()
                codes.append((await raw.answer(1)).status)
                await raw.end()

        with trio.CancelScope() as scope:
            config = config_of(engine=CannedConfig(token_ms=5), grace_seconds=60)
            async with open_runtime(config) as runtime:
                port = int(runtime.addresses[0].rpartition(":")[2])
                clients.start_soon(client)
                await started.wait()
                scope.cancel()
                await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught
    assert codes == [UNAVAILABLE]


async def test_a_second_stop_ends_the_grace_of_the_first():
    async with serving() as served, raw_client(served.port) as client:
        await client.send(request(1, "Hold", b"held"))
        await until(lambda: served.handlers.held)
        cut: list[int] = []

        async def stop(grace_seconds: float) -> None:
            cut.append(await served.server.stop(grace_seconds=grace_seconds))

        with trio.fail_after(5):
            async with trio.open_nursery() as stops:
                stops.start_soon(stop, 60)
                await client.until(lambda: client.of_kind(GOAWAY))
                stops.start_soon(stop, 0)
        assert sum(cut) >= 1
        assert (await client.answer(1)).status == UNAVAILABLE
        await client.end()


async def test_a_client_that_does_not_read_does_not_hold_the_stop(monkeypatch):
    monkeypatch.setattr(server_module, "UNWIND_SECONDS", 0.2)
    async with (
        serving() as served,
        raw_client(served.port, *WIDE, buffer=4096) as client,
    ):
        await client.send(frame(8, 0, 0, (MOST - 65535).to_bytes(4, "big")))
        await client.send(request(1, "Produce", b"1000 1000000"))
        await client.until(lambda: client.of_kind(DATA))
        before = trio.current_time()
        assert await served.server.stop(grace_seconds=0.1) == 1
        assert 0.1 <= trio.current_time() - before < 2


async def test_grpc_aio_goes_elsewhere_and_its_calls_in_flight_finish():
    async def client(channel):
        call = stream(channel, path_of("Produce"), b"3 1000")
        got = [len(each.value) async for each in call]
        held = stream(channel, path_of("Hold"), b"held")
        await held.initial_metadata()
        trio.from_thread.run_sync(served.server.refuse_new_calls)
        with pytest.raises(grpc.aio.AioRpcError) as new:
            await unary(channel, path_of("Echo"), timeout=5)
        return got, new.value.code(), held.done()

    async with serving() as served:
        got, new, held_is_done = await with_aio(served.address, client)
        await until(lambda: not served.server.calls)
    assert got == [1000] * 3
    assert new is grpc.StatusCode.UNAVAILABLE
    assert not held_is_done
