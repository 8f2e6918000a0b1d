"""`SubscribeKvEvents`: one subscriber's way through the log of KV events.

A subscriber reads the log at its own speed.  One that falls behind what is kept gets a gap, and
comes again.  A cursor that the log does not reach is OUT_OF_RANGE, which tells a gateway to forget
what it knows and to begin from 0.  Who begins from 0 when the first batches are gone gets a
snapshot.
"""

import time
from collections.abc import Callable
from functools import lru_cache

import trio
from purerpc.grpclib.exceptions import OutOfRangeError

from replay._proto import common_pb2 as common
from replay.engines.base import Loads
from replay.engines.kv_event_log import KvBatch, KvEventLog
from replay.engines.kv_event_messages import RANK, batch_message, load_record, snapshot_messages
from replay.rpc.calls import Call, frame_message

#: Between two load records while nothing happens.
HEARTBEAT_SECONDS = 1.0

#: Batches that a subscriber takes from the log at a time.
_BATCHES_AT_ONCE = 64


class KvEventStreams:
    """Answers `SubscribeKvEvents` from *log*, with the engine's load beside the events."""

    def __init__(self, log: KvEventLog, loads: Callable[[], Loads]) -> None:
        self._log = log
        self._loads = loads
        # Subscribers want the same batches at about the same time.
        self._encode = lru_cache(maxsize=2 * _BATCHES_AT_ONCE)(_encode)

    async def subscribe(self, message: common.SubscribeKvEventsRequest, request: Call) -> None:
        """Send what is behind the subscriber's cursor, and then what happens."""
        log = self._log
        cursor = message.start_sequence_number
        if cursor > log.last or 0 < cursor < log.first - 1:
            # Before the headers: behind them a gateway would take it for a broken stream.
            raise OutOfRangeError(
                f"sequence {cursor} is not between {log.first - 1} and {log.last}; begin from 0"
            )
        request.standing = True
        request.respond()
        subscriber = _Subscriber(request, log, self._loads, self._encode, cursor)
        await subscriber.run(may_begin_with_load=message.load_records_before_first_batch)


def _encode(batch: KvBatch) -> bytes:
    return batch_message(batch).SerializeToString()


class _Subscriber:
    """One stream."""

    def __init__(
        self,
        call: Call,
        log: KvEventLog,
        loads: Callable[[], Loads],
        encode: Callable[[KvBatch], bytes],
        cursor: int,
    ) -> None:
        self._call = call
        self._log = log
        self._loads = loads
        self._encode = encode
        self._cursor = cursor
        #: The last number that the subscriber has: behind the cursor while batches are withheld.
        self._sent = cursor
        self._samples = 0
        self._seen_requests = (-1, -1)
        self._news = trio.Event()

    async def run(self, *, may_begin_with_load: bool) -> None:
        log = self._log
        with log.listening(self._wake):
            generation = log.generation  # before a snapshot: it takes the time of a slow reader
            replayed = log.last  # up to here nothing is withheld
            if self._cursor == 0 and log.first > 1:
                await self._send_snapshot()
            while True:
                if log.generation != generation:
                    generation, replayed, self._cursor, self._sent = log.generation, 0, 0, 0
                batches = log.after(self._cursor, _BATCHES_AT_ONCE)
                for batch in batches:
                    self._cursor = batch.sequence
                    if not batch.is_withheld or batch.sequence <= replayed:
                        self._sent = batch.sequence
                        self._send(self._encode(batch))
                        await self._room()
                if not batches:
                    await self._wait(has_load=self._sent > 0 or may_begin_with_load)

    async def _wait(self, *, has_load: bool) -> None:
        """Wait for news, and tell of the load when it has changed and now and then."""
        loads = self._loads()
        if has_load and (loads.running, loads.waiting) != self._seen_requests:
            self._send_load(loads)
        with trio.move_on_after(HEARTBEAT_SECONDS) as pause:
            await self._news.wait()
        self._news = trio.Event()
        if pause.cancelled_caught and has_load:
            self._send_load(self._loads())

    def _wake(self) -> None:
        self._news.set()

    async def _room(self) -> None:
        if self._call.is_full:
            await self._call.room()
        else:
            await trio.lowlevel.checkpoint()

    async def _send_snapshot(self) -> None:
        content, through = self._log.content(), self._log.last
        for message in snapshot_messages(content, through=through, unix_seconds=time.time()):
            self._send(message.SerializeToString())
            await self._room()
        self._cursor = self._sent = through

    def _send(self, batch: bytes) -> None:
        """Send an encoded batch with the load: messages that are joined are merged."""
        loads = self._loads()
        self._seen_requests = loads.running, loads.waiting
        self._samples += 1
        record = load_record(
            loads, sample=self._samples, load_only=False, with_telemetry=self._samples == 1
        )
        load = common.KvEventBatch(load=record).SerializeToString()
        self._call.write(frame_message(batch + load))

    def _send_load(self, loads: Loads) -> None:
        self._seen_requests = loads.running, loads.waiting
        self._samples += 1
        record = load_record(loads, sample=self._samples, load_only=True, with_telemetry=True)
        message = common.KvEventBatch(
            sequence_number=self._sent, timestamp=time.time(), dp_rank=RANK, load=record
        )
        self._call.send(message)
