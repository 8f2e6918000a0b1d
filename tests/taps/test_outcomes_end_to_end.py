"""Every way in which a request ends, with a real grpc.aio client: exactly one joined record
each."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import attrs
import grpc
import pytest
import trio

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.config.engines import CannedConfig
from replay.config.model import (
    Config,
    EventPlaneConfig,
    RecordFileConfig,
    ShutdownConfig,
    TapCapture,
    TapConfig,
    Transport,
    WorkerConfig,
)
from replay.engines.base import Answer, Generation, Model
from replay.engines.canned import CannedEngine
from replay.engines.methods import method_path
from replay.plane.codec import decode_message
from replay.plane.record_file import RecordFiles
from replay.runtime import open_runtime
from replay.taps.envelope import ShadowEnvelope
from tests.engines.requests import generate_request
from tests.worker.running import until

LONG = 100_000
PACED = CannedConfig(token_ms=5)


def config_of(path: Path, *, engine: CannedConfig | None = None, grace: float = 5.0) -> Config:
    def tap(name: str, capture: TapCapture) -> TapConfig:
        record_file = RecordFileConfig(path=str(path / name))
        return TapConfig(name=name, capture=capture, record_file=record_file)

    return Config(
        worker=WorkerConfig(grpc_base_port=0, engine=engine or CannedConfig()),
        event_plane=EventPlaneConfig(transport=Transport.NONE),
        shutdown=ShutdownConfig(grace_seconds=grace),
        taps=(
            tap("joined", TapCapture.REQUEST_RESPONSE),
            tap("plain", TapCapture.REQUEST),
        ),
    )


def records(path: Path, name: str = "joined") -> list[ShadowEnvelope]:
    return [
        ShadowEnvelope.unpacked(decode_message(frames).payload)
        for frames in RecordFiles(path / name)
    ]


def outcomes(path: Path) -> dict[str, str]:
    """Return the outcome of each request; each has one record of each kind."""
    found = {record.request_id: record.response.outcome.value for record in records(path)}
    assert len(found) == len(records(path))
    assert sorted(found) == sorted(record.request_id for record in records(path, "plain"))
    return found


Client = Callable[[grpc.aio.Channel], Coroutine[Any, Any, Any]]


async def with_client(address: str, client: Client) -> Any:
    """Run an asyncio client in a thread."""

    async def main() -> Any:
        async with grpc.aio.insecure_channel(address) as channel:
            return await client(channel)

    return await trio.to_thread.run_sync(asyncio.run, main())


def generate(channel: grpc.aio.Channel, message: pb.GenerateRequest, **options: Any) -> Any:
    call = channel.unary_stream(
        method_path("Generate"),
        request_serializer=pb.GenerateRequest.SerializeToString,
        response_deserializer=pb.GenerateResponse.FromString,
    )
    return call(message, **options)


async def test_complete(tmp_path):
    async def client(channel):
        return [each async for each in generate(channel, generate_request(max_new_tokens=3))]

    async with open_runtime(config_of(tmp_path)) as runtime:
        messages = await with_client(runtime.addresses[0], client)

    (record,) = records(tmp_path)
    assert outcomes(tmp_path) == {"r": "complete"}
    (choice,) = record.response.choices
    assert list(choice.token_ids) == list(messages[-1].complete.output_ids)
    assert choice.finish_reason == "length"
    assert record.response.first_token_offset_ns <= record.response.end_offset_ns
    assert list(record.request.token_ids) == [1, 2, 3]


@pytest.mark.parametrize("stream", [True, False])
async def test_rule_35_a_client_gets_the_same_messages_with_taps_and_without(tmp_path, stream):
    request = generate_request(stream=stream, n=2, max_new_tokens=5)

    async def client(channel):
        return [each.SerializeToString() async for each in generate(channel, request)]

    async def messages(config: Config) -> Any:
        async with open_runtime(config) as runtime:
            return await with_client(runtime.addresses[0], client)

    config = config_of(tmp_path)
    with_taps = await messages(config)
    assert outcomes(tmp_path) == {"r": "complete"}
    assert with_taps == await messages(attrs.evolve(config, taps=()))
    assert len(with_taps) > (2 if stream else 0)


class Scripted(CannedEngine):
    """An engine whose answers a test writes itself."""

    def __init__(self, script: Callable[[Generation, Answer], Coroutine[Any, Any, None]]) -> None:
        super().__init__(Model(context_length=10**6), PACED)
        self._script = script

    async def generate(self, generation: Generation, answer: Answer) -> None:
        await self._script(generation, answer)


async def test_three_choices_one_finished_one_failed_one_silent(tmp_path):
    async def script(generation: Generation, answer: Answer) -> None:
        answer.tokens([5], 0)
        answer.finish("stop", 0)
        answer.tokens([6], 1)
        answer.fail("out of memory", 1)

    async def client(channel):
        return [each async for each in generate(channel, generate_request(n=3))]

    async with open_runtime(config_of(tmp_path), engine=Scripted(script)) as runtime:
        await with_client(runtime.addresses[0], client)

    (record,) = records(tmp_path)
    assert outcomes(tmp_path) == {"r": "error"}
    assert [(each.index, each.finish_reason) for each in record.response.choices] == [
        (0, "stop"),
        (1, "error: out of memory"),
    ]


async def test_a_stream_that_ends_with_fewer_choices_than_asked_is_incomplete(tmp_path):
    async def script(generation: Generation, answer: Answer) -> None:
        answer.tokens([5], 0)
        answer.finish("stop", 0)

    async def client(channel):
        return [each async for each in generate(channel, generate_request(n=2))]

    async with open_runtime(config_of(tmp_path), engine=Scripted(script)) as runtime:
        await with_client(runtime.addresses[0], client)

    assert outcomes(tmp_path) == {"r": "incomplete"}


@pytest.mark.parametrize("tokens_before", [0, 3])
async def test_a_client_that_cancels(tmp_path, tokens_before):
    engine = CannedConfig(gen_ms=0 if tokens_before else 60_000, token_ms=5)

    async def client(channel):
        call = generate(channel, generate_request(max_new_tokens=LONG))
        await call.initial_metadata()
        for _ in range(tokens_before):
            await call.read()
        call.cancel()

    async with open_runtime(config_of(tmp_path, engine=engine)) as runtime:
        await with_client(runtime.addresses[0], client)
        await until(lambda: runtime.workers[0].scheduler.in_flight == 0)

    assert outcomes(tmp_path) == {"r": "cancelled"}
    (record,) = records(tmp_path)
    assert record.response.output_tokens >= tokens_before


async def test_a_cancel_in_the_tick_of_the_last_token_leaves_what_came_first(tmp_path):
    """Either the answer was whole when the cancel came, or it was not: one record says which."""

    async def client(channel):
        for number in range(40):
            request = generate_request(request_id=f"{number}", max_new_tokens=2)
            call = generate(channel, request)
            await call.read()
            await call.read()
            call.cancel()

    async with open_runtime(config_of(tmp_path, engine=PACED)) as runtime:
        await with_client(runtime.addresses[0], client)
        await until(lambda: runtime.workers[0].scheduler.in_flight == 0)

    found = outcomes(tmp_path)
    assert len(found) == 40
    assert set(found.values()) <= {"complete", "cancelled"}
    for record in records(tmp_path):
        finished = [each.finish_reason for each in record.response.choices] == ["length"]
        assert finished == (record.response.outcome.value == "complete")


async def test_an_abort(tmp_path):
    async def client(channel):
        call = generate(channel, generate_request(max_new_tokens=LONG))
        await call.read()
        abort = channel.unary_unary(
            method_path("Abort"),
            request_serializer=pb.AbortRequest.SerializeToString,
            response_deserializer=pb.AbortResponse.FromString,
        )
        assert (await abort(pb.AbortRequest(request_id="r"))).success
        messages = []
        while (message := await call.read()) is not grpc.aio.EOF:
            messages.append(message)
        return messages

    async with open_runtime(config_of(tmp_path, engine=PACED)) as runtime:
        messages = await with_client(runtime.addresses[0], client)

    assert messages[-1].complete.finish_reason == "abort"
    assert outcomes(tmp_path) == {"r": "cancelled"}


async def test_a_deadline(tmp_path):
    async def client(channel):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in generate(channel, generate_request(max_new_tokens=LONG), timeout=0.2):
                pass
        return caught.value.code()

    async with open_runtime(config_of(tmp_path, engine=PACED)) as runtime:
        code = await with_client(runtime.addresses[0], client)
        await until(lambda: runtime.workers[0].scheduler.in_flight == 0)

    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert outcomes(tmp_path) == {"r": "cancelled"}


async def test_a_connection_that_is_lost(tmp_path):
    async def client(channel):
        await generate(channel, generate_request(max_new_tokens=LONG)).read()
        await channel.close(grace=None)

    async with open_runtime(config_of(tmp_path, engine=PACED)) as runtime:
        await with_client(runtime.addresses[0], client)
        await until(lambda: runtime.workers[0].scheduler.in_flight == 0)

    assert outcomes(tmp_path) == {"r": "cancelled"}


async def test_the_shutdown_and_what_comes_after_it(tmp_path):
    async def client(channel):
        call = generate(channel, generate_request(max_new_tokens=LONG))
        await call.read()
        started.set()
        codes = []
        try:
            while await call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            codes.append(error.code())
        return codes

    codes: list[grpc.StatusCode] = []

    class Started:
        def __init__(self) -> None:
            self.event, self.token = trio.Event(), trio.lowlevel.current_trio_token()

        def set(self) -> None:
            self.token.run_sync_soon(self.event.set)

    started = Started()
    async with trio.open_nursery() as clients:

        async def run_client(address: str) -> None:
            codes.extend(await with_client(address, client))

        async with open_runtime(config_of(tmp_path, engine=PACED, grace=0.2)) as runtime:
            clients.start_soon(run_client, runtime.addresses[0])
            await started.event.wait()

    assert codes == [grpc.StatusCode.UNAVAILABLE]
    assert outcomes(tmp_path) == {"r": "cancelled"}


@pytest.mark.parametrize("after_tokens", [0, 2])
async def test_an_engine_that_raises(tmp_path, after_tokens):
    async def script(generation: Generation, answer: Answer) -> None:
        for token in range(after_tokens):
            answer.tokens([token], 0)
        raise ValueError("no text of this may leave")

    async def client(channel):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in generate(channel, generate_request()):
                pass
        return caught.value

    async with open_runtime(config_of(tmp_path), engine=Scripted(script)) as runtime:
        error = await with_client(runtime.addresses[0], client)

    assert error.code() is grpc.StatusCode.INTERNAL
    assert "no text" not in error.details()
    assert outcomes(tmp_path) == {"r": "error"}
    (record,) = records(tmp_path)
    assert record.response.output_tokens == after_tokens


async def test_an_error_that_follows_a_cancel_is_a_cancel(tmp_path):
    async def script(generation: Generation, answer: Answer) -> None:
        try:
            answer.tokens([1], 0)
            await trio.sleep_forever()
        except trio.Cancelled:
            raise ValueError("the engine noticed") from None

    async def client(channel):
        call = generate(channel, generate_request())
        await call.read()
        call.cancel()

    async with open_runtime(config_of(tmp_path), engine=Scripted(script)) as runtime:
        await with_client(runtime.addresses[0], client)
        await until(lambda: runtime.workers[0].scheduler.in_flight == 0)

    assert outcomes(tmp_path) == {"r": "cancelled"}


async def test_a_request_that_is_refused_has_no_record(tmp_path):
    async def client(channel):
        with pytest.raises(grpc.aio.AioRpcError):
            await generate(channel, generate_request(top_p=9.0)).read()

    async with open_runtime(config_of(tmp_path)) as runtime:
        await with_client(runtime.addresses[0], client)

    assert records(tmp_path) == records(tmp_path, "plain") == []


async def test_500_streams_cancelled_at_random_moments_have_500_records(tmp_path):
    """And tasks are back to where they were."""
    chance = random.Random(14)
    delays = [chance.uniform(0, 0.4) for _ in range(500)]

    async def client(channel):
        async def one(number: int) -> None:
            request = generate_request(request_id=f"{number}", max_new_tokens=60)
            call = generate(channel, request)
            await call.initial_metadata()  # a cancel that is quicker than its request is never seen
            try:
                await asyncio.wait_for(_drain(call), delays[number])
            except (TimeoutError, asyncio.CancelledError):
                call.cancel()

        await asyncio.gather(*(one(number) for number in range(500)))

    async def _drain(call: Any) -> None:
        async for _ in call:
            pass

    async with open_runtime(config_of(tmp_path, engine=PACED)) as runtime:
        before = trio.lowlevel.current_statistics().tasks_living
        await with_client(runtime.addresses[0], client)
        await until(lambda: trio.lowlevel.current_statistics().tasks_living <= before)
        assert runtime.workers[0].engine.loads().running == 0
        assert [tap.in_flight_bytes for tap in runtime.taps] == [0, 0]
        received = sum(tap.queued for tap in runtime.taps) // 2

    found = outcomes(tmp_path)
    assert received == len(found) == 500
    assert set(found.values()) <= {"complete", "cancelled"}
