"""Aborts where a layer holds requests that the engine below does not know, or knows otherwise."""

from collections.abc import Callable, Mapping
from typing import Any

from purerpc.grpclib.exceptions import RpcFailedError

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.rpc.calls import Call


def with_own_aborts(methods: Mapping[str, Any], end: Callable[[str], int]) -> Mapping[str, Any]:
    """Return *methods* with an Abort that calls *end* before it is passed on.

    *end* ends what a layer holds under an id, and returns how many requests that was.  An engine
    without an Abort of its own needs none: the worker's ends all.
    """
    below = methods.get("Abort")
    if below is None:
        return methods

    async def abort(message: pb.AbortRequest, request: Call) -> pb.AbortResponse:
        ended = end(message.request_id)
        try:
            response: pb.AbortResponse = await below(message, request)
        except RpcFailedError:
            if not ended:
                raise
        else:
            if response.success or not ended:
                return response
        return pb.AbortResponse(success=True, message=f"aborted {ended}")

    return {**methods, "Abort": abort}
