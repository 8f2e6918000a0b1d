"""Turns the records of a live tap into requests to play."""

import time
from collections.abc import Callable

import trio

from replay.consumer.consume import Listener
from replay.consumer.summary import RecordSummary
from replay.plane.codec import Message
from replay.player.arrival import Arrival
from replay.player.live_feed import LiveFeed
from replay.player.play import Player
from replay.player.schedule import Planned
from replay.player.traces.fault import Notes, TraceError
from replay.player.traces.record import read_record
from replay.player.traces.record_scan import record_of_payload


class TapListener(Listener):
    """Brings each record of a tap to the player as it comes.

    A joined record comes when its request has ended.  With a *delay_seconds* longer than requests
    take, they are sent as far apart as they arrived; without one, as they come.
    """

    def __init__(
        self,
        feed: LiveFeed,
        *,
        delay_seconds: float = 0.0,
        limit: int | None = None,
        on_request: Callable[[Arrival], None] = lambda _: None,
    ) -> None:
        """*on_request* learns of each request that the player is going to send."""
        self.notes = Notes()
        self.player: Player | None = None
        """Set before the first record can come."""
        self._feed = feed
        self._on_request = on_request
        self.dropped = 0
        """Requests that found no room on the way to the player."""
        self._delay_ns = round(delay_seconds * 1e9)
        self._limit = limit
        self._position = 0

    def record(self, summary: RecordSummary, message: Message) -> None:
        """Bring the request of a record."""
        if self._limit is not None and self._position >= self._limit:
            return
        record = record_of_payload(message.envelope.payload, self.notes)
        if record is None:
            return
        try:
            arrival = read_record(record, self._position + 1, self.notes)
        except TraceError:
            self.notes.undecodable += 1
            return
        if arrival is None or self.player is None or self.player.clock is None:
            return
        self._position += 1
        due_ns = self.player.clock.at_ns(trio.current_time())
        if self._delay_ns and arrival.time_ns is not None:
            due_ns += max(0, arrival.time_ns + self._delay_ns - time.time_ns())
        if self._feed.push(Planned(arrival, due_ns)):
            self._on_request(arrival)
        else:
            self.dropped += 1
        if self._position == self._limit:
            self._feed.end()

    def unreadable(self, reason: str) -> None:
        """Count what is no record."""
        self.notes.undecodable += 1
