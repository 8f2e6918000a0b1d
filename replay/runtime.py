"""The runtime: everything that lives longer than a call, in one nursery, with one order of start
and stop.

Start: what can fail without a trace comes first (settings, the capture file, the listeners); then
the tasks; accepting is the last.  Stop: health says so, accepting ends, streams get their grace,
what is left is cancelled, engines end, the capture is closed.  Nothing here installs signal
handlers or touches what belongs to the process, so several runtimes can live in one.
"""

import ssl
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import attrs
import trio
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

from replay.config.describe import as_plain
from replay.config.model import Config, WorkerConfig
from replay.config.rules import check_config
from replay.engines.base import Engine, Model
from replay.engines.build import build_engines, put_script_over
from replay.engines.methods import GENERATE, SERVICE_NAME
from replay.engines.script_source import load_script, script_warnings
from replay.errors import ConfigError, ReplayError
from replay.logger import get_logger
from replay.metrics import WorkerMetrics, build_registry
from replay.mirror import open_mirror
from replay.rpc.calls import Call
from replay.rpc.health import HEALTH_PATHS, Health
from replay.rpc.http2 import Http2Limits
from replay.rpc.listeners import Address, Listening, listen
from replay.rpc.reflection import reflection_services
from replay.rpc.server import Server
from replay.rpc.tls import server_context
from replay.taps.status import tap_status
from replay.taps.taps import Taps
from replay.web.admin import admin_routes
from replay.web.admin_token import read_admin_token
from replay.web.app import build_app
from replay.web.serve import serving_http
from replay.worker.fleet import Fleet
from replay.worker.model_folder import model_from_folder
from replay.worker.request_capture import FileCapture
from replay.worker.service import ANSWERED_WHILE_DRAINING, Scheduler

log = get_logger(__name__)

#: How long the capture may take to write what is waiting, when nobody waits for it any more.
CAPTURE_CLOSE_SECONDS = 1.0


@attrs.frozen
class Worker:
    """One gRPC port, the services behind it, and its engine."""

    engine: Engine
    scheduler: Scheduler
    health: Health
    server: Server


class Runtime:
    """What `open_runtime` gives: where the workers are, and what can be asked of them."""

    def __init__(
        self,
        config: Config,
        workers: Sequence[Worker],
        listening: Sequence[Listening],
        *,
        capture: FileCapture | None,
        taps: Taps | None,
        registry: CollectorRegistry,
        http: Listening | None,
    ) -> None:
        self.config = config
        self.workers = tuple(workers)
        self.listening = tuple(listening)
        self.capture = capture
        #: The taps, for an embedding program that mirrors requests of its own; None without any.
        self.taps = taps
        #: The metrics of this runtime, for `prometheus_client`.
        self.registry = registry
        self.addresses = [name for each in listening for name in each.names]
        """Where the workers listen, `host:port` or `unix:/path`, with the real ports."""
        self.http_address = http.names[0] if http is not None else None
        """Where HTTP is served, `host:port`; None when it is not."""

    @property
    def is_healthy(self) -> bool:
        """Whether new requests are welcome."""
        return all(worker.scheduler.is_healthy for worker in self.workers)

    def status(self) -> Mapping[str, Any]:
        """Return what the runtime does now, as JSON can say it."""
        return {
            "healthy": self.is_healthy,
            "workers": [
                {"address": name, "in_flight": worker.scheduler.in_flight}
                for worker, each in zip(self.workers, self.listening, strict=True)
                for name in each.names
            ],
            "capture": self.capture and attrs.asdict(self.capture.statistics()),
            "taps": [tap_status(tap) for tap in self.taps or ()],
        }

    async def reopen_capture(self) -> None:
        """Open the capture's path again, after a rotation.

        Without a capture nothing happens.  A path that cannot be opened is logged, and the old file
        stays in use.
        """
        if self.capture is None:
            await trio.lowlevel.checkpoint()
        else:
            await self.capture.reopen()


@asynccontextmanager
@trio.lowlevel.enable_ki_protection  # it comes at a checkpoint, and not between open and close
async def open_runtime(config: Config, *, engine: Engine | None = None) -> AsyncIterator[Runtime]:
    """Run workers for as long as the block lasts.

    *engine* answers instead of the configured one, for every worker.  Leaving the block stops
    within the grace of `config.shutdown`; cancelling it, or an error in it, stops with a grace of
    0.

    Raises, before anything listens: ConfigError, FileOpenError, BindError.  Errors of the block and
    of an engine come out as an exception group, as from any nursery.
    """
    if sys.platform != "linux":
        raise ReplayError("replay runs on Linux only")
    check_config(config)
    worker = config.worker
    if worker.processes > 1:
        text = "worker.processes: a runtime is one process; `replay serve` starts more"
        raise ConfigError([text])
    engines = _engines(config, engine)
    tls = None
    if worker.tls is not None:
        tls = server_context(worker.tls.certificate, worker.tls.key, worker.tls.client_ca)
    token = None if config.http.token_file is None else read_admin_token(config.http.token_file)
    # Without admin nothing lies over the engines.
    fleet = Fleet(engines) if config.http.admin else None
    answering = engines if fleet is None else [each.answering for each in fleet.members]
    async with AsyncExitStack() as stack:
        capture = await stack.enter_async_context(_open_capture(worker))
        listening = stack.enter_context(_listening(_addresses(worker)))
        http = None
        if config.http.port is not None:
            http = stack.enter_context(_listening([Address(config.http.host, config.http.port)]))[0]
        # Without taps nothing of the mirror is built.
        taps = await stack.enter_async_context(open_mirror(config)) if config.taps else None
        metrics = WorkerMetrics()
        workers = [
            _build_worker(each, answers, config, capture=capture, taps=taps, metrics=metrics)
            for each, answers in zip(engines, answering, strict=True)
        ]
        runtime = Runtime(
            config,
            workers,
            listening,
            capture=capture,
            taps=taps,
            registry=build_registry(tuple(taps or ()), metrics),
            http=http,
        )
        if http is not None:
            log.info("http", address=runtime.http_address)
            app = _build_app(runtime, fleet, token)
            await stack.enter_async_context(serving_http(app, http))
        await stack.enter_async_context(_running(runtime, tls))
        yield runtime


@asynccontextmanager
async def _open_capture(worker: WorkerConfig) -> AsyncIterator[FileCapture | None]:
    if worker.capture is None:
        yield None
        return
    capture = FileCapture.open(
        worker.capture,
        extended=worker.capture_extended,
        metadata_allow=worker.metadata_allow,
    )
    try:
        yield capture
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CAPTURE_CLOSE_SECONDS):
            await capture.aclose()


@contextmanager
def _listening(addresses: Sequence[Address]) -> Iterator[list[Listening]]:
    """Bind all addresses, and close what is still open at the end."""
    listening = listen(addresses)
    try:
        yield listening
    finally:
        for each in listening:
            each.close()


@asynccontextmanager
async def _running(runtime: Runtime, tls: ssl.SSLContext | None) -> AsyncIterator[None]:
    """Run the tasks of all workers, and stop them in order."""
    async with trio.open_nursery() as tasks:
        grace, engines = 0.0, trio.CancelScope()
        try:
            await tasks.start(_run_engines, [worker.engine for worker in runtime.workers], engines)
            # Not before they have started: a shielded start could not be cancelled.
            engines.shield = True
            for worker, listening in zip(runtime.workers, runtime.listening, strict=True):
                await tasks.start(partial(worker.server.run, [listening], tls=tls))
            yield
            grace = runtime.config.shutdown.grace_seconds
        finally:
            try:
                # Not shielded: a cancellation ends the grace, and what comes after it is bounded.
                await _stop(runtime, grace)
            finally:
                engines.cancel()


async def _run_engines(
    engines: Sequence[Engine],
    lifetime: trio.CancelScope,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Keep the engines alive until *lifetime* is cancelled; its shield is the owner's to set."""
    with lifetime:
        async with trio.open_nursery() as running:
            for engine in {id(engine): engine for engine in engines}.values():
                await running.start(engine.run)
            task_status.started()


async def _stop(runtime: Runtime, grace_seconds: float) -> None:
    """Stop all workers at once; the time that this takes is bounded."""
    log.info("stopping", grace_seconds=grace_seconds)
    for worker in runtime.workers:
        worker.scheduler.is_healthy = False
        worker.health.set_all(serving=False)
    async with trio.open_nursery() as stopping:
        for worker in runtime.workers:
            stopping.start_soon(_stop_worker, worker, grace_seconds)


async def _stop_worker(worker: Worker, grace_seconds: float) -> None:
    cancelled = await worker.server.stop(grace_seconds=grace_seconds)
    if cancelled:
        log.warning("requests cut short", cancelled=cancelled)


async def serve(
    config: Config,
    *,
    engine: Engine | None = None,
    shutdown: trio.Event | None = None,
    task_status: trio.TaskStatus[Runtime] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a runtime until *shutdown* is set, then stop it within its grace.

    For `nursery.start(serve, config)`, which returns the Runtime once it accepts.  Without
    *shutdown* it runs until it is cancelled.  Raises what `open_runtime` raises.
    """
    async with open_runtime(config, engine=engine) as runtime:
        task_status.started(runtime)
        if shutdown is None:
            await trio.sleep_forever()
        else:
            await shutdown.wait()


# ---- parts


def _addresses(worker: WorkerConfig) -> list[Address]:
    host, base = worker.host, worker.grpc_base_port
    return [Address(host, base + index if base else 0) for index in range(worker.grpc_count)]


def build_model(worker: WorkerConfig) -> Model:
    """Return the model that the workers say they serve.  Raises ConfigError for its folder."""
    model = Model(
        name=worker.model,
        vocab_size=worker.vocab_size,
        context_length=worker.context_length,
        weight_version=worker.weight_version,
        default_sampling_params=worker.default_sampling_params or {},
    )
    return model if worker.tokenizer is None else model_from_folder(model, worker.tokenizer)


def _engines(config: Config, given: Engine | None) -> list[Engine]:
    """Return the engine of each worker: the *given* one for all, or those of the configuration."""
    worker = config.worker
    if given is not None:
        engines = [given] * worker.grpc_count
    else:
        engines = build_engines(worker, build_model(worker))
    if worker.script is None:
        return engines
    book = load_script(worker.script)
    for warning in script_warnings(config, book):
        log.warning(warning)
    return put_script_over(engines, book, strict=worker.script_strict)


def _build_worker(
    engine: Engine,
    answering: Engine,
    config: Config,
    *,
    capture: FileCapture | None,
    taps: Taps | None,
    metrics: WorkerMetrics,
) -> Worker:
    worker = config.worker
    limits = worker.limits
    scheduler = Scheduler(
        answering,
        capture=capture,
        taps=taps,
        metrics=metrics,
        settings=as_plain(config)["worker"],
    )
    health = Health([SERVICE_NAME])
    services = [scheduler.service(), health.service()]
    services += reflection_services(service.name for service in services)

    def count(call: Call) -> None:
        if call.method.path == GENERATE.path:
            metrics.count("CANCELLED" if call.status is None else call.status.status_code.name)

    server = Server(
        services,
        limits=Http2Limits(
            streams=limits.streams,
            header_bytes=limits.header_bytes,
            resets_per_second=limits.resets_per_second,
            reset_burst=limits.reset_burst,
            idle_pings=limits.idle_pings,
        ),
        message_limit=limits.message_bytes,
        connection_limit=limits.connections,
        answered_while_draining=(*ANSWERED_WHILE_DRAINING, *HEALTH_PATHS),
        on_call_ended=count,
    )
    return Worker(engine, scheduler, health, server)


def _build_app(runtime: Runtime, fleet: Fleet | None, token: str | None) -> Starlette:
    def worker_status(number: int) -> Mapping[str, Any]:
        scheduler = runtime.workers[number].scheduler
        return {
            "addresses": list(runtime.listening[number].names),
            "is_healthy": scheduler.is_healthy,
            "in_flight": scheduler.in_flight,
        }

    return build_app(
        runtime.registry,
        is_healthy=lambda: runtime.is_healthy,
        status=runtime.status,
        routes=() if fleet is None else admin_routes(fleet, worker_status, token=token),
    )
