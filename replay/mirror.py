"""The mirror of a runtime: its taps, what they publish to, and the order in which that ends.

Nothing is published before everything is there: sockets and record files are opened first, so a
fault of one leaves nothing behind.  At the end the queues are closed and drained until a deadline,
the last status record says what became of them, the sockets close with what is left of the drain
as their linger, the discovery files go, and the ZeroMQ context ends in a thread.
"""

import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import trio
import zmq

from replay.config.model import (
    Config,
    DiscoveryKind,
    EventPlaneConfig,
    RecordFileConfig,
    TapConfig,
    Transport,
)
from replay.errors import ConfigError, RecordFileOpenError
from replay.logger import get_logger
from replay.plane.addresses import PlaneAddresses, resolve_addresses
from replay.plane.codec import new_publisher_id
from replay.plane.curve import ServerKeys
from replay.plane.discovery import discovery_folder, keep_published, publish, withdraw
from replay.plane.discovery_entry import Publisher
from replay.plane.gap_filling import ROUTER_HIGH_WATER_MARK, serve_gaps
from replay.plane.gap_protocol import LONGEST_REQUEST_FRAME
from replay.plane.record_writer import RecordFileWriter
from replay.plane.replay_buffer import ReplayBuffer
from replay.plane.sinks import PlaneSink
from replay.plane.sockets import (
    SHORTEST_LINGER_SECONDS,
    Bound,
    bind_pub,
    bind_router,
    open_context,
    set_linger,
)
from replay.plane.zap import bind_zap, serve_zap
from replay.taps.publisher import run_publishers
from replay.taps.status import STATUS_TOPIC, StatusSource, run_status
from replay.taps.tap import Tap
from replay.taps.taps import Taps

log = get_logger(__name__)

#: A status record is small, and a reader that has not read so many does not read at all.
STATUS_HIGH_WATER_MARK = 64
#: How long the end of the context may take beyond the longest linger.
TERM_SECONDS = 0.5
#: How long record files may take to write what they were given; a disk that hangs takes for ever.
RECORD_CLOSE_SECONDS = 1.0


@asynccontextmanager
async def open_mirror(config: Config) -> AsyncIterator[Taps]:
    """Mirror for as long as the block lasts; leaving it drains (see the module).

    Raises ConfigError, BindError and RecordFileOpenError before anything is published.  The drain
    happens also when the block is cancelled.  Errors of the block come out as a group.
    """
    taps = Taps(config.taps, metadata_allow=config.worker.metadata_allow)
    drain_seconds = config.shutdown.drain_seconds
    term_seconds = max(drain_seconds, SHORTEST_LINGER_SECONDS) + TERM_SECONDS
    async with AsyncExitStack() as stack:
        plane: _Plane | None = None
        if config.event_plane.transport is Transport.ZMQ:
            context = await stack.enter_async_context(open_context(term_seconds=term_seconds))
            plane = _Plane(context, config)
            # Before the sockets in this list, so behind them at the end.
            stack.callback(plane.withdraw)
            stack.callback(plane.close_unserved)
        # Only for a start that fails: the next one would find a file that holds nothing.
        undo = stack.enter_context(ExitStack())
        files = await stack.enter_async_context(_open_record_files(config.taps, undo))
        deadline = _Deadline()
        # Sinks close behind everything that uses them, with what the drain has left over.
        sinks = stack.enter_context(
            _open_sinks(taps, config.taps, plane, files, linger_seconds=deadline.left)
        )
        if plane is not None:
            services = await stack.enter_async_context(_open_services(plane, deadline.left))
            heartbeat_seconds = config.event_plane.heartbeat_seconds
            if heartbeat_seconds:
                status = stack.enter_context(plane.open_status_sink(deadline.left))
                source = StatusSource(
                    runtime_id=secrets.token_hex(8), publishers=sinks, router=plane.router_endpoint
                )
                await stack.enter_async_context(
                    run_status(source, status, interval_seconds=heartbeat_seconds)
                )
            plane.publish(services)
        await stack.enter_async_context(run_publishers(sinks, drain_seconds=drain_seconds))
        _log_start(config, sinks, plane)
        undo.pop_all()
        try:
            yield taps
        finally:
            deadline.set(drain_seconds)


class _Deadline:
    """When the drain ends; before that is known, all of it is left."""

    def __init__(self) -> None:
        self._at: float | None = None

    def set(self, seconds: float) -> None:
        self._at = trio.current_time() + seconds

    def left(self) -> float:
        return 0.0 if self._at is None else max(0.0, self._at - trio.current_time())


class _Plane:
    """The ZeroMQ side of a mirror: sockets, and what discovery says of them."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], config: Config) -> None:
        plane = config.event_plane
        self._context = context
        self._namespace = config.namespace
        self._folder = _discovery_folder(plane)
        self._addresses: PlaneAddresses = resolve_addresses(plane.bind, plane.advertise)
        self.keys = _load_keys(plane)
        # ZeroMQ asks for allowed keys from the first protected bind on.
        self.zap = None if self.keys is None else bind_zap(context)
        self._publishers: list[Publisher] = []
        self._shown: list[Publisher] = []
        """Those that discovery shows."""
        self.buffers: dict[int, ReplayBuffer] = {}
        self.router: zmq.Socket[bytes] | None = None
        self.router_endpoint: str | None = None
        self.status_endpoint: str | None = None

    @property
    def is_unreachable(self) -> bool:
        """Whether consumers elsewhere are told of an address that nothing listens on."""
        return self._addresses.is_unreachable

    def bind_tap(self, index: int, tap: TapConfig, publisher_id: int) -> Bound:
        """Bind the PUB socket of a tap."""
        bound = bind_pub(
            self._context,
            self._addresses.bind_host,
            self._addresses.port(index),
            high_water_mark=tap.capacity,
            curve=self.keys,
        )
        self._tell(tap.topic, publisher_id, bound)
        return bound

    def endpoint(self, publisher_id: int) -> str:
        """Return where consumers find a publisher."""
        return next(p.endpoint for p in self._publishers if p.publisher_id == publisher_id)

    def bind_gap_service(self, buffers: Mapping[int, ReplayBuffer]) -> None:
        """Bind the ROUTER socket that answers for *buffers*."""
        bound = bind_router(
            self._context,
            self._addresses.bind_host,
            None,
            high_water_mark=ROUTER_HIGH_WATER_MARK,
            longest_request=LONGEST_REQUEST_FRAME,
            curve=self.keys,
        )
        self.buffers = dict(buffers)
        self.router = bound.socket
        self.router_endpoint = self._addresses.advertised(bound.port)

    @contextmanager
    def open_status_sink(self, linger_seconds: Callable[[], float]) -> Iterator[PlaneSink]:
        """Bind the PUB socket of the status records."""
        publisher_id = new_publisher_id()
        bound = bind_pub(
            self._context,
            self._addresses.bind_host,
            None,
            high_water_mark=STATUS_HIGH_WATER_MARK,
            curve=self.keys,
        )
        self._tell(STATUS_TOPIC, publisher_id, bound)
        self.status_endpoint = self._addresses.advertised(bound.port)
        sink = PlaneSink(STATUS_TOPIC, publisher_id, socket=bound.socket)
        try:
            yield sink
        finally:
            sink.close(linger_seconds=linger_seconds())

    def _tell(self, topic: str, publisher_id: int, bound: Bound) -> None:
        endpoint = self._addresses.advertised(bound.port)
        self._publishers.append(Publisher(self._namespace, topic, publisher_id, endpoint))

    def publish(self, services: trio.Nursery) -> None:
        """Have discovery show the publishers until `withdraw`.  Raises ConfigError."""
        folder = self._folder
        if folder is None:
            return
        try:
            for publisher in self._publishers:
                publish(folder, publisher)
                self._shown.append(publisher)
        except OSError as error:
            raise ConfigError(
                [f"event_plane.discovery: cannot write to {folder}: {error.strerror}"]
            ) from error
        services.start_soon(keep_published, folder, self._publishers)

    def close_unserved(self) -> None:
        """Close sockets that no task has come to own, as in a start that fails."""
        for socket in (self.zap, self.router):
            if socket is not None:
                socket.close(linger=0)

    def withdraw(self) -> None:
        """Remove the publishers from discovery."""
        if self._folder is not None:
            withdraw(self._folder, self._shown)


@contextmanager
def _open_sinks(
    taps: Taps,
    configs: Sequence[TapConfig],
    plane: _Plane | None,
    files: Mapping[str, RecordFileWriter],
    *,
    linger_seconds: Callable[[], float],
) -> Iterator[dict[Tap, PlaneSink]]:
    """Open where each tap publishes to, and close it at the end."""
    sinks: dict[Tap, PlaneSink] = {}
    buffers: dict[int, ReplayBuffer] = {}
    with ExitStack() as opened:
        for index, (tap, config) in enumerate(zip(taps, configs, strict=True)):
            publisher_id = new_publisher_id()
            buffer = None
            socket = None
            if plane is not None:
                socket = plane.bind_tap(index, config, publisher_id).socket
                if config.replay_buffer:
                    buffer = buffers[publisher_id] = ReplayBuffer(config.replay_buffer)
            sink = sinks[tap] = PlaneSink(
                config.topic,
                publisher_id,
                socket=socket,
                replay_buffer=buffer,
                record_file=files.get(config.name),
            )
            opened.callback(_close_sink, sink, linger_seconds)
        if plane is not None and buffers:
            plane.bind_gap_service(buffers)
        yield sinks


def _close_sink(sink: PlaneSink, linger_seconds: Callable[[], float]) -> None:
    sink.close(linger_seconds=linger_seconds())


@asynccontextmanager
async def _open_record_files(
    configs: Sequence[TapConfig], undo: ExitStack
) -> AsyncIterator[dict[str, RecordFileWriter]]:
    """Open the taps' record files; at the end what they were given is on disk.

    *undo* gets what takes back that a file was begun.
    """
    files: dict[str, RecordFileWriter] = {}
    try:
        for config in configs:
            if config.record_file is not None:
                file = files[config.name] = _open_record_file(config.record_file)
                undo.callback(file.remove_if_empty)
        yield files
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + RECORD_CLOSE_SECONDS):
            async with trio.open_nursery() as closing:
                for file in files.values():
                    closing.start_soon(file.aclose)


def _open_record_file(config: RecordFileConfig) -> RecordFileWriter:
    try:
        return RecordFileWriter.open(
            config.path,
            rotate_bytes=config.rotate_bytes,
            rotate_seconds=config.rotate_seconds,
        )
    except OSError as error:
        raise RecordFileOpenError(
            f"cannot open record file {config.path}: {error.strerror}"
        ) from error


@asynccontextmanager
async def _open_services(
    plane: _Plane, linger_seconds: Callable[[], float]
) -> AsyncIterator[trio.Nursery]:
    """Run what answers others until the end of the block: allowed keys, gaps, discovery."""
    async with trio.open_nursery() as services:
        if plane.zap is not None and plane.keys is not None:
            services.start_soon(serve_zap, plane.zap, plane.keys)
        if plane.router is not None:
            services.start_soon(serve_gaps, plane.router, plane.buffers)
        try:
            yield services
        finally:
            if plane.router is not None and not plane.router.closed:
                # A reader may have asked and not read the answer.
                set_linger(plane.router, linger_seconds())
            services.cancel_scope.cancel()


def _discovery_folder(plane: EventPlaneConfig) -> Path | None:
    if plane.discovery.kind is DiscoveryKind.NONE:
        return None
    return discovery_folder(plane.discovery.root)


def _load_keys(plane: EventPlaneConfig) -> ServerKeys | None:
    if plane.curve is None:
        return None
    return ServerKeys.load(plane.curve.secret_key_file, plane.curve.allowed_keys_dir)


def _log_start(config: Config, sinks: Mapping[Tap, PlaneSink], plane: _Plane | None) -> None:
    """Say of each tap where it can be read: enough to do without discovery (rule 62)."""
    for tap_config, (tap, sink) in zip(config.taps, sinks.items(), strict=True):
        log.info(
            "tap",
            tap=tap.name,
            namespace=config.namespace,
            topic=tap.topic,
            capture=tap_config.capture.value,
            filters=list(tap.filters),
            capacity=tap_config.capacity,
            endpoint=None if plane is None else plane.endpoint(sink.publisher_id),
            publisher_id=sink.publisher_id,
            record_file=tap_config.record_file and tap_config.record_file.path,
        )
    if plane is not None:
        log.info("event plane", status=plane.status_endpoint, gaps=plane.router_endpoint)
        if plane.is_unreachable:
            log.warning("consumers elsewhere cannot connect", reason="bound to loopback")
