"""Workers under test: a real runtime on loopback, and a client to it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.config.engines import CannedConfig
from replay.config.model import Config, ShutdownConfig, WorkerConfig
from replay.engines.base import Engine
from replay.engines.methods import GENERATE, METHODS
from replay.rpc.client import Channel, open_channel
from replay.runtime import Runtime, open_runtime


@attrs.frozen
class Running:
    """A runtime with one worker, and a channel to it."""

    runtime: Runtime
    channel: Channel

    async def call(self, name: str, message: Any, **options: Any) -> Any:
        """Call a unary method by its name."""
        return await self.channel.unary(METHODS[name], message, **options)

    async def generate(self, message: pb.GenerateRequest, **options: Any) -> list[Any]:
        """Return all messages of one answer."""
        async with self.channel.stream(GENERATE, message, **options) as answers:
            return [each async for each in answers]

    @property
    def in_flight(self) -> int:
        """Generate requests that have not ended."""
        return self.runtime.workers[0].scheduler.in_flight


def config_of(
    *, grace_seconds: float = 5.0, engine: CannedConfig | None = None, **worker: Any
) -> Config:
    """Return a configuration of one canned worker on a free port."""
    worker = {"grpc_base_port": 0, "engine": engine or CannedConfig(), **worker}
    return Config(
        worker=WorkerConfig(**worker), shutdown=ShutdownConfig(grace_seconds=grace_seconds)
    )


@asynccontextmanager
async def running(
    config: Config | None = None, *, engine: Engine | None = None
) -> AsyncIterator[Running]:
    """Run a worker for as long as the block lasts."""
    async with (
        open_runtime(config or config_of(), engine=engine) as runtime,
        open_channel(runtime.addresses[0]) as channel,
    ):
        yield Running(runtime, channel)


async def until(condition: Any, *, seconds: float = 5.0) -> None:
    """Wait until *condition()* is true: for what nobody tells us of, such as a reset's arrival."""
    with trio.fail_after(seconds):
        while not condition():
            await trio.lowlevel.checkpoint()
