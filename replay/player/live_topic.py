"""Feeds a player with the records of a live topic, for as long as a run goes."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
import zmq

from replay.consumer.consume import Consumer, Source
from replay.plane.sockets import open_context
from replay.player.arrival import Arrival
from replay.player.live_feed import LiveFeed
from replay.player.play import Player
from replay.player.tap_listener import TapListener
from replay.player.traces.fault import Notes

#: How long sockets may take to close.
_CLOSE_SECONDS = 2.0
#: How often it is looked whether the publishers have ended: they tell by a record, not an event.
_LOOK_SECONDS = 0.25


class LiveTopic:
    """The requests of a topic, as they come."""

    def __init__(
        self,
        source: Source,
        *,
        delay_seconds: float = 0.0,
        limit: int | None = None,
        until_end: bool = False,
        on_request: Callable[[Arrival], None] = lambda _: None,
    ) -> None:
        """Send each request *delay_seconds* after its arrival, or at once.

        The feed ends after *limit* requests, and with *until_end* when the publishers have ended.
        *on_request* learns of each request that is going to be sent.
        """
        self.topic = source.topic
        self.feed = LiveFeed()
        self._listener = TapListener(
            self.feed, delay_seconds=delay_seconds, limit=limit, on_request=on_request
        )
        self._consumer = Consumer(source, self._listener)
        self._until_end = until_end
        self._last_report: dict[str, Any] | None = None

    @property
    def notes(self) -> Notes:
        """What was noticed on the way."""
        return self._listener.notes

    @property
    def dropped(self) -> int:
        """Requests that found no room between the topic and the player."""
        return self._listener.dropped

    def report(self) -> dict[str, Any]:
        """Return the consumer's report: what came, and what is missing.

        It needs the loop's clock until reading has ended; then it is that of the end.
        """
        return self._consumer.report() if self._last_report is None else self._last_report

    @asynccontextmanager
    async def reading(self, player: Player) -> AsyncIterator[None]:
        """Read for *player*, once its run has begun, until the block is left."""
        self._listener.player = player
        async with (
            open_context(term_seconds=_CLOSE_SECONDS) as context,
            trio.open_nursery() as tasks,
        ):
            tasks.start_soon(self._read, player, context)
            if self._until_end:
                tasks.start_soon(self._end_with_publishers)
            try:
                yield
            finally:
                self._last_report = self._consumer.report()
                tasks.cancel_scope.cancel()

    async def _read(self, player: Player, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        # Only a run that has begun has a clock to give its requests their moments by.
        await player.begun.wait()
        await self._consumer.run(context)

    async def _end_with_publishers(self) -> None:
        # That they have ended is no event there: it follows from several things that come apart.
        while not self._consumer.has_ended:  # noqa: ASYNC110
            await trio.sleep(_LOOK_SECONDS)
        self.feed.end()
