"""What the taps record of requests that are passed on to an upstream: as with any engine."""

from pathlib import Path

import pytest
import trio
from purerpc.grpclib.exceptions import DeadlineExceededError, RpcFailedError, UnavailableError

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.config.engines import CannedConfig
from replay.engines.methods import GENERATE
from replay.taps.envelope import ShadowEnvelope
from tests.engines.requests import generate_request
from tests.taps.test_outcomes_end_to_end import config_of, outcomes, records
from tests.worker import running as workers
from tests.worker.running import running, until
from tests.worker.upstreams import chunk, proxy, upstream

LONG = 100_000
PACED = workers.config_of(engine=CannedConfig(token_ms=5), model="real")


def only(path: Path) -> ShadowEnvelope:
    (record,) = records(path)
    return record


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_is_recorded_as_it_passes(tmp_path, stream):
    request = generate_request(n=2, max_new_tokens=3, stream=stream)
    async with (
        running(PACED) as below,
        proxy(below.runtime.addresses[0], config=config_of(tmp_path)) as worker,
    ):
        messages = await worker.generate(request)
    record = only(tmp_path)
    assert outcomes(tmp_path) == {"r": "complete"}
    assert record.request.model == "real"
    assert record.response is not None
    ends = {each.complete.index: each.complete for each in messages if each.HasField("complete")}
    assert {choice.index: list(choice.token_ids) for choice in record.response.choices} == {
        index: list(end.output_ids) for index, end in ends.items()
    }
    assert [choice.finish_reason for choice in record.response.choices] == ["length"] * 2


async def test_an_abort_is_a_cancel(tmp_path):
    async with (
        running(PACED) as below,
        proxy(below.runtime.addresses[0], config=config_of(tmp_path)) as worker,
        worker.channel.stream(GENERATE, generate_request(max_new_tokens=LONG)) as answers,
    ):
        await answers.receive()
        await worker.call("Abort", pb.AbortRequest(request_id="r"))
        async for _ in answers:
            pass
    assert outcomes(tmp_path) == {"r": "cancelled"}


async def test_a_client_that_leaves_is_a_cancel(tmp_path):
    async with (
        running(PACED) as below,
        proxy(below.runtime.addresses[0], config=config_of(tmp_path)) as worker,
    ):
        async with worker.channel.stream(
            GENERATE, generate_request(max_new_tokens=LONG)
        ) as answers:
            await answers.receive()
        await until(lambda: worker.in_flight == 0)
    assert outcomes(tmp_path) == {"r": "cancelled"}


async def test_a_deadline_is_a_cancel(tmp_path):
    async with (
        running(PACED) as below,
        proxy(below.runtime.addresses[0], config=config_of(tmp_path)) as worker,
    ):
        with pytest.raises(DeadlineExceededError):
            await worker.generate(generate_request(max_new_tokens=LONG), timeout=0.2)
        await until(lambda: worker.in_flight == 0)
    assert outcomes(tmp_path) == {"r": "cancelled"}


async def test_an_error_of_the_upstream_is_an_error_with_what_came_before(tmp_path):
    async def generate(message: pb.GenerateRequest, request) -> None:
        request.send(chunk(7, 8))
        raise UnavailableError("gone")

    config = config_of(tmp_path)
    async with upstream(Generate=generate) as address, proxy(address, config=config) as worker:
        with pytest.raises(RpcFailedError):
            await worker.generate(generate_request())
    assert outcomes(tmp_path) == {"r": "error"}
    response = only(tmp_path).response
    assert response is not None
    assert [list(choice.token_ids) for choice in response.choices] == [[7, 8]]


async def test_an_upstream_that_is_away_is_an_error(tmp_path):
    async with proxy("127.0.0.1:1", config=config_of(tmp_path)) as worker:
        with pytest.raises(UnavailableError):
            await worker.generate(generate_request())
    assert outcomes(tmp_path) == {"r": "error"}


async def test_an_upstream_that_ends_before_its_choices_do_left_it_incomplete(tmp_path):
    async def generate(message: pb.GenerateRequest, request) -> None:
        request.send(chunk(7))

    config = config_of(tmp_path)
    async with upstream(Generate=generate) as address, proxy(address, config=config) as worker:
        assert len(await worker.generate(generate_request())) == 1
    assert outcomes(tmp_path) == {"r": "incomplete"}


async def test_shutdown_is_a_cancel(tmp_path):
    async with (
        running(PACED) as below,
        proxy(below.runtime.addresses[0], config=config_of(tmp_path)) as worker,
        trio.open_nursery() as clients,
    ):

        async def ask() -> None:
            with pytest.raises(UnavailableError):
                await worker.generate(generate_request(max_new_tokens=LONG))

        clients.start_soon(ask)
        await until(lambda: below.in_flight == 1)
        await worker.runtime.workers[0].server.stop(grace_seconds=0)
    assert outcomes(tmp_path) == {"r": "cancelled"}
