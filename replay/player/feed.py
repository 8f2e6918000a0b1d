"""Reads a source ahead of the schedule, in a thread: files block, and the schedule does not wait.

What is ahead is bounded, so a source of any size takes little memory.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

import trio

from replay.errors import ReplayError
from replay.player.schedule import Planned

#: Requests that are read ahead.  At a thousand a second that is two seconds of a slow disk.
AHEAD = 2_000
#: Requests that are read at once: a moment in the thread, which shares its interpreter with the
#: loop.
_BATCH = 32


class Feed(Protocol):
    """Where the player takes requests from."""

    on_news: Callable[[], None]
    """Called when there is a request again, and at the end."""

    @property
    def is_over(self) -> bool:
        """Whether nothing will come any more."""
        ...

    @property
    def is_counted(self) -> bool:
        """Whether all that the source has is known."""
        ...

    @property
    def rest(self) -> int:
        """Requests that came after nobody wanted them any more."""
        ...

    @property
    def error(self) -> ReplayError | None:
        """What was wrong with the source, which ended it."""
        ...

    async def run(self) -> None:
        """Bring requests until the source ends."""
        ...

    async def wait_filled(self) -> None:
        """Wait until a run can begin."""
        ...

    async def wait_ended(self) -> None:
        """Wait until the source has ended."""
        ...

    def take(self) -> Planned | None:
        """Return the next request, or None if there is none now."""
        ...

    def give_up(self) -> list[Planned]:
        """Return what was not taken, and keep nothing any more."""
        ...


class ReadAhead:
    """Requests out of a plan whose iterator blocks."""

    def __init__(self, plan: Iterator[Planned]) -> None:
        self._plan = plan
        self._items: deque[Planned] = deque()
        self._room = trio.Event()
        self._filled = trio.Event()
        self._ended = trio.Event()
        self._is_given_up = False
        self._limiter = trio.CapacityLimiter(1)
        self.on_news: Callable[[], None] = lambda: None
        self.is_over = False
        self.read = 0
        """Requests read so far."""
        self.rest = 0
        """Requests read after nobody wanted them any more."""
        self.error: ReplayError | None = None
        """What was wrong with the source, which ended it."""

    @property
    def is_counted(self) -> bool:
        """Whether the source was read to its end."""
        return self._ended.is_set() and self.error is None

    def take(self) -> Planned | None:
        """Return the next request, or None if there is none now."""
        if not self._items:
            return None
        planned = self._items.popleft()
        if len(self._items) < AHEAD // 2:
            self._room.set()
        if self._ended.is_set() and not self._items:
            self.is_over = True
        return planned

    def give_up(self) -> list[Planned]:
        """Return what was read ahead; what is read from now on is only counted."""
        left = [*self._items]
        self._items.clear()
        self._is_given_up = True
        self._room.set()
        return left

    async def wait_filled(self) -> None:
        """Wait until enough is read to begin."""
        await self._filled.wait()

    async def wait_ended(self) -> None:
        """Wait until the source is read to its end."""
        await self._ended.wait()

    async def run(self) -> None:
        """Read until the source ends."""
        while await self._read_batch():
            if len(self._items) >= AHEAD:
                self._filled.set()
                self._room = trio.Event()
                await self._room.wait()
        self._ended.set()
        self._filled.set()
        self.is_over = not self._items
        self.on_news()

    async def _read_batch(self) -> bool:
        # A pipe that nobody writes into must not hold the end of the program up.
        batch, self.error = await trio.to_thread.run_sync(
            _next_of, self._plan, limiter=self._limiter, abandon_on_cancel=True
        )
        self.read += len(batch)
        if self._is_given_up:
            self.rest += len(batch)
        else:
            self._items.extend(batch)
            self.on_news()
        return len(batch) == _BATCH


def _next_of(plan: Iterator[Planned]) -> tuple[list[Planned], ReplayError | None]:
    """Return the next requests, fewer only at the end, and what was wrong after them."""
    batch: list[Planned] = []
    try:
        for planned in plan:
            batch.append(planned)
            if len(batch) == _BATCH:
                break
    except ReplayError as error:
        return batch, error
    return batch, None
