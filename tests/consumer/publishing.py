"""The publishing side of a runtime with one tap, made of its real parts and led by a test."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from replay.plane.codec import new_publisher_id
from replay.plane.discovery import publish, withdraw
from replay.plane.discovery_entry import Publisher
from replay.plane.gap_filling import ROUTER_HIGH_WATER_MARK, serve_gaps
from replay.plane.gap_protocol import LONGEST_REQUEST_FRAME
from replay.plane.replay_buffer import ReplayBuffer
from replay.plane.sinks import PlaneSink
from replay.plane.sockets import bind_pub, bind_router, open_context
from tests.plane.peers import Context
from tests.plane.records import record, status, tap_status

TOPIC = "shadow"
HEARTBEAT_SECONDS = 0.1


class Publishing:
    """One tap that publishes when it is told to, with a heartbeat beside it."""

    def __init__(self, context: Context, *, capacity: int, replay_buffer: int) -> None:
        self.publisher_id = new_publisher_id()
        self.buffer = ReplayBuffer(replay_buffer) if replay_buffer else None
        bound = bind_pub(context, "127.0.0.1", None, high_water_mark=capacity)
        self.sink = PlaneSink(
            TOPIC, self.publisher_id, socket=bound.socket, replay_buffer=self.buffer
        )
        self.endpoint = f"tcp://127.0.0.1:{bound.port}"
        beats = bind_pub(context, "127.0.0.1", None, high_water_mark=64)
        self.status_sink = PlaneSink("replay-status", new_publisher_id(), socket=beats.socket)
        self.status_endpoint = f"tcp://127.0.0.1:{beats.port}"
        self.router: str | None = None
        self.seq = 0
        self.dropped = {"full": 0, "closed": 0, "bytes": 0}
        self.is_final = False

    async def offer(self, count: int, *, padding: int = 0, **changes: Any) -> None:
        """Publish *count* records, each with *padding* more bytes."""
        for _ in range(count):
            await self.sink.publish(record(self.seq, padding=bytes(padding), **changes))
            self.seq += 1

    def drop(self, count: int) -> None:
        """Do as a tap does whose queue is full."""
        self.seq += count
        self.dropped["full"] += count

    async def beat(self) -> None:
        """Send a status record."""
        tap = tap_status(self.publisher_id, self.sink.next_sequence, dropped=self.dropped)
        await self.status_sink.publish(status([tap], final=self.is_final, router=self.router))

    async def run_heartbeat(self) -> None:
        """Send status records until cancelled."""
        while True:
            await self.beat()
            await trio.sleep(HEARTBEAT_SECONDS)


@asynccontextmanager
async def open_publishing(
    folder: Path | None, *, capacity: int = 10_000, replay_buffer: int = 0, heartbeat: bool = True
) -> AsyncIterator[Publishing]:
    """Open a tap that discovery shows in *folder*; at the end it stops as a runtime does."""
    async with open_context(term_seconds=5) as context, trio.open_nursery() as services:
        tap = Publishing(context, capacity=capacity, replay_buffer=replay_buffer)
        if tap.buffer is not None:
            bound = bind_router(
                context,
                "127.0.0.1",
                None,
                high_water_mark=ROUTER_HIGH_WATER_MARK,
                longest_request=LONGEST_REQUEST_FRAME,
            )
            tap.router = f"tcp://127.0.0.1:{bound.port}"
            services.start_soon(serve_gaps, bound.socket, {tap.publisher_id: tap.buffer})
        entries = [
            Publisher("dynamo", TOPIC, tap.publisher_id, tap.endpoint),
            Publisher("dynamo", "replay-status", tap.status_sink.publisher_id, tap.status_endpoint),
        ]
        if folder is not None:
            for entry in entries:
                publish(folder, entry)
        if heartbeat:
            services.start_soon(tap.run_heartbeat)
        try:
            yield tap
        finally:
            services.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                tap.is_final = True
                if heartbeat:
                    await tap.beat()
            tap.sink.close(linger_seconds=1)
            tap.status_sink.close(linger_seconds=1)
            if folder is not None:
                withdraw(folder, entries)
