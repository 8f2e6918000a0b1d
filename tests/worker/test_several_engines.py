"""Several engines in one process, each on its own port."""

import socket
from contextlib import ExitStack

from purerpc.grpclib.exceptions import UnimplementedError

from replay._proto import common_pb2 as common
from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.config.engines import CannedConfig, RealisticConfig, UpstreamConfig
from replay.engines.methods import METHODS
from replay.rpc.client import open_channel
from replay.runtime import open_runtime
from tests.engines.requests import generate_request
from tests.worker.running import Running, config_of


def free_range(count: int) -> int:
    """Return the first of *count* ports that were free a moment ago."""
    while True:
        with ExitStack() as taken:
            first = taken.enter_context(socket.create_server(("127.0.0.1", 0)))
            port: int = first.getsockname()[1]
            try:
                for number in range(1, count):
                    taken.enter_context(socket.create_server(("127.0.0.1", port + number)))
            except OSError:
                continue
            return port


async def test_each_port_has_the_engine_that_its_override_says():
    port = free_range(4)
    config = config_of(
        grpc_base_port=port,
        grpc_count=4,
        engine=CannedConfig(output_tokens=3),
        overrides={
            port + 1: RealisticConfig(output_tokens=5, speedup=100),
            port + 2: UpstreamConfig(upstream=f"grpc://127.0.0.1:{port + 1}"),
        },
    )
    async with open_runtime(config) as runtime:
        assert runtime.addresses == [f"127.0.0.1:{port + number}" for number in range(4)]
        tokens = []
        for address in runtime.addresses:
            async with open_channel(address) as channel:
                worker = Running(runtime, channel)
                *_, last = await worker.generate(generate_request(range(64)))
                tokens.append(last.complete.completion_tokens)
        assert tokens == [3, 5, 5, 3]


async def test_each_realistic_engine_has_a_cache_of_its_own():
    config = config_of(grpc_count=2, engine=RealisticConfig(speedup=1000))
    cached: list[list[int]] = []
    async with open_runtime(config) as runtime:
        for address in runtime.addresses:
            async with open_channel(address) as channel:
                worker = Running(runtime, channel)
                answers = [await worker.generate(generate_request(range(64))) for _ in range(2)]
                cached.append([each[-1].complete.cached_tokens for each in answers])
                flushed = await channel.unary(METHODS["FlushCache"], common.FlushCacheRequest())
                assert flushed.success
    assert cached == [[0, 48], [0, 48]]


async def test_a_method_is_there_only_where_its_engine_has_it():
    port = free_range(2)
    config = config_of(grpc_base_port=port, grpc_count=2, overrides={port + 1: RealisticConfig()})
    async with open_runtime(config) as runtime:
        for address, has_it in zip(runtime.addresses, (False, True), strict=True):
            async with open_channel(address) as channel:
                try:
                    await channel.unary(METHODS["FlushCache"], common.FlushCacheRequest())
                except UnimplementedError:
                    assert not has_it
                else:
                    assert has_it
                health = await channel.unary(METHODS["HealthCheck"], pb.HealthCheckRequest())
                assert health.healthy
