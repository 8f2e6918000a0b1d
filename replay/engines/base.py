"""What an engine promises, and where it puts what it makes.

An engine answers one request in `generate`, which runs in the task of that request and inside its
cancel scope: a client that leaves, a deadline, an Abort and the shutdown all arrive there as
`trio.Cancelled`, and what the engine holds for the request is freed on the way out.  An engine that
serves many streams at once (one task, one wake-up a pass) registers the answer with its own task
and waits; the methods of `Answer` are synchronous, so that one task can write all streams.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import attrs
import trio

from replay._proto import tokenspeed_scheduler_pb2 as pb

#: The words that the wire knows for the end of a choice.
FINISH_REASONS = ("stop", "length", "abort")


@attrs.frozen(kw_only=True)
class Model:
    """The model that a worker says it serves."""

    name: str = "mock-model"
    vocab_size: int = 32768
    context_length: int = 32768
    eos_token_ids: tuple[int, ...] = (2,)
    bos_token_id: int = 1
    pad_token_id: int = 0
    architectures: tuple[str, ...] = ("LlamaForCausalLM",)
    model_type: str = "llama"
    tokenizer: str | None = None
    """Folder of the tokenizer, or None when the gateway has to bring its own."""
    weight_version: str = ""
    default_sampling_params: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.define(kw_only=True)
class Generation:
    """One Generate request as an engine sees it: validated, defaults applied."""

    message: pb.GenerateRequest
    """The request.  Token ids stay packed in it until somebody reads them."""
    request_id: str
    prompt_tokens: int
    choices: int
    """`n`, at least 1."""
    max_new_tokens: int | None
    """None when the client set none: the engine's own default counts.  0 is a real limit."""
    arrival: float
    """`trio.current_time()` when the request had arrived."""
    metadata: Sequence[tuple[bytes, bytes]] = ()
    """The client's headers, names in lower case."""


@attrs.frozen(kw_only=True)
class Loads:
    """What an engine holds at one moment, in the units of the wire's `SchedulerLoad`."""

    running: int = 0
    waiting: int = 0
    waiting_uncached_tokens: int = 0
    used_tokens: int = 0
    active_tokens: int = 0
    """Tokens in blocks that cannot be evicted."""
    max_total_tokens: int = 0
    max_running: int = 0
    throughput: float = 0.0
    """Generated tokens per second, lately."""
    cache_hit_rate: float = 0.0

    @property
    def token_usage(self) -> float:
        """Used share of the KV room, 0 to 1."""
        return self.used_tokens / self.max_total_tokens if self.max_total_tokens else 0.0

    @property
    def active_token_usage(self) -> float:
        """Share of the KV room that cannot be reclaimed, 0 to 1."""
        return self.active_tokens / self.max_total_tokens if self.max_total_tokens else 0.0


class Answer(Protocol):
    """Where an engine puts what it makes for one request.

    All methods but `room` are synchronous and may be called from any task of the loop.  After the
    end of the request (`is_open` is false) they do nothing.  What a slow client has not read is
    bounded: beyond the high-water mark tokens are kept as ids and leave later in one larger chunk,
    so an engine that paces itself need not look at `room`.
    """

    @property
    def is_open(self) -> bool:
        """Whether anybody still wants tokens: not finished, not cancelled, the client is there."""
        ...

    def set_cached_tokens(self, count: int) -> None:
        """Say how many prompt tokens came out of a cache.  Call it before the first token."""
        ...

    def tokens(self, ids: Sequence[int], index: int = 0) -> None:
        """Put the next tokens of choice *index*; a streaming client gets one chunk."""
        ...

    def finish(
        self,
        reason: str,
        index: int = 0,
        *,
        matched: int | str | None = None,
        spec_accepted: int = 0,
        spec_draft: int = 0,
    ) -> None:
        """End choice *index* with one of `FINISH_REASONS`."""
        ...

    def fail(self, message: str, index: int = 0) -> None:
        """End choice *index* as failed; the other choices go on."""
        ...

    def whole(self, ids: Sequence[int], reason: str, *, matched: int | None = None) -> None:
        """Put all tokens of the only choice, a chunk each, and its end: the same bytes as `tokens`
        for each, then `finish`."""
        ...

    def respond(self, metadata: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Send the initial headers, unless they have been sent; see `Engine.sends_headers`."""
        ...

    def set_trailing_metadata(self, metadata: Sequence[tuple[bytes, bytes]]) -> None:
        """Say what the trailers will have beside the status."""
        ...

    def forward(self, response: pb.GenerateResponse, packed: bytes | None = None) -> None:
        """Pass on a response that is already made, field for field.

        *packed* is the same response as bytes, if they are at hand: encoding it again is saved.
        """
        ...

    @property
    def is_full(self) -> bool:
        """Whether the client has so much left to read that `room` would wait."""
        ...

    async def room(self) -> None:
        """Wait until the client has read enough to take more."""
        ...


class Engine(Protocol):
    """Something that answers Generate requests for one model."""

    @property
    def model(self) -> Model:
        """What is served.  It may change: an engine that passes requests on learns it late."""
        ...

    @property
    def sends_headers(self) -> bool:
        """Whether `generate` sends the initial headers, as it has some to pass on.

        If not, the worker sends them before it asks the engine.
        """
        ...

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Live until cancelled; say `started` when requests may come."""
        ...

    def check(self, request: pb.GenerateRequest) -> str | None:
        """Return what is wrong with *request*, its field named, or None."""
        ...

    async def generate(self, generation: Generation, answer: Answer) -> None:
        """Answer one request; return when every choice is finished.

        Raises purerpc's `RpcFailedError`s to refuse the request as a whole.
        """
        ...

    def loads(self) -> Loads:
        """Return what the engine holds now."""
        ...

    def methods(self) -> Mapping[str, Any]:
        """Return the service's methods that this engine answers itself, by name (FlushCache,
        SubscribeKvEvents, …).

        A value is a handler as `replay.rpc.calls` describes it.  A method that nobody answers is
        UNIMPLEMENTED.  While the worker shuts down, its own HealthCheck answers.
        """
        ...
