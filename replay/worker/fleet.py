"""The workers of a process as an operator sees them: what is true of them, and their faults."""

import time
from collections.abc import Iterator, Sequence

import attrs

from replay.engines.base import Engine
from replay.engines.build import kind_of, simulator_of
from replay.engines.pass_log import PassLog
from replay.engines.realistic import RealisticEngine
from replay.worker.cache_oracle import CacheOracle
from replay.worker.faults import KvEventLoss
from replay.worker.faulty import FaultyEngine
from replay.worker.recorded import RecordedEngine
from replay.worker.request_records import RequestRecords

#: Passes that are kept of each simulated engine: half a minute of them, and half a megabyte.
PASSES_KEPT = 4096


@attrs.frozen
class CachedBlock:
    """One content of a cache."""

    hash: int
    parent: int | None
    """Hash of the block before it; None at the start of a sequence, or if nobody knows."""
    copies: int
    references: int
    """Uses by running sequences, of all copies; 0: it can be evicted."""


@attrs.frozen(eq=False)
class Member:
    """One worker of the fleet."""

    number: int
    kind: str
    """Of its engine."""
    faults: FaultyEngine
    answering: Engine
    """What its service asks: the engine with all that lies over it."""
    simulator: RealisticEngine | None
    """The realistic engine at the bottom, if there is one."""
    passes: PassLog
    """What the simulator's last passes were; empty without one."""

    @property
    def has_cache(self) -> bool:
        """Whether it has a prefix cache, and so KV events."""
        return self.simulator is not None and self.simulator.has_prefix_cache

    def cached_blocks(self) -> Iterator[CachedBlock]:
        """Yield what the cache holds; other things may happen between two of them."""
        if self.simulator is None:
            return
        pool, told = self.simulator.pool, self.simulator.kv_events.content()
        for content_hash in list(pool):
            copies = pool.copies(content_hash)
            if copies:
                event, place = told.get(content_hash, (None, 0))
                parent = None
                if event is not None:
                    parent = event.hashes[place - 1] if place else event.parent
                references = sum(block.references for block in copies)
                yield CachedBlock(content_hash, parent, len(copies), references)

    def set_kv_event_loss(self, loss: KvEventLoss) -> None:
        """Lose or delay KV events from now on."""
        assert self.simulator is not None
        self.simulator.kv_events.withhold(loss.drop_batches)
        self.simulator.kv_event_delay_seconds = loss.delay_ms / 1000

    def kv_event_loss(self) -> KvEventLoss:
        """Return what is still to be lost, and the delay."""
        assert self.simulator is not None
        return KvEventLoss(
            drop_batches=self.simulator.kv_events.to_withhold,
            delay_ms=round(self.simulator.kv_event_delay_seconds * 1000, 6),  # as it was set
        )

    def restart_kv_publisher(self) -> None:
        """Let the KV events begin anew."""
        assert self.simulator is not None
        self.simulator.kv_events.restart(time.time())

    def clear_faults(self) -> None:
        """Take back all faults."""
        self.faults.clear()
        if self.has_cache:
            self.set_kv_event_loss(KvEventLoss())


class Fleet:
    """Layers for truth and faults over *engines*, one for each worker.

    An engine may stand behind several workers: a fault is then one worker's, but a pause, and what
    is done to the cache and its events, is done to the engine.
    """

    def __init__(self, engines: Sequence[Engine]) -> None:
        simulators = [simulator_of(engine) for engine in engines]
        oracle = CacheOracle(simulators)
        self.records = RequestRecords()
        self.members: list[Member] = []
        passes = {id(simulator): PassLog(PASSES_KEPT) for simulator in simulators}
        for number, (engine, simulator) in enumerate(zip(engines, simulators, strict=True)):
            faults = FaultyEngine(engine, simulator)
            answering = RecordedEngine(faults, number, records=self.records, oracle=oracle)
            log = passes[id(simulator)]
            if simulator is not None:
                simulator.keep_passes(log)
            self.members.append(Member(number, kind_of(engine), faults, answering, simulator, log))

    def reset(self, member: Member) -> None:
        """Bring a worker back to what it was at its start, but for what runs on it.

        No faults, nothing cached, no records of its past.  The numbers of its KV events go on: a
        cleared cache is one of them.
        """
        member.clear_faults()
        if member.has_cache:
            assert member.simulator is not None
            member.simulator.clear_cache()
        member.passes.clear()
        self.records.forget(member.number)
