"""Runs against real workers over real sockets."""

from array import array
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from replay.config.engines import CannedConfig
from replay.config.model import Config, ShutdownConfig, WorkerConfig
from replay.player.arrival import Arrival, BlockPrompt, Parameters, TokenPrompt
from replay.player.compare import Side, compare
from replay.player.feed import ReadAhead
from replay.player.grpc_target import open_grpc_target
from replay.player.observation import Observation, Outcome
from replay.player.play import Player, PlaySettings
from replay.player.schedule import constant, original
from replay.player.targets import TargetError
from replay.player.traces.opening import Source
from replay.runtime import open_runtime

MS = 1_000_000


def config(**engine: Any) -> Config:
    canned = CannedConfig(**engine)
    return Config(
        worker=WorkerConfig(grpc_base_port=0, engine=canned),
        shutdown=ShutdownConfig(grace_seconds=0),
    )


def arrival(number: int, **values: Any) -> Arrival:
    defaults: dict[str, Any] = {
        "request_id": f"r{number}",
        "offset_ns": number * 2 * MS,
        "prompt": TokenPrompt(array("I", (10, 20, 30 + number))),
        "parameters": Parameters(max_new_tokens=4, sampling_seed=number),
        "stream": True,
    }
    return Arrival(position=number, **(defaults | values))


async def play(address: str, arrivals: list[Arrival], **settings: Any) -> list[Observation]:
    results: list[Observation] = []
    async with open_grpc_target(address) as target:
        model = await target.describe()
        player = Player(
            target,
            ReadAhead(original(arrivals)),
            vocab_size=model.vocab_size,
            settings=PlaySettings(**settings),
            on_result=results.append,
        )
        with trio.fail_after(30):
            await player.run(stop=trio.Event(), quit_now=trio.Event())
    return sorted(results, key=lambda each: each.position)


async def test_a_worker_says_what_model_it_has() -> None:
    async with open_runtime(config()) as runtime, open_grpc_target(runtime.addresses[0]) as target:
        model = await target.describe()
    assert (model.name, model.vocab_size) == ("mock-model", 32768)
    assert model.context_length is not None


async def test_nobody_at_an_address_is_one_line_that_names_it() -> None:
    async with open_grpc_target("grpc://127.0.0.1:1") as target:
        with pytest.raises(TargetError, match=r"127\.0\.0\.1:1: UNAVAILABLE"):
            await target.describe()


async def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(TargetError, match="nonsense"):
        async with open_grpc_target("nonsense"):
            raise AssertionError


async def test_answers_are_the_workers_and_are_measured() -> None:
    async with open_runtime(config(gen_ms=20, token_ms=5)) as runtime:
        streamed, whole, many = await play(
            runtime.addresses[0],
            [
                arrival(0),
                arrival(1, stream=False),
                arrival(2, parameters=Parameters(max_new_tokens=3, n=2)),
            ],
        )
    assert {each.outcome for each in (streamed, whole, many)} == {Outcome.COMPLETE}
    assert (streamed.prompt_tokens, streamed.output_tokens) == (3, 4)
    assert streamed.ttft_ns is not None
    assert streamed.ttft_ns >= 20 * MS
    assert len(streamed.itl_ns or ()) == 3
    assert streamed.e2e_ns is not None
    assert streamed.e2e_ns >= 35 * MS
    # Without a stream no first token is seen, and none is made up.
    assert (whole.ttft_ns, whole.chunk_offsets_ns) == (None, None)
    assert len(whole.choices[0].token_ids or ()) == 4
    assert [choice.index for choice in many.choices] == [0, 1]
    assert [choice.output_tokens for choice in many.choices] == [3, 3]


async def test_zero_tokens_is_a_complete_answer_without_a_first_token() -> None:
    async with open_runtime(config()) as runtime:
        [found] = await play(
            runtime.addresses[0], [arrival(0, parameters=Parameters(max_new_tokens=0))]
        )
    assert found.outcome is Outcome.COMPLETE
    assert (found.output_tokens, found.ttft_ns, found.tpot_ns) == (0, None, None)


async def test_a_refused_request_fails_with_the_name_of_its_status() -> None:
    async with open_runtime(config()) as runtime:
        [found] = await play(
            runtime.addresses[0], [arrival(0, parameters=Parameters(temperature=-1.0))]
        )
    assert (found.outcome, found.error) == (Outcome.ERROR, "INVALID_ARGUMENT")


async def test_a_recorded_cancellation_takes_the_request_back() -> None:
    recorded = Observation(request_id="r0", outcome=Outcome.CANCELLED, end_offset_ns=50 * MS)
    async with open_runtime(config(gen_ms=10, token_ms=20)) as runtime:
        endless = Parameters(max_new_tokens=10_000)
        [found] = await play(
            runtime.addresses[0], [arrival(0, parameters=endless, recorded=recorded)]
        )
        scheduler = runtime.workers[0].scheduler
        with trio.fail_after(5):
            while scheduler.in_flight:
                await trio.lowlevel.checkpoint()
    assert found.outcome is Outcome.CANCELLED
    assert 1 <= found.output_tokens < 10
    assert found.end_offset_ns == pytest.approx(50 * MS, abs=40 * MS)


async def test_blocks_arrive_as_prompts_that_share_exactly_their_blocks(tmp_path: Path) -> None:
    """And what arrived, the worker's own capture, is played again as it was."""
    worker = attrs.evolve(config().worker, capture=str(tmp_path / "capture.jsonl"))
    blocks = [
        BlockPrompt(hash_ids=(1, 2, last), length=48, block_size=16, own=last) for last in (3, 4)
    ]
    async with open_runtime(attrs.evolve(config(), worker=worker)) as runtime:
        made_up = [arrival(at, prompt=each) for at, each in enumerate(blocks)]
        before = await play(runtime.addresses[0], made_up)
        with Source(tmp_path / "capture.jsonl") as source:
            captured = [attrs.evolve(each, offset_ns=0) for each in source.arrivals()]
        after = await play(runtime.addresses[0], captured)
    prompts = {each.request_id: each.prompt for each in captured}
    first, second = prompts["r0"], prompts["r1"]
    assert isinstance(first, TokenPrompt)
    assert isinstance(second, TokenPrompt)
    assert first.ids[:32] == second.ids[:32]
    assert first.ids[32] != second.ids[32]
    assert [each.filled for each in before] == [("prompt",)] * 2
    assert [each.filled for each in after] == [()] * 2
    # Both are sent at once, so either may end first.
    assert {each.request_id: each.choices for each in before} == {
        each.request_id: each.choices for each in after
    }


async def test_a_run_against_the_same_worker_again_differs_in_nothing() -> None:
    arrivals = [arrival(at) for at in range(60)]
    async with open_runtime(config(gen_ms=5, token_ms=1)) as runtime:
        runs = [await play(runtime.addresses[0], arrivals) for _ in range(3)]
    sides = [
        Side(name=str(at), observations=run, measured_at="client") for at, run in enumerate(runs)
    ]
    comparison = compare(sides[0], sides[1], control=sides[2])
    assert not comparison.is_flagged
    assert [count.judged for count in comparison.counts[:4]] == [60] * 4


@pytest.mark.timed
async def test_another_seed_differs_at_the_first_token_and_twenty_milliseconds_are_seen() -> None:
    parameters = Parameters(max_new_tokens=4, temperature=1.0)
    arrivals = [arrival(at, parameters=parameters) for at in range(200)]
    async with (
        open_runtime(config(gen_ms=5, token_ms=1, seed=1)) as old,
        open_runtime(config(gen_ms=25, token_ms=1, seed=2)) as new,
    ):
        before, after = [await play(each.addresses[0], arrivals) for each in (old, new)]
    comparison = compare(
        Side(name="old", observations=before), Side(name="new", observations=after)
    )
    assert comparison.counts[0].differing == 200
    assert {row.answer.first_index for row in comparison.rows} == {0}
    differences = comparison.latencies.differences
    flagged = {each.metric for each in differences if each.is_flagged}
    assert flagged >= {"ttft"}


@pytest.mark.timed
async def test_hundreds_of_long_streams_delay_no_arrival() -> None:
    """More streams than one connection takes, and a limit on the server's side for each."""
    results: list[Observation] = []
    arrivals = [arrival(at, parameters=Parameters(max_new_tokens=2)) for at in range(1_100)]
    async with (
        open_runtime(config(gen_ms=2_000)) as runtime,
        open_grpc_target(runtime.addresses[0]) as target,
    ):
        player = Player(
            target,
            ReadAhead(constant(arrivals, rate=1_000.0)),
            vocab_size=1_000,
            settings=PlaySettings(),
            on_result=results.append,
        )
        with trio.fail_after(30):
            await player.run(stop=trio.Event(), quit_now=trio.Event())
    assert {each.outcome for each in results} == {Outcome.COMPLETE}
    delays = sorted(each.schedule_delay_ns or 0 for each in results)
    # Waiting for a place would have taken the two seconds of a stream.
    assert delays[len(delays) // 2] < 500 * MS
