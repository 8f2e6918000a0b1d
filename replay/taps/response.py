"""PURE.  What a joined record says about the response (event-plane section 3.1 and 3.2)."""

from array import array
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, TypeAlias

import attrs
import msgpack

from replay.packed import array_header, map_header, pack

Ids: TypeAlias = "array[int]"
Offsets: TypeAlias = "array[int]"


class Outcome(StrEnum):
    """How a response ended, in the words of the wire."""

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    CANCELLED = "cancelled"
    ERROR = "error"


@attrs.frozen(kw_only=True, repr=False)
class Choice:
    """One of the n answers."""

    index: int
    finish_reason: str | None
    """The last one seen; "error: …" for a failed choice."""
    output_tokens: int
    """All of them, recorded or not."""
    token_ids: Ids = attrs.field(factory=lambda: array("I"))
    """What was recorded of the tokens."""
    truncated: bool = False
    """Whether tokens came that a bound kept from being recorded."""


@attrs.frozen(kw_only=True, repr=False)
class Response:
    """A response that has ended.  Offsets are nanoseconds from the arrival of the request."""

    outcome: Outcome
    choices: tuple[Choice, ...]
    """Sorted by index."""
    first_token_offset_ns: int | None
    """None when no token came."""
    last_token_offset_ns: int | None
    end_offset_ns: int
    chunk_offsets_ns: Offsets = attrs.field(factory=lambda: array("Q"))
    """One for each chunk that carried tokens, if they were asked for."""
    _packed: bytes | None = attrs.field(default=None, init=False, eq=False)

    @property
    def output_tokens(self) -> int:
        """The tokens of all choices."""
        return sum(choice.output_tokens for choice in self.choices)

    @property
    def recorded_bytes(self) -> int:
        """What the token ids and the offsets take in memory (rule 42)."""
        ids = sum(len(choice.token_ids) for choice in self.choices)
        return ids * 4 + len(self.chunk_offsets_ns) * 8

    @property
    def packed(self) -> bytes:
        """The response in MessagePack, packed once however many taps carry it."""
        if self._packed is None:
            object.__setattr__(self, "_packed", _pack_response(self))
        assert self._packed is not None
        return self._packed


def _pack_response(response: Response) -> bytes:
    pieces = [
        _OUTCOME[response.outcome],
        _CHOICES + array_header(len(response.choices)),
        b"".join(map(_pack_choice, response.choices)),
        _OUTPUT_TOKENS + pack(response.output_tokens),
    ]
    keys = 4
    if response.first_token_offset_ns is not None:
        pieces.append(_FIRST_TOKEN + pack(response.first_token_offset_ns))
        pieces.append(_LAST_TOKEN + pack(response.last_token_offset_ns))
        keys += 2
    pieces.append(_END + pack(response.end_offset_ns))
    if response.chunk_offsets_ns:
        pieces.append(_CHUNKS + _pack_list(response.chunk_offsets_ns.tolist()))
        keys += 1
    return map_header(keys) + b"".join(pieces)


def _pack_choice(choice: Choice) -> bytes:
    pieces = [_INDEX + pack(choice.index)]
    if choice.finish_reason is not None:
        pieces.append(_FINISH_REASON + msgpack.packb(choice.finish_reason))
    pieces.append(_OUTPUT_TOKENS + pack(choice.output_tokens))
    if choice.token_ids:
        pieces.append(_TOKEN_IDS + _pack_list(choice.token_ids.tolist()))
    if choice.truncated:
        pieces.append(_TRUNCATED)
    return map_header(len(pieces)) + b"".join(pieces)


_pack_list: Final[Callable[[list[int]], bytes]] = msgpack.packb
_OUTCOME: Final = {word: pack("outcome") + pack(word.value) for word in Outcome}
_CHOICES: Final = pack("choices")
_OUTPUT_TOKENS: Final = pack("output_tokens")
_FIRST_TOKEN: Final = pack("first_token_offset_ns")
_LAST_TOKEN: Final = pack("last_token_offset_ns")
_END: Final = pack("end_offset_ns")
_CHUNKS: Final = pack("chunk_offsets_ns")
_INDEX: Final = pack("index")
_FINISH_REASON: Final = pack("finish_reason")
_TOKEN_IDS: Final = pack("token_ids")
#: Absent when false, as readers older than this key know it.
_TRUNCATED: Final = pack("truncated") + pack(True)


def response_of(fields: Mapping[str, Any]) -> Response:
    """Read the map of a response.

    Raises `KeyError`, `TypeError`, `ValueError` or `OverflowError` for what is none.  An outcome
    that this version does not know is a `ValueError`.
    """
    return Response(
        outcome=Outcome(fields["outcome"]),
        choices=tuple(map(_choice_of, fields["choices"])),
        first_token_offset_ns=_count(fields.get("first_token_offset_ns"), or_none=True),
        last_token_offset_ns=_count(fields.get("last_token_offset_ns"), or_none=True),
        end_offset_ns=_count(fields["end_offset_ns"]),
        chunk_offsets_ns=array("Q", fields.get("chunk_offsets_ns") or ()),
    )


def _choice_of(fields: Mapping[str, Any]) -> Choice:
    finish_reason = fields.get("finish_reason")
    if finish_reason is not None and not isinstance(finish_reason, str):
        raise TypeError("a finish reason is text")
    return Choice(
        index=_count(fields["index"]),
        finish_reason=finish_reason,
        output_tokens=_count(fields["output_tokens"]),
        token_ids=array("I", fields.get("token_ids") or ()),
        truncated=bool(fields.get("truncated")),
    )


def _count(value: Any, *, or_none: bool = False) -> Any:
    if (value is None and or_none) or (isinstance(value, int) and value >= 0):
        return value
    raise TypeError("a count is a whole number, 0 or more")
