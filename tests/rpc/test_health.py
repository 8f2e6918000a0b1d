"""The health service: what it says of whom, who is told of a change, and when."""

import grpc
import grpc.aio
import pytest
import trio
from purerpc.grpclib.exceptions import NotFoundError, UnavailableError

from replay._proto import health_pb2 as pb
from replay.config.engines import CannedConfig
from replay.engines.methods import GENERATE, SERVICE_NAME
from replay.rpc.client import ClientMethod, open_channel
from replay.rpc.health import HEALTH_PATHS
from replay.rpc.health import NAME as HEALTH_NAME
from replay.runtime import open_runtime
from tests.engines.requests import generate_request
from tests.rpc.serving import NAME, serving, with_aio
from tests.worker.running import config_of, until

CHECK = ClientMethod(HEALTH_PATHS[0], pb.HealthCheckResponse.FromString)
WATCH = ClientMethod(HEALTH_PATHS[1], pb.HealthCheckResponse.FromString)
SERVING = pb.HealthCheckResponse.SERVING
NOT_SERVING = pb.HealthCheckResponse.NOT_SERVING


def ask(service: str = "") -> pb.HealthCheckRequest:
    return pb.HealthCheckRequest(service=service)


@pytest.mark.parametrize("service", ["", NAME, HEALTH_NAME])
async def test_the_server_and_its_services_serve(service):
    async with serving() as served, open_channel(served.address) as channel:
        assert (await channel.unary(CHECK, ask(service))).status == SERVING


async def test_a_check_of_a_service_that_is_not_here_is_not_found():
    async with serving() as served, open_channel(served.address) as channel:
        with pytest.raises(NotFoundError):
            await channel.unary(CHECK, ask("no.such.Service"))


async def test_a_watch_tells_the_status_now_and_at_each_change_once():
    async with serving() as served, open_channel(served.address) as channel:
        async with channel.stream(WATCH, ask()) as answers:
            told = [(await answers.receive()).status]
            served.health.set_all(serving=True)  # no change
            served.health.set_all(serving=False)
            told.append((await answers.receive()).status)
            served.health.set_all(serving=True)
            told.append((await answers.receive()).status)
        assert told == [SERVING, NOT_SERVING, SERVING]
        await until(lambda: not served.server.calls)


async def test_a_watch_of_a_service_that_is_not_here_waits_for_it():
    """The protocol wants no error: the service may come."""
    async with (
        serving() as served,
        open_channel(served.address) as channel,
        channel.stream(WATCH, ask("no.such.Service")) as answers,
    ):
        assert (await answers.receive()).status == pb.HealthCheckResponse.SERVICE_UNKNOWN


async def run_channel(address, *, task_status):
    async with open_channel(address) as channel:
        task_status.started(channel)
        await trio.sleep_forever()


class Callers:
    """Calls that outlive the runtime, each on a connection of its own, and what they saw."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def watch(self, channel, *, task_status):
        try:
            async with channel.stream(WATCH, ask(SERVICE_NAME)) as answers:
                await answers.receive()
                task_status.started()
                async for answer in answers:
                    self.seen.append(pb.HealthCheckResponse.ServingStatus.Name(answer.status))
        except UnavailableError:
            self.seen.append("watch cut")

    async def generate(self, channel, *, task_status):
        try:
            request = generate_request(max_new_tokens=100_000)
            async with channel.stream(GENERATE, request) as answers:
                await answers.receive()
                task_status.started()
                async for _ in answers:
                    pass
        except UnavailableError:
            self.seen.append("generate cut")


async def test_a_watcher_sees_not_serving_before_the_first_stream_is_cut():
    callers = Callers()
    config = config_of(grace_seconds=0.3, engine=CannedConfig(token_ms=5))
    async with trio.open_nursery() as clients:
        async with open_runtime(config) as runtime:
            for call in (callers.watch, callers.generate):
                channel = await clients.start(run_channel, runtime.addresses[0])
                await clients.start(call, channel)
        await until(lambda: len(callers.seen) == 3)
        clients.cancel_scope.cancel()
    assert callers.seen[0] == "NOT_SERVING"
    assert sorted(callers.seen[1:]) == ["generate cut", "watch cut"]


async def test_a_watch_does_not_hold_the_drain():
    callers = Callers()
    async with trio.open_nursery() as clients:
        async with open_runtime(config_of(grace_seconds=30)) as runtime:
            channel = await clients.start(run_channel, runtime.addresses[0])
            await clients.start(callers.watch, channel)
            started = trio.current_time()
        took = trio.current_time() - started
        await until(lambda: len(callers.seen) == 2)
        clients.cancel_scope.cancel()
    assert callers.seen == ["NOT_SERVING", "watch cut"]
    assert took < 5  # and not the grace of 30


async def test_a_check_is_answered_while_the_worker_drains():
    seen = []

    async def generate(channel, *, task_status):
        async with channel.stream(GENERATE, generate_request(max_new_tokens=200)) as answers:
            await answers.receive()
            task_status.started()
            async for _ in answers:
                pass

    async def check(channel, runtime):
        await until(lambda: not runtime.is_healthy)
        seen.append((await channel.unary(CHECK, ask())).status)

    async with trio.open_nursery() as clients:
        config = config_of(grace_seconds=30, engine=CannedConfig(token_ms=5))
        async with open_runtime(config) as runtime:
            caller = await clients.start(run_channel, runtime.addresses[0])
            await clients.start(generate, caller)
            prober = await clients.start(run_channel, runtime.addresses[0])
            await prober.unary(CHECK, ask())
            clients.start_soon(check, prober, runtime)
        clients.cancel_scope.cancel()
    assert seen == [NOT_SERVING]


async def test_a_probe_of_grpc_aio_gets_the_same_answers():
    async def client(channel):
        codecs = {
            "request_serializer": pb.HealthCheckRequest.SerializeToString,
            "response_deserializer": pb.HealthCheckResponse.FromString,
        }
        check = channel.unary_unary(HEALTH_PATHS[0], **codecs)
        status = (await check(ask(NAME))).status
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await check(ask("no.such.Service"))
        watch = channel.unary_stream(HEALTH_PATHS[1], **codecs)(ask())
        watched = (await watch.read()).status
        watch.cancel()
        return status, caught.value.code(), watched

    async with serving() as served:
        answers = await with_aio(served.address, client)
    assert answers == (SERVING, grpc.StatusCode.NOT_FOUND, SERVING)
