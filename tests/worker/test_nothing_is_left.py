"""Counting references frees what a request and a connection were: a process that serves looks for
garbage so seldom (`replay.cli.garbage`) that cycles would be a leak."""

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest
from purerpc.grpclib.exceptions import DeadlineExceededError, InvalidArgumentError

from replay.config.engines import CannedConfig, RealisticConfig
from replay.engines.methods import GENERATE
from replay.rpc.calls import Call
from replay.rpc.client import Answers, Channel, open_channel
from replay.rpc.http2_client import ResponseStream
from replay.rpc.http2_server import RequestStream, ServerConnection
from replay.rpc.peer import Peer
from replay.runtime import open_runtime
from replay.worker.answer import GenerateAnswer
from tests.engines.requests import generate_request
from tests.worker.running import config_of, until

OF_CALLS = (Call, Answers, ResponseStream, RequestStream, GenerateAnswer)
OF_CONNECTIONS = (Peer, ServerConnection)


@pytest.fixture
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def there(kinds: tuple[type, ...]) -> Counter[str]:
    return Counter(type(each).__name__ for each in gc.get_objects() if isinstance(each, kinds))


async def gone(kinds: tuple[type, ...]) -> None:
    """Wait for tasks that still unwind."""
    await until(lambda: not there(kinds))


async def ask_in_every_way(channel: Channel) -> None:
    """Have calls end by themselves, by the client, by their deadline and with a refusal."""
    async with channel.stream(GENERATE, generate_request(max_new_tokens=3)) as answers:
        assert [each async for each in answers]
    async with channel.stream(GENERATE, generate_request(max_new_tokens=900)) as answers:
        await answers.receive()
    for message, refusal in (
        (generate_request(max_new_tokens=100_000), DeadlineExceededError),
        (generate_request(n=1000), InvalidArgumentError),
    ):
        with suppress(refusal):
            async with channel.stream(GENERATE, message, timeout=0.02) as answers:
                async for _ in answers:
                    pass
            raise AssertionError


@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize("engine", [CannedConfig(token_ms=1), RealisticConfig(speedup=100)])
async def test_calls_and_connections_are_freed_however_they_end(
    engine: CannedConfig | RealisticConfig,
) -> None:
    async with open_runtime(config_of(engine=engine)) as runtime:
        async with open_channel(runtime.addresses[0]) as channel:
            await ask_in_every_way(channel)
            await gone(OF_CALLS)
        await gone(OF_CONNECTIONS)
