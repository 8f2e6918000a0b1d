"""The HTTP port under clients that do not behave."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import trio
from hypercorn.trio.tcp_server import TCPServer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from replay.rpc.listeners import Address, listen
from replay.web.serve import serving_http
from tests.web.asking import ask

#: More than the buffers of a connection take.
LARGE = 8 * 1024 * 1024


async def _large(request: Request) -> Response:
    return PlainTextResponse("x" * LARGE)


async def _small(request: Request) -> Response:
    return PlainTextResponse("ok")


async def _body(request: Request) -> Response:
    return Response(await request.body())


@asynccontextmanager
async def serving() -> AsyncIterator[str]:
    app = Starlette(
        routes=[Route("/large", _large), Route("/small", _small), Route("/body", _body)]
    )
    (listening,) = listen([Address("127.0.0.1", 0)])
    with trio.fail_after(5):
        async with serving_http(app, listening):
            yield listening.names[0]


async def begun(address: str, sent: bytes) -> trio.SocketStream:
    """Send the beginning of something."""
    host, _, port = address.partition(":")
    client = trio.socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await client.connect((host, int(port)))
    await client.send(sent)
    return trio.SocketStream(client)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /large HTTP/1.1\r\nhost: a\r\n\r\n",
        b"POST /body HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nx",
        b"GET /sma",
        b"",
    ],
    ids=["reads nothing", "half a body", "half a head", "says nothing"],
)
async def test_a_client_that_stops_in_the_middle_does_not_hold_up_the_stop(sent: bytes) -> None:
    async with serving() as address:
        client = await begun(address, sent)
        # It has been accepted once another one has been answered.
        assert (await ask(address, "GET", "/small")).body == b"ok"
    await client.aclose()


async def test_an_answer_that_is_being_read_ends_within_the_grace() -> None:
    received = 0
    async with trio.open_nursery() as reading, serving() as address:
        client = await begun(address, b"GET /large HTTP/1.1\r\nhost: a\r\n\r\n")
        assert await client.receive_some(1)

        async def read() -> None:
            nonlocal received
            async with client:
                async for piece in client:
                    received += len(piece)

        reading.start_soon(read)
    assert received >= LARGE


async def test_what_fails_in_one_connection_ends_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(self: TCPServer) -> None:
        raise ValueError("by design")

    async with serving() as address:
        with monkeypatch.context() as broken:
            broken.setattr(TCPServer, "run", fail)
            async with await begun(address, b"GET /small HTTP/1.1\r\nhost: a\r\n\r\n") as client:
                with suppress(trio.BrokenResourceError):
                    assert await client.receive_some() == b""
        assert (await ask(address, "GET", "/small")).body == b"ok"
    assert [each.getMessage() for each in caplog.records] == ["a connection failed"]
