"""Requests that somebody else brings while a run goes, such as the records of a live tap.

What nobody has taken yet is bounded; what does not fit is not taken, which the caller counts.
"""

from collections import deque
from collections.abc import Callable

import trio

from replay.errors import ReplayError
from replay.player.schedule import Planned

#: Requests that may wait for the loop: it takes them at once, unless it stalls.
CAPACITY = 10_000


class LiveFeed:
    """Requests as they come.  `push` is synchronous, for whoever brings them."""

    def __init__(self, *, capacity: int = CAPACITY) -> None:
        self._items: deque[Planned] = deque()
        self._capacity = capacity
        self._ended = trio.Event()
        self._is_given_up = False
        self.on_news: Callable[[], None] = lambda: None
        self.error: ReplayError | None = None
        self.rest = 0
        """Requests that came after nobody wanted them any more."""

    @property
    def is_over(self) -> bool:
        """Whether nothing will come any more."""
        return self._ended.is_set() and not self._items

    @property
    def is_counted(self) -> bool:
        """Always: nothing is known of but what came."""
        return True

    def push(self, planned: Planned) -> bool:
        """Bring a request; return whether it was taken."""
        if self._ended.is_set() or self._is_given_up:
            self.rest += 1
            return False
        if len(self._items) >= self._capacity:
            return False
        self._items.append(planned)
        self.on_news()
        return True

    def end(self) -> None:
        """Say that nothing will come any more."""
        self._ended.set()
        self.on_news()

    async def run(self) -> None:
        """Wait until the end: somebody else brings the requests."""
        await self._ended.wait()

    async def wait_filled(self) -> None:
        """Do not wait: a run begins before the first request."""
        await trio.lowlevel.checkpoint()

    async def wait_ended(self) -> None:
        """Do not wait: after a run nobody counts what still comes."""
        await trio.lowlevel.checkpoint()

    def take(self) -> Planned | None:
        """Return the next request, or None if there is none now."""
        return self._items.popleft() if self._items else None

    def give_up(self) -> list[Planned]:
        """Return what was not taken, and keep nothing any more."""
        left = [*self._items]
        self._items.clear()
        self._is_given_up = True
        return left
