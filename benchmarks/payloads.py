"""The Generate requests that benchmarks send, and the answers that they demand.

Answers follow from the request: ids 100, 101, …, one message for each token and a last one with all
of them.  A `Template` leaves a hole for the request id, so that a client can send thousands of
different requests, and check each answer whole, without a protobuf object for any of them.
"""

from collections.abc import Sequence

import attrs
from google.protobuf.message import DecodeError, Message

from replay._proto import tokenspeed_scheduler_pb2 as pb

SERVICE = "tokenspeed.grpc.scheduler.TokenSpeedScheduler"
GENERATE_PATH = f"/{SERVICE}/Generate"

#: The first id of a canned answer.
FIRST_ID = 100

#: Ids of prompts stay below this: real prompts mix ids of one to three bytes.
PROMPT_VOCABULARY = 32000


@attrs.frozen
class Shape:
    """How long a prompt and its answer are, in tokens (ISL/OSL)."""

    prompt_tokens: int
    output_tokens: int

    def __str__(self) -> str:
        """Return the usual notation, such as `512/32`."""
        return f"{self.prompt_tokens}/{self.output_tokens}"


def prompt_ids(count: int) -> list[int]:
    """Return *count* ids that look like a text's: spread over the vocabulary, always the same."""
    ids, state = [], 12345
    for _ in range(count):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        ids.append(1 + state % (PROMPT_VOCABULARY - 1))
    return ids


def request(shape: Shape, request_id: str, *, seed: int | None = None) -> pb.GenerateRequest:
    """Build a streaming request of *shape*; a *seed* asks for sampled ids."""
    sampling = pb.SamplingParams(
        temperature=0.7, max_new_tokens=shape.output_tokens, ignore_eos=True, n=1
    )
    if seed is not None:
        sampling.sampling_seed = seed
    return pb.GenerateRequest(
        request_id=request_id,
        tokenized=pb.TokenizedInput(input_ids=prompt_ids(shape.prompt_tokens)),
        sampling_params=sampling,
        stream=True,
    )


def canned_ids(count: int) -> list[int]:
    """Return the ids of a canned answer of *count* tokens."""
    return list(range(FIRST_ID, FIRST_ID + count))


def answer(shape: Shape, request_id: str, ids: Sequence[int]) -> list[pb.GenerateResponse]:
    """Build the messages that answer `request(shape, request_id)` with the tokens *ids*."""
    messages = [
        pb.GenerateResponse(
            request_id=request_id,
            chunk=pb.GenerateStreamChunk(
                token_ids=[token],
                prompt_tokens=shape.prompt_tokens,
                completion_tokens=number,
            ),
        )
        for number, token in enumerate(ids, 1)
    ]
    messages.append(
        pb.GenerateResponse(
            request_id=request_id,
            complete=pb.GenerateComplete(
                output_ids=ids,
                finish_reason="length",
                prompt_tokens=shape.prompt_tokens,
                completion_tokens=len(ids),
            ),
        )
    )
    return messages


def varint(number: int) -> bytes:
    """Return protobuf's encoding of *number*, which is not negative."""
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def framed(message: bytes) -> bytes:
    """Return *message* behind gRPC's five bytes: not compressed, its length."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def unframed(data: bytes) -> list[bytes]:
    """Cut *data* into gRPC messages.  Raises ValueError when it does not end with a whole one."""
    messages, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at + 1 : at + 5], "big")
        if data[at] != 0 or at + 5 + size > len(data):
            raise ValueError(f"no whole message at byte {at} of {len(data)}")
        messages.append(data[at + 5 : at + 5 + size])
        at += 5 + size
    return messages


def merged_like(data: bytes, wanted: Sequence[pb.GenerateResponse]) -> bool:
    """Tell whether *data* says what *wanted* says, whatever number of tokens a chunk carries."""
    try:
        messages = [pb.GenerateResponse.FromString(message) for message in unframed(data)]
    except (ValueError, DecodeError):
        return False
    if not messages or messages[-1] != wanted[-1]:
        return False
    singles = []
    for message in messages[:-1]:
        ids = message.chunk.token_ids
        before = message.chunk.completion_tokens - len(ids)
        for number, token in enumerate(ids, 1):
            single = pb.GenerateResponse()
            single.CopyFrom(message)
            single.chunk.token_ids[:] = [token]
            single.chunk.completion_tokens = before + number
            singles.append(single)
    return singles == list(wanted[:-1])


class Template:
    """A request and its answer as gRPC bytes, with a hole for a request id of a fixed length."""

    def __init__(
        self,
        shape: Shape,
        *,
        id_bytes: int = 16,
        ids: Sequence[int] | None = None,
        seed: int | None = None,
        may_merge: bool = False,
    ) -> None:
        """Cut the bytes around the request id; *ids* are the answer's, canned when None.

        With *may_merge* a chunk may carry several tokens, as a server that missed the moment of
        one sends it together with the next.
        """
        self.shape = shape
        self.id_bytes = id_bytes
        self.may_merge = may_merge
        output = canned_ids(shape.output_tokens) if ids is None else ids
        self._ids = output
        self._request = self._cut([request(shape, "", seed=seed)])
        self._answer = self._cut(answer(shape, "", output))
        self.answer_bytes = len(self.answer(b"0" * id_bytes))

    def _cut(self, messages: Sequence[Message]) -> list[bytes]:
        """Frame *messages*, which lack their request id, and cut them where it belongs.

        It is field 1 of both messages, so that it comes first.
        """
        pieces = [b""]
        tag = b"\x0a" + varint(self.id_bytes)
        for message in messages:
            rest = message.SerializeToString()
            size = len(tag) + self.id_bytes + len(rest)
            pieces[-1] += b"\0" + size.to_bytes(4, "big") + tag
            pieces.append(rest)
        return pieces

    def request(self, request_id: bytes) -> bytes:
        """Return the framed request."""
        return self._filled(self._request, request_id)

    def answer(self, request_id: bytes) -> bytes:
        """Return the framed messages that answer `request(request_id)`."""
        return self._filled(self._answer, request_id)

    def accepts(self, request_id: bytes, data: bytes) -> bool:
        """Tell whether *data* is the right answer to `request(request_id)`."""
        if data == self.answer(request_id):
            return True
        return self.may_merge and merged_like(
            data, answer(self.shape, request_id.decode(), self._ids)
        )

    @property
    def least_answer_bytes(self) -> int:
        """The length of an answer with all tokens in one chunk, if they may be merged."""
        if not self.may_merge:
            return self.answer_bytes
        saved = self.bytes_saved_by_a_merge * max(0, len(self._ids) - 1)
        # Longer chunks need a longer length in front of them.
        return self.answer_bytes - saved - len(self._ids)

    @property
    def bytes_saved_by_a_merge(self) -> int:
        """How much shorter about an answer is when one token travels with the one before it."""
        if len(self._ids) < 2:
            return 0
        whole = answer(self.shape, "0" * self.id_bytes, self._ids)
        return len(framed(whole[1].SerializeToString())) - len(varint(self._ids[1]))

    def _filled(self, pieces: list[bytes], request_id: bytes) -> bytes:
        if len(request_id) != self.id_bytes:
            raise ValueError(f"a request id of {self.id_bytes} bytes is needed: {request_id!r}")
        return request_id.join(pieces)
