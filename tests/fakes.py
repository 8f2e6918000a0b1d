"""Fakes that the suite trusts: each does one thing, and says what it has seen."""

from collections.abc import Sequence

import trio


class CollectingSink:
    """Keeps what is published; raises instead for the payloads whose number is in *failing*."""

    def __init__(self, failing: Sequence[int] = ()) -> None:
        self.payloads: list[bytes] = []
        self.attempts = 0
        self._failing = frozenset(failing)

    async def publish(self, payload: bytes) -> None:
        number = self.attempts
        self.attempts += 1
        if number in self._failing:
            raise OSError(28, "No space left on device")
        self.payloads.append(payload)


class SlowSink(CollectingSink):
    """Takes *seconds* for each record."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    async def publish(self, payload: bytes) -> None:
        await trio.sleep(self._seconds)
        await super().publish(payload)


class StalledSink(CollectingSink):
    """Takes no record until `release` is called, and then each at once."""

    def __init__(self) -> None:
        super().__init__()
        self._released = trio.Event()

    def release(self) -> None:
        self._released.set()

    async def publish(self, payload: bytes) -> None:
        await self._released.wait()
        await super().publish(payload)


class RaisingSink:
    """Publishes nothing: every attempt raises *error*."""

    def __init__(self, error: Exception) -> None:
        self.attempts = 0
        self._error = error

    async def publish(self, payload: bytes) -> None:
        self.attempts += 1
        raise self._error
