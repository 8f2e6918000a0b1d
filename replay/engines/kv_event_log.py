"""The KV events of one engine, numbered and kept for those who missed them.  PURE.

Batches count from 1.  The last ones are kept, so that a subscriber can resume behind what it has
applied.  What the cache holds is kept as well, for a subscriber that comes when the first batches
are gone.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import attrs

from replay.engines.kv_content import stored_again
from replay.engines.kv_events import BlocksRemoved, BlocksStored, CacheCleared, KvEvent

#: What is kept of long prompts is bounded by this before it is by the number of batches: with 16
#: tokens a block takes some 100 bytes, and who is so far behind is better off with a snapshot.
MOST_BLOCKS_KEPT = 1_048_576

#: A batch with so many blocks of 16 tokens has some 100 kB: far from what a reader takes as one
#: message.
BLOCKS_TOLD_AT_ONCE = 1024


@attrs.frozen(eq=False)
class KvBatch:
    """The events of one pass."""

    sequence: int
    first_event_id: int
    unix_seconds: float
    events: Sequence[KvEvent]
    is_withheld: bool = False
    """Whether nobody gets it as it happens, as if it had been lost on its way."""

    @property
    def blocks(self) -> int:
        """How many blocks it tells of."""
        return sum(len(each.hashes) for each in self.events if not isinstance(each, CacheCleared))


class KvEventLog:
    """The last *capacity* batches, and the content that all of them add up to.

    Of batches that together tell of more than *most_blocks* the oldest go before.
    """

    def __init__(self, capacity: int, most_blocks: int = MOST_BLOCKS_KEPT) -> None:
        self._batches: deque[KvBatch] = deque()
        self._capacity = capacity
        self._most_blocks = most_blocks
        self._blocks = 0
        self._next_event_id = 1
        #: How many of the next batches are kept from those who listen.
        self.to_withhold = 0
        self._content: dict[int, tuple[BlocksStored, int]] = {}
        self._listeners: dict[object, Callable[[], None]] = {}
        #: The number of the last batch; 0 before the first.
        self.last = 0
        #: How often the numbers have begun anew.
        self.generation = 0

    @property
    def first(self) -> int:
        """The number of the oldest batch that is kept; the next one's while there is none."""
        return self.last - len(self._batches) + 1

    def append(self, events: Sequence[KvEvent], unix_seconds: float) -> None:
        """Keep a batch and tell the listeners."""
        self._keep(events, unix_seconds)
        for event in events:
            if isinstance(event, BlocksStored):
                for place, content_hash in enumerate(event.hashes):
                    self._content[content_hash] = event, place
            elif isinstance(event, BlocksRemoved):
                for content_hash in event.hashes:
                    del self._content[content_hash]
            else:
                self._content.clear()
        self.tell()

    def after(self, sequence: int, limit: int) -> list[KvBatch]:
        """Return at most *limit* batches with larger numbers: the next ones that are kept."""
        start = max(0, sequence + 1 - self.first)
        return [self._batches[at] for at in range(start, min(start + limit, len(self._batches)))]

    def content(self) -> dict[int, tuple[BlocksStored, int]]:
        """Return what the cache holds by hash: the event that stored it, and its place there."""
        return dict(self._content)

    def withhold(self, batches: int) -> None:
        """Keep the next *batches* from those who listen; who resumes gets them all the same."""
        self.to_withhold = batches

    def restart(self, unix_seconds: float) -> None:
        """Begin anew with number 1, as a publisher does whose engine lives on.

        Readers forget what they knew; so what the cache holds is told again, and nothing before.
        """
        self._batches.clear()
        self._blocks = 0
        self.last = 0
        self.generation += 1
        self.to_withhold = 0
        # The content is the same before and after.
        self._keep([CacheCleared()], unix_seconds)
        for events in stored_again(self._content, BLOCKS_TOLD_AT_ONCE):
            self._keep(events, unix_seconds)
        self.tell()

    @contextmanager
    def listening(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call *callback* whenever there is something new.  It must not wait."""
        key = object()
        self._listeners[key] = callback
        try:
            yield
        finally:
            del self._listeners[key]

    def tell(self) -> None:
        """Wake the listeners: there is a batch, or the engine's load is another."""
        for callback in self._listeners.values():
            callback()

    def _keep(self, events: Sequence[KvEvent], unix_seconds: float) -> None:
        self.last += 1
        withheld = self.to_withhold > 0
        self.to_withhold -= withheld
        batch = KvBatch(self.last, self._next_event_id, unix_seconds, events, withheld)
        self._batches.append(batch)
        self._blocks += batch.blocks
        while len(self._batches) > self._capacity or (
            self._blocks > self._most_blocks and len(self._batches) > 1
        ):
            self._blocks -= self._batches.popleft().blocks
        self._next_event_id += len(events)
