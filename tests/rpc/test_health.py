"""The health service, with our client and with grpc.aio."""

import grpc
import grpc.aio
import pytest
import trio
from purerpc.grpclib.exceptions import NotFoundError

from replay._proto import health_pb2 as pb
from replay.rpc.client import ClientMethod, open_channel
from replay.rpc.health import HEALTH_PATHS
from replay.rpc.health import NAME as HEALTH_NAME
from tests.rpc.serving import NAME, serving, with_aio
from tests.worker.running import until

CHECK = ClientMethod(HEALTH_PATHS[0], pb.HealthCheckResponse.FromString)
WATCH = ClientMethod(HEALTH_PATHS[1], pb.HealthCheckResponse.FromString)
SERVING = pb.HealthCheckResponse.SERVING
NOT_SERVING = pb.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = pb.HealthCheckResponse.SERVICE_UNKNOWN


def check(service: str) -> pb.HealthCheckRequest:
    return pb.HealthCheckRequest(service=service)


@pytest.mark.parametrize("service", ["", NAME, HEALTH_NAME])
async def test_check_follows_what_the_server_says(service):
    async with serving() as served, open_channel(served.address) as channel:
        for serving_now, status in ((True, SERVING), (False, NOT_SERVING), (True, SERVING)):
            served.health.set_all(serving=serving_now)
            assert (await channel.unary(CHECK, check(service))).status == status


async def test_check_of_a_service_that_is_not_here_is_not_found():
    async with serving() as served, open_channel(served.address) as channel:
        with pytest.raises(NotFoundError):
            await channel.unary(CHECK, check("no.such.Service"))


async def test_watch_of_a_service_that_is_not_here_says_so_and_stays_open():
    async with serving() as served, open_channel(served.address) as channel:
        async with channel.stream(WATCH, check("no.such.Service")) as answers:
            assert (await anext(answers)).status == SERVICE_UNKNOWN
            served.health.set_all(serving=False)
            with trio.move_on_after(0.1) as patience:
                await anext(answers)
            assert patience.cancelled_caught
        await until(lambda: not served.server.calls)


async def test_watch_tells_each_change_once():
    async with serving() as served, open_channel(served.address) as channel:
        async with channel.stream(WATCH, check(NAME)) as answers:
            assert (await anext(answers)).status == SERVING
            served.health.set_all(serving=True)  # no change
            served.health.set_all(serving=False)
            assert (await anext(answers)).status == NOT_SERVING
            served.health.set_all(serving=True)
            assert (await anext(answers)).status == SERVING


async def test_grpc_aio_watches_and_leaves():
    async def client(channel):
        call = channel.unary_stream(
            HEALTH_PATHS[1],
            request_serializer=pb.HealthCheckRequest.SerializeToString,
            response_deserializer=pb.HealthCheckResponse.FromString,
        )(check(""))
        first = (await call.read()).status
        trio.from_thread.run_sync(lambda: served.health.set_all(serving=False))
        second = (await call.read()).status
        call.cancel()
        return first, second

    async with serving() as served:
        assert await with_aio(served.address, client) == (SERVING, NOT_SERVING)
        await until(lambda: not served.server.calls)


async def test_grpcs_own_client_takes_us_for_healthy():
    """A channel with a health check configured calls only where Watch says SERVING."""
    service_config = (
        '{"healthCheckConfig": {"serviceName": ""}, "loadBalancingConfig": [{"round_robin": {}}]}'
    )

    async def client(channel):
        answer = channel.unary_unary(
            HEALTH_PATHS[0],
            request_serializer=pb.HealthCheckRequest.SerializeToString,
            response_deserializer=pb.HealthCheckResponse.FromString,
        )
        first = (await answer(check(""), timeout=5)).status
        trio.from_thread.run_sync(lambda: served.health.set_all(serving=False))
        codes = set()
        while grpc.StatusCode.UNAVAILABLE not in codes:
            try:
                await answer(check(""), timeout=5)
                codes.add(grpc.StatusCode.OK)
            except grpc.aio.AioRpcError as error:
                codes.add(error.code())
        return first, codes - {grpc.StatusCode.OK}

    async with serving() as served:
        with trio.fail_after(10):
            got = await with_aio(
                served.address, client, options=[("grpc.service_config", service_config)]
            )
    assert got == (SERVING, {grpc.StatusCode.UNAVAILABLE})
