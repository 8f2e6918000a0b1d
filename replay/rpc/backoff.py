"""How long to leave a server alone that could not be reached.  PURE."""

import math

#: A server that restarts is back after some such time, and nobody notices so short a pause.
FIRST_SECONDS = 0.05
#: What a server that stays away is asked at most, and how late its return is noticed.
MOST_SECONDS = 1.0


class Backoff:
    """The pause after failed attempts: it doubles with each, and a success ends it."""

    __slots__ = ("_pause", "_until")

    def __init__(self) -> None:
        self._pause = 0.0
        self._until = -math.inf

    def failed(self, now: float) -> None:
        """Take note of an attempt that failed at *now*, on any clock of seconds."""
        self._pause = min(max(FIRST_SECONDS, 2 * self._pause), MOST_SECONDS)
        self._until = now + self._pause

    def succeeded(self) -> None:
        """Take note of an attempt that succeeded."""
        self._pause = 0.0
        self._until = -math.inf

    def left(self, now: float) -> float:
        """Return the seconds until the next attempt; 0 when it may begin now."""
        return max(0.0, self._until - now)
