"""Where the load goes: a gRPC worker, or an OpenAI endpoint."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.generator.spec import LoadSpec
from replay.player.grpc_target import GrpcTarget
from replay.player.openai_target import OpenAITarget, open_openai_target
from replay.player.targets import TargetError
from replay.rpc.client import open_channel

#: The variable that clients of OpenAI endpoints take their key from.
API_KEY = "OPENAI_API_KEY"


def is_openai(target: str) -> bool:
    """Tell an OpenAI endpoint from a gRPC worker."""
    return target.startswith(("http://", "https://"))


@asynccontextmanager
async def open_target(spec: LoadSpec) -> AsyncIterator[GrpcTarget | OpenAITarget]:
    """Open what *spec* sends to.  Raises TargetError for what is no address."""
    if is_openai(spec.target):
        key = os.environ.get(API_KEY)
        async with open_openai_target(
            spec.target, model=spec.model, api_key=key, timeout=spec.deadline_s
        ) as endpoint:
            yield endpoint
        return
    try:
        channel_of = open_channel(spec.target, connections=spec.connections)
    except ValueError as error:
        raise TargetError(f"{spec.target}: {error}") from None
    async with channel_of as channel:
        yield GrpcTarget(spec.target, channel, spec.deadline_s)
