"""`GenerateResponse` bytes by hand: the one place where messages are built without protobuf
objects.

A streaming answer is a message a token, and building each through message objects costs more than
everything else that the server does for it.  What is here equals protobuf's own bytes (a property
test holds it so): fields in order of their numbers, zeros and empty ones left out, ids packed.

An answer that is known up front is cut in advance: all that depends on the request alone is its id,
so the bytes are `request_id.join(pieces)`, and the pieces are kept for requests of the same shape.
"""

from collections.abc import Iterable, Sequence

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


class ChoiceShape:
    """What the messages of one choice have in common, encoded once for each."""

    __slots__ = (
        "chunk_cached",
        "chunk_end",
        "chunk_prompt",
        "complete_cached",
        "complete_index",
        "complete_prompt",
        "complete_version",
        "request_id",
        "token_end",
        "token_middle",
        "token_starts",
    )

    def __init__(
        self,
        request_id: str,
        *,
        prompt_tokens: int,
        cached_tokens: int = 0,
        index: int = 0,
        weight_version: str = "",
    ) -> None:
        self.request_id = _bytes_field(b"\x0a", request_id.encode())
        self.chunk_prompt = _field(b"\x10", prompt_tokens)
        self.chunk_cached = _field(b"\x20", cached_tokens)
        self.chunk_end = _field(b"\x30", index) + _optional_text(b"\x3a", weight_version)
        self.complete_prompt = _field(b"\x18", prompt_tokens)
        self.complete_cached = _field(b"\x28", cached_tokens)
        self.complete_index = _field(b"\x48", index)
        self.complete_version = _optional_text(b"\x62", weight_version)
        # A chunk of one token is start, token, middle, count, end; the start depends on nothing but
        # the lengths of token and count.
        self.token_middle = self.chunk_prompt + b"\x18"
        self.token_end = self.chunk_cached + self.chunk_end
        self.token_starts: dict[int, bytes] = {}

    def token_start(self, token_length: int, count_length: int) -> bytes:
        """Return all that stands before the token in a framed chunk of one token."""
        body = 2 + token_length + len(self.token_middle) + count_length + len(self.token_end)
        size = _varint(body)
        length = len(self.request_id) + 1 + len(size) + body
        start = b"".join(
            (
                b"\0",
                length.to_bytes(4, "big"),
                self.request_id,
                b"\x12",
                size,
                b"\x0a",
                _varint(token_length),
            )
        )
        self.token_starts[token_length << 4 | count_length] = start
        return start


def token_message(shape: ChoiceShape, token_id: int, completion_tokens: int) -> bytes:
    """Encode the framed chunk of one token; there is at least that one."""
    token = _VARINTS[token_id] if token_id < _TABLE else varint(token_id)
    number = completion_tokens
    count = _VARINTS[number] if number < _TABLE else varint(number)
    start = shape.token_starts.get(len(token) << 4 | len(count))
    if start is None:
        start = shape.token_start(len(token), len(count))
    return b"".join((start, token, shape.token_middle, count, shape.token_end))


def token_messages(shape: ChoiceShape, ids: Sequence[int], first_count: int = 1) -> bytes:
    """Encode a framed chunk for each of *ids*, of which the first is the choice's
    *first_count*th token."""
    starts, middle, end = shape.token_starts, shape.token_middle, shape.token_end
    pieces: list[bytes] = []
    for number, token_id in enumerate(ids, first_count):
        token = _VARINTS[token_id] if token_id < _TABLE else varint(token_id)
        count = _VARINTS[number] if number < _TABLE else varint(number)
        start = starts.get(len(token) << 4 | len(count))
        if start is None:
            start = shape.token_start(len(token), len(count))
        pieces += (start, token, middle, count, end)
    return b"".join(pieces)


def chunk_message(
    shape: ChoiceShape,
    ids: Sequence[int],
    completion_tokens: int,
    logprobs: pb.OutputLogProbs | None = None,
) -> bytes:
    """Encode one framed chunk: the tokens since the last one, and how many there are by now."""
    if len(ids) == 1 and logprobs is None and completion_tokens:
        return token_message(shape, ids[0], completion_tokens)
    body = b"".join(
        (
            _bytes_field(b"\x0a", _varints(ids)),
            shape.chunk_prompt,
            _field(b"\x18", completion_tokens),
            shape.chunk_cached,
            _submessage(b"\x2a", logprobs) if logprobs is not None else b"",
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

#: Longer answers are not kept.
MAX_CUT_TOKENS = 4096
#: Bytes of pieces that are kept over all shapes; beyond it the table begins anew.
_KEPT_BYTES = 32 << 20
#: Shapes that were seen once and are not kept yet.
_SEEN = 128


class CutAnswers:
    """Streams of one choice, cut around the request id and kept by shape.

    Shapes are told apart by the identity of their ids, which therefore must not change.  Only a
    shape that comes again is kept: sampled answers never do.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], tuple[Sequence[int], list[bytes]]] = {}
        #: With their ids: an identity must not be given to others while it is waited for.
        self._seen: dict[tuple[object, ...], Sequence[int]] = {}
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
        """Return a chunk for each of *ids* and the `Complete`, framed, as one piece."""
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
        if kept is not None:
            return encoded.join(kept[1])
        shape = ChoiceShape(
            request_id,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            weight_version=weight_version,
        )
        chunks = token_messages(shape, ids)
        end = complete_message(shape, ids, reason, matched=matched)
        if key in self._seen:
            del self._seen[key]
            self._keep(key, ids, _cut(len(encoded), shape, chunks + end))
        else:
            if len(self._seen) >= _SEEN:
                self._seen.clear()
            self._seen[key] = ids
        return chunks + end

    def _keep(self, key: tuple[object, ...], ids: Sequence[int], pieces: list[bytes]) -> None:
        self._bytes += sum(map(len, pieces)) + 64 * len(pieces)
        if self._bytes > _KEPT_BYTES:
            self._kept.clear()
            self._bytes = 0
        # Holding the ids keeps their identity from being given to others.
        self._kept[key] = (ids, pieces)


def _cut(id_length: int, shape: ChoiceShape, messages: bytes) -> list[bytes]:
    """Cut framed messages into the pieces that stand between the request ids."""
    if not id_length:
        return [messages]
    pieces: list[bytes] = []
    place_of_id = 5 + len(shape.request_id) - id_length
    carried, position = 0, 0
    while position < len(messages):
        length = int.from_bytes(messages[position + 1 : position + 5], "big")
        pieces.append(messages[carried : position + place_of_id])
        carried = position + place_of_id + id_length
        position += 5 + length
    pieces.append(messages[carried:])
    return pieces
