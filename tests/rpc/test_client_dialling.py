"""How a channel gets its connections: one attempt at a time, and a pause after a failure."""

import errno
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from purerpc.grpclib.exceptions import NotFoundError, UnavailableError

from replay._proto import health_pb2 as pb
from replay.rpc import dialling
from replay.rpc.backoff import MOST_SECONDS
from replay.rpc.client import Channel, ClientMethod, open_channel
from replay.rpc.dialling import reason_of
from replay.rpc.health import HEALTH_PATHS, Health
from replay.rpc.http2 import Http2Limits
from replay.rpc.listeners import Address, listen
from replay.rpc.server import Server

CHECK = ClientMethod(HEALTH_PATHS[0], pb.HealthCheckResponse.FromString)
WATCH = ClientMethod(HEALTH_PATHS[1], pb.HealthCheckResponse.FromString)
ASK = pb.HealthCheckRequest()


class Door:
    """A port that counts who comes, and does with them what the test says."""

    def __init__(self, answer: Callable[[trio.SocketStream], Awaitable[None]]) -> None:
        self.comers = 0
        self._answer = answer

    async def open(self, stream: trio.SocketStream) -> None:
        self.comers += 1
        await self._answer(stream)


@asynccontextmanager
async def door(
    answer: Callable[[trio.SocketStream], Awaitable[None]],
) -> AsyncIterator[tuple[Door, str]]:
    async with trio.open_nursery() as tasks:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        counting = Door(answer)
        tasks.start_soon(trio.serve_listeners, counting.open, [listener])
        host, port = listener.socket.getsockname()
        yield counting, f"{host}:{port}"
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def serving(port: int = 0, **options: object) -> AsyncIterator[int]:
    """Serve gRPC's health service; yield the port."""
    (listening,) = listen([Address("127.0.0.1", port)])
    server = Server([Health([]).service()], **options)
    async with trio.open_nursery() as tasks:
        await tasks.start(server.run, [listening])
        yield listening.port
        await server.stop(grace_seconds=0)


async def slam(stream: trio.SocketStream) -> None:
    await stream.aclose()


async def say_nothing(stream: trio.SocketStream) -> None:
    await trio.sleep_forever()


async def failing_call(channel: Channel, errors: list[str]) -> None:
    with pytest.raises(UnavailableError) as caught:
        await channel.unary(CHECK, ASK)
    errors.append(str(caught.value))


async def test_calls_that_wait_share_one_attempt_and_its_failure():
    errors: list[str] = []
    async with door(slam) as (counting, address), open_channel(address) as channel:
        async with trio.open_nursery() as calls:
            for _ in range(50):
                calls.start_soon(failing_call, channel, errors)
        assert counting.comers == 1
    assert len(errors) == 50
    assert all(f"cannot connect to {address}" in error for error in errors)


async def test_calls_fail_at_once_while_the_pause_lasts():
    errors: list[str] = []
    async with door(slam) as (counting, address), open_channel(address) as channel:
        for _ in range(100):
            await failing_call(channel, errors)
        assert counting.comers < 5
    assert len(set(errors)) == 1  # in the pause the reason is repeated


async def test_a_dead_server_is_dialled_about_once_a_second_however_many_call():
    errors: list[str] = []
    async with door(slam) as (counting, address), open_channel(address) as channel:
        with trio.move_on_after(2.0):
            while True:
                await failing_call(channel, errors)
                await trio.sleep(0.002)
    # 0, 50, 150, 350, 750, 1550 ms
    assert 3 <= counting.comers <= 6
    assert len(errors) > 100


async def test_a_call_that_is_cancelled_does_not_take_the_attempt_from_the_others():
    released = trio.Event()

    async def answer_late(stream: trio.SocketStream) -> None:
        await released.wait()

    results: list[str] = []
    async with (
        door(answer_late) as (counting, address),
        open_channel(address) as channel,
        trio.open_nursery() as calls,
    ):
        first = trio.CancelScope()

        async def impatient() -> None:
            with first:
                await channel.unary(CHECK, ASK)

        calls.start_soon(impatient)
        await trio.testing.wait_all_tasks_blocked(0.05)
        calls.start_soon(failing_call, channel, results)
        await trio.testing.wait_all_tasks_blocked(0.05)
        first.cancel()
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert counting.comers == 1
        assert results == []
        released.set()
    assert len(results) == 1


async def test_a_server_that_never_speaks_is_given_up(monkeypatch):
    monkeypatch.setattr(dialling, "CONNECT_SECONDS", 0.1)
    errors: list[str] = []
    async with door(say_nothing) as (counting, address), open_channel(address) as channel:
        with trio.fail_after(5):
            await failing_call(channel, errors)
        assert counting.comers == 1
    assert "no answer in time" in errors[0]


async def test_a_peer_that_is_no_http2_server_is_unavailable():
    async def speak_http1(stream: trio.SocketStream) -> None:
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await trio.sleep_forever()

    errors: list[str] = []
    async with door(speak_http1) as (_, address), open_channel(address) as channel:
        await failing_call(channel, errors)
    assert "before the server had spoken" in errors[0]


@pytest.mark.parametrize("host", ["a..b", "x" * 64, "☃..net"])
async def test_a_host_that_is_no_name_fails_the_call_alone(host):
    async with open_channel(f"{host}:50") as channel:
        with pytest.raises(UnavailableError, match="cannot connect"):
            await channel.unary(CHECK, ASK)


async def test_a_port_that_nobody_listens_on_says_so_in_the_systems_words():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    errors: list[str] = []
    async with open_channel(f"127.0.0.1:{port}") as channel:
        await failing_call(channel, errors)
    assert os.strerror(errno.ECONNREFUSED) in errors[0]


async def test_a_server_that_restarts_is_found_again_within_the_longest_pause():
    async with serving() as port, open_channel(f"127.0.0.1:{port}") as channel:
        await channel.unary(CHECK, ASK)
    came: list[int] = []
    async with open_channel(f"127.0.0.1:{port}", on_connected=lambda: came.append(1)) as channel:
        for _ in range(20):
            await failing_call(channel, [])
        async with serving(port):
            with trio.fail_after(MOST_SECONDS + 1):
                while True:
                    try:
                        await channel.unary(CHECK, ASK)
                    except UnavailableError:
                        await trio.sleep(0.01)
                    else:
                        break
        assert came == [1]


async def test_calls_beyond_what_a_connection_takes_share_the_next_one():
    """Without the server's limit at hand they would have been refused."""
    came: list[int] = []
    async with (
        serving(limits=Http2Limits(streams=10)) as port,
        open_channel(f"127.0.0.1:{port}", on_connected=lambda: came.append(1)) as channel,
        trio.open_nursery() as calls,
    ):
        answered = trio.Event()
        count = 0

        async def watch() -> None:
            nonlocal count
            async with channel.stream(WATCH, ASK) as answers:
                await answers.receive()
                count += 1
                if count == 25:
                    answered.set()
                await answers.receive()

        for _ in range(25):
            calls.start_soon(watch)
        with trio.fail_after(5):
            await answered.wait()
        assert came == [1, 1, 1]
        calls.cancel_scope.cancel()


async def test_a_server_that_takes_no_calls_counts_as_a_failed_attempt():
    errors: list[str] = []
    async with (
        serving(connection_limit=0) as port,
        open_channel(f"127.0.0.1:{port}") as channel,
    ):
        await failing_call(channel, errors)
    assert "takes no calls" in errors[0] or "ended before" in errors[0]


async def test_the_head_of_an_answer_of_trailers_only_is_its_status():
    unknown = pb.HealthCheckRequest(service="unknown")
    async with (
        serving() as port,
        open_channel(f"127.0.0.1:{port}") as channel,
        channel.stream(CHECK, unknown) as answers,
    ):
        with pytest.raises(NotFoundError):
            await answers.wait_head()
        assert answers.initial_metadata is None
        assert [name for name, _ in answers.trailing_metadata if name[:1] == b":"] == []


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused"),
        (trio.TooSlowError(), "no answer in time"),
        (trio.BrokenResourceError("went away"), "went away"),
        (trio.BrokenResourceError(), "BrokenResourceError"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
    ],
)
def test_a_reason_is_in_words(error: Exception, reason: str):
    assert reason_of(error) == reason


def test_the_reason_of_a_name_with_several_addresses_is_the_first_ones():
    several = OSError("all attempts to connect to x failed")
    several.__cause__ = ExceptionGroup("", [OSError(113, "No route to host"), OSError(1, "other")])
    assert reason_of(several) == "No route to host"
