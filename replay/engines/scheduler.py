"""Continuous batching: what each pass of the simulated engine computes.  PURE, without a clock.

`begin_pass` says what a pass computes and how long that takes; `finish_pass` says what came of it.
In between, the pass is under way: its blocks are allocated, but what it computes is neither in the
cache nor known to anybody.

A pass has a budget of tokens and a cap of sequences.  Running sequences come first, in the order of
their admission, with the next chunk of their prompt or their next token; then the queue, first come
first served, while there is budget and KV room.  Nobody overtakes a prompt that does not fit.  A
running sequence that finds no block for its next tokens preempts the one admitted last, which goes
back to the head of the queue and is computed anew; in such a pass nobody is admitted.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice

import attrs

from replay.config.engines import RealisticConfig
from replay.engines.block_hash import hash_blocks
from replay.engines.kv_events import BlocksRemoved, BlocksStored, CacheCleared, KvEvent
from replay.engines.kv_pool import Block, KvPool
from replay.engines.timing import Timing, Work


class KvSequence:
    """One choice of one request, from its submission to its last token."""

    __slots__ = (
        "blocks",
        "cached_tokens",
        "computed",
        "draft_accepted",
        "drafted",
        "evicted",
        "fills_at",
        "full_blocks",
        "generated",
        "hashes",
        "is_prefilling",
        "is_running",
        "known",
        "prompt",
        "publishes",
        "room",
        "says",
        "steps",
        "take",
    )

    def __init__(
        self,
        prompt: "array[int]",
        says: Sequence[int],
        steps: int,
        hashes: Iterable[int],
    ) -> None:
        self.prompt = prompt
        #: What it is going to generate.
        self.says = says
        #: How many tokens there are to compute with: the prompt, and what has been generated.
        self.known = len(prompt)
        #: How many tokens have their KV in `blocks`.
        self.computed = 0
        self.generated = 0
        #: How many tokens to generate: one more than it says, if a stop id is to be cut off.
        self.steps = steps
        #: Of the prompt's full blocks, and of those that were filled since.
        self.hashes = [*hashes]
        self.blocks: list[Block] = []
        #: How many tokens `blocks` have room for.
        self.room = 0
        #: How many of `blocks` are full, and so in the cache.
        self.full_blocks = 0
        #: At how many computed tokens the next of them is full.
        self.fills_at = 0
        self.is_running = False
        #: From its admission to its next token.
        self.is_prefilling = False
        #: Whether its blocks get into the cache: not once their parents were cleared away.
        self.publishes = True
        #: Prompt tokens that were cached at the first admission; None before it.
        self.cached_tokens: int | None = None
        #: Draft tokens of speculative decoding, and how many were accepted.
        self.drafted = 0
        self.draft_accepted = 0
        # What the pass under way does with it: tokens to compute, hashes evicted for them.
        self.take = 0
        self.evicted: list[int] = []

    def tokens(self, first: int, last: int) -> "array[int]":
        """Return the tokens at positions *first* up to *last* (excluded), prompt in front."""
        prompt = self.prompt
        size = len(prompt)
        tokens = prompt[first:last]
        if last > size:
            tokens.extend(self.says[max(0, first - size) : last - size])
        return tokens


@attrs.define
class Pass:
    """What one pass computes."""

    budget: int
    """Tokens that are left."""
    sequences: list[KvSequence] = attrs.field(factory=list)
    prefill_tokens: int = 0
    prefill_requests: int = 0
    largest_prefill: int = 0
    decode_requests: int = 0
    decode_context: int = 0
    has_preempted: bool = False
    duration_ms: float = 0.0

    def add_prefill(self, sequence: KvSequence, tokens: int) -> None:
        """Compute *tokens* of a prompt."""
        sequence.take = tokens
        self.sequences.append(sequence)
        self.budget -= tokens
        self.prefill_tokens += tokens
        self.prefill_requests += 1
        self.largest_prefill = max(self.largest_prefill, tokens)

    def add_drafts(self, sequence: KvSequence, tokens: int, cost: int) -> None:
        """Compute the next *tokens*, which count as *cost*."""
        sequence.take = tokens
        self.sequences.append(sequence)
        self.budget -= cost
        self.decode_requests += 1
        self.decode_context += sequence.known


@attrs.frozen
class Outcome:
    """What came of a pass."""

    progress: list[tuple[KvSequence, int, int]]
    """Sequences that went on, with the positions of their new tokens: from, up to.  Those with
    `generated` equal to `steps` are finished."""
    events: list[KvEvent]


class Scheduler:
    """The sequences of one engine, and its KV pool."""

    def __init__(self, config: RealisticConfig, timing: Timing) -> None:
        self._config = config
        self._timing = timing
        self._block_size = config.block_size
        self.pool = KvPool(kv_blocks(config))
        self.running: list[KvSequence] = []
        """In the order of admission."""
        self.waiting: OrderedDict[KvSequence, None] = OrderedDict()
        self.preemptions = 0
        #: Those for which the pass under way has evicted something.
        self._evicting: list[KvSequence] = []
        self._prompt_tokens_admitted = 0
        self._cached_tokens_admitted = 0

    # ---- what comes and goes

    def can_ever_fit(self, prompt_tokens: int, steps: int) -> bool:
        """Whether a sequence fits into the pool when it has it for itself.

        The last token's KV is never computed.
        """
        return self._blocks_for(prompt_tokens + max(0, steps - 1)) <= self.pool.capacity

    def submit(self, sequence: KvSequence) -> None:
        """Queue a sequence that can fit."""
        self.waiting[sequence] = None

    def cancel(self, sequence: KvSequence) -> None:
        """Let a sequence go, whatever it does; its blocks are free at once."""
        if sequence.is_running:
            self.running.remove(sequence)
            self._retire(sequence)
        else:
            self.waiting.pop(sequence, None)

    def clear_cache(self) -> list[KvEvent]:
        """Forget all cached content.  What runs goes on, and its blocks stay out of the cache."""
        self.pool.clear()
        self._prompt_tokens_admitted = self._cached_tokens_admitted = 0
        for sequence in self.running:
            sequence.publishes = False
        for sequence in self._evicting:
            sequence.evicted = []
        self._evicting = []
        return [CacheCleared()]

    # ---- passes

    def begin_pass(self) -> Pass | None:
        """Decide what to compute next; None if there is nothing."""
        if not self.running and not self.waiting:
            return None
        next_pass = Pass(self._config.max_batched_tokens)
        if self._config.prefill_first:
            self._continue(next_pass, [each for each in self.running if each.is_prefilling])
            if not next_pass.has_preempted:
                self._admit(next_pass)
            if not next_pass.sequences:
                self._continue(next_pass, list(self.running))
        else:
            self._continue(next_pass, list(self.running))
            if not next_pass.has_preempted:
                self._admit(next_pass)
        next_pass.duration_ms = self._timing.pass_ms(
            Work(
                prefill_tokens=next_pass.prefill_tokens,
                prefill_requests=next_pass.prefill_requests,
                largest_prefill=next_pass.largest_prefill,
                decode_requests=next_pass.decode_requests,
                decode_context=next_pass.decode_context,
            )
        )
        return next_pass

    def finish_pass(self, finished_pass: Pass) -> Outcome:
        """Take note of what the pass has computed."""
        caches = self._config.prefix_cache
        progress = []
        events: list[KvEvent] = []
        someone_finished = False
        # Evictions are told in the order of the sequences, but all of them came before anything was
        # completed: what one evicted and another completes has never been gone.
        untold = {each for sequence in self._evicting for each in sequence.evicted}
        self._evicting = []
        # Most of what follows is done for every token.
        for sequence in finished_pass.sequences:
            if sequence.evicted:  # by one that was cancelled meanwhile, too
                removed = [each for each in sequence.evicted if each in untold]
                if removed:
                    events.append(BlocksRemoved(removed))
                untold.difference_update(removed)
                sequence.evicted = []
            if not sequence.is_running:
                continue
            new_tokens = sequence.take
            sequence.computed = computed = sequence.computed + new_tokens
            if computed >= sequence.fills_at and caches:
                self._fill_blocks(sequence, events, untold)
            if sequence.is_prefilling:
                if computed < sequence.known:
                    continue
                sequence.is_prefilling = False
                new_tokens = 1
            first = sequence.generated
            last = first + new_tokens
            steps = sequence.steps
            if last >= steps:
                last = steps
                someone_finished = True
                self._retire(sequence)
            sequence.generated = last
            sequence.known += last - first
            progress.append((sequence, first, last))
        if someone_finished:
            self.running = [each for each in self.running if each.is_running]
        return Outcome(progress, events)

    # ---- what it holds

    def used_tokens(self) -> int:
        """Return how many tokens the running sequences hold, shared ones counted once."""
        block_size = self._block_size
        unused = 0
        for sequence in self.running:
            held = sequence.computed if sequence.is_prefilling else sequence.known
            unused += len(sequence.blocks) * block_size - held
        return self.pool.active * block_size - unused

    def cached_tokens(self, prompt_tokens: int, hashes: Iterable[int]) -> int:
        """Return how many tokens of a prompt with these blocks would not have to be computed."""
        return self._block_size * len(self._cached(prompt_tokens, hashes))

    def waiting_uncached_tokens(self) -> int:
        """Return how many tokens of the queue would have to be computed now."""
        known = sum(each.known for each in self.waiting)
        cached = sum(
            self.pool.cached_prefix(each.hashes, (each.known - 1) // self._block_size)
            for each in self.waiting
        )
        return known - cached * self._block_size

    def cache_hit_rate(self) -> float:
        """Return the share of admitted prompt tokens that were cached."""
        if not self._prompt_tokens_admitted:
            return 0.0
        return self._cached_tokens_admitted / self._prompt_tokens_admitted

    # ---- inside

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._block_size)

    def _match(self, sequence: KvSequence) -> list[Block]:
        """Return the cached blocks it could use: never its last one, which gives the next token."""
        return self._cached(sequence.known, sequence.hashes)

    def _cached(self, known: int, hashes: Iterable[int]) -> list[Block]:
        if not self._config.prefix_cache:
            return []
        useful = (known - 1) // self._block_size
        return self.pool.match(islice(hashes, useful))

    def _continue(self, next_pass: Pass, sequences: list[KvSequence]) -> None:
        drafts = self._config.spec_draft_tokens
        in_pass = next_pass.sequences
        context = decodes = 0
        for sequence in sequences:
            budget = next_pass.budget - decodes
            if budget <= 0:
                break
            if not sequence.is_running:  # preempted by one before it
                continue
            if sequence.is_prefilling or drafts:
                self._continue_by_several(sequence, drafts, budget, next_pass)
                continue
            # A token for each of those that decode: this is done for every token.
            if sequence.computed >= sequence.room and not self._grow(sequence, 1, next_pass):
                continue
            sequence.take = 1
            in_pass.append(sequence)
            decodes += 1
            context += sequence.known
        next_pass.budget -= decodes
        next_pass.decode_requests += decodes
        next_pass.decode_context += context

    def _continue_by_several(
        self, sequence: KvSequence, drafts: int, budget: int, next_pass: Pass
    ) -> None:
        if sequence.is_prefilling:
            take = min(sequence.known - sequence.computed, budget)
        else:
            take = min(1 + self._accepted_drafts(sequence, drafts), budget)
        missing = sequence.computed + take - sequence.room
        if missing > 0 and not self._grow(sequence, self._blocks_for(missing), next_pass):
            return
        if sequence.is_prefilling:
            next_pass.add_prefill(sequence, take)
        else:
            sequence.drafted += drafts
            sequence.draft_accepted += take - 1
            next_pass.add_drafts(sequence, take, min(1 + drafts, budget))

    def _accepted_drafts(self, sequence: KvSequence, drafts: int) -> int:
        """Return how many of the next drafts are right.

        The share is exact over a sequence's life rather than drawn, so that runs can be repeated.
        """
        share = self._config.spec_acceptance
        total = int((sequence.drafted + drafts) * share + 1e-9)
        before = int(sequence.drafted * share + 1e-9)
        return min(total - before, sequence.steps - sequence.generated - 1)

    def _grow(self, sequence: KvSequence, count: int, next_pass: Pass) -> bool:
        """Allocate *count* blocks for a running sequence; return whether it still runs."""
        while self.pool.available < count:
            victim = self.running.pop()
            self._preempt(victim)
            next_pass.has_preempted = True
            if victim is sequence:
                return False
        self._allocate(sequence, count)
        return True

    def _allocate(self, sequence: KvSequence, count: int) -> None:
        blocks, evicted = self.pool.allocate(count)
        sequence.blocks += blocks
        sequence.room += count * self._block_size
        if evicted:
            sequence.evicted += evicted
            self._evicting.append(sequence)

    def _preempt(self, victim: KvSequence) -> None:
        self.preemptions += 1
        self._retire(victim)
        victim.computed = 0
        victim.full_blocks = 0
        victim.publishes = True
        self.waiting[victim] = None
        self.waiting.move_to_end(victim, last=False)

    def _retire(self, sequence: KvSequence) -> None:
        sequence.is_running = False
        sequence.is_prefilling = False
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.room = 0

    def _admit(self, next_pass: Pass) -> None:
        while (
            self.waiting and next_pass.budget > 0 and len(self.running) < self._config.max_running
        ):
            sequence = next(iter(self.waiting))
            hits = self._match(sequence)
            cached = len(hits) * self._block_size
            take = min(sequence.known - cached, next_pass.budget)
            needed = self._blocks_for(cached + take) - len(hits)
            whole = self._blocks_for(sequence.known) - len(hits)
            gate = whole if self._config.reserve_full_isl else needed
            if gate > self.pool.room_beside(hits):
                break
            del self.waiting[sequence]
            self.running.append(sequence)
            sequence.is_running = sequence.is_prefilling = True
            self.pool.hold(hits)
            sequence.blocks = hits
            sequence.full_blocks = len(hits)
            sequence.computed = sequence.room = cached
            sequence.fills_at = cached + self._block_size
            if sequence.cached_tokens is None:
                sequence.cached_tokens = cached
                self._cached_tokens_admitted += cached
                self._prompt_tokens_admitted += sequence.known
            self._allocate(sequence, needed)
            next_pass.add_prefill(sequence, take)

    def _fill_blocks(self, sequence: KvSequence, events: list[KvEvent], untold: set[int]) -> None:
        """Put the blocks that are full now into the cache; tell of runs of those that are new."""
        block_size = self._block_size
        first, last = sequence.full_blocks, sequence.computed // block_size
        sequence.full_blocks = last
        sequence.fills_at = (last + 1) * block_size
        if not sequence.publishes:
            return
        hashes = sequence.hashes
        if len(hashes) < last:
            tokens = sequence.tokens(len(hashes) * block_size, last * block_size)
            hashes += hash_blocks(tokens, block_size, hashes[-1] if hashes else None)
        run = first
        for number in range(first, last):
            is_news = self.pool.complete(sequence.blocks[number], hashes[number])
            if not is_news or hashes[number] in untold:
                untold.discard(hashes[number])
                self._store_run(sequence, run, number, events)
                run = number + 1
        self._store_run(sequence, run, last, events)

    def _store_run(
        self, sequence: KvSequence, first: int, last: int, events: list[KvEvent]
    ) -> None:
        if first < last:
            block_size = self._block_size
            events.append(
                BlocksStored(
                    parent=sequence.hashes[first - 1] if first else None,
                    hashes=sequence.hashes[first:last],
                    token_ids=sequence.tokens(first * block_size, last * block_size),
                    block_size=block_size,
                )
            )


def kv_blocks(config: RealisticConfig) -> int:
    """Return how many blocks the pool of *config* has: at least one."""
    if config.kv_blocks is not None:
        return config.kv_blocks
    return max(1, config.kv_tokens // config.block_size)
