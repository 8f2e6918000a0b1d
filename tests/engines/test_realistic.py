from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from purerpc.grpclib.exceptions import ResourceExhaustedError
from trio.testing import MockClock, wait_all_tasks_blocked

from replay._proto import common_pb2 as common
from replay.config.engines import RealisticConfig
from replay.engines.base import Engine, Model
from replay.engines.kv_events import CacheCleared
from replay.engines.read_prompt import BURST_PROMPT_TOKENS
from replay.engines.realistic import MAX_BEHIND_SECONDS, RealisticEngine
from replay.errors import ConfigError
from tests.engines.fake_answer import FakeAnswer
from tests.engines.requests import generation

#: Passes of round numbers: 10 ms for a prompt, 5 ms for a token.
ROUND = {"prefill_poly": (10.0, 0.0, 0.0), "decode_poly": (5.0, 0.0, 0.0)}


@asynccontextmanager
async def running(model: Model | None = None, **config: Any) -> AsyncIterator[RealisticEngine]:
    engine = RealisticEngine(model or Model(), RealisticConfig(**config))
    typed: Engine = engine
    async with trio.open_nursery() as tasks:
        await tasks.start(typed.run)
        yield engine
        tasks.cancel_scope.cancel()


async def answered(engine: RealisticEngine, **request: Any) -> FakeAnswer:
    wanted = generation(**request)
    answer = FakeAnswer(wanted.choices)
    await engine.generate(wanted, answer)
    return answer


async def test_a_lone_prompt_has_its_first_token_when_the_model_says(
    autojump_clock: MockClock,
) -> None:
    async with running() as engine:
        start = trio.current_time()
        answer = await answered(engine, prompt=range(4096), max_new_tokens=3)
    first, second, third = (when - start for when in answer[0].times)
    assert first * 1000 == pytest.approx(
        16.50142 + 1.518344e-2 * 4096 + 4.209989e-7 * 4096**2, abs=1e-6
    )
    use = 4097 / 524288
    assert (second - first) * 1000 == pytest.approx(5.74 + 54.01 * use - 25.74 * use**2)
    assert third - second > second - first
    assert answer[0].ended_at == answer[0].times[-1]


@pytest.mark.parametrize(("age", "left"), [(0.003, 0.007), (0.5, 0.010)])
async def test_the_time_of_a_request_begins_with_its_arrival_unless_it_was_held(
    autojump_clock: MockClock, age: float, left: float
) -> None:
    async with running(**ROUND) as engine:
        await trio.sleep(1)
        start, wanted, answer = trio.current_time(), generation(max_new_tokens=1), FakeAnswer()
        wanted.arrival = start - age
        await engine.generate(wanted, answer)
    assert answer[0].times == pytest.approx([start + left])


async def test_speedup_divides_every_duration(autojump_clock: MockClock) -> None:
    async with running(**ROUND, speedup=4, request_overhead_ms=8) as engine:
        start = trio.current_time()
        answer = await answered(engine, max_new_tokens=2)
    assert [when - start for when in answer[0].times] == pytest.approx([0.0045, 0.00575])


async def test_the_request_overhead_comes_once_and_shifts_the_whole_stream(
    autojump_clock: MockClock,
) -> None:
    async with running(**ROUND, request_overhead_ms=7) as engine:
        start = trio.current_time()
        first = await answered(engine, max_new_tokens=3)
        again = await answered(engine, max_new_tokens=1)
    assert [when - start for when in first[0].times] == pytest.approx([0.017, 0.022, 0.027])
    assert again[0].ended_at == pytest.approx(start + 0.027 + 0.017)


async def test_a_pass_serves_all_streams_at_once(autojump_clock: MockClock) -> None:
    async with running(**ROUND) as engine, trio.open_nursery() as requests:
        answers = [FakeAnswer() for _ in range(5)]
        for answer in answers:
            requests.start_soon(engine.generate, generation(max_new_tokens=4), answer)
    assert len({tuple(answer[0].times[1:]) for answer in answers}) == 1


async def test_delays_of_the_loop_do_not_add_up(mock_clock: MockClock) -> None:
    answer = FakeAnswer()
    async with running(**ROUND) as engine, trio.open_nursery() as requests:
        requests.start_soon(engine.generate, generation(max_new_tokens=5), answer)
        await wait_all_tasks_blocked()
        mock_clock.jump(0.027)  # due were 10, 15, 20 and 25
        await wait_all_tasks_blocked()
        assert len(answer[0].ids) == 4
        mock_clock.jump(0.0031)
        await wait_all_tasks_blocked()
        assert answer[0].reason == "length"


async def test_a_loop_that_slept_does_not_catch_up(mock_clock: MockClock) -> None:
    answer = FakeAnswer()
    async with running(**ROUND) as engine, trio.open_nursery() as requests:
        requests.start_soon(engine.generate, generation(max_new_tokens=5), answer)
        await wait_all_tasks_blocked()
        mock_clock.jump(MAX_BEHIND_SECONDS + 1)
        await wait_all_tasks_blocked()
        assert len(answer[0].ids) == 1
        requests.cancel_scope.cancel()


async def test_a_shared_prefix_is_said_to_be_cached(autojump_clock: MockClock) -> None:
    async with running() as engine:
        first = await answered(engine, prompt=range(100))
        second = await answered(engine, prompt=range(100))
    assert (first.cached_tokens, second.cached_tokens) == (0, 96)


async def test_each_choice_has_its_tokens_and_its_end(autojump_clock: MockClock) -> None:
    async with running() as engine:
        answer = await answered(engine, n=3, sampling_seed=1, max_new_tokens=6)
    assert len({tuple(answer[index].ids) for index in range(3)}) == 3
    assert [answer[index].reason for index in range(3)] == ["length"] * 3


@pytest.mark.parametrize(("keep", "ids"), [(False, [100, 101]), (True, [100, 101, 102])])
async def test_a_stop_id_is_generated_even_if_it_is_cut_off(
    autojump_clock: MockClock, keep: bool, ids: list[int]
) -> None:
    async with running(**ROUND) as engine:
        start = trio.current_time()
        answer = await answered(engine, stop_token_ids=[102], no_stop_trim=keep)
    assert (answer[0].ids, answer[0].reason, answer[0].matched) == (ids, "stop", 102)
    assert answer[0].ended_at == pytest.approx(start + 0.020)


async def test_no_token_asked_for_is_only_an_end(autojump_clock: MockClock) -> None:
    async with running() as engine:
        answer = await answered(engine, max_new_tokens=0)
    assert (answer[0].chunks, answer[0].reason) == ([], "length")


async def test_a_prompt_without_ids_is_answered(autojump_clock: MockClock) -> None:
    async with running() as engine:
        answer = await answered(engine, prompt=())
    assert len(answer[0].ids) == 8


async def test_accepted_drafts_come_in_one_chunk_and_are_counted(
    autojump_clock: MockClock,
) -> None:
    async with running(spec_draft_tokens=2, spec_acceptance=0.5) as engine:
        answer = await answered(engine, max_new_tokens=5)
    assert [ids for _, ids in answer[0].chunks] == [(100,), (101, 102), (103, 104)]
    assert answer[0].spec == (2, 4)


async def test_what_exceeds_the_pool_is_refused_at_once(autojump_clock: MockClock) -> None:
    async with running(kv_blocks=4, block_size=4) as engine:
        with pytest.raises(ResourceExhaustedError, match="17 prompt tokens and 1 more never fit"):
            await answered(engine, prompt=range(17), max_new_tokens=1)
        with pytest.raises(ResourceExhaustedError):
            await answered(engine, prompt=range(5), max_new_tokens=13)
        assert (engine.loads().running, engine.loads().waiting) == (0, 0)
        await answered(engine, prompt=range(5), max_new_tokens=12)


async def test_an_overload_queues_and_ends(autojump_clock: MockClock) -> None:
    """Twice as many prompts as the pool holds: some wait, some are preempted, all finish."""
    answers = [FakeAnswer() for _ in range(16)]
    async with running(kv_blocks=40, block_size=4) as engine, trio.open_nursery() as requests:
        for number, answer in enumerate(answers):
            prompt = range(number * 100, number * 100 + 16)
            requests.start_soon(engine.generate, generation(prompt, max_new_tokens=24), answer)
        await trio.sleep(0.1)
        loads = engine.loads()
        assert loads.waiting >= 1
        assert loads.waiting_uncached_tokens > 0
    assert [len(answer[0].ids) for answer in answers] == [24] * 16


async def test_a_cancelled_request_frees_its_place_at_once(autojump_clock: MockClock) -> None:
    async with running(**ROUND, max_running=1) as engine:
        with trio.move_on_after(0.052):
            await answered(engine, max_new_tokens=1000)
        assert (engine.loads().running, engine.loads().used_tokens) == (0, 0)
        start = trio.current_time()
        await answered(engine, max_new_tokens=1)
        assert trio.current_time() - start < 0.016  # the rest of a pass, and one of its own


async def test_a_request_that_is_cancelled_while_it_waits_is_gone(
    autojump_clock: MockClock,
) -> None:
    async with running(**ROUND, max_running=1) as engine, trio.open_nursery() as requests:
        requests.start_soon(answered_in(engine, max_new_tokens=20), FakeAnswer())
        await trio.sleep(0.001)
        with trio.move_on_after(0.03):
            await answered(engine)
        assert (engine.loads().running, engine.loads().waiting) == (1, 0)


def answered_in(engine: RealisticEngine, **request: Any) -> Any:
    async def answer_with(answer: FakeAnswer) -> None:
        await engine.generate(generation(**request), answer)

    return answer_with


async def test_an_answer_that_raises_ends_its_own_request_only(autojump_clock: MockClock) -> None:
    class Broken(FakeAnswer):
        def tokens(self, ids: object, index: int = 0) -> None:
            raise ValueError("broken")

    other = FakeAnswer()
    async with running() as engine, trio.open_nursery() as requests:
        requests.start_soon(engine.generate, generation(), other)
        with pytest.raises(ValueError, match="broken"):
            await engine.generate(generation(n=2), Broken(2))
        assert engine.loads().running == 1
    assert other[0].reason == "stop"


async def test_loads_are_what_the_streams_saw(autojump_clock: MockClock) -> None:
    answers = [FakeAnswer() for _ in range(8)]
    async with running(max_running=6) as engine, trio.open_nursery() as requests:
        for number, answer in enumerate(answers):
            prompt = range(number * 1000, number * 1000 + 100 + number)
            requests.start_soon(engine.generate, generation(prompt, max_new_tokens=50), answer)
        for _ in range(20):
            await trio.sleep(0.0201)
            loads = engine.loads()
            going = [
                (number, answer[0])
                for number, answer in enumerate(answers)
                if answer[0].chunks and answer[0].reason is None
            ]
            unfinished = sum(answer[0].reason is None for answer in answers)
            assert loads.running == min(6, unfinished)
            assert loads.waiting == max(0, unfinished - 6)
            assert loads.used_tokens == sum(100 + n + len(choice.ids) for n, choice in going)
            assert loads.active_token_usage == loads.used_tokens / 524288
    assert engine.loads().used_tokens == 0


async def test_a_long_prompt_gives_others_a_turn() -> None:
    model = Model(context_length=10_000_000)
    engine = RealisticEngine(model, RealisticConfig(kv_tokens=10_000_000))
    turns = 0
    async with trio.open_nursery() as tasks:

        async def count() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        tasks.start_soon(count)
        tasks.start_soon(engine.generate, generation(range(10 * BURST_PROMPT_TOKENS)), FakeAnswer())
        while not engine.loads().waiting:
            await trio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert turns >= 5


async def test_flushing_empties_the_cache_and_tells_of_it(autojump_clock: MockClock) -> None:
    async with running() as engine:
        await answered(engine, prompt=range(100))
        flushed = await engine.flush_cache(common.FlushCacheRequest())
        again = await answered(engine, prompt=range(100))
    assert flushed.success
    assert again.cached_tokens == 0
    assert engine.kv_events.after(1, 1)[0].events == [CacheCleared()]


@pytest.mark.parametrize(("timeout", "success"), [(0.0, False), (0.01, False), (1.0, True)])
async def test_a_flush_waits_for_what_runs_as_long_as_it_was_told(
    autojump_clock: MockClock, timeout: float, success: bool
) -> None:
    async with running(**ROUND) as engine, trio.open_nursery() as requests:
        requests.start_soon(answered_in(engine, max_new_tokens=20), FakeAnswer())
        await trio.sleep(0.05)
        response = await engine.flush_cache(common.FlushCacheRequest(timeout_s=timeout))
    assert response.success == success


async def test_without_a_prefix_cache_there_is_nothing_to_flush_or_to_tell() -> None:
    engine = RealisticEngine(Model(), RealisticConfig(prefix_cache=False))
    assert engine.methods() == {}
    assert set(RealisticEngine(Model()).methods()) == {"FlushCache", "SubscribeKvEvents"}


async def test_listeners_hear_of_comings_and_goings(autojump_clock: MockClock) -> None:
    heard: list[tuple[int, int]] = []
    async with running(**ROUND, max_running=1) as engine:

        def listen() -> None:
            loads = engine.loads()
            heard.append((loads.running, loads.waiting))

        with engine.kv_events.listening(listen):
            async with trio.open_nursery() as requests:
                requests.start_soon(answered_in(engine, max_new_tokens=2), FakeAnswer())
                await trio.sleep(0.001)
                requests.start_soon(answered_in(engine, max_new_tokens=2), FakeAnswer())
    assert heard == [(0, 1), (1, 1), (0, 1), (1, 0), (0, 0)]


def test_check_is_the_common_validation() -> None:
    engine = RealisticEngine(Model())
    assert engine.check(generation(top_p=2.0).message) is not None
    assert engine.check(generation().message) is None


async def test_a_calibration_file_gives_timing_and_overhead(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    path = tmp_path / "fit.json"
    path.write_text('{"prefill_ms": [20, 0, 0], "decode_ms": [3, 0, 0], "request_overhead_ms": 2}')
    for overhead, first in ((0.0, 0.022), (5.0, 0.025)):
        config = {"timing": f"fit:{path}", "request_overhead_ms": overhead}
        async with running(**config) as engine:
            start = trio.current_time()
            answer = await answered(engine, max_new_tokens=2)
        assert [t - start for t in answer[0].times] == pytest.approx([first, first + 0.003])


async def test_linear_timing_can_be_chosen(autojump_clock: MockClock) -> None:
    async with running(timing="linear") as engine:
        start = trio.current_time()
        answer = await answered(engine, prompt=range(80), max_new_tokens=2)
    assert [t - start for t in answer[0].times] == pytest.approx([0.010, 0.01635])


@pytest.mark.parametrize("text", [None, "{}"])
def test_a_calibration_file_that_cannot_be_used_stops_the_start(
    tmp_path: Path, text: str | None
) -> None:
    path = tmp_path / "fit.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=r"fit\.json: "):
        RealisticEngine(Model(), RealisticConfig(timing=f"fit:{path}"))
