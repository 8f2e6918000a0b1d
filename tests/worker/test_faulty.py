"""Faults over engines: on a clock of our own, and at a real worker."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import pytest
import trio
from purerpc.grpclib.exceptions import AbortedError, InternalError, UnavailableError
from trio.testing import MockClock, wait_all_tasks_blocked

from replay._proto import common_pb2 as common
from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.config.engines import CannedConfig, RealisticConfig
from replay.engines.base import Answer, Engine, Generation, Model
from replay.engines.canned import CannedEngine
from replay.engines.methods import GENERATE, METHODS
from replay.engines.realistic import RealisticEngine
from replay.engines.script import ScriptEngine
from replay.engines.script_book import ScriptBook
from replay.engines.script_file import read_script
from replay.engines.upstream import UpstreamEngine
from replay.worker.faults import Admission, Failing, Stalling
from replay.worker.faulty import FaultyEngine
from tests.engines.fake_answer import FakeAnswer
from tests.engines.requests import generate_request, generation
from tests.worker.running import config_of, running, until

#: Passes of round numbers: 10 ms for a prompt, 5 ms for a token.
ROUND = {"prefill_poly": (10.0, 0.0, 0.0), "decode_poly": (5.0, 0.0, 0.0)}


@asynccontextmanager
async def over(below: Any) -> AsyncIterator[FaultyEngine]:
    faulty = FaultyEngine(below, below if isinstance(below, RealisticEngine) else None)
    typed: Engine = faulty
    async with trio.open_nursery() as tasks:
        await tasks.start(typed.run)
        yield faulty
        tasks.cancel_scope.cancel()


def canned(**config: Any) -> CannedEngine:
    return CannedEngine(Model(), CannedConfig(**config))


def realistic(**config: Any) -> RealisticEngine:
    return RealisticEngine(Model(), RealisticConfig(**ROUND, **config))


def scripted() -> ScriptEngine:
    line = b'{"request_id": "*", "chunks": [[100], [101]], "offsets_ms": [10, 15]}'
    return ScriptEngine(canned(), ScriptBook(read_script([line]).choices))


class ScriptedAnswer(FakeAnswer):
    """An answer whose end is forwarded."""

    def forward(self, response: pb.GenerateResponse, packed: bytes | None = None) -> None:
        self.finish(response.complete.finish_reason)


async def answered(engine: Engine, **request: Any) -> FakeAnswer:
    wanted = generation(**request)
    answer = FakeAnswer(wanted.choices)
    await engine.generate(wanted, answer)
    return answer


@pytest.mark.parametrize("below", [canned, realistic])
async def test_without_faults_nothing_changes(autojump_clock: MockClock, below: Any) -> None:
    async with over(below()) as engine:
        answer = await answered(engine, max_new_tokens=4)
        assert (answer[0].ids, answer[0].reason) == ([100, 101, 102, 103], "length")
        assert engine.loads().running == engine.loads().waiting == 0


@pytest.mark.parametrize("below", [canned, realistic])
async def test_so_many_requests_fail_before_the_engine_is_asked(
    autojump_clock: MockClock, below: Any
) -> None:
    async with over(below()) as engine:
        engine.set_failing(Failing(code="UNAVAILABLE", message="by design", requests=2))
        for _ in range(2):
            with pytest.raises(UnavailableError, match="by design"):
                await answered(engine)
        assert (await answered(engine))[0].reason == "stop"


@pytest.mark.parametrize("below", [canned, realistic, lambda: canned(token_ms=1)])
@pytest.mark.parametrize("count", [1, 3])
async def test_a_request_fails_after_so_many_tokens_and_frees_its_place(
    autojump_clock: MockClock, below: Any, count: int
) -> None:
    async with over(below()) as engine:
        engine.set_failing(Failing(code="ABORTED", after_tokens=count))
        answer = FakeAnswer()
        with pytest.raises(AbortedError):
            await engine.generate(generation(max_new_tokens=5), answer)
        assert (len(answer[0].ids), answer[0].reason) == (count, None)
        assert engine.loads().running == engine.loads().used_tokens == 0


async def test_a_fault_that_is_not_reached_is_none(autojump_clock: MockClock) -> None:
    async with over(canned()) as engine:
        engine.set_failing(Failing(code="ABORTED", after_tokens=6))
        assert (await answered(engine, max_new_tokens=5))[0].reason == "length"


async def test_requests_fail_for_so_long(autojump_clock: MockClock) -> None:
    async with over(canned()) as engine:
        engine.set_failing(Failing(code="INTERNAL", seconds=3))
        await trio.sleep(2.9)
        with pytest.raises(InternalError):
            await answered(engine)
        await trio.sleep(0.2)
        await answered(engine)


@pytest.mark.parametrize("below", [canned, realistic, lambda: canned(token_ms=1)])
async def test_a_stalled_request_goes_on_when_the_fault_is_taken_back(
    autojump_clock: MockClock, below: Any
) -> None:
    async with over(below()) as engine, trio.open_nursery() as requests:
        engine.set_stalling(Stalling(after_tokens=2, requests=1))
        stalled = FakeAnswer()
        requests.start_soon(engine.generate, generation(max_new_tokens=5), stalled)
        await trio.sleep(60)
        assert (stalled[0].ids, stalled[0].reason) == ([100, 101], None)
        assert engine.loads().running == 1
        assert (await answered(engine))[0].reason == "stop"
        engine.set_stalling(None)
        assert (stalled[0].ids, stalled[0].reason) == ([100, 101, 102, 103, 104], "length")
    assert engine.loads().running == 0


async def test_a_stalled_request_can_be_cancelled(autojump_clock: MockClock) -> None:
    async with over(realistic()) as engine:
        engine.set_stalling(Stalling())
        with trio.move_on_after(60) as patience:
            await answered(engine)
        assert patience.cancelled_caught
        assert engine.loads().running == 0


async def test_requests_reach_the_engine_late_and_count_as_waiting(
    autojump_clock: MockClock,
) -> None:
    async with over(realistic()) as engine, trio.open_nursery() as requests:
        engine.set_admission(Admission(delay_ms=500))
        start, answer = trio.current_time(), FakeAnswer(2)
        requests.start_soon(engine.generate, generation(range(40), n=2, max_new_tokens=1), answer)
        await trio.sleep(0.4)
        loads = engine.loads()
        assert (loads.running, loads.waiting, loads.waiting_uncached_tokens) == (0, 2, 80)
    assert answer[1].ended_at == pytest.approx(start + 0.510)


async def test_requests_reach_the_engine_at_a_rate(autojump_clock: MockClock) -> None:
    async with over(canned()) as engine, trio.open_nursery() as requests:
        engine.set_admission(Admission(per_second=4))
        start, answers = trio.current_time(), [FakeAnswer() for _ in range(4)]
        for answer in answers:
            requests.start_soon(engine.generate, generation(), answer)
    ends = sorted(answer[0].ended_at or 0.0 for answer in answers)
    assert [end - start for end in ends] == pytest.approx([0, 0.25, 0.5, 0.75])


async def test_what_waits_for_admission_goes_on_when_the_fault_is_taken_back(
    autojump_clock: MockClock,
) -> None:
    async with over(canned()) as engine, trio.open_nursery() as requests:
        engine.set_admission(Admission(delay_ms=1e6))
        answer = FakeAnswer()
        requests.start_soon(engine.generate, generation(), answer)
        await trio.sleep(1)
        now = trio.current_time()
        engine.set_admission(None)
    assert answer[0].ended_at == now


async def test_what_waits_for_admission_is_admitted_as_the_fault_is_set_later(
    autojump_clock: MockClock,
) -> None:
    async with over(canned()) as engine, trio.open_nursery() as requests:
        engine.set_admission(Admission(delay_ms=1e6))
        answers = [FakeAnswer() for _ in range(3)]
        for answer in answers:
            requests.start_soon(engine.generate, generation(), answer)
            await wait_all_tasks_blocked()
        await trio.sleep(10)
        now = trio.current_time()
        engine.set_admission(Admission(per_second=4))
    assert sorted(answer[0].ended_at or 0 for answer in answers) == [now, now + 0.25, now + 0.5]


@pytest.mark.parametrize("below", [realistic, scripted])
@pytest.mark.parametrize("delay", [0.004, 1.0])
async def test_an_answer_keeps_its_pace_from_the_admission_on(
    autojump_clock: MockClock, below: Any, delay: float
) -> None:
    async with over(below()) as engine:
        engine.set_admission(Admission(delay_ms=delay * 1000))
        now = trio.current_time()
        wanted = generation(max_new_tokens=2, stream=False)
        wanted.arrival = now
        answer = ScriptedAnswer()
        await engine.generate(wanted, answer)
        assert answer[0].times == pytest.approx([now + delay + each for each in (0.010, 0.015)])


async def test_the_status_of_an_engine_comes_behind_what_it_has_said(
    autojump_clock: MockClock,
) -> None:
    class SaysAndFails(CannedEngine):
        async def generate(self, generation: Generation, answer: Answer) -> None:
            answer.tokens((1, 2))
            raise UnavailableError("gone")

    async with over(SaysAndFails(Model())) as engine, trio.open_nursery() as requests:
        engine.set_stalling(Stalling(after_tokens=1))
        answer, failures = FakeAnswer(), []

        async def one() -> None:
            try:
                await engine.generate(generation(), answer)
            except UnavailableError as error:
                failures.append((answer[0].ids, error.status.status_message))

        requests.start_soon(one)
        await wait_all_tasks_blocked()
        assert (answer[0].ids, failures) == ([1], [])
        engine.set_stalling(None)
    assert failures == [([1, 2], "gone")]


async def test_a_paused_simulator_begins_no_pass_and_requests_wait_in_its_queue(
    autojump_clock: MockClock,
) -> None:
    async with over(realistic()) as engine, trio.open_nursery() as requests:
        first, second = FakeAnswer(), FakeAnswer()
        requests.start_soon(engine.generate, generation(range(40), max_new_tokens=3), first)
        await trio.sleep(0.012)  # the prompt is done, and the second token under way
        engine.pause()
        requests.start_soon(engine.generate, generation(range(50), max_new_tokens=1), second)
        await trio.sleep(60)
        assert (len(first[0].ids), second[0].ids) == (1, [])
        loads = engine.loads()
        assert (loads.running, loads.waiting, loads.waiting_uncached_tokens) == (1, 1, 18)
        resumed = trio.current_time()
        engine.resume()
        assert len(first[0].ids) == 2  # of the pass that ended in the pause
    assert first[0].times[-1] - resumed == pytest.approx(0.015)  # a token and a prompt
    assert second[0].times == [first[0].times[-1]]


@pytest.mark.parametrize("below", [canned, lambda: canned(token_ms=1)])
async def test_a_paused_worker_holds_what_it_says_and_lets_nobody_in(
    autojump_clock: MockClock, below: Any
) -> None:
    async with over(below()) as engine, trio.open_nursery() as requests:
        engine.set_stalling(Stalling(after_tokens=1, requests=1))
        first, second = FakeAnswer(), FakeAnswer()
        requests.start_soon(engine.generate, generation(max_new_tokens=3), first)
        await trio.sleep(1)
        engine.pause()
        engine.set_stalling(None)
        requests.start_soon(engine.generate, generation(max_new_tokens=3), second)
        await trio.sleep(60)
        assert (len(first[0].ids), len(second[0].ids)) == (1, 0)
        assert (engine.loads().running, engine.loads().waiting) == (1, 1)
        engine.clear()
    assert (first[0].reason, second[0].reason) == ("length", "length")


async def test_subscribers_are_told_of_the_load_that_is_held_before_the_engine() -> None:
    below = RealisticEngine(Model(), RealisticConfig(speedup=100))
    engine = FaultyEngine(below, below)
    request = common.SubscribeKvEventsRequest(load_records_before_first_batch=True)
    async with (
        running(engine=engine) as worker,
        worker.channel.stream(METHODS["SubscribeKvEvents"], request) as records,
        trio.open_nursery() as requests,
    ):
        with trio.fail_after(5):
            assert (await records.receive()).load.waiting_requests == 0
            engine.set_admission(Admission(delay_ms=1e6))
            requests.start_soon(worker.generate, generate_request())
            while not (await records.receive()).load.waiting_requests:
                pass
            loads = await worker.call("GetLoads", pb.GetLoadsRequest())
            assert loads.loads[0].num_waiting_reqs == 1
            engine.clear()


async def test_an_abort_ends_what_is_stalled_and_what_waits() -> None:
    engine = FaultyEngine(canned())
    async with running(engine=engine) as worker:
        for hold in (
            lambda: engine.set_stalling(Stalling(after_tokens=1)),
            lambda: engine.set_admission(Admission(delay_ms=1e6)),
        ):
            engine.clear()
            hold()
            await _aborted(worker)


async def _aborted(worker: Any) -> None:
    with trio.fail_after(5):
        async with worker.channel.stream(GENERATE, generate_request(request_id="x")) as answers:
            await until(lambda: worker.in_flight)
            await wait_all_tasks_blocked(0.01)
            response = await worker.call("Abort", pb.AbortRequest(request_id="x"))
            assert response.success
            *_, last = [each async for each in answers]
    assert last.complete.finish_reason == "abort"
    assert worker.in_flight == 0


async def test_an_abort_ends_what_is_held_before_an_upstream_too() -> None:
    """That one has an Abort of its own, and never got to know the request."""
    async with running(config_of()) as below:
        upstream = UpstreamEngine(f"grpc://{below.runtime.addresses[0]}")
        engine = FaultyEngine(upstream)
        async with running(engine=engine) as worker:
            engine.set_admission(Admission(delay_ms=1e6))
            await _aborted(worker)
            engine.clear()
            engine.set_stalling(Stalling(after_tokens=1))
            await _aborted(worker)
            assert below.in_flight == 0
            response = await worker.call("Abort", pb.AbortRequest(request_id="nobody"))
            assert not response.success


async def test_a_request_that_fails_at_once_gets_no_headers_before_its_status() -> None:
    """A gateway may send it elsewhere, as long as nobody was told that there is an answer."""
    engine = FaultyEngine(canned())
    async with running(engine=engine) as worker:
        for after_tokens, failure in ((0, pytest.raises(UnavailableError)), (1, nullcontext())):
            engine.set_failing(Failing(code="UNAVAILABLE", after_tokens=after_tokens))
            async with worker.channel.stream(GENERATE, generate_request()) as answers:
                with failure:
                    await answers.wait_head()


async def test_what_is_held_has_its_headers_at_once() -> None:
    engine = FaultyEngine(canned())
    engine.set_admission(Admission(delay_ms=1e6))
    async with running(engine=engine) as worker:
        with trio.fail_after(5):
            async with worker.channel.stream(GENERATE, generate_request()) as answers:
                await answers.wait_head()
                engine.clear()


async def test_a_failure_in_mid_stream_reaches_the_client_behind_its_tokens() -> None:
    engine = FaultyEngine(canned())
    engine.set_failing(Failing(code="UNAVAILABLE", message="gone", after_tokens=2))
    async with (
        running(engine=engine) as worker,
        worker.channel.stream(GENERATE, generate_request(max_new_tokens=5)) as answers,
    ):
        seen = [(await answers.receive()).chunk.token_ids[:] for _ in range(2)]
        with pytest.raises(UnavailableError, match="gone"):
            await answers.receive()
    assert seen == [[100], [101]]
