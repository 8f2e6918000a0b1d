"""PURE.  Turns what was recorded of a request into the lines of a script that answers it again.

A record tells when chunks came, but not how many tokens each had, nor of which choice it was.  Of
an answer with one choice the tokens are spread over the recorded moments as evenly as they go; one
token each, if there are as many.  Where no moments were recorded, and for several choices, a token
comes at a time, evenly between the first and the last.
"""

import json
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from replay.player.observation import Choice, Finish, Observation, Outcome

#: The words of a script for the ends that it knows.  A client that left has no word: the answer
#: ends where it was, as aborted.
_REASONS = {Finish.STOP: "stop", Finish.LENGTH: "length", Finish.CANCELLED: "abort"}


class NotScriptableError(Exception):
    """A record does not tell the answer.  The text is one of few reasons."""


def script_lines(observation: Observation, *, times: int | None = None) -> Iterator[bytes]:
    """Yield a line for each choice, to be used *times* times.

    Raises NotScriptableError before the first.
    """
    choices = observation.choices or (Choice(token_ids=array("I")),)
    for choice in choices:
        if choice.is_truncated:
            raise NotScriptableError("only the first tokens were recorded")
        if choice.token_ids is None:
            raise NotScriptableError("the tokens were not recorded")
    if [choice.index for choice in choices] != list(range(len(choices))):
        raise NotScriptableError("not all of its choices were recorded")
    if observation.outcome is Outcome.UNKNOWN:
        raise NotScriptableError("how it ended is not known")
    alone = len(choices) == 1
    return (_line(observation, choice, alone=alone, times=times) for choice in choices)


def has_recorded_moments(observation: Observation) -> bool:
    """Say whether the chunks of its script come when they came, or are spread over the time."""
    moments = observation.chunk_offsets_ns or ()
    one = len(observation.choices) <= 1
    return not observation.output_tokens or (one and 0 < len(moments) <= observation.output_tokens)


def _line(observation: Observation, choice: Choice, *, alone: bool, times: int | None) -> bytes:
    ids = [] if choice.token_ids is None else choice.token_ids.tolist()
    offsets = _offsets_ns(observation, len(ids), alone=alone)
    chunks = _spread(ids, len(offsets))
    values: dict[str, Any] = {"request_id": observation.request_id}
    if not alone:
        values["index"] = choice.index
    values["chunks"] = chunks
    if chunks and observation.first_token_offset_ns is not None:
        values["offsets_ms"] = [offset / 1e6 for offset in offsets]
    if observation.outcome is Outcome.ERROR:
        values["error"] = {
            "code": "INTERNAL",
            "message": "failed when it was recorded",
            "after_chunks": len(chunks),
        }
    else:
        values["finish_reason"] = _reason(observation, choice)
    if times is not None:
        values["times"] = times
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def _reason(observation: Observation, choice: Choice) -> str:
    if choice.finish is None or observation.outcome is not Outcome.COMPLETE:
        return "abort"
    return _REASONS.get(choice.finish, "stop")


def _offsets_ns(observation: Observation, tokens: int, *, alone: bool) -> Sequence[float]:
    """Return the moments of the chunks of a choice with so many tokens."""
    if not tokens:
        return ()
    recorded = observation.chunk_offsets_ns
    if alone and recorded and len(recorded) <= tokens:
        return recorded
    first = observation.first_token_offset_ns or 0
    last = observation.last_token_offset_ns or first
    step = (last - first) / (tokens - 1) if tokens > 1 else 0
    return [first + place * step for place in range(tokens)]


def _spread(ids: list[int], chunks: int) -> list[list[int]]:
    """Cut *ids* into so many pieces of sizes that differ by one at most."""
    if not chunks:
        return []
    ends = [round(len(ids) * (place + 1) / chunks) for place in range(chunks)]
    return [ids[start:end] for start, end in zip([0, *ends], ends, strict=False)]
