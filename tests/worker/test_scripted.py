"""Scripted answers over an engine, as a client gets them."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from purerpc.grpclib.exceptions import (
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
)
from trio.testing import wait_all_tasks_blocked

from replay._proto import common_pb2 as common
from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.config.engines import CannedConfig, RealisticConfig
from replay.engines.base import Model
from replay.engines.canned import CannedEngine
from replay.engines.methods import GENERATE, METHODS
from replay.engines.upstream import UpstreamEngine
from replay.errors import ConfigError
from replay.rpc.client import open_channel
from replay.runtime import open_runtime
from tests.engines.requests import generate_request
from tests.worker.running import Running, config_of, running, until


@asynccontextmanager
async def scripted(
    folder: Path, *lines: dict[str, Any], strict: bool = False, **config: Any
) -> AsyncIterator[Running]:
    async with running(script_config(folder, *lines, strict=strict, **config)) as worker:
        yield worker


def script_config(folder: Path, *lines: dict[str, Any], strict: bool = False, **config: Any) -> Any:
    path = folder / "script.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return config_of(script=str(path), script_strict=strict, **config)


def chunks_of(messages: list[pb.GenerateResponse], index: int = 0) -> list[list[int]]:
    return [
        list(each.chunk.token_ids)
        for each in messages
        if each.HasField("chunk") and each.chunk.index == index
    ]


async def collect(
    worker: Running, request: pb.GenerateRequest, into: list[pb.GenerateResponse]
) -> None:
    """Put the messages of an answer into a list, those too that come before an error."""
    async with worker.channel.stream(GENERATE, request) as answers:
        async for message in answers:
            into.append(message)


async def test_chunks_leave_as_they_are_written_and_the_end_has_them_all(tmp_path):
    line = {"request_id": "r", "chunks": [[5, 6], [], [7]], "finish_reason": "length"}
    async with scripted(tmp_path, line, weight_version="w1") as worker:
        messages = await worker.generate(generate_request([1, 2, 3]))
    assert [each.request_id for each in messages] == ["r"] * 4
    assert chunks_of(messages) == [[5, 6], [], [7]]
    assert [each.chunk.completion_tokens for each in messages[:3]] == [2, 2, 3]
    assert {each.chunk.prompt_tokens for each in messages[:3]} == {3}
    complete = messages[3].complete
    assert list(complete.output_ids) == [5, 6, 7]
    assert (complete.finish_reason, complete.completion_tokens) == ("length", 3)
    assert (complete.prompt_tokens, complete.weight_version) == (3, "w1")
    assert complete.WhichOneof("matched_stop") is None


async def test_without_streaming_only_the_end_leaves(tmp_path):
    line = {"request_id": "r", "chunks": [[5], [6]], "matched_stop": 6}
    async with scripted(tmp_path, line) as worker:
        (message,) = await worker.generate(generate_request(stream=False))
    assert list(message.complete.output_ids) == [5, 6]
    assert (message.complete.finish_reason, message.complete.matched_token_id) == ("stop", 6)


async def test_a_string_that_matched_is_told(tmp_path):
    line = {"request_id": "r", "chunks": [[5]], "matched_stop": "END"}
    async with scripted(tmp_path, line) as worker:
        messages = await worker.generate(generate_request())
    assert messages[-1].complete.matched_stop_str == "END"


async def test_recorded_offsets_play_back_within_five_milliseconds(tmp_path):
    offsets = [0, 10, 200]
    line = {"request_id": "*", "chunks": [[1], [2], [3]], "offsets_ms": offsets}
    best = [float("inf")] * 4
    async with scripted(tmp_path, line) as worker:
        for _ in range(5):  # a busy machine may be late, the worker is not
            late = []
            async with worker.channel.stream(GENERATE, generate_request()) as answers:
                sent = trio.current_time()
                for offset in [*offsets, offsets[-1]]:
                    assert await answers.receive() is not None
                    late.append(answers.received_at - sent - offset / 1000)
            assert min(late) > -0.001
            best = list(map(min, best, late))
    assert max(best) < 0.005


async def test_requests_at_once_do_not_share_a_cursor(tmp_path):
    lines = [
        {"request_id": name, "chunks": [[base + at] for at in range(20)],
         "offsets_ms": [2 * at for at in range(20)]}
        for name, base in (("a", 100), ("b", 200), ("*", 300))
    ]  # fmt: skip
    got: dict[str, list[list[int]]] = {}
    async with scripted(tmp_path, *lines) as worker, trio.open_nursery() as clients:

        async def ask(name: str, key: str) -> None:
            got[key] = chunks_of(await worker.generate(generate_request(request_id=name)))

        for number, name in enumerate(("a", "b", "a", "other", "b")):
            clients.start_soon(ask, name, f"{number}{name}")
    for key, base in {"0a": 100, "1b": 200, "2a": 100, "3other": 300, "4b": 200}.items():
        assert got[key] == [[base + at] for at in range(20)]


async def test_each_choice_has_its_own_line(tmp_path):
    lines = [
        {"request_id": "r", "chunks": [[1], [2]], "offsets_ms": [0, 30]},
        {"request_id": "r", "index": 1, "chunks": [[3]], "offsets_ms": [10],
         "finish_reason": "length"},
    ]  # fmt: skip
    async with scripted(tmp_path, *lines) as worker:
        messages = await worker.generate(generate_request(n=3))
    assert [chunks_of(messages, index) for index in range(3)] == [[[1], [2]], [[3]], [[1], [2]]]
    ends = {each.complete.index: each.complete for each in messages if each.HasField("complete")}
    assert [ends[index].finish_reason for index in range(3)] == ["stop", "length", "stop"]
    assert [list(ends[index].output_ids) for index in range(3)] == [[1, 2], [3], [1, 2]]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("after", [0, 1, 2])
async def test_an_error_comes_after_as_many_chunks(tmp_path, stream, after):
    error = {"code": "RESOURCE_EXHAUSTED", "message": "no room é", "after_chunks": after}
    line = {"request_id": "r", "chunks": [[1], [2]], "error": error}
    got: list[pb.GenerateResponse] = []
    async with scripted(tmp_path, line) as worker:
        with pytest.raises(ResourceExhaustedError) as caught:
            await collect(worker, generate_request(stream=stream), got)
    assert caught.value.status.status_message == "no room é"
    assert chunks_of(got) == ([[1], [2]][:after] if stream else [])
    assert not any(message.HasField("complete") for message in got)


async def test_an_error_from_the_start_has_no_headers_before_it(tmp_path):
    """A gateway may send such a request elsewhere."""
    line = {"request_id": "r", "chunks": [], "error": {"code": "RESOURCE_EXHAUSTED"}}
    async with scripted(tmp_path, line, strict=True) as worker:
        for request_id, refusal in (("r", ResourceExhaustedError), ("other", NotFoundError)):
            request = generate_request(request_id=request_id)
            async with worker.channel.stream(GENERATE, request) as answers:
                with pytest.raises(refusal):
                    await answers.wait_head()


async def test_the_engine_below_a_script_has_its_headers_at_once(tmp_path):
    line = {"request_id": "r", "chunks": []}
    async with (
        scripted(tmp_path, line, engine=CannedConfig(gen_ms=1e6)) as worker,
        worker.channel.stream(GENERATE, generate_request(request_id="other")) as answers,
    ):
        with trio.fail_after(5):
            await answers.wait_head()


async def test_what_is_scripted_counts_in_the_load_that_a_simulated_engine_tells(tmp_path):
    line = {"request_id": "r", "chunks": [[7]], "offsets_ms": [1e6]}
    wanted = common.SubscribeKvEventsRequest(load_records_before_first_batch=True)
    async with (
        scripted(tmp_path, line, engine=RealisticConfig()) as worker,
        worker.channel.stream(METHODS["SubscribeKvEvents"], wanted) as records,
    ):
        with trio.fail_after(5):
            assert (await records.receive()).load.running_requests == 0
            async with worker.channel.stream(GENERATE, generate_request()):
                while (await records.receive()).load.running_requests != 1:
                    pass
            while (await records.receive()).load.running_requests != 0:
                pass


async def test_what_is_not_scripted_is_the_engines(tmp_path):
    line = {"request_id": "r", "chunks": [[7]], "times": 1}
    async with scripted(tmp_path, line, engine=CannedConfig(output_tokens=2)) as worker:
        answers = [await worker.generate(generate_request()) for _ in range(2)]
    assert [list(messages[-1].complete.output_ids) for messages in answers] == [[7], [100, 101]]


async def test_with_strict_what_is_not_scripted_is_not_found(tmp_path):
    line = {"request_id": "r", "chunks": [[7]]}
    async with scripted(tmp_path, line, strict=True) as worker:
        assert len(await worker.generate(generate_request())) == 2
        with pytest.raises(NotFoundError, match="the script has no answer"):
            await worker.generate(generate_request(request_id="other"))


async def test_a_bad_request_is_refused_though_it_is_scripted(tmp_path):
    line = {"request_id": "r", "chunks": [[7]], "times": 1}
    async with scripted(tmp_path, line) as worker:
        with pytest.raises(InvalidArgumentError):
            await worker.generate(generate_request(top_p=2.0))
        assert chunks_of(await worker.generate(generate_request())) == [[7]]


async def test_log_probabilities_are_the_scripts_if_somebody_asks(tmp_path):
    line = {"request_id": "r", "chunks": [[5, 6], [7]], "output_logprobs": [-1, -0.5, -2]}
    asked = {"return_logprob": True, "top_logprobs_num": 2}
    async with scripted(tmp_path, line) as worker:
        unasked = await worker.generate(generate_request())
        messages = await worker.generate(generate_request(logprobs=asked))
    assert not any(each.chunk.HasField("output_logprobs") for each in unasked)
    first, second = (each.chunk.output_logprobs for each in messages[:2])
    assert (list(first.token_logprobs), list(first.token_ids)) == ([-1, -0.5], [5, 6])
    assert (list(second.token_logprobs), list(second.token_ids)) == ([-2], [7])
    assert [list(top.token_ids) for top in first.top_logprobs] == [[5], [6]]
    whole = messages[-1].complete.output_logprobs
    assert list(whole.token_logprobs) == [-1, -0.5, -2]
    assert len(whole.top_logprobs) == 3


async def test_a_line_without_log_probabilities_has_made_up_ones(tmp_path):
    line = {"request_id": "r", "chunks": [[5, 6], [7]]}
    async with scripted(tmp_path, line) as worker:
        messages = await worker.generate(generate_request(logprobs={"return_logprob": True}))
    chunked = [value for each in messages for value in each.chunk.output_logprobs.token_logprobs]
    whole = list(messages[-1].complete.output_logprobs.token_logprobs)
    assert len(whole) == 3
    assert chunked == whole
    assert all(value <= 0 for value in whole)


async def test_a_slow_client_gets_every_chunk_by_itself(tmp_path):
    chunks = [[at] * 1000 for at in range(2000)]
    async with (
        scripted(tmp_path, {"request_id": "r", "chunks": chunks}) as worker,
        worker.channel.stream(GENERATE, generate_request()) as answers,
    ):
        await answers.wait_head()
        await until(lambda: any(each.is_full for each in worker.runtime.workers[0].server.calls))
        messages = [message async for message in answers]
    assert chunks_of(messages) == chunks


ENDLESS = {"request_id": "r", "chunks": [[1], [2], [3]], "offsets_ms": [0, 0, 60_000]}


@pytest.mark.parametrize("stream", [True, False])
async def test_an_abort_ends_a_scripted_answer_with_what_it_has(tmp_path, stream):
    async with scripted(tmp_path, ENDLESS) as worker:
        await abort_in_mid_answer(worker, stream=stream)


async def abort_in_mid_answer(worker: Running, *, stream: bool) -> None:
    messages: list[pb.GenerateResponse] = []
    with trio.fail_after(5):
        async with trio.open_nursery() as clients:

            async def ask() -> None:
                messages.extend(await worker.generate(generate_request(stream=stream, n=2)))

            clients.start_soon(ask)
            await until(lambda: worker.in_flight == 1)
            await wait_all_tasks_blocked(0.05)
            reply = await worker.call("Abort", pb.AbortRequest(request_id="r"))
            assert reply.success
    completes = [each.complete for each in messages if each.HasField("complete")]
    assert [complete.finish_reason for complete in completes] == ["abort", "abort"]
    assert {complete.index for complete in completes} == {0, 1}
    assert chunks_of(messages) == ([[1], [2]] if stream else [])
    assert [list(complete.output_ids) for complete in completes] == [[1, 2], [1, 2]]


@pytest.mark.parametrize("stream", [True, False])
async def test_an_abort_finds_what_is_scripted_over_an_upstream(tmp_path, stream):
    async with running(config_of(engine=CannedConfig(token_ms=5))) as below:
        engine = UpstreamEngine(f"grpc://{below.runtime.addresses[0]}")
        config = script_config(tmp_path, ENDLESS)
        async with running(config, engine=engine) as worker:
            await abort_in_mid_answer(worker, stream=stream)
            reply = await worker.call("Abort", pb.AbortRequest(request_id="never"))
            assert (reply.success, reply.message) == (
                False, "no request with this id is in flight",
            )  # fmt: skip
            # What is not scripted is found by the upstream.
            request = generate_request(request_id="other", max_new_tokens=10_000)
            async with worker.channel.stream(GENERATE, request) as answers:
                await answers.receive()
                reply = await worker.call("Abort", pb.AbortRequest(request_id="other"))
                assert reply.success
                *_, last = [message async for message in answers]
            assert last.complete.finish_reason == "abort"
            assert below.in_flight == 0


async def test_an_abort_of_a_scripted_answer_needs_no_upstream(tmp_path):
    engine = UpstreamEngine("grpc://127.0.0.1:1")
    async with running(script_config(tmp_path, ENDLESS), engine=engine) as worker:
        await abort_in_mid_answer(worker, stream=True)
        with pytest.raises(UnavailableError):
            await worker.call("Abort", pb.AbortRequest(request_id="other"))


async def test_workers_of_a_process_share_the_uses_and_the_engine_that_was_given(tmp_path):
    lines = [
        {"request_id": "*", "chunks": [[1]], "times": 1},
        {"request_id": "*", "chunks": [[2]], "times": 1},
    ]
    config = script_config(tmp_path, *lines, grpc_count=2)
    engine = CannedEngine(Model(), CannedConfig(output_tokens=1))
    got = []
    async with open_runtime(config, engine=engine) as runtime:
        for number in (0, 1, 1):
            async with (
                open_channel(runtime.addresses[number]) as channel,
                channel.stream(GENERATE, generate_request()) as answers,
            ):
                got += [list((await answers.receive()).chunk.token_ids)]
    assert got == [[1], [2], [100]]


async def test_a_scripted_request_counts_as_running(tmp_path):
    async with scripted(tmp_path, ENDLESS) as worker:
        async with worker.channel.stream(GENERATE, generate_request()) as answers:
            await answers.receive()
            loads = (await worker.call("GetLoads", pb.GetLoadsRequest())).loads[0]
            assert loads.num_running_reqs == 1
        await until(lambda: worker.in_flight == 0)
        loads = (await worker.call("GetLoads", pb.GetLoadsRequest())).loads[0]
        assert loads.num_running_reqs == 0


async def test_a_wrong_script_stops_the_start_with_file_line_and_reason(tmp_path):
    config = script_config(
        tmp_path,
        {"request_id": "r", "chunks": [[1]]},
        {"request_id": "s", "chunks": [[1], [2]], "offsets_ms": [2, 1]},
        {"request_id": "t", "chunks": [[1]], "delay": 1},
    )
    with pytest.raises(ConfigError) as caught:
        async with open_runtime(config):
            raise AssertionError("it started")
    path = config.worker.script
    assert caught.value.problems == (
        f"{path}:2: offsets_ms[1]: goes down",
        f"{path}:3: delay: is not a key of a script",
    )
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        async with open_runtime(config_of(script=str(tmp_path / "missing"))):
            raise AssertionError("it started")
