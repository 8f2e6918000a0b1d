"""PURE.  One planned request, as a source describes it.

What a source does not say stays None, and what it says was there but does not hold is named in
`missing`: nothing is invented here.  Prompts, parameters and answers keep out of every `repr`,
because a `repr` ends up in a log.
"""

from array import array
from collections.abc import Mapping
from typing import Any

import attrs

from replay.player.observation import Observation, TokenIds


def token_ids(values: Any) -> TokenIds:
    """Pack *values* into `array('I')`.

    Raises TypeError for what is not an integer (a bool is none), OverflowError for an id below 0 or
    above 2^32 - 1.
    """
    if isinstance(values, array) and values.typecode == "I":
        return values
    if bool in set(map(type, values)):
        raise TypeError("a bool is not a token id")
    return array("I", values)


@attrs.frozen
class TokenPrompt:
    """A prompt as the engine gets it."""

    ids: TokenIds = attrs.field(repr=False)

    @property
    def length(self) -> int:
        """Tokens."""
        return len(self.ids)


@attrs.frozen
class TextPrompt:
    """A prompt of which only the text is known: for an endpoint with a tokenizer of its own."""

    text: str = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class ChatPrompt:
    """Messages of a chat."""

    messages: tuple[Mapping[str, Any], ...] = attrs.field(repr=False)
    is_delta: bool = False
    """Whether the messages follow on the earlier turns of the session and their answers, or are the
    whole history.
    """
    tools: tuple[Any, ...] | None = attrs.field(default=None, repr=False)


@attrs.frozen(kw_only=True)
class BlockPrompt:
    """A prompt of which only the length and the identity of its blocks are known.

    Equal ids are equal content; where the ids end before the length does, the rest belongs to this
    request alone.
    """

    hash_ids: tuple[int, ...] = attrs.field(repr=False)
    length: int
    block_size: int
    own: int
    """Names the content of what no id covers: the same number gives the same tokens."""


@attrs.frozen(kw_only=True)
class LengthPrompt:
    """A prompt of which only the length is known.

    It shares no prefix with one of another `own` number.
    """

    length: int
    own: int


Prompt = TokenPrompt | TextPrompt | ChatPrompt | BlockPrompt | LengthPrompt


@attrs.frozen(kw_only=True)
class Parameters:
    """The values of a request beside its prompt, under the names of TokenSpeed's wire.

    None is unset, 0 is 0.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool | None = None
    no_stop_trim: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    n: int | None = None
    sampling_seed: int | None = None
    logit_bias: Mapping[str, float] | None = None
    constraint: tuple[str, str] | None = None
    """Kind (`regex`, `json_schema`, `ebnf_grammar`, `structural_tag`) and value."""
    custom_params: Mapping[str, Any] | None = None
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    token_ids_logprob: tuple[int, ...] = ()
    data_parallel_rank: int | None = None


@attrs.frozen(kw_only=True)
class Arrival:
    """One planned request."""

    position: int
    """Line of a text source, record of a record file; both count from 1."""
    request_id: str
    time_ns: int | None = None
    """When it arrived, on the source's own clock.  None: the source does not say."""
    offset_ns: int | None = None
    """When it arrived, from the first arrival of the source.  `timeline.place` sets it."""
    prompt: Prompt | None = attrs.field(default=None, repr=False)
    """None only if `missing` names the prompt."""
    parameters: Parameters = attrs.field(factory=Parameters, repr=False)
    stream: bool | None = None
    model: str | None = None
    session: str | None = None
    turn: int = 0
    """Its place in the session, from 0."""
    think_ns: int | None = None
    """How long after the end of the turn before it arrived.  None: it has a time of its own."""
    recorded: Observation | None = attrs.field(default=None, repr=False)
    """What came of it when it was recorded."""
    missing: tuple[str, ...] = ()
    """Names of what the request had and the source does not hold."""

    @property
    def cancel_offset_ns(self) -> int | None:
        """When the client went away, from the arrival.  None: it did not."""
        if self.recorded is None or not self.recorded.was_cancelled:
            return None
        return self.recorded.end_offset_ns
