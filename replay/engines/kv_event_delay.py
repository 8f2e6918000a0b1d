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
        """When each batch came, and the batch."""
        self._news = trio.Event()

    @property
    def seconds(self) -> float:
        """How late batches come, also those that wait."""
        return self._seconds

    @seconds.setter
    def seconds(self, seconds: float) -> None:
        self._seconds = seconds
        self._hand_on()
        self._news.set()

    def append(self, events: Sequence[KvEvent], unix_seconds: float) -> None:
        """Take a batch; without a delay the log has it at once."""
        if not self._seconds:
            self._log.append(events, unix_seconds)
            return
        self._waiting.append((trio.current_time(), events, unix_seconds))
        self._news.set()

    async def run(self) -> None:
        """Hand on what is due, until cancelled."""
        while True:
            with trio.move_on_at(self._next_due()):
                await self._news.wait()
            self._news = trio.Event()
            self._hand_on()

    def _next_due(self) -> float:
        return self._waiting[0][0] + self._seconds if self._waiting else math.inf

    def _hand_on(self) -> None:
        now = trio.current_time()
        while self._next_due() <= now:
            _, events, unix_seconds = self._waiting.popleft()
            self._log.append(events, unix_seconds)
