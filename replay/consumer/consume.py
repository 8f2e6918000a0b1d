"""Reads the records of a topic and the status records beside them, and asks for what is missing.

Everything happens on one loop: a message is noted, put in order and handed on before the next one
of its publisher is looked at.
"""

import math
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio
import zmq

from replay.consumer.followed import FollowedPublisher
from replay.consumer.ledger import PublisherLedger
from replay.consumer.report import Account, build_report
from replay.consumer.status import RuntimeStatus, read_status
from replay.consumer.summary import RecordSummary, SummaryReader, read_seq
from replay.consumer.totals import Totals
from replay.logger import get_logger
from replay.plane.codec import Message
from replay.plane.curve import ClientKeys
from replay.plane.gap_filling import fill_gaps
from replay.plane.gap_protocol import Gap
from replay.plane.record_file import fits
from replay.plane.record_writer import RecordFileWriter
from replay.plane.subscriber import (
    Link,
    Remote,
    discovered_remotes,
    fixed_remotes,
    run_subscription,
)
from replay.taps.envelope import UndecodableRecordError, UnsupportedRecordError
from replay.taps.status import STATUS_TOPIC

log = get_logger(__name__)


@attrs.frozen(kw_only=True)
class Source:
    """Where a consumer finds its topic."""

    topic: str
    namespace: str = "dynamo"
    discovery: Path | None = None
    """Folder of the discovery files; None: only the endpoints below are read."""
    endpoints: tuple[str, ...] = ()
    """Publishers of the topic, instead of those in the folder."""
    status_endpoints: tuple[str, ...] = ()
    """Status publishers, instead of those in the folder."""
    curve: ClientKeys | None = None
    fills_gaps: bool = True
    """Whether missing messages are asked for where a runtime keeps them."""
    from_start: bool = False
    """Whether messages from before joining are missing too."""

    def remotes(self) -> AsyncGenerator[frozenset[Remote], None]:
        """Return the publishers of the topic as they come and go."""
        return self._find(self.topic, self.endpoints)

    def status_remotes(self) -> AsyncGenerator[frozenset[Remote], None]:
        """Return the status publishers as they come and go."""
        return self._find(STATUS_TOPIC, self.status_endpoints)

    def _find(
        self, topic: str, endpoints: tuple[str, ...]
    ) -> AsyncGenerator[frozenset[Remote], None]:
        if endpoints or self.discovery is None:
            return fixed_remotes(endpoints)
        return discovered_remotes(self.discovery, self.namespace, topic)


class Listener:
    """What a consumer tells while it reads.  Each method does nothing unless it is overridden."""

    def joined(self, ledger: PublisherLedger) -> None:
        """Learn that from now on a message of this publisher that does not come is a loss."""

    def record(self, summary: RecordSummary, message: Message) -> None:
        """Learn of a record, in the order of its publisher."""

    def unreadable(self, reason: str) -> None:
        """Learn of a message or record that cannot be read.  *reason* holds nothing of it."""


@attrs.define(eq=False)
class _Followed:
    """A publisher and the connections that concern it."""

    publisher: FollowedPublisher
    link: Link | None = None
    """None until it is known which connection is this publisher's."""
    gaps: trio.MemorySendChannel[Gap] | None = None
    """Where to ask for what is missing."""
    is_announced: bool = False


class Consumer:
    """The records of one topic, counted.  It is the `Reader` of its own subscription."""

    def __init__(
        self, source: Source, listener: Listener, *, record_file: RecordFileWriter | None = None
    ) -> None:
        self.totals = Totals()
        self._source = source
        self._listener = listener
        self._record_file = record_file
        self._writing = trio.Lock()
        self._summaries = SummaryReader()
        self._followed: dict[int, _Followed] = {}
        self._left: list[_Followed] = []
        """Those whose id is another's now."""
        self._links: list[Link] = []
        self._routers: dict[str, trio.MemorySendChannel[Gap]] = {}
        self._new_routers, self._router_feed = trio.open_memory_channel[
            tuple[str, trio.MemoryReceiveChannel[Gap]]
        ](math.inf)

    async def run(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Read until cancelled.  Run it once.

        Ends by itself only with an error: `JournalWriteError` if the record file does not take a
        message.  Errors come out in a group.
        """
        source = self._source
        subscribe = partial(run_subscription, context, curve=source.curve)
        async with trio.open_nursery() as reading:
            reading.start_soon(self._run_fillers, context)
            reading.start_soon(
                subscribe, STATUS_TOPIC, source.status_remotes(), _StatusReader(self)
            )
            reading.start_soon(subscribe, source.topic, source.remotes(), self)

    async def finish(self) -> None:
        """Hand on what waited behind a gap when `run` was cancelled.  Give it a deadline."""
        for each in self._followed.values():
            await self._take(each.publisher.finish())

    def report(self) -> dict[str, Any]:
        """Return the report on everything read so far (`replay.consumer.report`)."""
        accounts = [
            Account(each.publisher.ledger, self._tail_loss(each))
            for each in (*self._left, *self._followed.values())
        ]
        foreign = sum(link.foreign for link in self._links)
        return build_report(self.totals, accounts, foreign=foreign)

    @property
    def has_ended(self) -> bool:
        """Whether each publisher has ended, and it is known what came of all that it sent."""
        joined = [each for each in self._followed.values() if each.is_announced]
        return bool(joined) and all(
            each.publisher.ledger.is_final
            and each.publisher.asked is None
            and self._tail_loss(each) is not None
            for each in joined
        )

    # What the subscription tells its reader.

    def opened(self, link: Link) -> None:
        """Keep the connection to a publisher."""
        self._links.append(link)
        if link.remote.publisher_id is not None:
            self._follow(link.remote.publisher_id).link = link

    async def receive(self, link: Link, messages: list[Message]) -> None:
        """Count messages, and write them."""
        now = trio.current_time()
        ready: list[Message] = []
        touched: set[_Followed] = set()
        for message in messages:
            followed = self._follow(message.envelope.publisher_id)
            if followed.publisher.is_anew(message):
                await self._take(ready)
                ready = []
                followed = self._follow_anew(followed)
            followed.link = followed.link or link
            ready += followed.publisher.receive(message, now)
            touched.add(followed)
        for followed in touched:
            self._announce(followed)
        await self._take(ready)
        for followed in touched:
            self._ask(followed)

    def malformed(self, link: Link, reason: str) -> None:
        """Count a message that is none."""
        self.totals.undecodable += 1
        self._listener.unreadable(reason)

    # What the status records say.

    def observe(self, status: RuntimeStatus, link: Link) -> None:
        """Note what a runtime says of its taps with this topic; *link* is where it said it."""
        now = trio.current_time()
        for tap in status.taps:
            if tap.topic != self._source.topic:
                continue
            followed = self._follow(tap.publisher_id)
            followed.publisher.ledger.observe(
                tap,
                now,
                is_final=status.is_final,
                is_subscribed=self._is_subscribed(followed, link),
            )
            if status.router is not None and self._source.fills_gaps and followed.gaps is None:
                followed.gaps = self._filler(status.router)
            self._announce(followed)
            self._ask(followed)

    def _is_subscribed(self, followed: _Followed, status_link: Link) -> bool:
        """Say whether the publisher's connection is older than a status that has just come.

        Statuses may have been waiting here, so one counts only if none was waiting since.
        """
        links = self._links_of(followed)
        if followed.link is None:
            unknown = [each for each in self._followed.values() if each.link is None]
            if len(links) < len(unknown):
                return False  # a status speaks of publishers that nobody told us to connect to
        return bool(links) and all(
            link.connected_at is not None and link.connected_at <= status_link.found_empty_at
            for link in links
        )

    def _tail_loss(self, followed: _Followed) -> int | None:
        links = self._links_of(followed)
        return followed.publisher.ledger.tail_loss(
            trio.current_time(),
            is_empty=all(link.is_waiting for link in links),
            is_over=all(link.is_over for link in links),
        )

    def _links_of(self, followed: _Followed) -> list[Link]:
        """Return the connection of a publisher, or all that may be it."""
        if followed.link is not None:
            return [followed.link]
        return [link for link in self._links if link.remote.publisher_id is None]

    # What is made of it.

    def _follow(self, publisher_id: int) -> _Followed:
        followed = self._followed.get(publisher_id)
        if followed is None:
            ledger = PublisherLedger(publisher_id, from_start=self._source.from_start)
            followed = self._followed[publisher_id] = _Followed(FollowedPublisher(ledger))
        return followed

    def _follow_anew(self, followed: _Followed) -> _Followed:
        """Follow what a publisher sends after a start as another's, also under the same id."""
        publisher_id = followed.publisher.ledger.publisher_id
        self._left.append(self._followed.pop(publisher_id))
        anew = self._follow(publisher_id)
        anew.link = followed.link
        return anew

    def _announce(self, followed: _Followed) -> None:
        if not followed.is_announced and followed.publisher.ledger.joined_at is not None:
            followed.is_announced = True
            self._listener.joined(followed.publisher.ledger)

    async def _take(self, messages: list[Message]) -> None:
        for message in messages:
            self._count(message)
        if messages and self._record_file is not None:
            recorded = [message.frames for message in messages if self._can_be_recorded(message)]
            async with self._writing:
                await self._record_file.append(recorded)

    def _can_be_recorded(self, message: Message) -> bool:
        if fits(message.frames):
            return True
        # A publisher's excess is no reason to stop reading the others.
        envelope = message.envelope
        log.warning(
            "a message is too long for the record file",
            publisher=f"{envelope.publisher_id:x}",
            sequence=envelope.sequence,
            bytes=sum(map(len, message.frames)),
        )
        return False

    def _count(self, message: Message) -> None:
        envelope = message.envelope
        ledger = self._followed[envelope.publisher_id].publisher.ledger
        try:
            summary = self._summaries.read(envelope.payload)
        except (UndecodableRecordError, UnsupportedRecordError) as error:
            seq = read_seq(envelope.payload)
            if seq is not None:
                ledger.count(envelope.sequence, seq)
            if isinstance(error, UndecodableRecordError):
                self.totals.undecodable += 1
                self._listener.unreadable(str(error))
            else:
                self.totals.unsupported += 1
            return
        ledger.count(envelope.sequence, summary.seq)
        ledger.tap_name = summary.tap
        self.totals.add(summary)
        self._listener.record(summary, message)

    # Filling gaps.

    def _filler(self, endpoint: str) -> trio.MemorySendChannel[Gap]:
        if endpoint not in self._routers:
            # Not bounded, because each publisher has at most one gap in it.
            self._routers[endpoint], gaps = trio.open_memory_channel[Gap](math.inf)
            self._new_routers.send_nowait((endpoint, gaps))
        return self._routers[endpoint]

    def _ask(self, followed: _Followed) -> None:
        if followed.gaps is None:
            return
        followed.publisher.start_filling()
        gap = followed.publisher.next_gap(self._tail_loss(followed))
        if gap is not None:
            followed.gaps.send_nowait(gap)

    async def _run_fillers(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        fill = partial(fill_gaps, context, curve=self._source.curve)
        async with trio.open_nursery() as fillers:
            async for endpoint, gaps in self._router_feed:
                fillers.start_soon(fill, endpoint, gaps, self._recover, self._settle)

    async def _recover(self, messages: list[Message]) -> None:
        now = trio.current_time()
        ready: list[Message] = []
        for message in messages:
            ready += self._follow(message.envelope.publisher_id).publisher.recover(message, now)
        await self._take(ready)

    async def _settle(self, gap: Gap) -> None:
        followed = self._follow(gap.publisher_id)
        await self._take(followed.publisher.settle(gap))
        self._ask(followed)


class _StatusReader:
    """Reads the status topic for a consumer."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def opened(self, link: Link) -> None:
        """Nothing to keep: the link comes with each message."""

    async def receive(self, link: Link, messages: list[Message]) -> None:
        """Pass on what can be read."""
        for message in messages:
            try:
                status = read_status(message.envelope.payload)
            except (UndecodableRecordError, UnsupportedRecordError) as error:
                log.warning("status record not read", reason=str(error))
            else:
                self._consumer.observe(status, link)

    def malformed(self, link: Link, reason: str) -> None:
        """Say so; what the topic's totals are about is not touched."""
        log.warning("status record not read", reason=reason)
