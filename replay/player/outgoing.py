"""PURE.  What is sent for a planned request, and what had to be made up for it.

A request that lacks what it needs is refused.  With `Fill.SYNTHETIC` a prompt is made up to its
length, what else is missing is left out, and both are named in `filled`.  A trace that tells only
lengths has no prompts to lack: they are made up in any case, and named.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import attrs

from replay.errors import ReplayError
from replay.player.arrival import (
    Arrival,
    BlockPrompt,
    ChatPrompt,
    LengthPrompt,
    Parameters,
    TextPrompt,
    TokenPrompt,
)
from replay.player.observation import TokenIds
from replay.player.synthesis import Synthesizer

#: Of a prompt of which not even the length is known.
_ASSUMED_LENGTH = 16


class Fill(StrEnum):
    """What is done about what a source does not hold."""

    REFUSE = "refuse"
    SYNTHETIC = "synthetic"


class Speaks(StrEnum):
    """What a target takes as a prompt."""

    IDS = "ids"
    """Token ids only."""
    IDS_AND_TEXT = "ids and text"


class RefusedError(ReplayError):
    """A request lacks what it needs."""

    def __init__(self, missing: Sequence[str]) -> None:
        super().__init__(f"lacks {', '.join(missing)}")
        self.missing = tuple(missing)


@attrs.frozen(kw_only=True)
class Outgoing:
    """What is sent.  One of `ids`, `text` and `messages` is there."""

    request_id: str
    ids: TokenIds | None = attrs.field(default=None, repr=False)
    text: str | None = attrs.field(default=None, repr=False)
    messages: tuple[Mapping[str, Any], ...] | None = attrs.field(default=None, repr=False)
    tools: tuple[Any, ...] | None = attrs.field(default=None, repr=False)
    parameters: Parameters = attrs.field(repr=False)
    stream: bool
    session: str | None = None
    """Of whose turns it is one."""
    filled: tuple[str, ...] = ()


def outgoing(
    arrival: Arrival,
    *,
    speaks: Speaks,
    synthesizer: Synthesizer,
    fill: Fill = Fill.REFUSE,
    history: Sequence[Mapping[str, Any]] = (),
) -> Outgoing:
    """Return what to send for *arrival*.  *history* stands before messages that follow on it.

    Raises RefusedError for a request that lacks what it needs.
    """
    prompt = arrival.prompt
    missing = list(arrival.missing)
    if isinstance(prompt, TextPrompt | ChatPrompt) and speaks is Speaks.IDS:
        missing.append("token ids")
    if missing and fill is Fill.REFUSE:
        raise RefusedError(missing)
    ids: TokenIds | None = None
    text: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    tools: tuple[Any, ...] | None = None
    match prompt:
        case TokenPrompt():
            ids = prompt.ids
        case TextPrompt() if speaks is not Speaks.IDS:
            text = prompt.text
        case ChatPrompt() if speaks is not Speaks.IDS:
            messages = (*history, *prompt.messages) if prompt.is_delta else prompt.messages
            tools = prompt.tools
        case BlockPrompt() | LengthPrompt():
            ids = synthesizer.ids(prompt)
            missing.append("prompt")
        case _:
            ids = synthesizer.ids(LengthPrompt(length=_length(arrival), own=arrival.position))
            missing.append("prompt")
    stream = arrival.stream
    if stream is None:
        stream = True
        if isinstance(prompt, TokenPrompt):
            # It was sent with a flag, which a filter dropped; without one no first token is seen.
            missing.append("stream")
    return Outgoing(
        request_id=arrival.request_id,
        ids=ids,
        text=text,
        messages=messages,
        tools=tools,
        parameters=arrival.parameters,
        stream=stream,
        session=arrival.session,
        filled=tuple(dict.fromkeys(missing)),
    )


def _length(arrival: Arrival) -> int:
    recorded = arrival.recorded
    return (recorded.prompt_tokens if recorded else None) or _ASSUMED_LENGTH
