"""`replay serve --engine upstream` as a process before another one that dies and comes back."""

import signal
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import trio
from purerpc.grpclib.exceptions import RpcFailedError

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.engines.methods import GENERATE, METHODS
from replay.rpc.client import Channel, open_channel
from tests.cli.test_serve_process import end, serving
from tests.engines.requests import generate_request

CLIENTS = 16


class Traffic:
    """Clients that ask again and again, and count what they are told."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.codes: Counter[str] = Counter()
        self.answered = [0] * CLIENTS
        self._news = trio.Event()

    async def run(self, number: int) -> None:
        while True:
            try:
                with trio.fail_after(10):  # nobody hangs
                    async with self.channel.stream(
                        GENERATE, generate_request(request_id=str(number), max_new_tokens=20)
                    ) as answers:
                        *_, last = [message async for message in answers]
                assert last.complete.completion_tokens == 20
            except RpcFailedError as error:
                self.codes[error.status.status_code.name] += 1
                await trio.sleep(0.01)
            else:
                self.codes["OK"] += 1
                self.answered[number] += 1
            self._news.set()
            self._news = trio.Event()

    async def is_healthy(self) -> bool:
        health = await self.channel.unary(METHODS["HealthCheck"], pb.HealthCheckRequest())
        return bool(health.healthy)

    async def until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(20):
            while not condition():
                await self._news.wait()


async def test_an_upstream_that_is_killed_and_comes_back_is_unavailable_in_between():
    with ExitStack() as processes:
        upstream, log = processes.enter_context(
            serving("--grpc-base-port", "0", "--token-ms", "2", "--model", "real")
        )
        address = log[-1]["addresses"][0]
        proxy, log = processes.enter_context(
            serving(
                *("--grpc-base-port", "0", "--engine", "upstream"),
                *("--upstream", f"grpc://{address}"),
            )
        )
        async with open_channel(log[-1]["addresses"][0]) as channel, trio.open_nursery() as clients:
            traffic = Traffic(channel)
            for number in range(CLIENTS):
                clients.start_soon(traffic.run, number)
            await traffic.until(lambda: traffic.codes["OK"] >= 2 * CLIENTS)
            assert set(traffic.codes) == {"OK"}
            assert await traffic.is_healthy()

            upstream.send_signal(signal.SIGKILL)
            await traffic.until(lambda: traffic.codes["UNAVAILABLE"] >= 2 * CLIENTS)
            assert not await traffic.is_healthy()

            def start_again() -> Any:
                port = address.rpartition(":")[2]
                return processes.enter_context(
                    serving("--grpc-base-port", port, "--token-ms", "2", "--model", "real")
                )

            await trio.to_thread.run_sync(start_again)
            traffic.answered = [0] * CLIENTS
            await traffic.until(lambda: min(traffic.answered) >= 2)
            assert set(traffic.codes) == {"OK", "UNAVAILABLE"}
            assert await traffic.is_healthy()
            clients.cancel_scope.cancel()
        code, _, events = await trio.to_thread.run_sync(end, proxy)
    assert code == 0
    assert "upstream" in events  # learned about anew
