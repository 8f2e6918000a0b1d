"""Truth about workers: records of requests, what their caches hold, what a reset leaves."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing
from purerpc.grpclib.exceptions import UnavailableError
from trio.testing import MockClock

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.config.engines import CannedConfig, RealisticConfig
from replay.engines.base import Answer, Engine, Generation, Model
from replay.engines.canned import CannedEngine
from replay.engines.kv_events import CacheCleared
from replay.engines.methods import GENERATE
from replay.engines.realistic import RealisticEngine
from replay.engines.script import ScriptEngine
from replay.engines.script_book import ScriptBook
from replay.engines.script_file import read_script
from replay.engines.upstream import UpstreamEngine
from replay.worker.faults import Admission, Failing, KvEventLoss
from replay.worker.fleet import Fleet, Member
from replay.worker.request_records import CachedAtArrival, RequestRecord
from tests.engines.fake_answer import FakeAnswer
from tests.engines.requests import generate_request, generation
from tests.worker.running import config_of, running

ROUND = {"prefill_poly": (10.0, 0.0, 0.0), "decode_poly": (5.0, 0.0, 0.0)}


def realistic(**config: Any) -> RealisticEngine:
    return RealisticEngine(Model(), RealisticConfig(**ROUND, **config))


def canned(**config: Any) -> CannedEngine:
    return CannedEngine(Model(), CannedConfig(**config))


@asynccontextmanager
async def fleet_of(*engines: Engine) -> AsyncIterator[Fleet]:
    async with trio.open_nursery() as tasks:
        for engine in engines:
            await tasks.start(engine.run)
        yield Fleet(engines)
        tasks.cancel_scope.cancel()


async def ask(member: Member, prompt: Sequence[int] = (1, 2, 3), **request: Any) -> FakeAnswer:
    wanted = generation(prompt, **request)
    wanted.arrival = trio.current_time()
    answer = FakeAnswer(wanted.choices)
    await member.answering.generate(wanted, answer)
    return answer


def last(fleet: Fleet) -> RequestRecord:
    *_, record = fleet.records.find()
    return record


@pytest.mark.parametrize(("engine", "pause"), [(realistic, 5.0), (lambda: canned(token_ms=5), 5.0)])
async def test_a_record_has_counts_and_times_and_the_end(
    autojump_clock: MockClock, engine: Any, pause: float
) -> None:
    async with fleet_of(engine()) as fleet:
        await ask(fleet.members[0], range(40), max_new_tokens=3, request_id="x")
    record = last(fleet)
    assert (record.number, record.worker, record.request_id) == (1, 0, "x")
    assert (record.prompt_tokens, record.choices, record.stream) == (40, 1, True)
    assert (record.output_tokens, record.finish_reasons, record.outcome) == (3, ["length"], "OK")
    assert record.first_token_ms is not None
    assert record.last_token_ms == pytest.approx(record.first_token_ms + 2 * pause)
    assert record.duration_ms == pytest.approx(record.last_token_ms)


async def test_a_whole_answer_counts_all_of_its_tokens(autojump_clock: MockClock) -> None:
    async with fleet_of(canned()) as fleet:
        await ask(fleet.members[0], max_new_tokens=5)
    assert (last(fleet).output_tokens, last(fleet).finish_reasons) == (5, ["length"])


async def test_choices_are_counted_together(autojump_clock: MockClock) -> None:
    async with fleet_of(realistic()) as fleet:
        await ask(fleet.members[0], n=3, max_new_tokens=2)
    assert (last(fleet).output_tokens, last(fleet).finish_reasons) == (6, ["length"] * 3)


async def test_a_record_is_there_while_its_request_is_in_flight(autojump_clock: MockClock) -> None:
    async with fleet_of(realistic()) as fleet, trio.open_nursery() as requests:
        requests.start_soon(ask, fleet.members[0])
        await trio.sleep(0.001)
        assert (last(fleet).outcome, last(fleet).first_token_ms) == (None, None)


async def test_the_outcome_names_a_status_and_a_cancel(autojump_clock: MockClock) -> None:
    async with fleet_of(canned(gen_ms=9e6)) as fleet:
        member = fleet.members[0]
        with trio.move_on_after(2):
            await ask(member)
        assert (last(fleet).outcome, last(fleet).duration_ms) == ("CANCELLED", 2000.0)
        member.faults.set_failing(Failing(code="UNAVAILABLE"))
        with pytest.raises(UnavailableError):
            await ask(member)
        assert last(fleet).outcome == "UNAVAILABLE"


async def test_a_cancel_is_one_also_when_an_engine_waits_in_a_nursery(
    autojump_clock: MockClock,
) -> None:
    class Waiting(CannedEngine):
        async def generate(self, generation: Generation, answer: Answer) -> None:
            async with trio.open_nursery() as parts:
                parts.start_soon(trio.sleep_forever)
                await trio.sleep_forever()

    async with fleet_of(Waiting(Model())) as fleet:
        with trio.move_on_after(2):
            await ask(fleet.members[0])
        assert last(fleet).outcome == "CANCELLED"


async def test_the_delay_of_an_admission_counts_from_the_arrival(
    autojump_clock: MockClock,
) -> None:
    async with fleet_of(canned()) as fleet:
        fleet.members[0].faults.set_admission(Admission(delay_ms=70))
        await ask(fleet.members[0])
    assert last(fleet).first_token_ms == pytest.approx(70)


async def test_the_oracle_knows_what_was_cached_at_the_arrival_here_and_elsewhere(
    autojump_clock: MockClock,
) -> None:
    engines = (realistic(), canned(), realistic(block_size=32), realistic(prefix_cache=False))
    async with fleet_of(*engines) as fleet:
        here, without, coarse, cacheless = fleet.members
        await ask(here, range(100))
        assert last(fleet).cached_at_arrival == CachedAtArrival(0, 0, 0)
        await ask(here, range(100))
        assert last(fleet).cached_at_arrival == CachedAtArrival(96, 96, 0)
        assert last(fleet).cached_tokens == 96
        await ask(coarse, range(100))
        assert last(fleet).cached_at_arrival == CachedAtArrival(0, 96, 0)
        await ask(coarse, range(100))
        assert last(fleet).cached_at_arrival == CachedAtArrival(96, 96, 2)
        await ask(here, range(64))  # a prompt that is cached whole recomputes its last block
        assert last(fleet).cached_at_arrival == CachedAtArrival(48, 48, 0)
        for member in (without, cacheless):
            await ask(member, range(100))
            assert last(fleet).cached_at_arrival is None


async def test_the_oracle_looks_before_a_delayed_request_is_admitted(
    autojump_clock: MockClock,
) -> None:
    async with fleet_of(realistic()) as fleet, trio.open_nursery() as requests:
        member = fleet.members[0]
        member.faults.set_admission(Admission(delay_ms=1000))
        requests.start_soon(ask, member, range(100))
        await trio.sleep(0.5)
        requests.start_soon(ask, member, range(100))
    cached = [each.cached_at_arrival for each in fleet.records.find()]
    assert cached == [CachedAtArrival(0, 0, 0)] * 2
    assert last(fleet).cached_tokens == 96


async def test_the_cache_is_told_with_parents_copies_and_uses(autojump_clock: MockClock) -> None:
    async with fleet_of(realistic(), canned()) as fleet, trio.open_nursery() as requests:
        member, without = fleet.members
        requests.start_soon(lambda: ask(member, range(40), n=2, max_new_tokens=1000))
        await trio.sleep(0.020)
        first, second = member.cached_blocks()
        assert (first.parent, second.parent) == (None, first.hash)
        assert [each.references for each in (first, second)] == [2, 2]
        assert {each.hash for each in member.cached_blocks()} == set(member.simulator.pool)
        assert (without.has_cache, [*without.cached_blocks()]) == (False, [])
    assert [each.references for each in member.cached_blocks()] == [
        0
    ] * member.simulator.pool.cached


async def test_events_are_lost_and_late_until_it_is_taken_back(autojump_clock: MockClock) -> None:
    async with fleet_of(realistic()) as fleet:
        member = fleet.members[0]
        log = member.simulator.kv_events
        member.set_kv_event_loss(KvEventLoss(drop_batches=1, delay_ms=3000))
        await ask(member, range(16), max_new_tokens=1)
        assert log.last == 0
        assert member.kv_event_loss() == KvEventLoss(drop_batches=1, delay_ms=3000)
        await trio.sleep(3)
        await ask(member, range(20, 36), max_new_tokens=1)
        member.clear_faults()
        assert [batch.is_withheld for batch in log.after(0, 9)] == [True, False]
        assert member.kv_event_loss() == KvEventLoss()


async def test_a_reset_leaves_what_runs_and_nothing_else(autojump_clock: MockClock) -> None:
    async with fleet_of(realistic(), realistic()) as fleet, trio.open_nursery() as requests:
        member, other = fleet.members
        for each in fleet.members:
            await ask(each, range(40), max_new_tokens=1)
        before = member.simulator.kv_events.last
        member.faults.pause()
        requests.start_soon(ask, member)
        await trio.testing.wait_all_tasks_blocked()
        member.faults.set_failing(Failing(code="INTERNAL"))
        fleet.reset(member)
        assert [each.worker for each in fleet.records.find()] == [1]
        assert ([*member.passes], [*member.cached_blocks()]) == ([], [])
        assert ([*other.passes] and [*other.cached_blocks()]) != []
        (cleared,) = member.simulator.kv_events.after(before, 9)
        assert cleared.events == [CacheCleared()]
        assert (await ask(member))[0].reason is not None
    assert last(fleet).outcome == "OK"


async def test_passes_are_written_down_with_what_they_were(autojump_clock: MockClock) -> None:
    async with fleet_of(realistic(speedup=2), canned()) as fleet:
        await ask(fleet.members[0], range(40), max_new_tokens=3)
        await ask(fleet.members[1])
        first, second, third = fleet.members[0].passes
    assert [each.number for each in (first, second, third)] == [1, 2, 3]
    assert (first.prefill_tokens, first.decode_requests, first.tokens) == (40, 0, 1)
    assert (second.prefill_tokens, second.decode_requests, second.tokens) == (0, 1, 1)
    assert (first.duration_ms, second.duration_ms) == (10.0, 5.0)
    assert third.late_ms == pytest.approx(0.0)
    assert [*fleet.members[1].passes] == []


async def test_a_pass_that_comes_late_says_by_how_much(mock_clock: MockClock) -> None:
    async with fleet_of(realistic(request_overhead_ms=1)) as fleet:
        async with trio.open_nursery() as requests:
            requests.start_soon(lambda: ask(fleet.members[0], max_new_tokens=1))
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(0.010)
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(0.005)
        (late,) = fleet.members[0].passes
    assert late.late_ms == pytest.approx(4.0)


async def test_workers_with_one_engine_have_their_faults_apart(autojump_clock: MockClock) -> None:
    engine = realistic()
    async with trio.open_nursery() as tasks:
        await tasks.start(engine.run)
        fleet = Fleet([engine, engine])
        failing, sound = fleet.members
        failing.faults.set_failing(Failing(code="UNAVAILABLE"))
        with pytest.raises(UnavailableError):
            await ask(failing)
        assert (await ask(sound))[0].reason is not None
        assert failing.passes is sound.passes
        tasks.cancel_scope.cancel()


def test_an_engine_is_found_under_a_script() -> None:
    below = realistic()
    (member,) = Fleet([ScriptEngine(below, ScriptBook([]))]).members
    assert (member.simulator, member.kind) == (below, "realistic")
    kinds = [each.kind for each in Fleet([canned(), UpstreamEngine("grpc://127.0.0.1:1")]).members]
    assert kinds == ["canned", "upstream"]


async def test_the_answer_of_an_upstream_is_recorded_as_it_passes() -> None:
    async with running(config_of()) as below:
        upstream = UpstreamEngine(f"grpc://{below.runtime.addresses[0]}")
        fleet = Fleet([upstream])
        async with running(engine=fleet.members[0].answering) as worker:
            for stream in (True, False):
                await worker.generate(generate_request(max_new_tokens=4, stream=stream))
                record = last(fleet)
                assert (record.stream, record.output_tokens) == (stream, 4)
                assert (record.finish_reasons, record.outcome) == (["length"], "OK")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_scripted_answer_is_counted_once_and_not_failed_before_its_place(
    stream: bool,
) -> None:
    """Without a stream its tokens come one by one, and its end repeats them."""
    script = read_script([b'{"request_id": "*", "chunks": [[5, 6], [7]]}'])
    fleet = Fleet([ScriptEngine(canned(), ScriptBook(script.choices))])
    fleet.members[0].faults.set_failing(Failing(code="UNAVAILABLE", after_tokens=4))
    async with running(engine=fleet.members[0].answering) as worker:
        *_, end = await worker.generate(generate_request(stream=stream))
    assert end.complete.output_ids == [5, 6, 7]
    assert (last(fleet).output_tokens, last(fleet).outcome) == (3, "OK")


async def test_an_abort_is_a_cancel_whoever_did_it() -> None:
    async with running(config_of(engine=CannedConfig(token_ms=5))) as below:
        upstream = UpstreamEngine(f"grpc://{below.runtime.addresses[0]}")
        fleet = Fleet([upstream])
        async with running(engine=fleet.members[0].answering) as worker:
            message = generate_request(request_id="x", max_new_tokens=9999)
            async with worker.channel.stream(GENERATE, message) as answers:
                await answers.receive()
                await worker.call("Abort", pb.AbortRequest(request_id="x"))
                *_, end = [each async for each in answers]
    assert end.complete.finish_reason == "abort"
    assert (last(fleet).finish_reasons, last(fleet).outcome) == (["abort"], "CANCELLED")


async def test_layers_leave_every_method_of_the_engine(autojump_clock: MockClock) -> None:
    engine = realistic()
    answering = Fleet([engine]).members[0].answering
    assert set(answering.methods()) == set(engine.methods())
    assert answering.check(pb.GenerateRequest()) == engine.check(pb.GenerateRequest())
    assert (answering.sends_headers, answering.model) == (True, engine.model)
