"""Aborts where a layer ends requests that the engine below does not know, or knows otherwise."""

from collections.abc import Awaitable, Callable

from purerpc.grpclib.exceptions import RpcFailedError

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.rpc.calls import Call

AbortMethod = Callable[[pb.AbortRequest, Call], Awaitable[pb.AbortResponse]]


async def abort_below(
    below: AbortMethod, message: pb.AbortRequest, request: Call, *, ended: int
) -> pb.AbortResponse:
    """Pass an Abort on, and return what both say: *ended* requests were ended above."""
    try:
        response = await below(message, request)
    except RpcFailedError:
        if not ended:
            raise
    else:
        if response.success or not ended:
            return response
    return pb.AbortResponse(success=True, message=f"aborted {ended}")
