"""The status publisher: what the taps have done, once a second and a last time at the end.

It has a socket, a publisher id and a topic of its own, so a full pipe of a tap cannot swallow it
and no tap's numbers show it.  A consumer reads the exact loss from it, the tail included
(event-plane section 7).
"""

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

import attrs
import msgpack
import trio

from replay.logger import get_logger
from replay.taps.publisher import EnvelopeSink
from replay.taps.tap import Tap

log = get_logger(__name__)

STATUS_TOPIC: Final = "replay-status"
#: How long the last record may take: a sink that hangs must not hold up the end.
LAST_RECORD_SECONDS: Final = 0.5


class NumberedPublisher(Protocol):
    """What a status says of where a tap publishes."""

    @property
    def publisher_id(self) -> int:
        """The id under which consumers know the tap in this runtime."""
        ...

    @property
    def next_sequence(self) -> int:
        """The transport sequence that the next message will have."""
        ...


@attrs.frozen(kw_only=True)
class StatusSource:
    """What status records speak of."""

    runtime_id: str
    publishers: Mapping[Tap, NumberedPublisher]
    router: str | None = None
    """Endpoint that fills gaps; None: nothing does."""

    def record(self, *, unix_ns: int, monotonic_ns: int, is_final: bool) -> bytes:
        """Return the packed status record for this moment."""
        packed: bytes = msgpack.packb(
            {
                "schema_version": 1,
                "kind": "status",
                "runtime_id": self.runtime_id,
                "unix_ns": unix_ns,
                "monotonic_ns": monotonic_ns,
                "final": is_final,
                "router": self.router,
                "taps": [tap_status(tap, each) for tap, each in self.publishers.items()],
            }
        )
        return packed


def tap_status(tap: Tap, publisher: NumberedPublisher | None = None) -> dict[str, Any]:
    """Return what a tap has done, in the status record's order.

    Without *publisher* its id and sequence are left out.
    """
    numbers = {} if publisher is None else {"publisher_id": publisher.publisher_id}
    sequence = {} if publisher is None else {"next_sequence": publisher.next_sequence}
    return {
        "tap": tap.name,
        "topic": tap.topic,
        **numbers,
        "next_seq": tap.next_seq,
        **sequence,
        "queued": tap.queued,
        "dropped": {
            "full": tap.dropped_full,
            "closed": tap.dropped_closed,
            "bytes": tap.dropped_bytes,
        },
        "published": tap.published,
        "publish_errors": tap.publish_errors,
        "lost_at_shutdown": tap.lost_at_shutdown,
        "skipped": tap.skipped,
        "in_flight": tap.in_flight,
        "outcomes": {outcome.value: count for outcome, count in tap.outcomes.items()},
    }


class _StatusPublisher:
    def __init__(
        self, source: StatusSource, sink: EnvelopeSink, clock_ns: Callable[[], int]
    ) -> None:
        self._source = source
        self._sink = sink
        self._clock_ns = clock_ns
        self._failing = False

    async def send(self, *, is_final: bool) -> None:
        record = self._source.record(
            unix_ns=time.time_ns(), monotonic_ns=self._clock_ns(), is_final=is_final
        )
        try:
            await self._sink.publish(record)
        except Exception as error:
            if not self._failing:
                log.warning("status not published", error=type(error).__name__)
            self._failing = True
        else:
            self._failing = False

    async def run(self, interval_seconds: float, lifetime: trio.CancelScope) -> None:
        with lifetime:
            due = trio.current_time()
            while True:
                await self.send(is_final=False)
                # What a busy loop made late is sent at once and not made up for.
                due = max(due + interval_seconds, trio.current_time())
                await trio.sleep_until(due)


@asynccontextmanager
async def run_status(
    source: StatusSource,
    sink: EnvelopeSink,
    *,
    interval_seconds: float,
    clock_ns: Callable[[], int] = time.monotonic_ns,
) -> AsyncIterator[None]:
    """Send a status record every *interval_seconds* as long as the block lasts, and a last one.

    Nest the publishers in the block: the last record is to say what became of their queues.  It is
    sent also when the block is cancelled.  Errors of the block come out as a group.
    """
    publisher = _StatusPublisher(source, sink, clock_ns)
    lifetime = trio.CancelScope(shield=True)
    try:
        async with trio.open_nursery() as tasks:
            tasks.start_soon(publisher.run, interval_seconds, lifetime)
            try:
                yield
            finally:
                lifetime.cancel()
    finally:
        with trio.move_on_after(LAST_RECORD_SECONDS, shield=True):
            await publisher.send(is_final=True)
