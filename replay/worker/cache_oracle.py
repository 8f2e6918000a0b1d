"""How much of a prompt each worker of a fleet has cached, asked when the prompt arrives.

What a gateway could have known at best: its choice of a worker can be held against this.
"""

from collections.abc import Sequence

from replay.engines.base import Generation
from replay.engines.read_prompt import read_prompt
from replay.engines.realistic import RealisticEngine
from replay.worker.request_records import CachedAtArrival


class CacheOracle:
    """Looks into the caches of *simulators*, one for each worker; None: it has no cache."""

    def __init__(self, simulators: Sequence[RealisticEngine | None]) -> None:
        self._caches = {
            number: engine
            for number, engine in enumerate(simulators)
            if engine is not None and engine.has_prefix_cache
        }

    async def look_up(self, generation: Generation, worker: int) -> CachedAtArrival | None:
        """Return what is cached of a request that has come to *worker*; None without a cache."""
        if worker not in self._caches:
            return None
        ids = generation.message.tokenized.input_ids
        hashes = {
            size: (await read_prompt(ids, size))[1]
            for size in {engine.block_size for engine in self._caches.values()}
        }
        cached = {
            number: engine.cached_tokens(len(ids), hashes[engine.block_size])
            for number, engine in self._caches.items()
        }
        here, best = cached[worker], max(cached.values())
        best_worker = worker
        if best > here:
            best_worker = next(number for number, count in cached.items() if count == best)
        return CachedAtArrival(here=here, best=best, best_worker=best_worker)
