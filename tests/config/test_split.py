"""The shares of several processes: together they are what one process would be."""

import attrs
from hypothesis import given
from hypothesis import strategies as st

from replay.config import (
    CannedConfig,
    Config,
    HttpConfig,
    RealisticConfig,
    WorkerConfig,
    check_config,
)
from replay.config.split import split_config

WORKERS = st.integers(1, 12).flatmap(
    lambda count: st.tuples(st.just(count), st.integers(1, count), st.integers(0, 60_000))
)


def config_of(count: int, processes: int, port: int = 50051, **worker: object) -> Config:
    return Config(
        worker=WorkerConfig(grpc_count=count, processes=processes, grpc_base_port=port, **worker),  # type: ignore[arg-type]
        http=HttpConfig(port=0),
    )


def ports(config: Config) -> list[int]:
    base = config.worker.grpc_base_port
    return [base + number if base else 0 for number in range(config.worker.grpc_count)]


@given(WORKERS)
def test_the_ports_are_those_of_one_process(numbers: tuple[int, int, int]) -> None:
    count, processes, port = numbers
    config = config_of(count, processes, port)
    shares = split_config(config)
    assert len(shares) == processes
    assert [each for share in shares for each in ports(share)] == ports(config)
    counts = [share.worker.grpc_count for share in shares]
    assert min(counts) >= 1
    assert max(counts) - min(counts) <= 1


@given(WORKERS)
def test_everything_else_is_the_same(numbers: tuple[int, int, int]) -> None:
    count, processes, port = numbers
    config = config_of(count, processes, port, capture="x", metadata_allow=("a-*",))
    alone = attrs.evolve(config.worker, processes=1)
    for share in split_config(config):
        check_config(share)
        worker = attrs.evolve(share.worker, grpc_count=count, grpc_base_port=port)
        assert attrs.evolve(share, worker=worker) == attrs.evolve(config, worker=alone)


def test_an_override_goes_where_its_port_is() -> None:
    slow, slower = CannedConfig(gen_ms=1), CannedConfig(gen_ms=2)
    config = config_of(5, 2, 6000, overrides={6002: slow, 6003: slower})
    first, second = split_config(config)
    assert (ports(first), ports(second)) == ([6000, 6001, 6002], [6003, 6004])
    assert (first.worker.overrides, second.worker.overrides) == ({6002: slow}, {6003: slower})


def test_kv_events_are_published_on_the_ports_that_one_process_would_use() -> None:
    engine = RealisticConfig(kv_events_zmq_base_port=7000)
    config = config_of(4, 2, 6000, engine=engine, overrides={6003: engine})
    first, second = split_config(config)
    assert first.worker.engine == engine
    moved = RealisticConfig(kv_events_zmq_base_port=7004)
    assert (second.worker.engine, second.worker.overrides) == (moved, {6003: moved})
    unpublished = config_of(4, 2, engine=RealisticConfig())
    assert split_config(unpublished)[1].worker.engine == RealisticConfig()


def test_one_process_has_all() -> None:
    config = config_of(3, 1)
    assert split_config(config) == [config]
