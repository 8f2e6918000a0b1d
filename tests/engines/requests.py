"""Generate requests as an engine gets them."""

from collections.abc import Sequence
from typing import Any

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.engines.base import Generation


def generate_request(
    prompt: Sequence[int] = (1, 2, 3),
    *,
    request_id: str = "r",
    stream: bool = True,
    logprobs: dict[str, Any] | None = None,
    **sampling: Any,
) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        request_id=request_id,
        tokenized=pb.TokenizedInput(input_ids=prompt),
        sampling_params=pb.SamplingParams(**sampling),
        stream=stream,
        **(logprobs or {}),
    )


def generation_of(message: pb.GenerateRequest, *, arrival: float = 0.0) -> Generation:
    params = message.sampling_params
    return Generation(
        message=message,
        request_id=message.request_id,
        prompt_tokens=len(message.tokenized.input_ids),
        choices=params.n or 1,
        max_new_tokens=params.max_new_tokens if params.HasField("max_new_tokens") else None,
        arrival=arrival,
    )


def generation(prompt: Sequence[int] = (1, 2, 3), **keywords: Any) -> Generation:
    return generation_of(generate_request(prompt, **keywords))
