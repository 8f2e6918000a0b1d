"""Upstreams under test: a server whose methods a test writes itself, and a proxy before it."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import purerpc
import trio

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.config.model import Config
from replay.engines.methods import SERVICE_NAME, SIGNATURES
from replay.engines.upstream import UpstreamEngine
from replay.rpc.calls import Call
from replay.rpc.listeners import Address, listen
from replay.rpc.server import Server
from tests.worker.running import Running, running

Handler = Callable[[Any, Call], Awaitable[Any]]


@asynccontextmanager
async def upstream(*, port: int = 0, **methods: Handler) -> AsyncIterator[str]:
    """Serve *methods* of TokenSpeed's service, each a function `(message, request)`; yield the
    address."""
    service = purerpc.Service(SERVICE_NAME)
    for name, function in methods.items():
        cardinality, request_type, response_type = SIGNATURES[name]
        signature = purerpc.RPCSignature(cardinality, request_type, response_type)
        service.add_method(name, function, signature, inspect.signature(function))
    (listening,) = listen([Address("127.0.0.1", port)])
    server = Server([service])
    async with trio.open_nursery() as tasks:
        await tasks.start(server.run, [listening])
        try:
            yield listening.names[0]
        finally:
            with trio.CancelScope(shield=True):
                await server.stop(grace_seconds=0)


@asynccontextmanager
async def proxy(
    address: str, *allowed: str, config: Config | None = None
) -> AsyncIterator[Running]:
    """Run a worker that passes everything on to *address*."""
    engine = UpstreamEngine(f"grpc://{address}", metadata_allow=allowed)
    async with running(config, engine=engine) as worker:
        yield worker


def chunk(*ids: int, index: int = 0, count: int = 0, **fields: Any) -> pb.GenerateResponse:
    return pb.GenerateResponse(
        request_id="r",
        chunk=pb.GenerateStreamChunk(
            token_ids=ids, index=index, completion_tokens=count or len(ids), **fields
        ),
    )


def complete(*ids: int, index: int = 0, reason: str = "stop", **fields: Any) -> pb.GenerateResponse:
    return pb.GenerateResponse(
        request_id="r",
        complete=pb.GenerateComplete(
            output_ids=ids, index=index, finish_reason=reason, completion_tokens=len(ids), **fields
        ),
    )
