"""What a worker says of itself."""

import hashlib
import io
import zipfile
from pathlib import Path

import pytest
import trio
from purerpc.grpclib.exceptions import NotFoundError, UnimplementedError

from replay._proto import common_pb2 as common
from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.config.engines import CannedConfig
from replay.engines.base import Model
from replay.engines.methods import GENERATE, METHODS, method_path
from replay.errors import ConfigError
from replay.rpc.client import ClientMethod
from replay.worker.model_folder import model_from_folder
from tests.engines.requests import generate_request
from tests.worker.running import config_of, running, until

TINY_MODEL = Path(__file__).parent.parent / "data" / "tiny-model"


async def test_the_model_is_described_as_configured():
    config = config_of(
        model="m", vocab_size=5000, context_length=77, weight_version="w1", tokenizer=None
    )
    async with running(config) as worker:
        info = await worker.call("GetModelInfo", pb.GetModelInfoRequest())

    assert info.served_model_name == info.model_path == "m"
    assert (info.vocab_size, info.max_context_length, info.max_req_input_len) == (5000, 77, 77)
    assert (info.weight_version, info.tokenizer_path) == ("w1", "")


async def test_a_tokenizers_folder_tells_of_the_model_and_is_sent_whole():
    async with running(config_of(tokenizer=str(TINY_MODEL))) as worker:
        info = await worker.call("GetModelInfo", pb.GetModelInfoRequest())
        async with worker.channel.stream(
            METHODS["GetTokenizer"], common.GetTokenizerRequest()
        ) as answers:
            chunks = [each async for each in answers]

    assert info.tokenizer_path == str(TINY_MODEL)
    assert info.vocab_size == 4096
    archive = b"".join(chunk.data for chunk in chunks)
    assert [chunk.sha256 for chunk in chunks[:-1]] == [""] * (len(chunks) - 1)
    assert chunks[-1].sha256 == hashlib.sha256(archive).hexdigest()
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        content = (TINY_MODEL / "tokenizer.json").read_bytes()
        assert opened.read("tokenizer.json") == content


def test_a_folder_that_cannot_be_used_is_named(tmp_path):
    with pytest.raises(ConfigError, match="is not a folder"):
        model_from_folder(Model(), str(tmp_path / "missing"))
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(ConfigError, match=r"config.json is not JSON"):
        model_from_folder(Model(), str(tmp_path))


def test_a_folder_with_nothing_of_use_changes_nothing_but_the_tokenizer(tmp_path):
    (tmp_path / "config.json").write_text('{"vocab_size": true, "eos_token_id": null}')

    model = model_from_folder(Model(), str(tmp_path))

    assert (model.vocab_size, model.eos_token_ids) == (32768, (2,))
    assert model.tokenizer == str(tmp_path)


def test_several_ends_of_text_are_taken_from_the_generation_config(tmp_path):
    (tmp_path / "config.json").write_text('{"eos_token_id": 7, "vocab_size": 900}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')

    model = model_from_folder(Model(vocab_size=1000), str(tmp_path))

    assert (model.eos_token_ids, model.vocab_size) == ((7, 8), 900)


async def test_loads_and_server_info_tell_what_runs():
    async with running(config_of(engine=CannedConfig(token_ms=5))) as worker:
        async with trio.open_nursery() as clients:
            for number in range(3):
                request = generate_request([1] * 50, request_id=f"{number}", max_new_tokens=10**5)
                clients.start_soon(worker.generate, request)
            await until(lambda: worker.in_flight == 3)
            busy = (await worker.call("GetLoads", pb.GetLoadsRequest())).loads[0]
            info = await worker.call("GetServerInfo", pb.GetServerInfoRequest())
            clients.cancel_scope.cancel()
        await until(lambda: worker.in_flight == 0)
        idle = await worker.call("GetLoads", pb.GetLoadsRequest(include=["all"]))

    assert (busy.num_running_reqs, busy.num_waiting_reqs, busy.num_total_reqs) == (3, 0, 3)
    assert busy.num_used_tokens >= 150
    assert not busy.HasField("memory")
    assert not busy.HasField("queues")
    assert info.active_requests == 3
    assert info.uptime_seconds > 0
    assert info.start_time.seconds > 1_700_000_000
    assert idle.loads[0].num_running_reqs == idle.loads[0].num_used_tokens == 0
    assert idle.loads[0].HasField("memory")
    assert idle.loads[0].HasField("queues")


async def test_there_is_one_rank():
    async with running() as worker:
        one = await worker.call("GetLoads", pb.GetLoadsRequest(dp_rank=0))
        with pytest.raises(NotFoundError):
            await worker.call("GetLoads", pb.GetLoadsRequest(dp_rank=1))

    assert [load.dp_rank for load in one.loads] == [0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("FlushCache", common.FlushCacheRequest()),
        ("StartProfile", common.StartProfileRequest()),
        ("StopProfile", common.StopProfileRequest()),
        ("SubscribeKvEvents", common.SubscribeKvEventsRequest()),
        ("GetTokenizer", common.GetTokenizerRequest()),
    ],
)
async def test_what_the_engine_has_not_is_unimplemented_and_the_connection_lives(name, message):
    async with running() as worker:
        with pytest.raises(UnimplementedError):
            await worker.call(name, message)
        assert await worker.generate(generate_request())


async def test_services_of_other_engines_are_unimplemented_at_once():
    async with running() as worker:
        for package in ("sglang.grpc.scheduler.SglangScheduler", "vllm.grpc.engine.VllmEngine"):
            method = ClientMethod(f"/{package}/HealthCheck", pb.HealthCheckResponse.FromString)
            with pytest.raises(UnimplementedError), trio.fail_after(1):
                await worker.channel.unary(method, pb.HealthCheckRequest())
        assert (await worker.call("HealthCheck", pb.HealthCheckRequest())).healthy


async def test_initial_headers_come_before_the_first_token():
    async with (
        running(config_of(engine=CannedConfig(gen_ms=60_000), grace_seconds=0.1)) as worker,
        worker.channel.stream(GENERATE, generate_request()) as answers,
    ):
        with trio.fail_after(2):
            head = await answers.wait_head()

    assert (b"content-type", b"application/grpc") in head
    assert method_path("Generate") == GENERATE.path
