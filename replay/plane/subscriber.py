"""Reads one topic from every publisher that has it.

Each publisher gets a SUB socket with a task that owns it, so publishers come and go without
anybody touching a socket from outside.  ZeroMQ matches topics by their beginning; here frame 0 and
the envelope's topic must be the topic exactly, and everything else is counted as foreign.

A publisher that leaves discovery is read on until its connection ends: it may only have been
stopped for a while, or have closed with messages still on their way.  If it was started again at
the same address, its old connection ends for the new one, which reads the same.
"""

import math
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Protocol

import attrs
import trio
import zmq
from zmq.utils.monitor import parse_monitor_message

from replay.logger import get_logger
from replay.plane.codec import MalformedMessageError, Message, decode_message
from replay.plane.curve import ClientKeys
from replay.plane.discovery import watch_publishers
from replay.plane.sockets import open_sub, receive_frames, take_frames

log = get_logger(__name__)

#: Messages that are taken at once.  A pass of the loop costs as much as several of them.
MOST_AT_ONCE = 64
#: The end of a connection is told a moment before its last messages are handed over.
LAST_MESSAGES_SECONDS = 0.25

_REFUSED = zmq.Event.HANDSHAKE_FAILED_AUTH | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
#: So ends a connection to a publisher with another key than the reader takes for its.
_BROKEN_OFF = zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
_MONITORED = zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED | _REFUSED | _BROKEN_OFF


@attrs.frozen
class Remote:
    """A publisher to connect to."""

    endpoint: str
    publisher_id: int | None = None
    """None when only the endpoint is known."""


@attrs.define(eq=False)
class Link:
    """The connection to one publisher, as its reader sees it.  Times are `trio.current_time()`."""

    remote: Remote
    connected_at: float | None = None
    """When the handshake was done, which the subscription follows at once; None while there is no
    connection."""
    found_empty_at: float = -math.inf
    """When last no message was waiting here."""
    is_waiting: bool = False
    """Whether nothing is waiting here now, and all that came has been delivered."""
    is_over: bool = False
    """Whether the publisher has left, and all that came from it has been delivered."""
    messages: int = 0
    foreign: int = 0
    malformed: int = 0
    refused: int = 0
    """Handshakes that failed, for want of an allowed key or with a wrong one above all."""


class Reader(Protocol):
    """Who gets the messages of a topic."""

    def opened(self, link: Link) -> None:
        """Learn of a publisher, before any message of it."""
        ...

    async def receive(self, link: Link, messages: list[Message]) -> None:
        """Take messages of one publisher, in its order.  Nothing more of it comes meanwhile."""
        ...

    def malformed(self, link: Link, reason: str) -> None:
        """Learn that a message could not be read.  *reason* holds nothing of it."""
        ...


async def fixed_remotes(endpoints: Iterable[str]) -> AsyncGenerator[frozenset[Remote], None]:
    """Yield *endpoints* once, for readers that do without discovery."""
    yield frozenset(Remote(endpoint) for endpoint in endpoints)


async def discovered_remotes(
    folder: Path, namespace: str, topic: str
) -> AsyncGenerator[frozenset[Remote], None]:
    """Yield the publishers of a topic that discovery shows, again whenever they have changed."""
    async with aclosing(watch_publishers(folder, namespace, topic)) as watched:
        async for publishers in watched:
            yield frozenset(Remote(each.endpoint, each.publisher_id) for each in publishers)


async def run_subscription(
    context: zmq.Context[zmq.Socket[bytes]],
    topic: str,
    remotes: AsyncGenerator[frozenset[Remote], None],
    reader: Reader,
    *,
    curve: ClientKeys | None = None,
) -> None:
    """Read *topic* from the publishers that *remotes* yields last, until cancelled.

    An exception of *reader* ends it and comes out in a group.
    """
    receivers: dict[Remote, _Receiver] = {}
    present: frozenset[Remote] = frozenset()

    async def receive(receiver: _Receiver) -> None:
        await receiver.run(context, curve)
        del receivers[receiver.link.remote]

    def look_who_left() -> None:
        connected = {
            remote.endpoint
            for remote in present & receivers.keys()
            if receivers[remote].link.connected_at is not None
        }
        for remote, receiver in receivers.items():
            is_leaving = remote not in present
            receiver.set_leaving(is_leaving, is_replaced=remote.endpoint in connected)

    async with trio.open_nursery() as running, aclosing(remotes):
        async for present in remotes:
            for remote in present - receivers.keys():
                receivers[remote] = _Receiver(topic, remote, reader, look_who_left)
                running.start_soon(receive, receivers[remote])
            look_who_left()


class _Receiver:
    """The task that reads from one publisher."""

    def __init__(
        self, topic: str, remote: Remote, reader: Reader, on_connected: Callable[[], None]
    ) -> None:
        self.link = Link(remote)
        self._on_connected = on_connected
        self._topic = topic
        self._frame_0 = topic.encode()
        self._reader = reader
        self._is_leaving = False
        self._is_replaced = False
        self._waiting = trio.CancelScope()
        reader.opened(self.link)

    def set_leaving(self, is_leaving: bool, *, is_replaced: bool = False) -> None:
        """Say whether discovery shows the publisher no longer, and another one at its address."""
        self._is_leaving = is_leaving
        self._is_replaced = is_leaving and is_replaced
        if self._has_left:
            self._waiting.cancel()

    async def run(self, context: zmq.Context[zmq.Socket[bytes]], curve: ClientKeys | None) -> None:
        """Receive until the publisher has left."""
        try:
            socket = open_sub(context, self._frame_0, curve=curve)
        except zmq.ZMQError as error:
            self._give_up(error)
            return
        with socket:
            # The default name has the socket's descriptor in it, which the next socket may get
            # while ZeroMQ is still closing this one.
            name = f"inproc://connection-{secrets.token_hex(8)}"
            try:
                monitor = socket.get_monitor_socket(_MONITORED, name)
            except zmq.ZMQError as error:
                self._give_up(error)
                return
            try:
                socket.connect(self.link.remote.endpoint)
            except zmq.ZMQError as error:
                log.warning("not an endpoint", endpoint=self.link.remote.endpoint, error=str(error))
            async with trio.open_nursery() as watching:
                watching.start_soon(self._watch_connection, monitor)
                await self._receive(socket)
                watching.cancel_scope.cancel()
        self.link.is_over = True

    def _give_up(self, error: zmq.ZMQError) -> None:
        # Too many publishers for the descriptors that are left: those that are read go on.
        log.warning(
            "a publisher cannot be read", endpoint=self.link.remote.endpoint, error=str(error)
        )
        self.link.is_over = True

    async def _receive(self, socket: zmq.Socket[bytes]) -> None:
        while True:
            await trio.lowlevel.checkpoint()
            now = trio.current_time()
            messages, is_empty = self._take(socket)
            if messages:
                self.link.messages += len(messages)
                await self._reader.receive(self.link, messages)
                if self._is_replaced and self._are_of_another(messages):
                    return
            if is_empty:
                self.link.found_empty_at = now
                if not await self._wait(socket):
                    return

    def _take(self, socket: zmq.Socket[bytes]) -> tuple[list[Message], bool]:
        """Return the next messages, and whether they were all."""
        messages: list[Message] = []
        link = self.link
        for _ in range(MOST_AT_ONCE):
            try:
                frames = take_frames(socket)
            except zmq.Again:
                return messages, True
            if frames[0] != self._frame_0:
                link.foreign += 1
                continue
            try:
                envelope = decode_message(frames)
            except MalformedMessageError as error:
                link.malformed += 1
                self._reader.malformed(link, str(error))
                continue
            if envelope.topic != self._topic:
                link.foreign += 1
                continue
            messages.append(Message(frames, envelope))
        return messages, False

    def _are_of_another(self, messages: Sequence[Message]) -> bool:
        """Say whether the publisher at the address of ours speaks: ours has nothing left to say."""
        publisher_id = self.link.remote.publisher_id
        return any(message.envelope.publisher_id != publisher_id for message in messages)

    @property
    def _has_left(self) -> bool:
        return self._is_leaving and (self.link.connected_at is None or self._is_replaced)

    async def _wait(self, socket: zmq.Socket[bytes]) -> bool:
        """Wait for messages.  Returns False if there will be none."""
        seconds = LAST_MESSAGES_SECONDS if self._has_left else math.inf
        self.link.is_waiting = True
        with trio.move_on_after(seconds) as self._waiting:
            await trio.lowlevel.wait_readable(socket)
        self.link.is_waiting = False
        return not self._waiting.cancelled_caught or seconds == math.inf or not self._has_left

    async def _watch_connection(self, monitor: zmq.Socket[bytes]) -> None:
        link = self.link
        broken_off = 0
        with monitor:
            while True:
                event = parse_monitor_message(await receive_frames(monitor))["event"]
                if event == zmq.Event.HANDSHAKE_SUCCEEDED:
                    link.connected_at = trio.current_time()
                    self._on_connected()
                    continue
                link.connected_at = None
                if event == _BROKEN_OFF:
                    broken_off += 1
                    if broken_off == 2:  # once, it may just have been ending
                        log.warning(
                            "a publisher ends the handshake: it may have another key",
                            endpoint=link.remote.endpoint,
                        )
                elif event != zmq.Event.DISCONNECTED and not link.refused:
                    log.warning("a publisher refused the connection", endpoint=link.remote.endpoint)
                link.refused += event != zmq.Event.DISCONNECTED
                if self._has_left:
                    self._waiting.cancel()
