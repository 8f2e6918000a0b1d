"""The share of each process of a configuration with several.

PURE.  Ports are as in one process: the workers of one follow those of the process before.
"""

import attrs

from replay.config.address import unix_socket
from replay.config.engines import EngineConfig, RealisticConfig
from replay.config.model import Config


def split_config(config: Config) -> list[Config]:
    """Return a configuration for each of `worker.processes`, each for one process.

    The first ones have a worker more when the workers do not divide.
    """
    worker = config.worker
    each, more = divmod(worker.grpc_count, worker.processes)
    shares, first = [], 0
    for number in range(worker.processes):
        count = each + (number < more)
        shares.append(_share(config, first, count))
        first += count
    return shares


def _share(config: Config, first: int, count: int) -> Config:
    worker = config.worker
    has_ports = worker.grpc_base_port > 0 and unix_socket(worker.host) is None
    base = worker.grpc_base_port + first if has_ports else worker.grpc_base_port
    share = attrs.evolve(
        worker,
        processes=1,
        grpc_count=count,
        grpc_base_port=base,
        engine=_moved(worker.engine, first),
        overrides={
            port: _moved(engine, first)
            for port, engine in worker.overrides.items()
            if base <= port < base + count
        },
    )
    return attrs.evolve(config, worker=share)


def _moved(engine: EngineConfig, first: int) -> EngineConfig:
    """Return *engine* for a process whose worker 0 is worker *first* of all."""
    if isinstance(engine, RealisticConfig) and engine.kv_events_zmq_base_port is not None:
        port = engine.kv_events_zmq_base_port + 2 * first
        return attrs.evolve(engine, kv_events_zmq_base_port=port)
    return engine
