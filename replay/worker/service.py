"""TokenSpeed's scheduler service on an engine: what a gateway finds behind the port.

The order for each Generate: the capture line is on disk, the initial headers leave, the engine is
asked.  Between its headers and its last message a request is in flight and can be aborted by id; it
ends early in one of the ways of `replay.rpc.calls.Ending`, and each of them cancels its scope.
"""

import datetime
import inspect
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import purerpc
import trio
from google.protobuf.json_format import ParseDict
from purerpc.grpclib.exceptions import InvalidArgumentError, NotFoundError
from purerpc.grpclib.status import Status

from replay import __version__
from replay._proto import common_pb2 as common
from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.engines.base import Engine, Generation, Loads
from replay.engines.methods import SERVICE_NAME, SIGNATURES, method_path
from replay.metrics import WorkerMetrics
from replay.rpc.calls import OK, Call, Ending
from replay.taps.recording import NOT_RECORDED
from replay.taps.taps import Taps
from replay.worker.answer import GenerateAnswer, Observer
from replay.worker.default_params import apply_default_sampling_params
from replay.worker.encode import CutAnswers
from replay.worker.in_flight import InFlight
from replay.worker.latency import LatencyObserver
from replay.worker.tokenizer_archive import archive_chunks, build_archive

#: What a worker that shuts down still answers: how it is, and the end of what it has begun.
ANSWERED_WHILE_DRAINING = tuple(
    method_path(name)
    for name in ("HealthCheck", "Abort", "GetModelInfo", "GetServerInfo", "GetLoads")
)


class RequestCapture(Protocol):
    """Somebody who has to have seen a request before anything is answered."""

    async def capture(self, message: pb.GenerateRequest, call: Call) -> None:
        """Return when the request is on disk.

        Raises INTERNAL (a purerpc `RpcFailedError`) when it cannot be.
        """
        ...


class Scheduler:
    """One worker's service: an engine with a name, and what is in flight on it."""

    def __init__(
        self,
        engine: Engine,
        *,
        capture: RequestCapture | None = None,
        taps: Taps | None = None,
        metrics: WorkerMetrics | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._engine = engine
        self._capture = capture
        self._taps = taps
        self._metrics = metrics
        self._settings = dict(settings or {})
        self._in_flight: InFlight[Call] = InFlight()
        self._cut = CutAnswers()
        self._started_unix = time.time()
        self._started = trio.current_time()
        self._tokenizer_archive: bytes | None = None
        self._engine_health: Callable[..., Awaitable[Any]] | None = None
        #: Whether `HealthCheck` says so; the runtime takes it back before a drain.
        self.is_healthy = True

    @property
    def in_flight(self) -> int:
        """How many Generate requests have not ended."""
        return len(self._in_flight)

    def service(self) -> purerpc.Service:
        """Return the service: the engine's own methods over the worker's.

        A method that neither answers is not there, and so UNIMPLEMENTED.
        """
        own: dict[str, Any] = {
            "Generate": self.generate,
            "HealthCheck": self.health_check,
            "Abort": self.abort,
            "GetModelInfo": self.model_info,
            "GetServerInfo": self.server_info,
            "GetLoads": self.loads,
        }
        if self._engine.model.tokenizer is not None:
            own["GetTokenizer"] = self.tokenizer
        engines_own = dict(self._engine.methods())
        self._engine_health = engines_own.pop("HealthCheck", None)
        service = purerpc.Service(SERVICE_NAME)
        for name, function in {**own, **engines_own}.items():
            cardinality, request_type, response_type = SIGNATURES[name]
            signature = purerpc.RPCSignature(cardinality, request_type, response_type)
            service.add_method(name, function, signature, inspect.signature(function))
        return service

    # ---- Generate

    async def generate(self, message: pb.GenerateRequest, request: Call) -> None:
        """Answer one request; the messages leave through the call."""
        call = request
        if self._capture is not None:
            await self._capture.capture(message, call)
        model = self._engine.model
        if model.default_sampling_params:
            message = apply_default_sampling_params(message, model.default_sampling_params)
        problem = self._engine.check(message)
        if problem is not None:
            raise InvalidArgumentError(problem)
        params = message.sampling_params
        generation = Generation(
            message=message,
            request_id=message.request_id,
            prompt_tokens=len(message.tokenized.input_ids),
            choices=params.n or 1,
            max_new_tokens=params.max_new_tokens if params.HasField("max_new_tokens") else None,
            arrival=call.arrival,
            metadata=call.metadata,
        )
        # What others see of the request counts from its arrival, on their clock.
        age_ns = int((trio.current_time() - call.arrival) * 1e9)
        arrival_ns = time.monotonic_ns() - age_ns
        recording = NOT_RECORDED
        if self._taps is not None:
            recording = await self._taps.record_generate(
                generation,
                model,
                arrival_unix_ns=time.time_ns() - age_ns,
                arrival_monotonic_ns=arrival_ns,
                is_cancelled=partial(_is_cut_short, call),
            )
        observers: list[Observer] = []
        if self._metrics is not None:
            observers.append(LatencyObserver(self._metrics, arrival_ns))
        if recording.is_recording:
            observers.append(recording)
        answer = GenerateAnswer(call, generation, model, self._cut, observers)
        call.epilogue = _Epilogue(answer)
        request_id = generation.request_id
        self._in_flight.add(request_id, call)
        try:
            with recording:
                if not self._engine.sends_headers:
                    call.respond()
                await self._engine.generate(generation, answer)
                recording.end()
        finally:
            self._in_flight.remove(request_id, call)

    # ---- the other methods

    async def health_check(
        self, message: pb.HealthCheckRequest, request: Call
    ) -> pb.HealthCheckResponse | None:
        """Say whether new requests are welcome; an engine may have its own view until the end."""
        if not self.is_healthy:
            return pb.HealthCheckResponse(healthy=False, message="the worker shuts down")
        if self._engine_health is not None:
            answer: pb.HealthCheckResponse | None = await self._engine_health(message, request)
            return answer
        return pb.HealthCheckResponse(healthy=True, message="OK")

    async def abort(self, message: pb.AbortRequest) -> pb.AbortResponse:
        """End what is in flight under an id and its children's."""
        found = self._in_flight.find(message.request_id)
        if not found:
            return pb.AbortResponse(success=False, message="no request with this id is in flight")
        for call in found:
            call.cancel(Ending.ABORT)
        return pb.AbortResponse(success=True, message=f"aborted {len(found)}")

    async def model_info(self, message: pb.GetModelInfoRequest) -> pb.GetModelInfoResponse:
        """Describe the model."""
        model = self._engine.model
        defaults = model.default_sampling_params
        return pb.GetModelInfoResponse(
            model_path=model.tokenizer or model.name,
            tokenizer_path=model.tokenizer or "",
            served_model_name=model.name,
            model_type=model.model_type,
            architectures=model.architectures,
            max_context_length=model.context_length,
            max_req_input_len=model.context_length,
            vocab_size=model.vocab_size,
            eos_token_ids=model.eos_token_ids,
            pad_token_id=model.pad_token_id,
            bos_token_id=model.bos_token_id,
            weight_version=model.weight_version,
            default_sampling_params_json=json.dumps(dict(defaults)) if defaults else "",
        )

    async def server_info(self, message: pb.GetServerInfoRequest) -> pb.GetServerInfoResponse:
        """Describe the worker: its settings, its age, what it does now."""
        loads = self._engine.loads()
        response = pb.GetServerInfoResponse(
            active_requests=len(self._in_flight),
            uptime_seconds=trio.current_time() - self._started,
            max_total_num_tokens=loads.max_total_tokens,
            tokenspeed_version=f"replay-{__version__}",
        )
        ParseDict(self._settings, response.server_args)
        response.scheduler_info.update(
            {"running": loads.running, "waiting": loads.waiting, "max_running": loads.max_running}
        )
        response.start_time.FromNanoseconds(int(self._started_unix * 1e9))
        return response

    async def loads(self, message: pb.GetLoadsRequest) -> pb.GetLoadsResponse:
        """Report what the engine holds.  There is one data-parallel rank, 0."""
        if message.HasField("dp_rank") and message.dp_rank != 0:
            raise NotFoundError(f"there is no dp_rank {message.dp_rank}")
        loads = self._engine.loads()
        now = datetime.datetime.now(datetime.UTC)
        return pb.GetLoadsResponse(
            timestamp=now.isoformat(timespec="milliseconds"),
            version=f"replay-{__version__}",
            dp_rank_count=1,
            loads=[scheduler_load(loads, include=frozenset(message.include))],
            aggregate=pb.AggregateMetrics(
                total_running_reqs=loads.running,
                total_waiting_reqs=loads.waiting,
                total_reqs=loads.running + loads.waiting,
                avg_token_usage=loads.token_usage,
                avg_throughput=loads.throughput,
                avg_utilization=_utilization(loads),
            ),
        )

    async def tokenizer(
        self, message: common.GetTokenizerRequest
    ) -> AsyncIterator[common.GetTokenizerChunk]:
        """Send the tokenizer's folder."""
        if self._tokenizer_archive is None:
            folder = Path(self._engine.model.tokenizer or "")
            try:
                self._tokenizer_archive = await trio.to_thread.run_sync(build_archive, folder)
            except OSError as error:
                raise NotFoundError(f"the tokenizer cannot be read: {error.strerror}") from error
        for data, digest in archive_chunks(self._tokenizer_archive):
            yield common.GetTokenizerChunk(data=data, sha256=digest)


def _is_cut_short(call: Call) -> bool:
    """Whether something has cancelled the request, whatever came out of the engine afterwards."""
    return call.ending is not None or call.scope.cancel_called


class _Epilogue:
    """The last words of a request that was cut short while its client is there."""

    __slots__ = ("_answer",)

    def __init__(self, answer: GenerateAnswer) -> None:
        self._answer = answer

    def __call__(self, ending: Ending) -> Status | None:
        if ending is Ending.ABORT:
            self._answer.abort()
            return OK
        return None


def scheduler_load(loads: Loads, *, include: frozenset[str]) -> pb.SchedulerLoad:
    """Write *loads* in the wire's terms; sections beyond `core` only when asked for."""
    load = pb.SchedulerLoad(
        dp_rank=0,
        num_running_reqs=loads.running,
        num_waiting_reqs=loads.waiting,
        num_total_reqs=loads.running + loads.waiting,
        num_used_tokens=loads.used_tokens,
        max_total_num_tokens=loads.max_total_tokens,
        max_running_requests=loads.max_running,
        num_waiting_uncached_tokens=loads.waiting_uncached_tokens,
        token_usage=loads.token_usage,
        active_token_usage=loads.active_token_usage,
        gen_throughput=loads.throughput,
        cache_hit_rate=loads.cache_hit_rate,
        utilization=_utilization(loads),
    )
    if include & {"memory", "all"}:
        load.memory.token_capacity = loads.max_total_tokens
    if include & {"queues", "all"}:
        load.queues.waiting = loads.waiting
    return load


def _utilization(loads: Loads) -> float:
    return loads.running / loads.max_running if loads.max_running else 0.0
