from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from replay.config.engines import RealisticConfig
from replay.engines.block_hash import hash_blocks
from replay.engines.kv_events import BlocksRemoved, BlocksStored, CacheCleared, KvEvent
from replay.engines.scheduler import KvSequence, Pass, Scheduler, kv_blocks
from replay.engines.timing import PolynomialTiming

DEFAULT = RealisticConfig()


def scheduler_of(*, kv_blocks: int = 100, block_size: int = 4, **config: Any) -> Scheduler:
    settings = RealisticConfig(kv_blocks=kv_blocks, block_size=block_size, **config)
    timing = PolynomialTiming(
        prefill=settings.prefill_poly,
        decode=settings.decode_poly,
        capacity_tokens=kv_blocks * block_size,
    )
    return Scheduler(settings, timing)


def sequence(
    prompt: Iterable[int], steps: int = 3, *, says: int = 1000, block_size: int = 4
) -> KvSequence:
    ids = array("I", prompt)
    hashes = hash_blocks(ids, block_size, None)
    return KvSequence(ids, range(says, says + steps), steps, hashes)


def submit(scheduler: Scheduler, *args: Any, **keywords: Any) -> KvSequence:
    submitted = sequence(*args, **keywords)
    assert scheduler.can_ever_fit(submitted.known, submitted.steps)
    scheduler.submit(submitted)
    return submitted


def run_pass(scheduler: Scheduler) -> tuple[Pass, dict[KvSequence, int], list[KvEvent]]:
    """Run one pass; return it, how many tokens each sequence got, and the events."""
    this_pass = scheduler.begin_pass()
    assert this_pass is not None
    outcome = scheduler.finish_pass(this_pass)
    return this_pass, {each: last - first for each, first, last in outcome.progress}, outcome.events


def run_all(scheduler: Scheduler) -> list[tuple[Pass, dict[KvSequence, int], list[KvEvent]]]:
    passes = []
    while scheduler.running or scheduler.waiting:
        passes.append(run_pass(scheduler))
        assert len(passes) < 1000
    return passes


def time_to_first_token(scheduler: Scheduler, wanted: KvSequence) -> float:
    elapsed = 0.0
    while not wanted.generated:
        this_pass, _, _ = run_pass(scheduler)
        elapsed += this_pass.duration_ms
    return elapsed


# ---- time


def test_a_lone_prompt_of_4096_tokens_takes_exactly_the_polynomial() -> None:
    scheduler = scheduler_of(kv_blocks=32768, block_size=16)
    alone = submit(scheduler, range(4096), block_size=16)
    expected = 16.50142 + 1.518344e-2 * 4096 + 4.209989e-7 * 4096**2
    assert time_to_first_token(scheduler, alone) == pytest.approx(expected, abs=1e-6)


def test_the_first_token_takes_longer_the_more_of_the_prompt_is_not_cached() -> None:
    times = []
    for length, cached in ((64, 0), (256, 0), (1024, 0), (1024, 512), (1024, 960)):
        scheduler = scheduler_of(kv_blocks=1000)
        if cached:
            submit(scheduler, range(cached), steps=1)
            run_all(scheduler)
        times.append(time_to_first_token(scheduler, submit(scheduler, range(length))))
    assert times[0] < times[1] < times[2]
    assert times[2] > times[3] > times[4]


def test_tokens_follow_more_slowly_the_fuller_the_pool_is() -> None:
    durations = []
    for running in (1, 8, 20):
        scheduler = scheduler_of()
        for number in range(running):
            submit(scheduler, range(number * 100, number * 100 + 8))
        run_pass(scheduler)
        this_pass, _, _ = run_pass(scheduler)
        assert this_pass.decode_requests == running
        durations.append(this_pass.duration_ms)
    assert durations == sorted(set(durations))


def test_the_pass_of_a_last_chunk_gives_the_first_token() -> None:
    scheduler = scheduler_of(max_batched_tokens=10)
    alone = submit(scheduler, range(25), steps=2)
    seen = [(each.prefill_tokens, got.get(alone)) for each, got, _ in run_all(scheduler)]
    assert seen == [(10, None), (10, None), (5, 1), (0, 1)]


# ---- policy


def test_running_sequences_come_before_the_queue() -> None:
    scheduler = scheduler_of(max_batched_tokens=10)
    first = submit(scheduler, range(12))
    run_pass(scheduler)
    second = submit(scheduler, range(100, 120))
    this_pass, got, _ = run_pass(scheduler)
    assert this_pass.sequences == [first, second]
    assert (first.take, second.take) == (2, 8)
    assert got == {first: 1}


def test_a_pass_holds_no_more_sequences_than_its_cap() -> None:
    scheduler = scheduler_of(max_running=2)
    first, second, third = (submit(scheduler, range(each, each + 5)) for each in (0, 50, 90))
    this_pass, _, _ = run_pass(scheduler)
    assert this_pass.sequences == [first, second]
    assert list(scheduler.waiting) == [third]
    run_all(scheduler)
    assert third.generated == 3


def test_a_prompt_that_does_not_fit_now_is_not_overtaken() -> None:
    scheduler = scheduler_of(kv_blocks=8)
    running = submit(scheduler, range(20), steps=4)
    run_pass(scheduler)
    large, small = submit(scheduler, range(100, 116)), submit(scheduler, range(200, 204))
    run_pass(scheduler)
    assert scheduler.running == [running]
    assert list(scheduler.waiting) == [large, small]
    run_all(scheduler)
    assert (large.generated, small.generated) == (3, 3)


def test_without_the_reserve_the_first_chunk_is_all_that_must_fit() -> None:
    for reserve, admitted in ((True, False), (False, True)):
        scheduler = scheduler_of(kv_blocks=8, max_batched_tokens=9, reserve_full_isl=reserve)
        submit(scheduler, range(8), steps=9)
        run_pass(scheduler)
        large = submit(scheduler, range(100, 132), steps=1)
        run_pass(scheduler)
        assert large.is_running == admitted
        run_all(scheduler)
        assert large.generated == 1


def test_prefill_first_lets_no_token_be_generated_beside_a_prompt() -> None:
    scheduler = scheduler_of(prefill_first=True, max_batched_tokens=8)
    first = submit(scheduler, range(4))
    run_pass(scheduler)
    second = submit(scheduler, range(100, 112))
    seen = [(each.prefill_tokens, each.decode_requests) for each, _, _ in run_all(scheduler)]
    assert seen == [(8, 0), (4, 0), (0, 2), (0, 2)]
    assert (first.generated, second.generated) == (3, 3)


def test_no_work_is_no_pass() -> None:
    assert scheduler_of().begin_pass() is None


def test_no_token_asked_for_is_a_prompt_computed_and_an_end() -> None:
    scheduler = scheduler_of()
    nothing = submit(scheduler, range(5), steps=0)
    assert run_pass(scheduler)[1] == {nothing: 0}
    assert not scheduler.running


def test_what_exceeds_the_pool_can_never_fit() -> None:
    scheduler = scheduler_of(kv_blocks=4)
    assert scheduler.can_ever_fit(16, 1)
    assert scheduler.can_ever_fit(10, 7)
    assert not scheduler.can_ever_fit(17, 1)
    assert not scheduler.can_ever_fit(10, 8)


def test_the_pool_has_the_tokens_or_blocks_it_was_given() -> None:
    assert kv_blocks(DEFAULT) == 32768
    assert kv_blocks(RealisticConfig(kv_tokens=100, block_size=16)) == 6
    assert kv_blocks(RealisticConfig(kv_blocks=7)) == 7
    assert kv_blocks(RealisticConfig(kv_tokens=3)) == 1


# ---- cache


def test_a_shared_prefix_is_not_computed_again() -> None:
    scheduler = scheduler_of()
    submit(scheduler, range(18), steps=1)
    run_all(scheduler)
    second = submit(scheduler, [*range(12), 99, 98, 97, 96, 95], steps=1)
    assert scheduler.waiting_uncached_tokens() == 5
    this_pass, _, _ = run_pass(scheduler)
    assert (second.cached_tokens, this_pass.prefill_tokens) == (12, 5)
    assert scheduler.cache_hit_rate() == 12 / 35


def test_a_fully_cached_prompt_computes_its_last_block() -> None:
    scheduler = scheduler_of()
    submit(scheduler, range(16), steps=1)
    run_all(scheduler)
    again = submit(scheduler, range(16), steps=1)
    this_pass, _, _ = run_pass(scheduler)
    assert (again.cached_tokens, this_pass.prefill_tokens) == (12, 4)


def test_generated_tokens_are_cached_for_the_next_turn() -> None:
    scheduler = scheduler_of()
    submit(scheduler, range(6), steps=7, says=500)
    run_all(scheduler)
    turn = submit(scheduler, [*range(6), *range(500, 507), 1, 2, 3])
    run_pass(scheduler)
    assert turn.cached_tokens == 12


def test_what_a_pass_computes_is_not_cached_before_its_end() -> None:
    scheduler = scheduler_of()
    submit(scheduler, range(16), steps=1)
    under_way = scheduler.begin_pass()
    assert under_way is not None
    late = submit(scheduler, range(17), steps=1)
    assert scheduler.waiting_uncached_tokens() == 17
    scheduler.finish_pass(under_way)
    assert scheduler.waiting_uncached_tokens() == 1
    run_pass(scheduler)
    assert late.cached_tokens == 16


def test_without_the_prefix_cache_nothing_is_shared_and_nothing_is_told() -> None:
    scheduler = scheduler_of(prefix_cache=False)
    submit(scheduler, range(16))
    again = submit(scheduler, range(16))
    assert all(not events for _, _, events in run_all(scheduler))
    assert again.cached_tokens == 0
    assert scheduler.pool.available == 100


# ---- a full pool


def test_a_full_pool_evicts_the_longest_idle_prefix_first() -> None:
    scheduler = scheduler_of(kv_blocks=6)
    old, young = sequence(range(8), steps=1), sequence(range(100, 108), steps=1)
    for each in (old, young):
        scheduler.submit(each)
        run_all(scheduler)
    newcomer = submit(scheduler, range(200, 214), steps=1)
    _, _, events = run_pass(scheduler)
    assert events[0] == BlocksRemoved([old.hashes[1], old.hashes[0]])
    assert newcomer.generated == 1
    assert young.hashes[0] in scheduler.pool


def test_a_full_pool_preempts_the_one_admitted_last_and_recovers() -> None:
    scheduler = scheduler_of(kv_blocks=6)
    first, second, third = (
        submit(scheduler, range(each, each + 7), steps=9, says=each + 500) for each in (0, 100, 200)
    )
    run_pass(scheduler)
    while not scheduler.preemptions:
        run_pass(scheduler)
    assert scheduler.running == [first, second]
    assert list(scheduler.waiting) == [third]
    assert third.generated > 0
    produced = third.generated
    for _, got, _ in run_all(scheduler):
        produced += got.get(third, 0)
    assert produced == 9
    assert [each.generated for each in (first, second, third)] == [9, 9, 9]
    assert scheduler.pool.available == 6


def test_nobody_is_admitted_in_a_pass_that_preempts() -> None:
    scheduler = scheduler_of(kv_blocks=5)
    first = submit(scheduler, range(8), steps=8)
    second = submit(scheduler, range(100, 108), steps=8)
    small = None
    while not scheduler.preemptions:
        this_pass, _, _ = run_pass(scheduler)
        if small is None:
            small = submit(scheduler, [1], steps=1)
    assert this_pass.sequences == [first]
    assert small is not None
    assert (second.is_running, small.is_running) == (False, False)
    assert list(scheduler.waiting) == [second, small]


# ---- events


def test_a_run_of_blocks_is_told_once_with_its_parent_and_its_tokens() -> None:
    scheduler = scheduler_of(max_batched_tokens=9)
    alone = submit(scheduler, range(14), steps=7, says=50)
    told = [event for _, _, events in run_all(scheduler) for event in events]
    tokens = [*range(14), *range(50, 56)]
    assert told == [
        BlocksStored(None, alone.hashes[0:2], array("I", tokens[0:8]), 4),
        BlocksStored(alone.hashes[1], alone.hashes[2:3], array("I", tokens[8:12]), 4),
        BlocksStored(alone.hashes[2], alone.hashes[3:4], array("I", tokens[12:16]), 4),
        BlocksStored(alone.hashes[3], alone.hashes[4:5], array("I", tokens[16:20]), 4),
    ]


def test_content_that_two_compute_at_once_is_told_once() -> None:
    scheduler = scheduler_of()
    first = submit(scheduler, [*range(8), 1, 2, 3, 4], steps=1)
    second = submit(scheduler, [*range(8), 5, 6, 7, 8], steps=1)
    _, _, events = run_pass(scheduler)
    assert events == [
        BlocksStored(None, first.hashes, first.tokens(0, 12), 4),
        BlocksStored(second.hashes[1], second.hashes[2:], second.tokens(8, 12), 4),
    ]


def test_content_is_removed_only_with_its_last_copy() -> None:
    scheduler = scheduler_of(kv_blocks=4)
    submit(scheduler, range(4), steps=1)
    twin = submit(scheduler, range(4), steps=1)
    run_all(scheduler)
    submit(scheduler, range(100, 112), steps=1)
    assert run_pass(scheduler)[2][:1] != [BlocksRemoved(twin.hashes)]
    assert twin.hashes[0] in scheduler.pool
    submit(scheduler, range(200, 216), steps=1)
    run_pass(scheduler)
    assert twin.hashes[0] not in scheduler.pool


def test_what_one_evicts_and_another_completes_has_never_been_gone() -> None:
    scheduler = scheduler_of(kv_blocks=4, max_batched_tokens=8)
    slow, quick = submit(scheduler, range(6), steps=9, says=6), submit(scheduler, range(8), steps=1)
    run_pass(scheduler)
    run_pass(scheduler)
    assert (slow.computed, quick.generated) == (7, 1)
    newcomer = submit(scheduler, range(100, 104), steps=1)
    under_way = scheduler.begin_pass()
    assert under_way is not None
    assert newcomer.evicted == [quick.hashes[1]]
    events = scheduler.finish_pass(under_way).events
    assert slow.hashes[1] == quick.hashes[1]
    assert events == [BlocksStored(None, newcomer.hashes, newcomer.tokens(0, 4), 4)]
    assert quick.hashes[1] in scheduler.pool


def test_an_eviction_is_told_even_if_its_cause_is_cancelled() -> None:
    scheduler = scheduler_of(kv_blocks=2)
    old = submit(scheduler, range(8), steps=1)
    run_all(scheduler)
    cause = submit(scheduler, range(100, 108), steps=1)
    under_way = scheduler.begin_pass()
    assert under_way is not None
    scheduler.cancel(cause)
    assert scheduler.pool.available == 2
    outcome = scheduler.finish_pass(under_way)
    assert outcome.progress == []
    assert outcome.events == [BlocksRemoved(old.hashes[::-1])]


def test_clearing_is_told_and_what_runs_stays_out_of_the_cache() -> None:
    scheduler = scheduler_of()
    running = submit(scheduler, range(6), steps=20)
    run_pass(scheduler)
    assert scheduler.clear_cache() == [CacheCleared()]
    assert scheduler.cache_hit_rate() == 0
    assert all(not events for _, _, events in run_all(scheduler))
    assert (running.generated, scheduler.pool.cached, scheduler.pool.available) == (20, 0, 100)
    again = submit(scheduler, range(6), steps=1)
    assert run_pass(scheduler)[2] == [BlocksStored(None, again.hashes, again.tokens(0, 4), 4)]


def test_an_eviction_is_not_told_behind_the_clearing_that_came_later() -> None:
    scheduler = scheduler_of(kv_blocks=2)
    submit(scheduler, range(8), steps=1)
    run_all(scheduler)
    submit(scheduler, range(100, 108), steps=1)
    under_way = scheduler.begin_pass()
    assert under_way is not None
    scheduler.clear_cache()
    assert scheduler.finish_pass(under_way).events == []


# ---- ends


@pytest.mark.parametrize("passes", [0, 1, 2, 3])
def test_a_cancelled_sequence_frees_its_place_and_its_blocks_at_once(passes: int) -> None:
    scheduler = scheduler_of(max_batched_tokens=8, max_running=1)
    victim, other = submit(scheduler, range(16)), submit(scheduler, range(100, 104))
    for _ in range(passes):
        run_pass(scheduler)
    scheduler.cancel(victim)
    scheduler.cancel(victim)
    assert scheduler.pool.available == 100
    run_all(scheduler)
    assert other.generated == 3
    assert victim.generated == max(0, passes - 1)


# ---- speculative decoding


@pytest.mark.parametrize(("share", "tokens"), [(0.0, 1), (0.5, 3), (1.0, 5)])
def test_accepted_drafts_come_with_the_token_that_verifies_them(share: float, tokens: int) -> None:
    scheduler = scheduler_of(spec_draft_tokens=4, spec_acceptance=share)
    alone = submit(scheduler, range(5), steps=1 + 10 * tokens)
    got = [counts[alone] for _, counts, _ in run_all(scheduler)]
    assert got == [1] + [tokens] * 10
    assert (alone.drafted, alone.draft_accepted) == (40, 10 * (tokens - 1))


def test_the_share_of_accepted_drafts_is_met_over_many_passes() -> None:
    scheduler = scheduler_of(kv_blocks=1000, spec_draft_tokens=3, spec_acceptance=0.7)
    alone = submit(scheduler, range(5), steps=1000)
    run_all(scheduler)
    assert alone.draft_accepted / alone.drafted == pytest.approx(0.7, abs=0.005)


def test_drafts_count_against_the_budget() -> None:
    scheduler = scheduler_of(spec_draft_tokens=4, spec_acceptance=0.5, max_batched_tokens=6)
    first, second = submit(scheduler, [1], steps=9), submit(scheduler, [2], steps=9)
    run_pass(scheduler)
    _, got, _ = run_pass(scheduler)
    assert got == {first: 3, second: 1}
    run_all(scheduler)
    assert (first.generated, second.generated) == (9, 9)


# ---- laws

BLOCK = 2
PROMPTS = (range(1), range(7), range(8), [*range(4), 90, 91], [90, *range(6)], range(50, 62))


class SchedulerLaws(RuleBasedStateMachine):
    """Whatever happens in whatever order, nothing is lost and nothing is counted twice."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler: Scheduler
        self.under_way: Pass | None = None
        self.alive: list[KvSequence] = []
        self.got: dict[KvSequence, int] = {}
        self.told: set[int] = set()
        self.start(10, 6, 3, False, True, 0)

    def start(self, *args: Any) -> None:
        blocks, budget, cap, prefill_first, reserve, drafts = args
        self.scheduler = scheduler_of(
            kv_blocks=blocks,
            block_size=BLOCK,
            max_batched_tokens=budget,
            max_running=cap,
            prefill_first=prefill_first,
            reserve_full_isl=reserve,
            spec_draft_tokens=drafts,
            spec_acceptance=0.6,
        )

    @precondition(lambda self: not self.got)
    @rule(
        blocks=st.integers(8, 14),
        budget=st.integers(1, 12),
        cap=st.integers(1, 5),
        prefill_first=st.booleans(),
        reserve=st.booleans(),
        drafts=st.integers(0, 3),
    )
    def configure(
        self,
        blocks: int,
        budget: int,
        cap: int,
        prefill_first: bool,
        reserve: bool,
        drafts: int,
    ) -> None:
        self.start(blocks, budget, cap, prefill_first, reserve, drafts)

    @rule(prompt=st.sampled_from(PROMPTS), steps=st.integers(0, 8), says=st.sampled_from([70, 80]))
    def submit(self, prompt: Sequence[int], steps: int, says: int) -> None:
        new = sequence(prompt, steps, says=says, block_size=BLOCK)
        if self.scheduler.can_ever_fit(new.known, steps):
            self.scheduler.submit(new)
            self.alive.append(new)
            self.got[new] = 0

    @precondition(lambda self: self.alive)
    @rule(choice=st.integers(0, 100))
    def cancel(self, choice: int) -> None:
        self.scheduler.cancel(self.alive.pop(choice % len(self.alive)))

    @precondition(lambda self: len(self.got) % 5 == 4)  # not so often that nothing is cached
    @rule()
    def clear(self) -> None:
        self.hear(self.scheduler.clear_cache())

    @precondition(lambda self: self.under_way is None)
    @rule()
    def begin(self) -> None:
        self.under_way = self.scheduler.begin_pass()
        if self.under_way is not None:
            assert self.under_way.sequences, "a pass without work would never end"
            assert self.under_way.budget >= 0
            assert self.under_way.duration_ms > 0
        else:
            assert not self.alive

    @precondition(lambda self: self.under_way is not None)
    @rule()
    def finish(self) -> None:
        assert self.under_way is not None
        outcome = self.scheduler.finish_pass(self.under_way)
        self.under_way = None
        for each, first, last in outcome.progress:
            assert each in self.alive
            assert first == self.got[each]
            self.got[each] = last
            if last == each.steps:
                self.alive.remove(each)
        self.hear(outcome.events)

    def hear(self, events: list[KvEvent]) -> None:
        for event in events:
            if isinstance(event, CacheCleared):
                self.told.clear()
            elif isinstance(event, BlocksRemoved):
                assert set(event.hashes) <= self.told
                self.told -= set(event.hashes)
            else:
                assert event.parent is None or event.parent in self.told
                assert self.told.isdisjoint(event.hashes)
                assert len(event.token_ids) == BLOCK * len(event.hashes)
                chained = hash_blocks(event.token_ids, BLOCK, event.parent)
                assert chained == list(event.hashes)
                self.told |= set(event.hashes)

    @invariant()
    def references_are_what_the_sequences_hold(self) -> None:
        scheduler = self.scheduler
        held: dict[int, int] = {}
        for each in scheduler.running:
            assert each.is_running
            assert each.computed <= each.room == len(each.blocks) * BLOCK
            assert each.fills_at == (each.full_blocks + 1) * BLOCK
            assert each.full_blocks <= each.computed // BLOCK
            for block in each.blocks:
                held[id(block)] = held.get(id(block), 0) + 1
                if each.publishes:
                    assert block.references >= 1
        assert len(held) == scheduler.pool.active
        for each in scheduler.running:
            for block in each.blocks:
                assert block.references == held[id(block)]
        assert scheduler.pool.active + scheduler.pool.available == scheduler.pool.capacity

    @invariant()
    def everybody_alive_is_running_or_waiting(self) -> None:
        here = [*self.scheduler.running, *self.scheduler.waiting]
        assert sorted(map(id, here)) == sorted(map(id, self.alive))

    @invariant()
    def used_tokens_are_within_the_pool(self) -> None:
        used = self.scheduler.used_tokens()
        beyond = len(self.scheduler.running)  # the last token of each has no KV yet
        assert 0 <= used <= self.scheduler.pool.active * BLOCK + beyond

    @invariant()
    def what_waits_lacks_what_is_not_found_cached(self) -> None:
        found = [
            self.scheduler.cached_tokens(each.known, each.hashes) for each in self.scheduler.waiting
        ]
        known = sum(each.known for each in self.scheduler.waiting)
        assert self.scheduler.waiting_uncached_tokens() == known - sum(found)

    @precondition(lambda self: self.under_way is None)
    @invariant()
    def the_events_tell_what_the_cache_holds(self) -> None:
        assert self.told == set(self.scheduler.pool)

    def teardown(self) -> None:
        for _ in range(2000):
            if self.under_way is not None:
                self.finish()
            if not self.alive:
                break
            self.begin()
        assert not self.alive, "somebody starves"
        assert self.scheduler.pool.available == self.scheduler.pool.capacity


TestSchedulerLaws = SchedulerLaws.TestCase
TestSchedulerLaws.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
