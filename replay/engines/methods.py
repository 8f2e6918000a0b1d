"""The methods of TokenSpeed's scheduler service, and of none else: names, shapes, messages."""

from collections.abc import Mapping
from typing import Any

import purerpc

from replay._proto import common_pb2 as common
from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.rpc.client import ClientMethod

SERVICE_NAME = "tokenspeed.grpc.scheduler.TokenSpeedScheduler"

_UNARY, _STREAM = purerpc.Cardinality.UNARY_UNARY, purerpc.Cardinality.UNARY_STREAM

#: How each method answers, and its messages.
SIGNATURES: Mapping[str, tuple[purerpc.Cardinality, type[Any], type[Any]]] = {
    "Generate": (_STREAM, pb.GenerateRequest, pb.GenerateResponse),
    "HealthCheck": (_UNARY, pb.HealthCheckRequest, pb.HealthCheckResponse),
    "Abort": (_UNARY, pb.AbortRequest, pb.AbortResponse),
    "GetModelInfo": (_UNARY, pb.GetModelInfoRequest, pb.GetModelInfoResponse),
    "GetServerInfo": (_UNARY, pb.GetServerInfoRequest, pb.GetServerInfoResponse),
    "GetLoads": (_UNARY, pb.GetLoadsRequest, pb.GetLoadsResponse),
    "FlushCache": (_UNARY, common.FlushCacheRequest, common.FlushCacheResponse),
    "StartProfile": (_UNARY, common.StartProfileRequest, common.ProfileResponse),
    "StopProfile": (_UNARY, common.StopProfileRequest, common.ProfileResponse),
    "GetTokenizer": (_STREAM, common.GetTokenizerRequest, common.GetTokenizerChunk),
    "SubscribeKvEvents": (_STREAM, common.SubscribeKvEventsRequest, common.KvEventBatch),
}


def method_path(name: str) -> str:
    """Return the path of a method on the wire."""
    return f"/{SERVICE_NAME}/{name}"


#: The same methods as a client calls them.
METHODS: Mapping[str, ClientMethod[Any]] = {
    name: ClientMethod(method_path(name), response_type.FromString)
    for name, (_, _, response_type) in SIGNATURES.items()
}

GENERATE: ClientMethod[pb.GenerateResponse] = METHODS["Generate"]
