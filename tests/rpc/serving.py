"""A server with a small service of its own, for peers that are real, and grpc.aio beside Trio."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import grpc
import grpc.aio
import purerpc
import trio
from google.protobuf.wrappers_pb2 import BytesValue

from replay.rpc.calls import Call
from replay.rpc.health import Health
from replay.rpc.listeners import Address, listen
from replay.rpc.server import Server

NAME = "test.Peers"
SECRET = "the exception's own text"


def path_of(method: str) -> str:
    return f"/{NAME}/{method}"


def service_of(
    function: Callable[..., Any],
    cardinality: purerpc.Cardinality = purerpc.Cardinality.UNARY_UNARY,
) -> purerpc.Service:
    """A service of one method, `/test.Own/Call`."""
    service = purerpc.Service("test.Own")
    service.add_method("Call", function, purerpc.RPCSignature(cardinality, BytesValue, BytesValue))
    return service


class Handlers:
    """The methods of `test.Peers`, and what has happened in them."""

    def __init__(self) -> None:
        #: Calls of `Hold` that run, by what their message said.
        self.held: dict[bytes, Call] = {}
        #: Calls of `Hold` that have ended, in order.
        self.ended: list[Call] = []

    def service(self) -> purerpc.Service:
        unary, stream = purerpc.Cardinality.UNARY_UNARY, purerpc.Cardinality.UNARY_STREAM
        both = purerpc.Cardinality.STREAM_STREAM
        service = purerpc.Service(NAME)
        for name, function, cardinality in (
            ("Echo", self.echo, unary),
            ("Fail", self.fail, unary),
            ("Metadata", self.metadata, unary),
            ("Hold", self.hold, stream),
            ("Produce", self.produce, stream),
            ("Chat", self.chat, both),
        ):
            signature = purerpc.RPCSignature(cardinality, BytesValue, BytesValue)
            service.add_method(name, function, signature)
        return service

    async def echo(self, message: BytesValue) -> BytesValue:
        return message

    async def fail(self, message: BytesValue) -> BytesValue:
        raise RuntimeError(SECRET)

    async def metadata(self, message: BytesValue, request: Call) -> BytesValue:
        """Give the client's own fields back, before and behind the answer."""
        own = [field for field in request.metadata if field[0].startswith(b"own-")]
        request.respond(own)
        request.trailing_metadata = own
        return message

    async def hold(self, message: BytesValue, request: Call) -> AsyncIterator[BytesValue]:
        """Send headers, then nothing, until the call is ended from outside."""
        request.respond()
        self.held[message.value] = request
        try:
            await trio.sleep_forever()
            yield message
        finally:
            del self.held[message.value]
            self.ended.append(request)

    async def produce(self, message: BytesValue) -> AsyncIterator[BytesValue]:
        """Send `COUNT SIZE` messages, each of its own bytes."""
        count, size = map(int, message.value.split())
        for number in range(count):
            yield BytesValue(value=bytes((number & 255,)) * size)

    async def chat(self, messages: AsyncIterator[BytesValue]) -> AsyncIterator[BytesValue]:
        async for message in messages:
            yield message


@attrs.frozen
class Served:
    server: Server
    handlers: Handlers
    health: Health
    address: str

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


@asynccontextmanager
async def serving(
    *,
    address: Address | None = None,
    tls: ssl.SSLContext | None = None,
    services: Sequence[purerpc.Service] = (),
    **options: Any,
) -> AsyncIterator[Served]:
    """Serve for as long as the block lasts; nothing of it may be left behind."""
    (listening,) = listen([address or Address("127.0.0.1")])
    handlers, health = Handlers(), Health([NAME])
    server = Server([handlers.service(), health.service(), *services], **options)
    async with trio.open_nursery() as tasks:
        await tasks.start(
            lambda task_status: server.run([listening], tls=tls, task_status=task_status)
        )
        try:
            yield Served(server, handlers, health, listening.names[0])
        finally:
            await server.stop(grace_seconds=0)
    assert not server.calls
    assert server.connections == 0


Client = Callable[[grpc.aio.Channel], Coroutine[Any, Any, Any]]


async def with_aio(
    address: str,
    client: Client,
    *,
    credentials: grpc.ChannelCredentials | None = None,
    options: Sequence[tuple[str, Any]] = (),
) -> Any:
    """Run an asyncio client in a thread of its own."""

    async def main() -> Any:
        channel = (
            grpc.aio.insecure_channel(address, options=options)
            if credentials is None
            else grpc.aio.secure_channel(address, credentials, options=options)
        )
        async with channel:
            return await client(channel)

    return await trio.to_thread.run_sync(asyncio.run, main())


_CODECS = {
    "request_serializer": BytesValue.SerializeToString,
    "response_deserializer": BytesValue.FromString,
}


def unary(channel: grpc.aio.Channel, path: str, value: bytes = b"", **options: Any) -> Any:
    return channel.unary_unary(path, **_CODECS)(BytesValue(value=value), **options)


def stream(channel: grpc.aio.Channel, path: str, value: bytes = b"", **options: Any) -> Any:
    return channel.unary_stream(path, **_CODECS)(BytesValue(value=value), **options)


def both_ways(channel: grpc.aio.Channel, path: str, **options: Any) -> Any:
    return channel.stream_stream(path, **_CODECS)(**options)
