"""`GenerateResponse` bytes by hand: the one place where messages are built without protobuf
objects.

A streaming answer is a message a token, and building each through message objects costs more than
everything else that the server does for it.  What is here equals protobuf's own bytes (a property
test holds it so): fields in order of their numbers, zeros and empty ones left out, ids packed.

An answer that is known up front is cut in advance: all that depends on the request alone is its id,
so the bytes are `request_id.join(pieces)`, and the pieces are kept for requests of the same shape.
"""

from collections.abc import Iterable, Sequence

import attrs

from replay._proto import tokenspeed_scheduler_pb2 as pb


def varint(number: int) -> bytes:
    """Encode an unsigned number the way protobuf does."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


#: Most ids and all small counts are looked up.
_VARINTS = tuple(varint(number) for number in range(1 << 16))
_TABLE = len(_VARINTS)


def _varint(number: int) -> bytes:
    return _VARINTS[number] if number < _TABLE else varint(number)


def _varints(ids: Iterable[int]) -> bytes:
    try:
        return b"".join([_VARINTS[token] for token in ids])
    except IndexError:
        return b"".join([_varint(token) for token in ids])


def _field(tag: bytes, number: int) -> bytes:
    return tag + _varint(number) if number else b""


def _bytes_field(tag: bytes, payload: bytes) -> bytes:
    return b"".join((tag, _varint(len(payload)), payload)) if payload else b""


def _optional_text(tag: bytes, text: str) -> bytes:
    """A field with presence: "" here means unset."""
    return _bytes_field(tag, text.encode())


@attrs.frozen
class ChoiceShape:
    """What the messages of one choice have in common, encoded once for each."""

    request_id: bytes
    """Tag, length and text."""
    chunk_prompt: bytes
    chunk_cached: bytes
    chunk_end: bytes
    """Index and weight version."""
    complete_prompt: bytes
    complete_cached: bytes
    complete_index: bytes
    complete_version: bytes

    @classmethod
    def of(
        cls,
        request_id: str,
        *,
        prompt_tokens: int,
        cached_tokens: int = 0,
        index: int = 0,
        weight_version: str = "",
    ) -> "ChoiceShape":
        """Encode what does not change from message to message."""
        return cls(
            request_id=_bytes_field(b"\x0a", request_id.encode()),
            chunk_prompt=_field(b"\x10", prompt_tokens),
            chunk_cached=_field(b"\x20", cached_tokens),
            chunk_end=_field(b"\x30", index) + _optional_text(b"\x3a", weight_version),
            complete_prompt=_field(b"\x18", prompt_tokens),
            complete_cached=_field(b"\x28", cached_tokens),
            complete_index=_field(b"\x48", index),
            complete_version=_optional_text(b"\x62", weight_version),
        )


def chunk_message(
    shape: ChoiceShape,
    ids: Sequence[int],
    completion_tokens: int,
    logprobs: pb.OutputLogProbs | None = None,
) -> bytes:
    """Encode one framed chunk: the tokens since the last one, and how many there are by now."""
    packed = _varint(ids[0]) if len(ids) == 1 else _varints(ids)
    count = _varint(completion_tokens)
    if logprobs is not None:
        middle = shape.chunk_cached + _submessage(b"\x2a", logprobs)
    else:
        middle = shape.chunk_cached
    body = b"".join(
        (
            b"\x0a" if packed else b"",
            _varint(len(packed)) if packed else b"",
            packed,
            shape.chunk_prompt,
            b"\x18" if completion_tokens else b"",
            count if completion_tokens else b"",
            middle,
            shape.chunk_end,
        )
    )
    return _framed(shape.request_id, b"\x12", body)


def complete_message(
    shape: ChoiceShape,
    ids: Sequence[int],
    reason: str,
    *,
    matched: int | str | None = None,
    logprobs: pb.OutputLogProbs | None = None,
    spec_accepted: int = 0,
    spec_draft: int = 0,
) -> bytes:
    """Encode the framed end of a choice, with all of its tokens."""
    packed = _varints(ids)
    if isinstance(matched, int):
        matched_field = b"\x38" + _varint(matched)
    elif matched is not None:
        text = matched.encode()
        matched_field = b"\x42" + _varint(len(text)) + text
    else:
        matched_field = b""
    body = b"".join(
        (
            _bytes_field(b"\x0a", packed),
            _bytes_field(b"\x12", reason.encode()),
            shape.complete_prompt,
            _field(b"\x20", len(ids)),
            shape.complete_cached,
            _submessage(b"\x32", logprobs) if logprobs is not None else b"",
            matched_field,
            shape.complete_index,
            _field(b"\x50", spec_accepted),
            _field(b"\x58", spec_draft),
            shape.complete_version,
        )
    )
    return _framed(shape.request_id, b"\x1a", body)


def _submessage(tag: bytes, message: pb.OutputLogProbs) -> bytes:
    payload = message.SerializeToString()
    return tag + _varint(len(payload)) + payload


def _framed(request_id: bytes, tag: bytes, body: bytes) -> bytes:
    size = _varint(len(body))
    length = len(request_id) + len(tag) + len(size) + len(body)
    return b"".join((b"\0", length.to_bytes(4, "big"), request_id, tag, size, body))


# ---- answers that are known up front

#: Answers longer than this are not kept: they are encoded message by message.
MAX_CUT_TOKENS = 4096
#: Bytes of pieces that are kept over all shapes; beyond it the table begins anew.
_KEPT_BYTES = 32 << 20


class CutAnswers:
    """Streams of one choice, cut around the request id and kept by shape."""

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], tuple[Sequence[int], list[bytes]]] = {}
        self._bytes = 0

    def message_bytes(
        self,
        request_id: str,
        ids: Sequence[int],
        reason: str,
        *,
        matched: int | None,
        prompt_tokens: int,
        cached_tokens: int,
        weight_version: str,
    ) -> bytes:
        """Return a chunk for each of *ids* and the `Complete`, framed, as one piece.

        Pieces are kept by the identity of *ids*, which therefore must not change.
        """
        encoded = request_id.encode()
        key = (
            id(ids),
            len(encoded),
            prompt_tokens,
            cached_tokens,
            reason,
            matched,
            weight_version,
        )
        kept = self._kept.get(key)
        if kept is None:
            pieces = _cut(
                len(encoded),
                ids,
                reason,
                matched=matched,
                prompt_tokens=prompt_tokens,
                cached_tokens=cached_tokens,
                weight_version=weight_version,
            )
            self._bytes += sum(map(len, pieces)) + 64 * len(pieces)
            if self._bytes > _KEPT_BYTES:
                self._kept.clear()
                self._bytes = 0
            # Holding the ids keeps their identity from being given to others.
            self._kept[key] = (ids, pieces)
        else:
            pieces = kept[1]
        return encoded.join(pieces)


def _cut(
    id_length: int,
    ids: Sequence[int],
    reason: str,
    *,
    matched: int | None,
    prompt_tokens: int,
    cached_tokens: int,
    weight_version: str,
) -> list[bytes]:
    """Cut a whole answer into the pieces that stand between the request ids."""
    # Any id of the length will do: its place in each message is known.
    shape = ChoiceShape.of(
        "x" * id_length,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        weight_version=weight_version,
    )
    messages = [chunk_message(shape, (token,), at) for at, token in enumerate(ids, 1)]
    messages.append(complete_message(shape, ids, reason, matched=matched))
    if not id_length:
        return [b"".join(messages)]
    start = 5 + len(shape.request_id) - id_length
    pieces: list[bytes] = []
    carried = b""
    for message in messages:
        pieces.append(carried + message[:start])
        carried = message[start + id_length :]
    pieces.append(carried)
    return pieces
