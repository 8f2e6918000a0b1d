"""Servers that are not ours: grpc.aio in a thread of its own, and one that writes bare frames."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
import grpc.aio
import trio
from google.protobuf.wrappers_pb2 import BytesValue

from tests.rpc.raw_client import (
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PREFACE,
    RawClient,
    block_of,
    frame,
    settings,
)


class AioServicer:
    """The methods of `test.Peers` as a grpc.aio server has them, and what it was told."""

    def __init__(self) -> None:
        self.metadata: list[tuple[tuple[str, Any], ...]] = []
        self.left: list[float] = []
        """Seconds that a call had left at its start."""
        self.cancelled = 0

    async def echo(self, message: BytesValue, context: Any) -> BytesValue:
        self.metadata.append(tuple(map(tuple, context.invocation_metadata())))
        self.left.append(context.time_remaining())
        await context.send_initial_metadata((("own-initial", "1"), ("own-bin", b"\0\xff")))
        context.set_trailing_metadata((("own-trailing", "2"),))
        return message

    async def fail(self, message: BytesValue, context: Any) -> BytesValue:
        context.set_trailing_metadata((("own-trailing", "3"),))
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "50 % is not enough: é\n")

    async def hold(self, message: BytesValue, context: Any) -> AsyncIterator[BytesValue]:
        yield message
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def produce(self, message: BytesValue, context: Any) -> AsyncIterator[BytesValue]:
        count, size = map(int, message.value.split())
        for number in range(count):
            yield BytesValue(value=bytes((number & 255,)) * size)

    async def chat(self, messages: AsyncIterator[BytesValue], context: Any) -> Any:
        async for message in messages:
            yield message

    def handler(self) -> grpc.GenericRpcHandler:
        codecs = {
            "request_deserializer": BytesValue.FromString,
            "response_serializer": BytesValue.SerializeToString,
        }
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        return grpc.method_handlers_generic_handler(
            "test.Peers",
            {
                "Echo": unary(self.echo, **codecs),
                "Fail": unary(self.fail, **codecs),
                "Hold": stream(self.hold, **codecs),
                "Produce": stream(self.produce, **codecs),
                "Chat": grpc.stream_stream_rpc_method_handler(self.chat, **codecs),
            },
        )


@asynccontextmanager
async def aio_serving(**options: Any) -> AsyncIterator[tuple[AioServicer, str]]:
    """Run a grpc.aio server; yield it and its address."""
    servicer = AioServicer()
    started: Any = None
    stop: Any = None

    def main(tell: trio.lowlevel.TrioToken) -> None:
        async def serve() -> None:
            nonlocal stop
            stop = asyncio.Event()
            loop = asyncio.get_running_loop()
            server = grpc.aio.server(**options)
            server.add_generic_rpc_handlers((servicer.handler(),))
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            trio.from_thread.run_sync(opened, port, loop, trio_token=tell)
            await stop.wait()
            await server.stop(None)

        asyncio.run(serve())

    def opened(port: int, loop: asyncio.AbstractEventLoop) -> None:
        started.value = (port, loop)
        started.event.set()

    class Started:
        event = trio.Event()
        value: tuple[int, asyncio.AbstractEventLoop]

    started = Started()
    async with trio.open_nursery() as tasks:
        tasks.start_soon(trio.to_thread.run_sync, main, trio.lowlevel.current_trio_token())
        await started.event.wait()
        port, loop = started.value
        try:
            yield servicer, f"127.0.0.1:{port}"
        finally:
            loop.call_soon_threadsafe(stop.set)


# ---- by hand


class RawServer:
    """A port whose connections are answered by the test's own function."""

    def __init__(self, answer: "Answer") -> None:
        self.connections = 0
        self._answer = answer

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        client = RawClient(stream)
        greeting = b""
        while len(greeting) < len(PREFACE):
            data = await stream.receive_some(len(PREFACE) - len(greeting))
            if not data:
                return
            greeting += data
        await client.send(settings())
        seen = 0
        while await client.read():
            for got in client.frames[seen:]:
                if got.kind in (HEADERS, DATA) and got.flags & END_STREAM:
                    await self._answer(client, got.stream_id)
            seen = len(client.frames)


Answer = Callable[[RawClient, int], Awaitable[None]]


@asynccontextmanager
async def raw_serving(answer: Answer) -> AsyncIterator[tuple[RawServer, str]]:
    """Serve with *answer*, which is called for each whole request."""
    server = RawServer(answer)
    async with trio.open_nursery() as tasks:
        listeners = await tasks.start(partial(trio.serve_tcp, server.serve, 0, host="127.0.0.1"))
        yield server, f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        tasks.cancel_scope.cancel()


def head(stream_id: int, *fields: tuple[str, str], status: str = "200", flags: int = 4) -> bytes:
    """Initial headers of an answer."""
    return frame(HEADERS, flags, stream_id, block_of(((":status", status), *fields)))


def trailers(stream_id: int, *fields: tuple[str, str], status: str = "0") -> bytes:
    """Trailers that end an answer."""
    return frame(HEADERS, 5, stream_id, block_of((("grpc-status", status), *fields)))


def goaway(last_stream_id: int, code: int = 0) -> bytes:
    return frame(GOAWAY, 0, 0, last_stream_id.to_bytes(4, "big") + code.to_bytes(4, "big"))
