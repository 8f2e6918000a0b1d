"""The request-path half of a tap.  Nothing here waits: a full queue drops, counts, and leaves a gap
in `seq` (rules 50 to 52).

Each counter has one cause.  At any moment
offered = queued + dropped_full + dropped_closed + dropped_bytes, and
queued = published + publish_errors + lost_at_shutdown + still_queued.
"""

from collections import deque
from typing import Final, NamedTuple

import trio

from replay.config.model import TapCapture, TapConfig
from replay.histogram import NanosecondHistogram
from replay.taps.envelope import EnvelopePacker
from replay.taps.filters import effective_names, projection, selection
from replay.taps.recorder import ByteBudget, Recorder, RecordingBounds
from replay.taps.response import Outcome, Response

#: What a queued record takes in memory beside the packed request, and each choice of its response
#: beside its ids: objects, columns and slots, as tracemalloc shows them, rounded up.
RECORD_OVERHEAD_BYTES: Final = 1024
CHOICE_OVERHEAD_BYTES: Final = 256

#: Bounds of the publish lag: a turn of the loop at best, the drain deadline at worst.
_LAG_SECONDS: Final = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


class MirroredRequest(NamedTuple):
    """What the records of one request have in common, for taps that keep the same of it."""

    request_id: str
    origin: str
    arrival_unix_ns: int
    packed: bytes
    """What the projection keeps of the request.  Bytes, so that nobody can change it in a queue."""


class Record(NamedTuple):
    """One queued record.  It is packed by the publisher, not on the request's path."""

    seq: int
    mirrored: MirroredRequest
    response: Response | None
    queued_ns: int
    """When it was queued, on the monotonic clock."""
    size: int
    """Bytes that it holds in memory, as `capacity_bytes` counts them."""


class Tap:
    """One tap: what it wants, its queue, its counters.  All of it on the loop's thread."""

    def __init__(self, config: TapConfig) -> None:
        self.name = config.name
        self.topic = config.topic
        self.config = config
        self.filters = effective_names(config.filters)
        self.projection = projection(config.filters)
        self.selection = selection(config.filters, config.models)
        self.selects = not self.selection.passes_all
        """Whether there is anything to ask of a request."""
        self.is_joined = config.capture is TapCapture.REQUEST_RESPONSE
        self.bounds: RecordingBounds | None = None
        self.budget: ByteBudget | None = None
        if config.response is not None:
            response = config.response
            self.bounds = RecordingBounds(
                response.tokens, response.max_tokens, response.chunk_timing
            )
            if response.max_bytes_in_flight is not None:
                self.budget = ByteBudget(response.max_bytes_in_flight)
        self.packer = EnvelopePacker(self.name, self.filters)

        self.next_seq = 0
        self.queued = 0
        self.dropped_full = 0
        self.dropped_closed = 0
        self.dropped_bytes = 0
        self.published = 0
        self.publish_errors = 0
        self.lost_at_shutdown = 0
        """Records that were queued and never published, also when the publisher broke."""
        self.skipped = 0
        """Requests that the filters, the models or the sample did not let through."""
        self.outcomes = dict.fromkeys(Outcome, 0)
        self.publish_lag = NanosecondHistogram(_LAG_SECONDS)
        self.open_recorders: set[Recorder] = set()
        """One for each request in flight whose joined record this tap will get."""

        self.queued_bytes = 0
        """Bytes of the records that are queued or being published."""
        self.is_closed = False
        self._queue: deque[Record] = deque()
        self._in_hand: Record | None = None
        self._publisher = trio.lowlevel.ParkingLot()

    @property
    def still_queued(self) -> int:
        """Records that are neither published nor lost yet, the one in hand included."""
        return len(self._queue) + (self._in_hand is not None)

    @property
    def in_flight(self) -> int:
        """Responses that are being recorded for this tap."""
        return len(self.open_recorders)

    @property
    def in_flight_bytes(self) -> int:
        """Bytes that open responses hold for this tap (rule 42)."""
        return sum(recorder.recorded_bytes for recorder in self.open_recorders)

    def offer(
        self, mirrored: MirroredRequest, response: Response | None, *, queued_ns: int
    ) -> None:
        """Queue a record, or drop and count it.  The number is spent in both cases (rule 51)."""
        seq = self.next_seq
        self.next_seq = seq + 1
        if self.is_closed:
            self.dropped_closed += 1
            return
        if len(self._queue) >= self.config.capacity:
            self.dropped_full += 1
            return
        size = RECORD_OVERHEAD_BYTES + len(mirrored.packed)
        if response is not None:
            size += response.recorded_bytes + CHOICE_OVERHEAD_BYTES * len(response.choices)
        limit = self.config.capacity_bytes
        if limit is not None and self.queued_bytes + size > limit:
            self.dropped_bytes += 1
            return
        self._queue.append(Record(seq, mirrored, response, queued_ns, size))
        self.queued += 1
        self.queued_bytes += size
        if self._publisher:
            self._publisher.unpark()

    def close(self) -> None:
        """Take no more records; the publisher ends when it has published what is queued."""
        self.is_closed = True
        self._publisher.unpark()

    # ---- for the publisher, of which there is one

    async def wait_queued(self) -> None:
        """Wait until there may be a record to take, or the tap has been closed."""
        await self._publisher.park()

    def take(self) -> Record | None:
        """Take the oldest record in hand; None: there is none now."""
        if not self._queue:
            return None
        self._in_hand = self._queue.popleft()
        return self._in_hand

    def put_down(self) -> None:
        """Let go of the record in hand, whatever became of it."""
        if self._in_hand is not None:
            self.queued_bytes -= self._in_hand.size
            self._in_hand = None

    def give_up(self) -> int:
        """Close, and count as lost what is queued and in hand; return how many that were."""
        self.close()
        lost = self.still_queued
        self.lost_at_shutdown += lost
        self._queue.clear()
        self._in_hand = None
        self.queued_bytes = 0
        return lost
