"""What a configuration must keep besides its types: ranges, names, and what goes together.

PURE.  The rules see the values that the program uses, so they hold for a file, for flags and for
what an embedding program has built.
"""

from collections.abc import Iterator

from replay.config.address import is_loopback, parse_bind
from replay.config.bounds import at_least, not_empty, whole
from replay.config.engines import UpstreamConfig
from replay.config.model import (
    SCHEMA_VERSION,
    Config,
    HttpConfig,
    ShutdownConfig,
    WorkerConfig,
)
from replay.config.problems import Fault, format_path
from replay.config.tap_rules import event_plane_faults, taps_faults
from replay.config.worker_rules import LAST_PORT, host_faults, worker_faults
from replay.errors import ConfigError


def check_config(config: Config) -> None:
    """Raise `ConfigError` with every rule that *config* breaks; paths stand for places."""
    lines = [f"{format_path(fault.path)}: {fault.text}" for fault in find_faults(config)]
    if lines:
        raise ConfigError(lines)


def find_faults(config: Config) -> Iterator[Fault]:
    """Yield every rule that *config* breaks."""
    if config.schema_version != SCHEMA_VERSION:
        text = f"must be {SCHEMA_VERSION}, is {config.schema_version}"
        yield Fault(("schema_version",), text)
    yield from not_empty(("namespace",), config.namespace)
    yield from worker_faults(config.worker)
    yield from event_plane_faults(config.event_plane, config.taps)
    yield from _http_faults(config.http)
    yield from _shutdown_faults(config.shutdown)
    yield from taps_faults(config)
    yield from _sharing_faults(config)


def find_warnings(config: Config) -> list[str]:
    """Return what is allowed but hardly meant, a sentence each."""
    worker = config.worker
    warnings = []
    if worker.capture is not None and worker.grpc_count == 0:
        warnings.append("worker.capture: nothing will be captured, because grpc_count is 0")
    if worker.processes > 1 and worker.script is not None:
        warnings.append(
            "worker.script: each process counts for itself how often a line has been used"
        )
    if worker.capture_extended and worker.capture is None:
        warnings.append("worker.capture_extended: there is no worker.capture to extend")
    if config.http.token_file is not None and not config.http.admin:
        warnings.append("http.token_file: has no effect without http.admin")
    if isinstance(worker.engine, UpstreamConfig) and not worker.overrides:
        warnings += [
            f"worker.{name}: has no effect, the upstream has its own"
            for name in _TOLD_BY_THE_UPSTREAM
            if getattr(worker, name) != getattr(WorkerConfig(), name)
        ]
    return warnings


_TOLD_BY_THE_UPSTREAM = (
    *("tokenizer", "context_length", "vocab_size", "weight_version", "default_sampling_params"),
)


def _http_faults(http: HttpConfig) -> Iterator[Fault]:
    host, port, token = ("http", "host"), ("http", "port"), ("http", "token_file")
    yield from host_faults(host, http.host)
    yield from whole(port, http.port, 0, LAST_PORT)
    yield from not_empty(token, http.token_file)
    if not http.admin:
        return
    if http.port is None:
        yield Fault(("http", "admin"), "needs http.port", (port,))
    if http.token_file is None and not is_loopback(http.host):
        text = "needs http.token_file, because http.host is not loopback"
        yield Fault(("http", "admin"), text, (host, token))


def _shutdown_faults(shutdown: ShutdownConfig) -> Iterator[Fault]:
    yield from at_least(("shutdown", "grace_seconds"), shutdown.grace_seconds, 0)
    yield from at_least(("shutdown", "drain_seconds"), shutdown.drain_seconds, 0)


def _sharing_faults(config: Config) -> Iterator[Fault]:
    """Yield what several processes cannot share."""
    if config.worker.processes <= 1:
        return
    processes = (("worker", "processes"),)
    count = config.worker.processes
    if config.http.port:
        text = f"{count} processes cannot share one port: use 0 for any free ones"
        yield Fault(("http", "port"), text, processes)
    if config.taps and _has_fixed_port(config.event_plane.bind):
        text = f"{count} processes cannot share one port: use * for any free ones"
        yield Fault(("event_plane", "bind"), text, processes)
    for index, tap in enumerate(config.taps):
        if tap.record_file is not None:
            text = f"{count} processes cannot write one record file"
            yield Fault(("taps", index, "record_file"), text, processes)


def _has_fixed_port(bind: str) -> bool:
    try:
        return parse_bind(bind).port is not None
    except ValueError:
        return False
