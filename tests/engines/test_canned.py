import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from replay.config.engines import CannedConfig
from replay.engines.base import Engine, Model
from replay.engines.canned import BURST_TOKENS, CannedEngine
from replay.engines.pass_grid import MAX_LATENESS_SECONDS
from tests.engines.fake_answer import FakeAnswer
from tests.engines.requests import generation

LONG = Model(context_length=100_000)


def engine_of(model: Model | None = None, **config: float) -> CannedEngine:
    engine = CannedEngine(model or Model(), CannedConfig(**config))
    typed: Engine = engine
    assert typed.methods() == {}
    return engine


async def test_without_waits_an_answer_is_whole_at_once() -> None:
    answer = FakeAnswer()
    await engine_of().generate(generation(), answer)
    assert answer.whole_calls == 1
    assert answer[0].ids == list(range(100, 108))
    assert (answer[0].reason, answer[0].matched) == ("stop", None)


async def test_the_matched_id_reaches_the_answer() -> None:
    whole, paced = FakeAnswer(), FakeAnswer(2)
    await engine_of().generate(generation(stop_token_ids=[102]), whole)
    await engine_of().generate(generation(stop_token_ids=[102], n=2), paced)
    assert [c.matched for c in (whole[0], paced[0], paced[1])] == [102] * 3


async def test_no_token_is_only_an_end() -> None:
    answer = FakeAnswer()
    await engine_of().generate(generation(max_new_tokens=0), answer)
    assert (answer[0].chunks, answer[0].reason) == ([], "length")


async def test_each_of_n_drawn_choices_has_its_own_tokens_and_end() -> None:
    answer = FakeAnswer(3)
    await engine_of().generate(generation(n=3, sampling_seed=4, max_new_tokens=5), answer)
    assert len({tuple(answer[index].ids) for index in range(3)}) == 3
    assert [answer[index].reason for index in range(3)] == ["length"] * 3


async def test_the_engines_seed_changes_the_tokens() -> None:
    plain, seeded = FakeAnswer(), FakeAnswer()
    await engine_of().generate(generation(), plain)
    await engine_of(seed=1).generate(generation(), seeded)
    assert plain[0].ids != seeded[0].ids


async def test_a_long_answer_waits_for_the_client_to_read() -> None:
    answer = FakeAnswer()
    answer.gate = trio.Event()
    engine = engine_of(LONG)
    async with trio.open_nursery() as requests:
        requests.start_soon(engine.generate, generation(max_new_tokens=BURST_TOKENS + 1), answer)
        await wait_all_tasks_blocked()
        assert not answer[0].chunks
        assert engine.loads().running == 1
        answer.gate.set()
    assert len(answer[0].chunks) == BURST_TOKENS + 1
    assert answer.room_calls == 2
    assert engine.loads().running == 0


async def test_a_long_answer_gives_others_a_turn() -> None:
    long, short = FakeAnswer(), FakeAnswer()
    engine = engine_of(LONG)
    async with trio.open_nursery() as requests:
        requests.start_soon(engine.generate, generation(max_new_tokens=50_000), long)
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        await engine.generate(generation(), short)
        assert short[0].reason == "stop"
        assert long[0].reason is None
    assert len(long[0].ids) == 50_000


async def test_a_client_that_does_not_stream_gets_long_answers_in_large_pieces() -> None:
    answer = FakeAnswer()
    await engine_of(LONG).generate(generation(max_new_tokens=2000, stream=False), answer)
    assert len(answer[0].ids) == 2000
    assert len(answer[0].chunks) == 4


async def test_gen_ms_passes_once_before_the_first_token(autojump_clock: MockClock) -> None:
    answer = FakeAnswer(2)
    start = trio.current_time()
    await engine_of(gen_ms=200).generate(generation(n=2), answer)
    times = [when - start for index in range(2) for when in answer[index].times]
    assert times == [pytest.approx(0.2)] * 16


async def test_paced_tokens_keep_their_due_times(autojump_clock: MockClock) -> None:
    engine = engine_of(gen_ms=30, token_ms=20)
    answers = [FakeAnswer() for _ in range(7)]
    begun = []
    async with trio.open_nursery() as tasks:
        await tasks.start(engine.run)
        async with trio.open_nursery() as requests:
            for answer in answers:
                begun.append(trio.current_time())
                requests.start_soon(engine.generate, generation(max_new_tokens=50), answer)
                await trio.sleep(0.0031)
        tasks.cancel_scope.cancel()
    for start, answer in zip(begun, answers, strict=True):
        assert len(answer[0].chunks) == 50
        for number, when in enumerate(answer[0].times):
            lateness = when - start - 0.03 - number * 0.02
            assert -1e-6 <= lateness <= MAX_LATENESS_SECONDS + 1e-6
        assert answer[0].ended_at == answer[0].times[-1]


async def test_paced_choices_advance_together(autojump_clock: MockClock) -> None:
    engine = engine_of(token_ms=5)
    answer = FakeAnswer(2)
    async with trio.open_nursery() as tasks:
        await tasks.start(engine.run)
        request = generation(n=2, max_new_tokens=4, stop_token_ids=[102])
        await engine.generate(request, answer)
        tasks.cancel_scope.cancel()
    assert answer[0] == answer[1]
    assert len(answer[0].chunks) == 2


async def test_a_stream_that_is_due_earlier_wakes_the_engine(autojump_clock: MockClock) -> None:
    slow, soon = FakeAnswer(), FakeAnswer()
    engine = engine_of(token_ms=1000)
    async with trio.open_nursery() as tasks:
        await tasks.start(engine.run)
        tasks.start_soon(engine.generate, generation(), slow)
        await trio.sleep(0.1)
        with trio.fail_after(0.006):
            await engine.generate(generation(max_new_tokens=1), soon)
        tasks.cancel_scope.cancel()


async def test_an_idle_engine_runs_no_timer(autojump_clock: MockClock) -> None:
    engine = engine_of(token_ms=5)
    async with trio.open_nursery() as tasks:
        await tasks.start(engine.run)
        await engine.generate(generation(), FakeAnswer())
        await wait_all_tasks_blocked()
        statistics = trio.lowlevel.current_statistics()
        assert statistics.seconds_to_next_deadline == float("inf")
        tasks.cancel_scope.cancel()


async def test_a_cancelled_stream_is_gone_at_once(autojump_clock: MockClock) -> None:
    engine = engine_of(token_ms=10)
    cancelled, other = FakeAnswer(), FakeAnswer()
    async with trio.open_nursery() as tasks:
        await tasks.start(engine.run)
        with trio.move_on_after(0.1005):
            await engine.generate(generation(max_new_tokens=1000), cancelled)
        assert engine.loads().running == 0
        assert engine.loads().used_tokens == 0
        written = len(cancelled[0].chunks)
        assert 10 <= written <= 11
        await engine.generate(generation(max_new_tokens=50), other)
        assert len(cancelled[0].chunks) == written
        tasks.cancel_scope.cancel()
    assert len(other[0].chunks) == 50


async def test_an_answer_that_raises_ends_its_own_request_only(autojump_clock: MockClock) -> None:
    class Broken(FakeAnswer):
        def tokens(self, ids: object, index: int = 0) -> None:
            raise ValueError("broken")

    engine, other = engine_of(token_ms=5), FakeAnswer()
    async with trio.open_nursery() as tasks:
        await tasks.start(engine.run)
        tasks.start_soon(engine.generate, generation(), other)
        with pytest.raises(ValueError, match="broken"):
            await engine.generate(generation(), Broken())
        assert engine.loads().running == 1
        await trio.sleep(1)
        tasks.cancel_scope.cancel()
    assert other[0].reason == "stop"


async def test_loads_are_what_the_streams_saw(autojump_clock: MockClock) -> None:
    engine = engine_of(token_ms=5)
    answers = [FakeAnswer(), FakeAnswer(2)]
    async with trio.open_nursery() as tasks:
        await tasks.start(engine.run)
        tasks.start_soon(engine.generate, generation(range(10), max_new_tokens=400), answers[0])
        tasks.start_soon(engine.generate, generation(range(7), max_new_tokens=400, n=2), answers[1])
        await trio.sleep(1.0001)
        loads = engine.loads()
        seen = sum(len(choice.ids) for a in answers for choice in a.choices.values())
        assert (loads.running, loads.waiting) == (2, 0)
        assert loads.used_tokens == 17 + seen
        assert 0 < loads.token_usage < 0.001
        assert loads.throughput == pytest.approx(seen / 5)
        await trio.sleep(10)
        assert engine.loads().used_tokens == 0
        assert engine.loads().throughput == 0
        tasks.cancel_scope.cancel()


async def test_a_pass_over_many_streams_gives_others_a_turn(mock_clock: MockClock) -> None:
    engine = engine_of(gen_ms=10, token_ms=5)
    answers = [FakeAnswer() for _ in range(3 * BURST_TOKENS)]
    async with trio.open_nursery() as tasks:
        await tasks.start(engine.run)
        async with trio.open_nursery() as requests:
            for answer in answers:
                requests.start_soon(engine.generate, generation(max_new_tokens=1), answer)
            await wait_all_tasks_blocked()
            mock_clock.jump(1)
            counts = set()
            while len(answers) not in counts:
                await trio.lowlevel.checkpoint()
                counts.add(sum(answer[0].reason is not None for answer in answers))
        tasks.cancel_scope.cancel()
    assert counts & {BURST_TOKENS, 2 * BURST_TOKENS}


def test_check_is_the_common_validation() -> None:
    assert engine_of().check(generation(top_p=2.0).message) is not None
    assert engine_of().check(generation().message) is None
