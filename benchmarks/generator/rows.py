"""PURE.  What came of the requests, packed for the way from a process to the one that counts."""

from array import array
from collections.abc import Iterable, Iterator

import attrs
import msgpack

from replay.player.observation import Choice, Observation, Outcome

#: What a row holds, in this order.
Row = tuple[
    int,  # the request's number
    str,  # outcome
    str | None,  # label of a failure
    int,  # tokens that came
    int,  # tokens that were asked for
    int | None,  # tokens of the prompt, as the target counts them
    int | None,  # due, ns from the start; None: a closed loop
    int | None,  # sent, ns from the start
    int | None,  # first token, ns from sent
    int | None,  # end, ns from sent
    bytes | None,  # ns from sent of each chunk with tokens, `array("Q")`
]


@attrs.frozen
class Answered:
    """A request and what came of it."""

    observation: Observation
    asked_tokens: int

    @property
    def is_short(self) -> bool:
        """Whether an answer that was complete has another length than was asked for."""
        seen = self.observation
        return seen.outcome is Outcome.COMPLETE and seen.output_tokens != self.asked_tokens


def row_of(number: int, asked_tokens: int, seen: Observation) -> Row:
    """Return the row of a request."""
    chunks = seen.chunk_offsets_ns
    return (
        number,
        seen.outcome.value,
        seen.error,
        seen.output_tokens,
        asked_tokens,
        seen.prompt_tokens,
        seen.scheduled_ns,
        seen.sent_ns,
        seen.first_token_offset_ns,
        seen.end_offset_ns,
        None if chunks is None else array("Q", chunks).tobytes(),
    )


def pack_rows(rows: Iterable[Row]) -> bytes:
    """Pack rows into bytes."""
    packed: bytes = msgpack.packb(list(rows))
    return packed


def unpack_rows(data: bytes) -> Iterator[Answered]:
    """Yield what `pack_rows` packed, as the player's observations, which define the latencies."""
    for row in msgpack.unpackb(data):
        number, outcome, error, tokens, asked, prompt, due, sent, first, end, chunks = row
        offsets: array[int] | None = None
        if chunks is not None:
            offsets = array("Q")
            offsets.frombytes(chunks)
        seen = Observation(
            request_id=str(number),
            position=number,
            outcome=Outcome(outcome),
            choices=(Choice(output_tokens=tokens),) if tokens else (),
            prompt_tokens=prompt,
            first_token_offset_ns=first,
            end_offset_ns=end,
            chunk_offsets_ns=offsets,
            scheduled_ns=due,
            sent_ns=sent,
            error=error,
        )
        yield Answered(seen, asked)
