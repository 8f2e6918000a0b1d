"""The task that publishes what a tap has queued: one for each tap (rules 50, 53, 61).

It lives under a shield that only its owner ends, so records of cancelled requests are published
too.  Its end has a deadline: closing the queue ends it, what is left after the drain is lost and
counted, and a publish that hangs is cut off a moment later.
"""

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from math import inf
from typing import Final, Protocol

import trio

from replay.errors import ReplayError
from replay.logger import get_logger
from replay.taps.tap import Record, Tap

log = get_logger(__name__)

#: How long after the drain a publish in progress may still finish.
HARD_STOP_SECONDS: Final = 0.5
#: A broken consumer would otherwise write a line for each record.
WARNING_SECONDS: Final = 10.0
#: Sinks mostly do not wait.  After records of so many bytes the requests get a turn: some
#: milliseconds at most, whether they are many or long.
BYTES_PER_TURN: Final = 1 << 17


class EnvelopeSink(Protocol):
    """Where the records of one tap go.  Its owner opens and closes it."""

    async def publish(self, payload: bytes) -> None:
        """Publish one packed record, or raise an Exception.

        The text of a `ReplayError` or `OSError` is logged, so it says nothing of the record.
        """
        ...


class Publisher:
    """The publishing task of one tap."""

    def __init__(
        self, tap: Tap, sink: EnvelopeSink, *, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._tap = tap
        self._sink = sink
        self._clock_ns = clock_ns
        self._lifetime = trio.CancelScope(shield=True)
        self._drain_deadline = inf
        self._next_warning = -inf
        self._unreported = 0

    def stop(self, drain_deadline: float) -> None:
        """Close the queue and end the task by *drain_deadline*, a `trio.current_time()`.

        A publish in progress then may go on for `HARD_STOP_SECONDS`.
        """
        self._drain_deadline = drain_deadline
        self._lifetime.deadline = drain_deadline + HARD_STOP_SECONDS
        self._tap.close()

    async def run(self) -> None:
        """Publish until `stop`, whatever is cancelled around it."""
        try:
            with self._lifetime:
                await self._publish_all()
        except Exception as error:
            # Only this tap is hurt: its queue closes, and clients and the other taps go on.
            log.error("publisher broke", tap=self._tap.name, error=_describe(error))
        finally:
            lost = self._tap.give_up()
            if lost:
                log.warning("records lost", tap=self._tap.name, lost=lost)

    async def _publish_all(self) -> None:
        tap = self._tap
        left = BYTES_PER_TURN
        while trio.current_time() < self._drain_deadline:
            record = tap.take()
            if record is None:
                if tap.is_closed:
                    return
                await tap.wait_queued()
                left = BYTES_PER_TURN
                continue
            await self._publish(record)
            left -= record.size
            if left <= 0:
                queued_bytes = tap.queued_bytes
                await trio.lowlevel.checkpoint()
                # Requests that had a long turn have queued as much: else a loop that is busy would
                # fill the queue, however fast its records could be published.
                left = max(BYTES_PER_TURN, tap.queued_bytes - queued_bytes)

    async def _publish(self, record: Record) -> None:
        tap = self._tap
        mirrored = record.mirrored
        try:
            payload = tap.packer.pack(
                seq=record.seq,
                request_id=mirrored.request_id,
                origin=mirrored.origin,
                arrival_unix_ns=mirrored.arrival_unix_ns,
                packed_request=mirrored.packed,
                response=record.response,
            )
            await self._sink.publish(payload)
        except Exception as error:
            tap.publish_errors += 1
            tap.put_down()
            self._warn(record.seq, error)
        else:
            tap.published += 1
            tap.put_down()
            tap.publish_lag.observe(self._clock_ns() - record.queued_ns)

    def _warn(self, seq: int, error: Exception) -> None:
        now = trio.current_time()
        if now < self._next_warning:
            self._unreported += 1
            return
        self._next_warning = now + WARNING_SECONDS
        log.warning(
            "publish failed",
            tap=self._tap.name,
            seq=seq,
            error=_describe(error),
            unreported=self._unreported,
        )
        self._unreported = 0


def _describe(error: Exception) -> str:
    """Name an error without repeating content: only texts that are known to hold none are shown."""
    if isinstance(error, ReplayError | OSError):
        return f"{type(error).__name__}: {error}"
    return type(error).__name__


@asynccontextmanager
async def run_publishers(
    sinks: Mapping[Tap, EnvelopeSink], *, drain_seconds: float
) -> AsyncIterator[None]:
    """Publish what the taps queue for as long as the block lasts, and then what is still queued.

    That takes at most *drain_seconds* and `HARD_STOP_SECONDS`, also when the block is cancelled.
    """
    publishers = [Publisher(tap, sink) for tap, sink in sinks.items()]
    async with trio.open_nursery() as tasks:
        try:
            for publisher in publishers:
                # Not `start`, which would wait for ever for a shielded task when it is cancelled.
                tasks.start_soon(publisher.run)
            yield
        finally:
            deadline = trio.current_time() + drain_seconds
            for publisher in publishers:
                publisher.stop(deadline)
