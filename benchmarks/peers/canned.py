"""What the peers answer, and how they are started: the part that no library differs in."""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator

import attrs

from benchmarks.payloads import FIRST_ID
from replay._proto import tokenspeed_scheduler_pb2 as pb

#: What a request that sets no `max_new_tokens` gets.
DEFAULT_OUTPUT_TOKENS = 8


@attrs.frozen
class Pace:
    """How long a peer waits before the first token and between tokens, in seconds."""

    first: float
    between: float


def arguments(description: str) -> Pace:
    """Read the command line of a peer."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--gen-ms", type=float, default=0.0, help="wait before the first token")
    parser.add_argument("--token-ms", type=float, default=0.0, help="wait between tokens")
    options = parser.parse_args()
    return Pace(options.gen_ms / 1000, options.token_ms / 1000)


def announce(port: int) -> None:
    """Say on stderr where the peer listens."""
    line = {"event": "listening", "addresses": [f"127.0.0.1:{port}"]}
    print(json.dumps(line), file=sys.stderr, flush=True)


async def responses(request: pb.GenerateRequest, pace: Pace) -> AsyncIterator[pb.GenerateResponse]:
    """Yield the messages that answer *request*, a token each, then all tokens at once."""
    sampling = request.sampling_params
    count = DEFAULT_OUTPUT_TOKENS
    if sampling.HasField("max_new_tokens"):
        count = sampling.max_new_tokens
    prompt_tokens = len(request.tokenized.input_ids)
    if pace.first:
        await asyncio.sleep(pace.first)
    for number in range(count):
        if pace.between and number:
            await asyncio.sleep(pace.between)
        yield pb.GenerateResponse(
            request_id=request.request_id,
            chunk=pb.GenerateStreamChunk(
                token_ids=[FIRST_ID + number],
                prompt_tokens=prompt_tokens,
                completion_tokens=number + 1,
            ),
        )
    yield pb.GenerateResponse(
        request_id=request.request_id,
        complete=pb.GenerateComplete(
            output_ids=range(FIRST_ID, FIRST_ID + count),
            finish_reason="length",
            prompt_tokens=prompt_tokens,
            completion_tokens=count,
        ),
    )
