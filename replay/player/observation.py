"""PURE.  What came of one request, whether a tap recorded it or the player saw it.

The latencies are defined once, here: time to first token = first token - start; inter-token latency
= the gaps between token events (a chunk of k tokens is one event); time per output token = (end -
first token) / (tokens - 1), undefined for fewer than two tokens; normalised time per output token =
end / tokens.  "Undefined" is None, never 0 or NaN.
"""

from array import array
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import attrs

if TYPE_CHECKING:
    TokenIds: TypeAlias = array[int]
else:
    #: Token ids as they are held: four bytes each, whatever their number.
    TokenIds = array


class Outcome(StrEnum):
    """How a request ended.  The first four are the words of a tap's record."""

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    CANCELLED = "cancelled"
    ERROR = "error"
    NOT_SENT = "not_sent"
    """The run ended before its turn came, or the turn before it failed."""
    UNKNOWN = "unknown"
    """The source says nothing of it, as a capture does, or a word that this version does not know.
    """


class Finish(StrEnum):
    """Why a choice ended, in words that all sources share.

    A tap writes `eos` and `stop` where the wire says `stop`, and `cancelled` where the wire says
    `abort`; the finer word would make every record differ from its own replay.
    """

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    CONTENT_FILTER = "content_filter"
    TOOL_CALLS = "tool_calls"
    ERROR = "error"
    OTHER = "other"


_FINISHES = {
    "stop": Finish.STOP,
    "eos": Finish.STOP,
    "length": Finish.LENGTH,
    "abort": Finish.CANCELLED,
    "cancelled": Finish.CANCELLED,
    "content_filter": Finish.CONTENT_FILTER,
    "tool_calls": Finish.TOOL_CALLS,
    "error": Finish.ERROR,
}


def finish_of(reason: str | None) -> Finish | None:
    """Return the shared word for a source's own finish reason; an `error: …` loses its message."""
    if not reason:
        return None
    return _FINISHES.get(reason.partition(":")[0].strip(), Finish.OTHER)


@attrs.frozen(kw_only=True)
class Choice:
    """One of the `n` answers to a request."""

    index: int = 0
    finish_reason: str | None = None
    """The source's own word."""
    output_tokens: int = 0
    token_ids: TokenIds | None = attrs.field(default=None, repr=False)
    """None: not recorded."""
    text: str | None = attrs.field(default=None, repr=False)
    """For an endpoint that gives no ids."""
    is_truncated: bool = False
    """Whether the ids are only the first of `output_tokens`."""

    @property
    def finish(self) -> Finish | None:
        """The finish reason in the words that all sources share."""
        return finish_of(self.finish_reason)


@attrs.frozen(kw_only=True)
class Observation:
    """What came of one request.

    Offsets count from its arrival, or from when the player sent it.
    """

    request_id: str
    position: int = 0
    """Its place in the source; also the order in which requests arrived."""
    outcome: Outcome = Outcome.UNKNOWN
    choices: tuple[Choice, ...] = ()
    """Sorted by index."""
    prompt_ids: TokenIds | None = attrs.field(default=None, repr=False)
    """What the engine was given, where the source holds it."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    first_token_offset_ns: int | None = None
    last_token_offset_ns: int | None = None
    end_offset_ns: int | None = None
    chunk_offsets_ns: Sequence[int] | None = attrs.field(default=None, repr=False)
    """When each chunk with tokens came.  None: not recorded."""
    scheduled_ns: int | None = None
    """When it was due, from the start of the run.  None for a recording."""
    sent_ns: int | None = None
    """When it was sent, from the start of the run."""
    error: str | None = None
    """A status code or another label out of a small set; never a message."""
    target: str | None = None
    """Where it was sent, if a run had several targets."""
    filled: tuple[str, ...] = ()
    """Names of what the player had to make up."""

    @property
    def was_cancelled(self) -> bool:
        """Whether the client, or the player in its place, went away."""
        return self.outcome is Outcome.CANCELLED

    @property
    def output_tokens(self) -> int:
        """Tokens of all choices."""
        return sum(choice.output_tokens for choice in self.choices)

    @property
    def schedule_delay_ns(self) -> int | None:
        """How long after its time it was sent."""
        if self.scheduled_ns is None or self.sent_ns is None:
            return None
        return self.sent_ns - self.scheduled_ns

    @property
    def ttft_ns(self) -> int | None:
        """Time to first token."""
        return self.first_token_offset_ns

    @property
    def e2e_ns(self) -> int | None:
        """From the start to the end of the answer."""
        return self.end_offset_ns

    @property
    def tpot_ns(self) -> float | None:
        """Time per output token after the first."""
        tokens = self.output_tokens
        if self.first_token_offset_ns is None or self.end_offset_ns is None or tokens < 2:
            return None
        return (self.end_offset_ns - self.first_token_offset_ns) / (tokens - 1)

    @property
    def normalised_tpot_ns(self) -> float | None:
        """End-to-end time for each output token."""
        tokens = self.output_tokens
        if self.end_offset_ns is None or tokens < 1:
            return None
        return self.end_offset_ns / tokens

    @property
    def itl_ns(self) -> list[int] | None:
        """Gaps between token events; None when the moments of the chunks were not recorded."""
        if self.chunk_offsets_ns is None:
            return None
        return [later - earlier for earlier, later in pairwise(self.chunk_offsets_ns)]
