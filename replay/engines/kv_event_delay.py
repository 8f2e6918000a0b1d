"""KV events that reach the log late, as over a slow path."""

import math
from collections import deque
from collections.abc import Sequence

import trio

from replay.engines.kv_event_log import KvEventLog
from replay.engines.kv_events import KvEvent


class KvEventDelay:
    """Hands batches on to *log*, `seconds` after they came, in order."""

    def __init__(self, log: KvEventLog) -> None:
        self._log = log
        self._seconds = 0.0
        self._waiting: deque[tuple[float, Sequence[KvEvent], float]] = deque()
        self._news = trio.Event()

    @property
    def seconds(self) -> float:
        """How late batches come that are appended from now on."""
        return self._seconds

    @seconds.setter
    def seconds(self, seconds: float) -> None:
        self._seconds = seconds
        if not seconds:
            self._hand_on_until(math.inf)

    def append(self, events: Sequence[KvEvent], unix_seconds: float) -> None:
        """Take a batch; without a delay the log has it at once."""
        if not self._seconds and not self._waiting:
            self._log.append(events, unix_seconds)
            return
        due = trio.current_time() + self._seconds
        if self._waiting:
            due = max(due, self._waiting[-1][0])  # nothing overtakes
        self._waiting.append((due, events, unix_seconds))
        self._news.set()

    async def run(self) -> None:
        """Hand on what is due, until cancelled."""
        while True:
            with trio.move_on_at(self._waiting[0][0] if self._waiting else math.inf):
                await self._news.wait()
            self._news = trio.Event()
            self._hand_on_until(trio.current_time())

    def _hand_on_until(self, now: float) -> None:
        while self._waiting and self._waiting[0][0] <= now:
            _, events, unix_seconds = self._waiting.popleft()
            self._log.append(events, unix_seconds)
