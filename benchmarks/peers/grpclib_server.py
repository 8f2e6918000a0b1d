"""Serve Generate with grpclib, a gRPC server in Python on top of h2."""

import asyncio
import socket

from grpclib.const import Cardinality, Handler
from grpclib.server import Server, Stream
from grpclib.utils import graceful_exit

from benchmarks.payloads import GENERATE_PATH
from benchmarks.peers.canned import Pace, announce, arguments, responses
from replay._proto import tokenspeed_scheduler_pb2 as pb


class Scheduler:
    """The service, as generated code would have it."""

    def __init__(self, pace: Pace) -> None:
        """Answer at *pace*."""
        self._pace = pace

    async def generate(self, stream: "Stream[pb.GenerateRequest, pb.GenerateResponse]") -> None:
        """Send each message."""
        request = await stream.recv_message()
        assert request is not None
        async for response in responses(request, self._pace):
            await stream.send_message(response)

    def __mapping__(self) -> dict[str, Handler]:
        """Name the handler and the types of its messages."""
        return {
            GENERATE_PATH: Handler(
                self.generate, Cardinality.UNARY_STREAM, pb.GenerateRequest, pb.GenerateResponse
            )
        }


async def serve(pace: Pace) -> None:
    """Serve until SIGTERM."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    server = Server([Scheduler(pace)])
    with graceful_exit([server]):
        await server.start(sock=listener)
        announce(listener.getsockname()[1])
        await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(serve(arguments(__doc__ or "")))
