"""The upstream engine: what goes through it, and what it says while its upstream is away."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from purerpc.grpclib.exceptions import (
    DeadlineExceededError,
    InternalError,
    OutOfRangeError,
    RpcFailedError,
    UnavailableError,
    UnimplementedError,
    raise_status,
)
from purerpc.grpclib.status import Status, StatusCode

from replay._proto import common_pb2 as common
from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.config.engines import CannedConfig, RealisticConfig
from replay.engines.methods import GENERATE, METHODS, SIGNATURES, method_path
from replay.rpc.calls import Call, frame_message
from replay.rpc.client import ClientMethod
from tests.engines.requests import generate_request
from tests.worker.running import Running, config_of, running, until
from tests.worker.upstreams import chunk, complete, proxy, upstream

TINY_MODEL = Path(__file__).parent.parent / "data" / "tiny-model"
SLOW = CannedConfig(token_ms=5)
LONG = 100_000

#: A field that no version of the message has (number 1000, length-delimited).
UNKNOWN = b"\xc2\x3e\x03new"


def answering(*messages: bytes | pb.GenerateResponse) -> Any:
    async def generate(message: pb.GenerateRequest, request: Call) -> None:
        for each in messages:
            packed = each if isinstance(each, bytes) else each.SerializeToString()
            request.write(frame_message(packed))

    return generate


async def raw_answer(worker: Running, message: pb.GenerateRequest, **options: Any) -> list[bytes]:
    async with worker.channel.stream(
        ClientMethod(method_path("Generate"), bytes), message, **options
    ) as answers:
        return [each async for each in answers]


# ---- Generate


async def test_an_answer_passes_byte_for_byte():
    logprobs = pb.OutputLogProbs(token_logprobs=[-0.5], token_ids=[7])
    messages = [
        chunk(7, 8, output_logprobs=logprobs, prompt_tokens=3, cached_tokens=2).SerializeToString(),
        chunk(9, count=3, weight_version="w").SerializeToString() + UNKNOWN,
        complete(7, 8, 9, matched_stop_str="END", spec_accepted_tokens=1).SerializeToString(),
        # In another order of the fields than the one in which they would be written here.
        b"\x1a\x04\x48\x01\x38\x00" + b"\x0a\x01r",
    ]
    async with upstream(Generate=answering(*messages)) as address, proxy(address) as worker:
        assert await raw_answer(worker, generate_request(n=2)) == messages


async def test_a_request_passes_field_for_field():
    seen: list[pb.GenerateRequest] = []

    async def generate(message: pb.GenerateRequest, request: Call) -> None:
        seen.append(message)
        request.write(frame_message(complete().SerializeToString()))

    request = generate_request(
        list(range(5000)),
        temperature=0.0,
        max_new_tokens=0,
        stop=["\n"],
        logit_bias={"5": -1.5},
        regex="(",  # for the upstream to judge
        n=3,
    )
    request.mm_inputs.items.add().encoder_input.inline = b"\0pixels"
    request.kv_bootstrap_info.bootstrap_room = 2**62
    request.data_parallel_rank = 0
    request.MergeFromString(UNKNOWN)
    async with upstream(Generate=generate) as address, proxy(address) as worker:
        await worker.generate(request)
    assert [each.SerializeToString(deterministic=True) for each in seen] == [
        request.SerializeToString(deterministic=True)
    ]
    assert UNKNOWN in seen[0].SerializeToString()


@pytest.mark.parametrize("stream", [True, False])
async def test_choices_of_a_real_worker_pass_as_if_it_were_asked_itself(stream):
    request = generate_request(n=3, stream=stream, max_new_tokens=20, sampling_seed=7)
    request.sampling_params.temperature = 1.0
    async with running(config_of(weight_version="w7")) as below:
        direct = await raw_answer(below, request)
        async with proxy(below.runtime.addresses[0]) as worker:
            assert sorted(await raw_answer(worker, request)) == sorted(direct)


async def test_a_choice_that_nobody_asked_for_passes_too():
    messages = [chunk(1, index=5), complete(1, index=5), complete(2)]
    packed = [each.SerializeToString() for each in messages]
    async with upstream(Generate=answering(*messages)) as address, proxy(address) as worker:
        assert await raw_answer(worker, generate_request()) == packed


async def test_an_answer_without_any_message_is_one():
    async with upstream(Generate=answering()) as address, proxy(address) as worker:
        assert await raw_answer(worker, generate_request()) == []


async def test_what_cannot_be_decoded_is_not_said_to_be_the_clients():
    async with upstream(Generate=answering(b"\xff\xff")) as address, proxy(address) as worker:
        with pytest.raises(InternalError, match="a message of the upstream cannot be decoded"):
            await worker.generate(generate_request())


def failing(code: StatusCode, message: str, *chunks: pb.GenerateResponse) -> Any:
    async def generate(_: pb.GenerateRequest, request: Call) -> None:
        for each in chunks:
            request.send(each)
        raise_status(Status(code, message))

    return generate


@pytest.mark.parametrize("code", [code for code in StatusCode if code is not StatusCode.OK])
async def test_an_error_comes_back_with_code_and_message(code):
    async with upstream(Generate=failing(code, "no é 100%")) as address, proxy(address) as worker:
        with pytest.raises(RpcFailedError) as caught:
            await worker.generate(generate_request())
    status = caught.value.status
    assert (status.status_code, status.status_message) == (code, "no é 100%")


async def test_an_error_in_mid_answer_comes_behind_what_came_before():
    generate = failing(StatusCode.ABORTED, "gone", chunk(1), chunk(2, count=2))
    got: list[pb.GenerateResponse] = []
    async with (
        upstream(Generate=generate) as address,
        proxy(address) as worker,
        worker.channel.stream(GENERATE, generate_request()) as answers,
    ):
        got += [await answers.receive(), await answers.receive()]
        with pytest.raises(RpcFailedError) as caught:
            await answers.receive()
    assert got == [chunk(1), chunk(2, count=2)]
    assert caught.value.status.status_code is StatusCode.ABORTED


# ---- metadata


async def test_allowed_metadata_passes_in_both_directions():
    seen: list[Sequence[tuple[bytes, bytes]]] = []

    async def generate(message: pb.GenerateRequest, request: Call) -> None:
        seen.append(request.metadata)
        request.respond([(b"x-worker", b"7"), (b"secret", b"s")])
        request.send(chunk(1))
        request.trailing_metadata = [(b"x-cost", b"3"), (b"secret", b"t")]

    sent = [(b"x-tenant", b"a"), (b"authorization", b"k"), (b"grpc-accept-encoding", b"gzip")]
    async with (
        upstream(Generate=generate) as address,
        proxy(address, "x-*") as worker,
        worker.channel.stream(GENERATE, generate_request(), metadata=sent) as answers,
    ):
        head = await answers.wait_head()
        assert [each async for each in answers] == [chunk(1)]
        assert (b"x-worker", b"7") in head
        assert b"secret" not in dict(head)
        assert list(answers.trailing_metadata) == [(b"x-cost", b"3")]
    assert dict(seen[0]).keys() == {b"x-tenant", b"user-agent"}


async def test_even_when_all_is_allowed_each_connection_has_its_own_transport_fields():
    seen: list[list[bytes]] = []

    async def generate(message: pb.GenerateRequest, request: Call) -> None:
        seen.append([name for name, _ in request.stream.head.fields])

    sent = [(b"x-tenant", b"a"), (b"grpc-accept-encoding", b"gzip"), (b"user-agent", b"mine")]
    async with upstream(Generate=generate) as address, proxy(address, "*") as worker:
        await raw_answer(worker, generate_request(), metadata=sent, timeout=5)
    (names,) = seen
    assert len(set(names)) == len(names)
    assert b"x-tenant" in names
    assert b"grpc-accept-encoding" not in names


async def test_the_metadata_of_an_error_passes():
    async def generate(message: pb.GenerateRequest, request: Call) -> None:
        request.trailing_metadata = [(b"x-retry-after", b"3")]
        raise UnavailableError("full")

    async with (
        upstream(Generate=generate) as address,
        proxy(address, "x-*") as worker,
        worker.channel.stream(GENERATE, generate_request()) as answers,
    ):
        with pytest.raises(UnavailableError, match="full"):
            await answers.wait_head()
        assert (b"x-retry-after", b"3") in answers.trailing_metadata


async def test_headers_pass_before_there_is_a_message():
    """A gateway that has seen them aborts by id where it would have reset the stream."""

    async def generate(message: pb.GenerateRequest, request: Call) -> None:
        request.respond()
        await trio.sleep_forever()

    async with (
        upstream(Generate=generate) as address,
        proxy(address) as worker,
        worker.channel.stream(GENERATE, generate_request()) as answers,
    ):
        with trio.fail_after(2):
            await answers.wait_head()


# ---- ends


async def test_the_upstream_is_told_what_is_left_of_the_deadline():
    seen: list[float | None] = []

    async def generate(message: pb.GenerateRequest, request: Call) -> None:
        seen.append(request.stream.head.timeout)
        await trio.sleep_forever()

    async with upstream(Generate=generate) as address, proxy(address) as worker:
        before = trio.current_time()
        with pytest.raises(DeadlineExceededError):
            await worker.generate(generate_request(), timeout=0.3)
        assert trio.current_time() - before < 2
    (left,) = seen
    assert left is not None
    assert 0.1 < left <= 0.3


async def test_without_a_deadline_the_upstream_is_told_none():
    seen: list[float | None] = []

    async def generate(message: pb.GenerateRequest, request: Call) -> None:
        seen.append(request.stream.head.timeout)

    async with upstream(Generate=generate) as address, proxy(address) as worker:
        await raw_answer(worker, generate_request())
    assert seen == [None]


@pytest.mark.timed
async def test_a_client_that_cancels_resets_the_upstream_within_50_milliseconds():
    ended: list[float] = []
    begun, over = trio.Event(), trio.Event()

    async def generate(message: pb.GenerateRequest, request: Call) -> None:
        request.send(chunk(1))
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.append(trio.current_time())
            over.set()

    async with upstream(Generate=generate) as address, proxy(address) as worker:
        took = math.inf
        for _ in range(5):  # a busy machine may be late, the worker is not
            begun, over = trio.Event(), trio.Event()
            async with worker.channel.stream(GENERATE, generate_request()) as answers:
                await answers.receive()
                await begun.wait()
                left = trio.current_time()
            with trio.fail_after(5):
                await over.wait()
            took = min(took, ended[-1] - left)
        assert took < 0.05
        await until(lambda: worker.in_flight == 0)


@pytest.mark.parametrize("stream", [True, False])
async def test_an_abort_goes_to_the_upstream_and_ends_as_that_says(stream):
    request = generate_request(n=2, stream=stream, max_new_tokens=LONG)
    async with running(config_of(engine=SLOW)) as below, proxy(below.runtime.addresses[0]) as it:
        async with it.channel.stream(GENERATE, request) as answers:
            if stream:
                await answers.receive()
            await until(lambda: below.in_flight == 1)
            reply = await it.call("Abort", pb.AbortRequest(request_id="r"))
            assert (reply.success, reply.message) == (True, "aborted 1")
            messages = [each async for each in answers]
        completes = [each.complete for each in messages if each.HasField("complete")]
        assert [each.finish_reason for each in completes] == ["abort", "abort"]
        assert below.in_flight == it.in_flight == 0
        reply = await it.call("Abort", pb.AbortRequest(request_id="r"))
        assert not reply.success


async def test_a_slow_client_holds_the_upstream_and_loses_nothing():
    made = 0
    total = 20_000

    async def generate(message: pb.GenerateRequest, request: Call) -> None:
        nonlocal made
        for number in range(total):
            request.send(chunk(*[number] * 500))
            made += 1
            if request.is_full:
                await request.room()

    async with (
        upstream(Generate=generate) as address,
        proxy(address) as worker,
        worker.channel.stream(GENERATE, generate_request()) as answers,
    ):
        await answers.wait_head()
        await until(lambda: any(each.is_full for each in worker.runtime.workers[0].server.calls))
        last = -1
        while made != last:  # until all windows are shut
            last = made
            await trio.testing.wait_all_tasks_blocked(0.05)
        size = len(chunk(*[total - 1] * 500).SerializeToString())
        assert made * size < 8 << 20
        received = 0
        async for message in answers:
            assert message.chunk.token_ids[0] == received
            received += 1
    assert received == total


# ---- the other methods


async def test_every_unary_method_passes_with_what_the_upstream_says():
    unary = {
        "Abort": pb.AbortResponse(success=True, message="mine"),
        "GetModelInfo": pb.GetModelInfoResponse(served_model_name="real"),
        "GetServerInfo": pb.GetServerInfoResponse(tokenspeed_version="9.9"),
        "GetLoads": pb.GetLoadsResponse(version="real", dp_rank_count=8),
        "HealthCheck": pb.HealthCheckResponse(healthy=False, message="loading"),
        "FlushCache": common.FlushCacheResponse(success=True, message="flushed"),
        "StartProfile": common.ProfileResponse(success=True, message="started"),
        "StopProfile": common.ProfileResponse(success=True, message="stopped"),
    }
    seen: dict[str, Any] = {}

    def handler(name: str, response: Any) -> Any:
        response.MergeFromString(UNKNOWN)

        async def answer(message: Any, request: Call) -> Any:
            seen[name] = (message, dict(request.metadata).get(b"x-tenant"))
            request.trailing_metadata = [(b"x-cost", b"1")]
            return response

        return answer

    methods = {name: handler(name, response) for name, response in unary.items()}
    async with upstream(**methods) as address, proxy(address, "x-*") as worker:
        for name, response in unary.items():
            request = SIGNATURES[name][1]()
            request.MergeFromString(UNKNOWN)
            async with worker.channel.stream(
                METHODS[name], request, metadata=[(b"x-tenant", b"t")]
            ) as answers:
                assert [each async for each in answers] == [response]
                assert list(answers.trailing_metadata) == [(b"x-cost", b"1")]
            assert seen[name] == (request, b"t")
    assert unary.keys() | {"Generate", "GetTokenizer", "SubscribeKvEvents"} == SIGNATURES.keys()


async def test_a_method_that_the_upstream_lacks_is_unimplemented():
    async with upstream(Generate=answering()) as address, proxy(address) as worker:
        for name in SIGNATURES.keys() - {"Generate"}:
            with pytest.raises(UnimplementedError, match=name):
                await worker.call(name, SIGNATURES[name][1]())


async def test_a_tokenizer_passes_whole():
    async with (
        running(config_of(tokenizer=str(TINY_MODEL))) as below,
        proxy(below.runtime.addresses[0]) as worker,
    ):

        async def fetch(from_: Running) -> list[Any]:
            async with from_.channel.stream(
                METHODS["GetTokenizer"], common.GetTokenizerRequest()
            ) as answers:
                return [each async for each in answers]

        chunks = await fetch(below)
        assert len(chunks[-1].sha256) == 64
        assert await fetch(worker) == chunks


async def test_kv_events_pass_with_their_headers_at_once():
    request = common.SubscribeKvEventsRequest()
    engine = RealisticConfig(speedup=1000)
    async with running(config_of(engine=engine)) as below, proxy(below.runtime.addresses[0]) as it:
        async with it.channel.stream(METHODS["SubscribeKvEvents"], request) as answers:
            with trio.fail_after(2):
                await answers.wait_head()
            await it.generate(generate_request(range(64), max_new_tokens=1))
            with trio.fail_after(5):
                batch = await answers.receive()
                while batch.load.load_only:
                    batch = await answers.receive()
            assert batch.sequence_number == 1
            assert batch.events
        request.start_sequence_number = 77
        async with it.channel.stream(METHODS["SubscribeKvEvents"], request) as answers:
            with pytest.raises(OutOfRangeError):
                await answers.wait_head()  # before the headers, as the upstream has it


async def test_a_standing_stream_does_not_hold_up_a_stop():
    request = common.SubscribeKvEventsRequest()
    config = config_of(grace_seconds=30)
    async with running(config_of(engine=RealisticConfig())) as below:
        before = trio.current_time()
        async with (
            proxy(below.runtime.addresses[0], config=config) as worker,
            worker.channel.stream(METHODS["SubscribeKvEvents"], request) as answers,
        ):
            await answers.wait_head()
            async with trio.open_nursery() as stopping:
                stopping.start_soon(stop, worker, 30.0)
                with pytest.raises(UnavailableError):
                    await drain(answers)
        assert trio.current_time() - before < 15


async def drain(answers: Any) -> None:
    async for _ in answers:
        pass


async def stop(worker: Running, grace_seconds: float) -> None:
    await worker.runtime.workers[0].server.stop(grace_seconds=grace_seconds)


async def test_an_upstream_that_gives_no_answer_where_there_must_be_one_is_named():
    async def nothing(message: Any, request: Call) -> None:
        return None

    async with upstream(GetLoads=nothing) as address, proxy(address) as worker:
        with pytest.raises(InternalError, match="gave 0 answers"):
            await worker.call("GetLoads", pb.GetLoadsRequest())


# ---- the model, the loads, the health


async def test_what_is_served_is_learned_at_the_start():
    config = config_of(model="real", tokenizer=str(TINY_MODEL), context_length=777)
    async with running(config) as below, proxy(below.runtime.addresses[0]) as worker:
        model = worker.runtime.workers[0].engine.model
        assert (model.name, model.vocab_size, model.context_length) == ("real", 4096, 777)
        assert model.eos_token_ids == below.runtime.workers[0].engine.model.eos_token_ids
        assert model.tokenizer is None  # the upstream sends it
        assert not model.default_sampling_params


async def test_defaults_are_the_upstreams_to_apply():
    seen: list[bool] = []

    async def generate(message: pb.GenerateRequest, request: Call) -> None:
        seen.append(message.sampling_params.HasField("temperature"))

    async def info(message: Any, request: Call) -> pb.GetModelInfoResponse:
        return pb.GetModelInfoResponse(default_sampling_params_json='{"temperature": 0.5}')

    async with upstream(Generate=generate, GetModelInfo=info) as address, proxy(address) as worker:
        await raw_answer(worker, generate_request())
        told = await worker.call("GetModelInfo", pb.GetModelInfoRequest())
    assert seen == [False]
    assert told.default_sampling_params_json == '{"temperature": 0.5}'


async def test_the_loads_are_what_is_passing():
    released = trio.Event()

    async def generate(message: pb.GenerateRequest, request: Call) -> None:
        request.respond()
        await released.wait()
        request.send(chunk(1, 2))
        await trio.sleep_forever()

    async with (
        upstream(Generate=generate) as address,
        proxy(address) as worker,
        worker.channel.stream(GENERATE, generate_request([1, 2, 3])) as answers,
    ):
        engine = worker.runtime.workers[0].engine
        await answers.wait_head()
        loads = engine.loads()
        assert (loads.running, loads.waiting, loads.used_tokens) == (0, 1, 3)
        released.set()
        await answers.receive()
        loads = engine.loads()
        assert (loads.running, loads.waiting, loads.used_tokens) == (1, 0, 5)
        assert loads.throughput > 0
        answers.cancel()
        await until(lambda: engine.loads().used_tokens == 0)


async def test_while_it_drains_it_is_unhealthy_though_its_upstream_is_not():
    async with running() as below, proxy(below.runtime.addresses[0]) as worker:
        health = await worker.call("HealthCheck", pb.HealthCheckRequest())
        assert (health.healthy, health.message) == (True, "OK")
        worker.runtime.workers[0].scheduler.is_healthy = False
        health = await worker.call("HealthCheck", pb.HealthCheckRequest())
        assert (health.healthy, health.message) == (False, "the worker shuts down")


async def test_an_upstream_that_hangs_is_unhealthy_before_a_gateway_loses_its_patience(
    monkeypatch,
):
    monkeypatch.setattr("replay.engines.upstream.HEALTH_SECONDS", 0.1)

    async def hang(message: Any, request: Call) -> None:
        await trio.sleep_forever()

    async with upstream(HealthCheck=hang) as address, proxy(address) as worker:
        with trio.fail_after(5):
            health = await worker.call("HealthCheck", pb.HealthCheckRequest())
    assert (health.healthy, health.message) == (False, "the upstream is away")


async def test_without_its_upstream_it_starts_says_so_and_finds_it_later():
    async with upstream(Generate=answering()) as address:
        port = int(address.rpartition(":")[2])
    async with proxy(address) as worker:
        with pytest.raises(UnavailableError, match=f"cannot connect to {address}"):
            await worker.generate(generate_request())
        with pytest.raises(UnavailableError):
            await worker.call("GetLoads", pb.GetLoadsRequest())
        health = await worker.call("HealthCheck", pb.HealthCheckRequest())
        assert (health.healthy, health.message) == (False, "the upstream is away")
        engine = worker.runtime.workers[0].engine
        assert engine.model.name == "mock-model"

        async def info(message: Any, request: Call) -> pb.GetModelInfoResponse:
            return pb.GetModelInfoResponse(served_model_name="late", eos_token_ids=[9])

        async with upstream(port=port, Generate=answering(complete(1)), GetModelInfo=info):
            with trio.fail_after(5):
                while engine.model.name != "late":
                    await trio.testing.wait_all_tasks_blocked(0.01)
            assert engine.model.eos_token_ids == (9,)
            assert await worker.generate(generate_request()) == [complete(1)]


async def test_another_model_is_learned_when_the_upstream_has_been_replaced():
    def named(name: str) -> Any:
        async def info(message: Any, request: Call) -> pb.GetModelInfoResponse:
            return pb.GetModelInfoResponse(served_model_name=name)

        return info

    async with upstream() as address:
        port = int(address.rpartition(":")[2])
    async with proxy(address) as worker:
        engine = worker.runtime.workers[0].engine
        async with upstream(port=port, GetModelInfo=named("old")):
            await until(lambda: engine.model.name == "old")
        async with upstream(port=port, GetModelInfo=named("new"), Generate=answering()):
            with trio.fail_after(5):
                while engine.model.name != "new":
                    try:
                        await raw_answer(worker, generate_request())
                    except UnavailableError:
                        await trio.testing.wait_all_tasks_blocked(0.01)


async def test_streams_in_flight_end_as_the_upstream_says_when_it_stops():
    errors: list[str] = []
    async with (
        running(config_of(engine=SLOW, grace_seconds=0)) as below,
        proxy(below.runtime.addresses[0]) as worker,
        trio.open_nursery() as clients,
    ):

        async def ask() -> None:
            try:
                await worker.generate(generate_request(max_new_tokens=LONG))
            except UnavailableError as error:
                errors.append(error.status.status_message)

        for _ in range(10):
            clients.start_soon(ask)
        await until(lambda: below.in_flight == 10)
        with trio.fail_after(5):
            await stop(below, 0.0)
    assert errors == ["the server shuts down"] * 10


async def test_a_request_is_captured_also_when_the_upstream_is_away(tmp_path):
    path = tmp_path / "capture.jsonl"
    async with proxy("127.0.0.1:1", config=config_of(capture=str(path))) as worker:
        with pytest.raises(UnavailableError):
            await worker.generate(generate_request(request_id="kept"))
    assert '"request_id":"kept"' in path.read_text()
