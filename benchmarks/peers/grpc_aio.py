"""Serve Generate with grpc.aio, the server that most Python gRPC services are."""

import asyncio
import signal
from collections.abc import AsyncIterator

import grpc.aio

from benchmarks.payloads import SERVICE
from benchmarks.peers.canned import Pace, announce, arguments, responses
from replay._proto import tokenspeed_scheduler_pb2 as pb


class Scheduler:
    """The service, as generated code would call it."""

    def __init__(self, pace: Pace) -> None:
        """Answer at *pace*."""
        self._pace = pace

    async def generate(
        self, request: pb.GenerateRequest, context: "grpc.aio.ServicerContext[object, object]"
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Yield each message; grpc.aio writes each."""
        async for response in responses(request, self._pace):
            yield response


async def serve(pace: Pace) -> None:
    """Serve until SIGTERM."""
    scheduler = Scheduler(pace)
    handler = grpc.unary_stream_rpc_method_handler(
        scheduler.generate,
        request_deserializer=pb.GenerateRequest.FromString,
        response_serializer=pb.GenerateResponse.SerializeToString,
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {"Generate": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    announce(port)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await server.stop(grace=None)


if __name__ == "__main__":
    asyncio.run(serve(arguments(__doc__ or "")))
