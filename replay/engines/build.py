"""From the configuration of an engine to the engine."""

from collections.abc import Sequence

from replay.config.address import unix_socket
from replay.config.engines import CannedConfig, EngineConfig, RealisticConfig, UpstreamConfig
from replay.config.model import WorkerConfig
from replay.engines.base import Engine, Model
from replay.engines.canned import CannedEngine
from replay.engines.engine_layer import EngineLayer
from replay.engines.realistic import RealisticEngine
from replay.engines.script import ScriptEngine
from replay.engines.script_book import ScriptBook
from replay.engines.upstream import UpstreamEngine


def build_engines(worker: WorkerConfig, model: Model) -> list[Engine]:
    """Return the engine of each worker, the overrides by their ports considered.

    Raises ConfigError for a file of an engine that cannot be used.
    """
    return [
        build_engine(
            worker.overrides.get(worker.grpc_base_port + number, worker.engine),
            worker,
            model,
            number=number,
        )
        for number in range(worker.grpc_count)
    ]


def build_engine(
    config: EngineConfig, worker: WorkerConfig, model: Model, *, number: int = 0
) -> Engine:
    """Return the engine that *config* describes, the *number*-th of its process."""
    if isinstance(config, CannedConfig):
        return CannedEngine(model, config)
    if isinstance(config, RealisticConfig):
        on_unix_socket = unix_socket(worker.host) is not None
        host = "127.0.0.1" if on_unix_socket else worker.host
        return RealisticEngine(model, config, host=host, number=number)
    return UpstreamEngine(config.upstream, model=model, metadata_allow=worker.metadata_allow)


def put_script_over(engines: Sequence[Engine], book: ScriptBook, *, strict: bool) -> list[Engine]:
    """Return *engines* with the script over them; one that serves several workers stays one."""
    over: dict[int, Engine] = {
        id(engine): ScriptEngine(engine, book, strict=strict, simulator=simulator_of(engine))
        for engine in engines
    }
    return [over[id(engine)] for engine in engines]


def simulator_of(engine: Engine) -> RealisticEngine | None:
    """Return the realistic engine that *engine* is or lies over, if there is one."""
    if isinstance(engine, EngineLayer):
        return simulator_of(engine.below)
    return engine if isinstance(engine, RealisticEngine) else None


def kind_of(engine: Engine) -> str:
    """Return what the configuration calls the kind of *engine*; `other` for an engine of others."""
    if isinstance(engine, EngineLayer):
        return kind_of(engine.below)
    kinds = {
        CannedEngine: CannedConfig.kind,
        RealisticEngine: RealisticConfig.kind,
        UpstreamEngine: UpstreamConfig.kind,
    }
    return next((kind for cls, kind in kinds.items() if isinstance(engine, cls)), "other")
