"""How fast an engine lately made tokens.  PURE: the time is an argument."""

from collections import deque

#: Long enough to smooth passes of a second, short enough that a gateway sees a change at its next
#: look (every 10 s).
WINDOW_SECONDS = 5.0
_SLOTS_PER_SECOND = 4


class Throughput:
    """A sliding window over generated tokens, in slots, so that adding costs next to nothing."""

    def __init__(self) -> None:
        self._slots: deque[list[int]] = deque()  # [slot number, tokens], oldest first

    def add(self, tokens: int, now: float) -> None:
        """Count *tokens*, made at *now* seconds.  A time before the last one counts as that."""
        slot = int(now * _SLOTS_PER_SECOND)
        if self._slots and self._slots[-1][0] >= slot:
            self._slots[-1][1] += tokens
        else:
            self._drop_before(now)
            self._slots.append([slot, tokens])

    def rate(self, now: float) -> float:
        """Return tokens per second over the window that ends at *now*."""
        self._drop_before(now)
        return sum(tokens for _, tokens in self._slots) / WINDOW_SECONDS

    def _drop_before(self, now: float) -> None:
        oldest = (now - WINDOW_SECONDS) * _SLOTS_PER_SECOND
        while self._slots and self._slots[0][0] < oldest:
            self._slots.popleft()
