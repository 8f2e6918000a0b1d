"""Rules of the `worker` section: addresses, ports, engines, and what processes can share.

PURE.
"""

import re
from collections.abc import Iterator, Mapping

import attrs

from replay.config.address import UNIX_PATH_BYTES, parse_host, unix_socket
from replay.config.bounds import above, at_least, not_empty, share, whole
from replay.config.engines import CannedConfig, EngineConfig, RealisticConfig, UpstreamConfig
from replay.config.model import LimitsConfig, WorkerConfig
from replay.config.problems import Fault, Path, quoted
from replay.worker.default_params import default_sampling_faults

LAST_PORT = 65535

#: gRPC tells the length of a message in 32 bits.
LONGEST_MESSAGE = 2**32 - 1

SEED_MAX = 2**64 - 1

_WORKER = ("worker",)


def worker_faults(worker: WorkerConfig) -> Iterator[Fault]:
    """Yield what is wrong in the `worker` section alone."""
    yield from _listener_faults(worker)
    for name in ("model", "tokenizer", "capture", "script"):
        yield from not_empty((*_WORKER, name), getattr(worker, name))
    if worker.script_strict and worker.script is None:
        yield Fault((*_WORKER, "script_strict"), "needs worker.script", ((*_WORKER, "script"),))
    yield from whole((*_WORKER, "context_length"), worker.context_length, 1)
    yield from whole((*_WORKER, "vocab_size"), worker.vocab_size, 1)
    for index, glob in enumerate(worker.metadata_allow):
        yield from not_empty((*_WORKER, "metadata_allow", index), glob)
    yield from _limit_faults(worker.limits)
    if worker.tls is not None:
        for name in ("certificate", "key", "client_ca"):
            yield from not_empty((*_WORKER, "tls", name), getattr(worker.tls, name))
    yield from _engine_faults((*_WORKER, "engine"), worker.engine, worker.grpc_count)
    yield from _override_faults(worker)
    path = (*_WORKER, "default_sampling_params")
    for name, text in default_sampling_faults(worker.default_sampling_params or {}):
        yield Fault((*path, name), text)


def _listener_faults(worker: WorkerConfig) -> Iterator[Fault]:
    host, base, count = (*_WORKER, "host"), (*_WORKER, "grpc_base_port"), (*_WORKER, "grpc_count")
    yield from whole(base, worker.grpc_base_port, 0, LAST_PORT)
    yield from whole(count, worker.grpc_count, 0, LAST_PORT)
    last = worker.grpc_base_port + worker.grpc_count - 1
    if 0 < worker.grpc_base_port <= LAST_PORT < last and worker.grpc_count <= LAST_PORT:
        yield Fault(
            count, f"the last worker would listen on port {last}, past {LAST_PORT}", (base,)
        )
    yield from whole((*_WORKER, "processes"), worker.processes, 1)
    if worker.processes > max(worker.grpc_count, 1):
        yield Fault(
            (*_WORKER, "processes"),
            f"must not be above grpc_count, {worker.grpc_count}: a process needs a worker",
            (count,),
        )
    socket_path = unix_socket(worker.host)
    if socket_path is None:
        yield from host_faults(host, worker.host)
        return
    if not socket_path.startswith("/") or "\0" in socket_path:
        yield Fault(host, f"must name a Unix socket as unix:/path, is {quoted(worker.host)}")
    if len(socket_path.encode(errors="replace")) > UNIX_PATH_BYTES:
        yield Fault(host, f"must have a socket path of at most {UNIX_PATH_BYTES} bytes")
    if worker.grpc_count > 1:
        yield Fault(count, "must be at most 1 on a Unix socket", (host,))


def host_faults(path: Path, host: str) -> Iterator[Fault]:
    """Yield what keeps *host* from being an address or a name."""
    try:
        parse_host(host)
    except ValueError as error:
        yield Fault(path, f"{error}, is {quoted(host)}")


def _limit_faults(limits: LimitsConfig) -> Iterator[Fault]:
    for name, value in attrs.asdict(limits).items():
        most = {"most": LONGEST_MESSAGE} if name == "message_bytes" else {}
        yield from whole((*_WORKER, "limits", name), value, 1, **most)


def _override_faults(worker: WorkerConfig) -> Iterator[Fault]:
    path = (*_WORKER, "overrides")
    involved = tuple((*_WORKER, name) for name in ("host", "grpc_base_port", "grpc_count"))
    if not worker.overrides:
        return
    if worker.grpc_base_port == 0 or unix_socket(worker.host) is not None:
        yield Fault(path, "needs workers on fixed ports: set grpc_base_port", involved)
        return
    ports = range(worker.grpc_base_port, worker.grpc_base_port + worker.grpc_count)
    for port, engine in worker.overrides.items():
        if port not in ports:
            where = f"{ports[0]} to {ports[-1]}" if ports else "none"
            yield Fault((*path, port), f"no worker has this port; the ports are {where}", involved)
        yield from _engine_faults((*path, port, "engine"), engine, worker.grpc_count)


def _engine_faults(path: Path, engine: EngineConfig, workers: int) -> Iterator[Fault]:
    match engine:
        case CannedConfig():
            yield from at_least((*path, "gen_ms"), engine.gen_ms, 0)
            yield from at_least((*path, "token_ms"), engine.token_ms, 0)
            yield from whole((*path, "output_tokens"), engine.output_tokens, 0)
            yield from whole((*path, "seed"), engine.seed, 0, SEED_MAX)
        case RealisticConfig():
            yield from _realistic_faults(path, engine, workers)
        case UpstreamConfig():
            yield from _upstream_faults((*path, "upstream"), engine.upstream)


#: The least value of each integer option of the realistic engine.
_LEAST: Mapping[str, int] = {
    "output_tokens": 0,
    "max_batched_tokens": 1,
    "max_running": 1,
    "kv_tokens": 1,
    "kv_blocks": 1,
    "block_size": 1,
    "spec_draft_tokens": 0,
    "kv_events_buffer_steps": 1,  # those who listen read what is kept
}


def _realistic_faults(path: Path, engine: RealisticConfig, workers: int) -> Iterator[Fault]:
    for name, least in _LEAST.items():
        yield from whole((*path, name), getattr(engine, name), least)
    yield from whole((*path, "seed"), engine.seed, 0, SEED_MAX)
    if engine.kv_blocks is not None and engine.kv_tokens != RealisticConfig().kv_tokens:
        blocks, tokens = (*path, "kv_blocks"), (*path, "kv_tokens")
        yield Fault(blocks, "the pool's size is given twice: leave out kv_tokens", (tokens,))
    elif engine.kv_blocks is None and 0 < engine.kv_tokens < engine.block_size:
        text = f"must hold a block of {engine.block_size} tokens, is {engine.kv_tokens}"
        yield Fault((*path, "kv_tokens"), text, ((*path, "block_size"),))
    if not re.fullmatch(r"polynomial|linear|fit:.+", engine.timing, re.DOTALL):
        text = f"must be polynomial, linear or fit:PATH, is {quoted(engine.timing)}"
        yield Fault((*path, "timing"), text)
    yield from above((*path, "prefill_tps"), engine.prefill_tps, 0)
    for name in ("decode_base_ms", "decode_per_req_ms", "request_overhead_ms"):
        yield from at_least((*path, name), getattr(engine, name), 0)
    yield from above((*path, "speedup"), engine.speedup, 0)
    yield from share((*path, "spec_acceptance"), engine.spec_acceptance)
    base = engine.kv_events_zmq_base_port
    yield from whole((*path, "kv_events_zmq_base_port"), base, 1, LAST_PORT)
    last = (base or 0) + 2 * workers - 1
    if base is not None and base <= LAST_PORT < last:
        text = f"the last worker would replay on port {last}, past {LAST_PORT}"
        yield Fault((*path, "kv_events_zmq_base_port"), text, ((*_WORKER, "grpc_count"),))


def _upstream_faults(path: Path, upstream: str) -> Iterator[Fault]:
    match = re.fullmatch(r"grpcs?://(\[[^\]]*\]|[^:/@\[\]]+):([0-9]{1,5})", upstream)
    if match is None or not 1 <= int(match[2]) <= LAST_PORT:
        # A wrong URL may hold a password, so it is not repeated.
        yield Fault(path, "must look like grpc://HOST:PORT")
        return
    yield from host_faults(path, match[1])
