"""The upstream engine: every call goes on to a real worker, and what that says comes back.

Taps, capture and the in-flight table sit above it and see a request as with any engine.  What
passes is not changed: messages keep the bytes in which they came, statuses their code and text,
metadata what the allow-list lets through; deadlines go on as what is left of them, and a call that
is cancelled here is reset there.  Only HealthCheck has an answer of its own: while the upstream is
away the worker is unhealthy, where another call gets UNAVAILABLE.
"""

import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import purerpc
import trio
from google.protobuf.message import DecodeError
from purerpc.grpclib.exceptions import InternalError, RpcFailedError
from purerpc.grpclib.status import StatusCode

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.engines.base import Answer, Generation, Loads, Model
from replay.engines.methods import SIGNATURES, method_path
from replay.engines.passed_metadata import PassedMetadata
from replay.engines.throughput import Throughput
from replay.logger import get_logger
from replay.rpc.calls import Call, frame_message
from replay.rpc.client import Answers, Channel, ClientMethod, open_channel

log = get_logger(__name__)

#: A gateway that asks for the health wants to know it before its own patience ends.
HEALTH_SECONDS = 5.0
#: How long a start waits for the upstream to say what it serves.
LEARN_SECONDS = 1.0
#: Between two questions for the model while nobody has answered one.
LEARN_AGAIN_SECONDS = 1.0
#: Messages of one stream that are passed on before others get a turn: about a millisecond.
BURST_MESSAGES = 64

#: The upstream cannot be reached, or does not answer.
_AWAY = (StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED)

#: The methods as they are called there; an answer stays as the bytes that came.
_METHODS = {name: ClientMethod(method_path(name), bytes) for name in SIGNATURES}


@attrs.define(eq=False)
class _Passing:
    """One Generate that is passing."""

    streams: bool
    tokens: int
    """Those of the prompt, and those that have come."""
    is_begun: bool = False
    """Whether a token has come."""


class UpstreamEngine:
    """Passes every call on to the worker at *target*, `grpc://HOST:PORT`.

    Until the upstream has said what it serves, *model* stands for it.  Metadata whose names match
    *metadata_allow*, globs, passes in both directions.
    """

    sends_headers = True

    def __init__(
        self, target: str, *, model: Model | None = None, metadata_allow: Sequence[str] = ()
    ) -> None:
        # What a request leaves unset is the upstream's to fill in.
        self.model = attrs.evolve(model or Model(), default_sampling_params={}, tokenizer=None)
        self._target = target
        self._metadata = PassedMetadata(metadata_allow)
        self._channel: Channel | None = None
        self._connected = trio.Event()
        self._is_away = False
        self._passing: set[_Passing] = set()
        self._throughput = Throughput()

    # ---- replay.engines.base.Engine

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the channel, and learn from each new connection what the upstream serves.

        An upstream that is away is no reason not to start: it is learned about when it is there.
        """
        async with open_channel(
            self._target, on_connected=lambda: self._connected.set()
        ) as self._channel:
            is_known = False
            with trio.move_on_after(LEARN_SECONDS):
                is_known = await self._learn()
            task_status.started()
            while True:
                if is_known:
                    await self._connected.wait()
                else:
                    await trio.sleep(LEARN_AGAIN_SECONDS)
                is_known = await self._learn()

    def check(self, request: pb.GenerateRequest) -> str | None:
        """Return None: what is wrong with a request is the upstream's to say."""
        return None

    async def generate(self, generation: Generation, answer: Answer) -> None:
        """Pass a request on, and its answer back; raises the upstream's status."""
        passing = _Passing(generation.message.stream, generation.prompt_tokens)
        self._passing.add(passing)
        try:
            async with self._calling(
                "Generate",
                generation.message,
                generation.metadata,
                set_trailers=answer.set_trailing_metadata,
            ) as answers:
                answer.respond(self._metadata.of(await answers.wait_head()))
                passed = 0
                while (packed := await answers.receive()) is not None:
                    self._forward(packed, answer, passing, answers.received_at)
                    passed += 1
                    if answer.is_full or passed % BURST_MESSAGES == 0:
                        await answer.room()
        finally:
            self._passing.remove(passing)

    def loads(self) -> Loads:
        """Return what is passing; what the upstream holds beside is its own to tell."""
        held = sum(each.tokens for each in self._passing)
        running = sum(each.is_begun for each in self._passing)
        return Loads(
            running=running,
            waiting=len(self._passing) - running,
            used_tokens=held,
            active_tokens=held,
            throughput=self._throughput.rate(trio.current_time()),
        )

    def methods(self) -> Mapping[str, Any]:
        """Return every method but Generate, passed on."""
        methods: dict[str, Any] = {}
        for name, (cardinality, _, _) in SIGNATURES.items():
            is_stream = cardinality is purerpc.Cardinality.UNARY_STREAM
            methods[name] = partial(self._pass_stream if is_stream else self._pass_one, name)
        del methods["Generate"]
        methods["HealthCheck"] = self._health_check
        return methods

    # ---- calls

    @asynccontextmanager
    async def _calling(
        self,
        name: str,
        message: Any,
        metadata: Sequence[tuple[bytes, bytes]],
        *,
        set_trailers: Callable[[Sequence[tuple[bytes, bytes]]], None],
        at_most: float = math.inf,
    ) -> AsyncIterator[Answers[bytes]]:
        """Call a method upstream with what is left of the caller's deadline."""
        assert self._channel is not None
        left = min(trio.current_effective_deadline() - trio.current_time(), at_most)
        async with self._channel.stream(
            _METHODS[name],
            message,
            timeout=None if left == math.inf else max(left, 0.0),
            metadata=self._metadata.of(metadata),
        ) as answers:
            try:
                yield answers
            finally:
                set_trailers(self._metadata.of(answers.trailing_metadata))

    def _forward(self, packed: bytes, answer: Answer, passing: _Passing, now: float) -> None:
        response: pb.GenerateResponse = _decoded(pb.GenerateResponse, packed)
        # With chunks before it, the end of a choice repeats their tokens.
        count = len(response.chunk.token_ids if passing.streams else response.complete.output_ids)
        if count:
            passing.is_begun = True
            passing.tokens += count
            self._throughput.add(count, now)
        answer.forward(response, packed)

    async def _pass_one(self, name: str, message: Any, request: Call) -> Any:
        """Pass on a call that has one answer, and return that."""
        return await self._pass_one_within(math.inf, name, message, request)

    async def _pass_one_within(self, seconds: float, name: str, message: Any, request: Call) -> Any:
        async with self._calling(
            name,
            message,
            request.metadata,
            set_trailers=partial(setattr, request, "trailing_metadata"),
            at_most=seconds,
        ) as answers:
            head = await answers.wait_head()
            packed = [each async for each in answers]
        if len(packed) != 1:
            raise InternalError(f"the upstream gave {len(packed)} answers instead of one")
        request.respond(self._metadata.of(head))
        return _decoded(SIGNATURES[name][2], packed[0])

    async def _pass_stream(self, name: str, message: Any, request: Call) -> None:
        """Pass on a call with a stream of answers; its headers as soon as they have come."""
        request.standing = name == "SubscribeKvEvents"
        async with self._calling(
            name,
            message,
            request.metadata,
            set_trailers=partial(setattr, request, "trailing_metadata"),
        ) as answers:
            request.respond(self._metadata.of(await answers.wait_head()))
            passed = 0
            while (packed := await answers.receive()) is not None:
                request.write(frame_message(packed))
                passed += 1
                if request.is_full:
                    await request.room()
                elif passed % BURST_MESSAGES == 0:
                    await trio.lowlevel.checkpoint()

    async def _health_check(
        self, message: pb.HealthCheckRequest, request: Call
    ) -> pb.HealthCheckResponse:
        """Pass the question on; an upstream that is away is unhealthy, which is an answer."""
        try:
            health: pb.HealthCheckResponse = await self._pass_one_within(
                HEALTH_SECONDS, "HealthCheck", message, request
            )
        except RpcFailedError as error:
            if error.status.status_code not in _AWAY:
                raise
            return pb.HealthCheckResponse(healthy=False, message="the upstream is away")
        return health

    # ---- the model

    async def _learn(self) -> bool:
        """Ask the upstream what it serves; return whether it was there to answer."""
        assert self._channel is not None
        method = ClientMethod(method_path("GetModelInfo"), pb.GetModelInfoResponse.FromString)
        try:
            info = await self._channel.unary(
                method, pb.GetModelInfoRequest(), timeout=HEALTH_SECONDS
            )
        except (RpcFailedError, DecodeError) as error:
            status = error.status if isinstance(error, RpcFailedError) else None
            if status is not None and status.status_code in _AWAY:
                if not self._is_away:
                    self._is_away = True
                    reason = status.status_message
                    log.warning("upstream away", upstream=self._target, reason=reason)
                return False
            log.warning("upstream does not tell its model", upstream=self._target)
        else:
            self.model = _model_of(info, self.model)
            log.info("upstream", upstream=self._target, model=self.model.name)
        self._is_away = False
        self._connected = trio.Event()
        return True


def _decoded(message: type[Any], packed: bytes) -> Any:
    """Read a message of the upstream; one that cannot be read is not the client's fault."""
    try:
        return message.FromString(packed)
    except DecodeError:
        raise InternalError("a message of the upstream cannot be decoded") from None


def _model_of(info: pb.GetModelInfoResponse, known: Model) -> Model:
    """Return what *info* says of a model; where it says nothing, what is *known*."""
    return attrs.evolve(
        known,
        name=info.served_model_name or info.model_path or known.name,
        vocab_size=info.vocab_size or known.vocab_size,
        context_length=info.max_context_length or known.context_length,
        eos_token_ids=tuple(info.eos_token_ids),
        bos_token_id=info.bos_token_id,
        pad_token_id=info.pad_token_id,
        architectures=tuple(info.architectures),
        model_type=info.model_type,
        weight_version=info.weight_version,
    )
