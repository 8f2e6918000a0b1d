"""Publishes one engine's KV events on ZMQ, and repeats them for who asks.

One task publishes from the log; another one answers replay requests from it.  Neither waits for a
reader: one that is too slow loses messages and sees it by their numbers.
"""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio
import zmq

from replay.config.engines import KvEventsWire, RealisticConfig
from replay.engines.kv_event_log import KvBatch, KvEventLog
from replay.engines.kv_event_wires import (
    encode_events,
    end_frames,
    message_frames,
    read_request,
    reply_frames,
)
from replay.engines.kv_events import CacheCleared
from replay.plane.sockets import (
    Bound,
    bind_pub,
    bind_router,
    close_after_linger,
    open_context,
    receive_frames,
)

#: Batches that are sent before others get a turn.
_BATCHES_AT_ONCE = 64

#: A request is a number behind a few routing frames.
_LONGEST_FRAME = 256

#: What is queued when the engine ends has no more time than this to leave.
_LINGER_SECONDS = 0.1


@asynccontextmanager
async def open_kv_publisher(
    log: KvEventLog, config: RealisticConfig, *, host: str, port: int | None
) -> AsyncIterator["KvEventPublisher"]:
    """Bind a publisher of *log* to *host*:*port*, and its replays to the next port.

    With *port* None both are any free ports.  Raises BindError.
    """
    # As many messages as the log keeps: what a slow reader loses it can still ask for.
    high_water_mark = config.kv_events_buffer_steps + 2
    async with open_context(term_seconds=1.0) as context:
        publisher = bind_pub(context, host, port, high_water_mark=high_water_mark)
        replay = None
        try:
            if config.kv_events_replay:
                replay = bind_router(
                    context,
                    host,
                    None if port is None else port + 1,
                    high_water_mark=high_water_mark,
                    longest_request=_LONGEST_FRAME,
                )
            yield KvEventPublisher(log, config, publisher, replay)
        finally:
            for each in (publisher, replay):
                if each is not None:
                    close_after_linger(each.socket, _LINGER_SECONDS)


class KvEventPublisher:
    """Sockets that are bound, and what they send once `run` does."""

    def __init__(
        self, log: KvEventLog, config: RealisticConfig, publisher: Bound, replay: Bound | None
    ) -> None:
        self.port = publisher.port
        self.replay_port = None if replay is None else replay.port
        self._publisher = publisher.socket
        self._replay = None if replay is None else replay.socket
        self._log = log
        self._wire = config.kv_events_wire
        self._topic = config.kv_events_topic.encode()
        self._opening: list[list[bytes]] = []
        if self._wire is KvEventsWire.SGLANG:
            payload = encode_events([CacheCleared()], time.time(), self._wire)
            self._opening.append(message_frames(self._topic, 0, payload))
        self._news = trio.Event()

    async def run(self) -> None:
        """Publish what the log gets, and answer who asks, until cancelled."""
        async with trio.open_nursery() as tasks:
            tasks.start_soon(self._publish, self._publisher)
            if self._replay is not None:
                tasks.start_soon(self._answer, self._replay)

    async def _publish(self, socket: zmq.Socket[bytes]) -> None:
        log = self._log
        generation, cursor = log.generation, 0
        for message in self._opening:
            socket.send_multipart(message, zmq.DONTWAIT)
        with log.listening(lambda: self._news.set()):
            while True:
                if log.generation != generation:
                    generation, cursor = log.generation, 0
                batches = log.after(cursor, _BATCHES_AT_ONCE)
                for batch in batches:
                    cursor = batch.sequence
                    if not batch.is_withheld:
                        socket.send_multipart(self._message(batch), zmq.DONTWAIT)
                if batches:
                    await trio.lowlevel.checkpoint()
                else:
                    await self._news.wait()
                    self._news = trio.Event()

    async def _answer(self, socket: zmq.Socket[bytes]) -> None:
        while True:
            request = read_request(await receive_frames(socket))
            if request is not None:
                await self._repeat(socket, *request)

    async def _repeat(
        self, socket: zmq.Socket[bytes], routing: Sequence[bytes], number: int
    ) -> None:
        log, wire = self._log, self._wire
        generation, through = log.generation, log.last
        if log.first == 1:
            for message in self._opening_messages()[number:]:
                socket.send_multipart(reply_frames(routing, message, wire), zmq.DONTWAIT)
        cursor = max(0, number - len(self._opening_messages()))
        while cursor < through and log.generation == generation:
            for batch in log.after(cursor, min(_BATCHES_AT_ONCE, through - cursor)):
                cursor = batch.sequence
                frames = reply_frames(routing, self._message(batch), wire)
                socket.send_multipart(frames, zmq.DONTWAIT)
            await trio.lowlevel.checkpoint()
        socket.send_multipart(end_frames(routing, wire), zmq.DONTWAIT)

    def _opening_messages(self) -> list[list[bytes]]:
        """Return what was sent before the first batch: nothing by a publisher that restarted."""
        return self._opening if self._log.generation == 0 else []

    def _message(self, batch: KvBatch) -> list[bytes]:
        number = batch.sequence - 1 + len(self._opening_messages())
        payload = encode_events(batch.events, batch.unix_seconds, self._wire)
        return message_frames(self._topic, number, payload)
