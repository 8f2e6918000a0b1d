"""The health service of gRPC (`grpc.health.v1`), for probes and load balancers."""

from collections.abc import AsyncIterator, Iterable

import purerpc
import trio
from purerpc.grpclib.exceptions import NotFoundError

from replay._proto import health_pb2 as pb
from replay.rpc.calls import Call

NAME = "grpc.health.v1.Health"
HEALTH_PATHS = (f"/{NAME}/Check", f"/{NAME}/Watch")


class Health:
    """What is serving: the server as a whole, which is called "", and services by name."""

    def __init__(self, services: Iterable[str] = ()) -> None:
        serving = pb.HealthCheckResponse.SERVING
        self._status = {"": serving, NAME: serving, **dict.fromkeys(services, serving)}
        self._changed = trio.Event()

    def set_all(self, *, serving: bool) -> None:
        """Say of everything whether it serves; who watches is told at once."""
        status = pb.HealthCheckResponse.SERVING if serving else pb.HealthCheckResponse.NOT_SERVING
        self._status = dict.fromkeys(self._status, status)
        self._changed.set()
        self._changed = trio.Event()

    def service(self) -> purerpc.Service:
        """Return the service to put on a server."""
        service = purerpc.Service(NAME)
        messages = (pb.HealthCheckRequest, pb.HealthCheckResponse)
        service.add_method(
            "Check", self.check, purerpc.RPCSignature(purerpc.Cardinality.UNARY_UNARY, *messages)
        )
        service.add_method(
            "Watch", self.watch, purerpc.RPCSignature(purerpc.Cardinality.UNARY_STREAM, *messages)
        )
        return service

    async def check(self, message: pb.HealthCheckRequest) -> pb.HealthCheckResponse:
        """Answer now; NOT_FOUND for a service that is not here."""
        status = self._status.get(message.service)
        if status is None:
            raise NotFoundError("no such service")
        return pb.HealthCheckResponse(status=status)

    async def watch(
        self, message: pb.HealthCheckRequest, request: Call
    ) -> AsyncIterator[pb.HealthCheckResponse]:
        """Answer now and at each change, for as long as the client listens."""
        request.standing = True
        told = None
        while True:
            changed = self._changed
            status = self._status.get(message.service, pb.HealthCheckResponse.SERVICE_UNKNOWN)
            if status != told:
                told = status
                yield pb.HealthCheckResponse(status=status)
            await changed.wait()
