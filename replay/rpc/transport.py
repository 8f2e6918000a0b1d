"""Bytes of one connection in and out, for either half: writes that never wait, reads that do.

`send` writes at once what the socket takes; only while it is full is there a task that waits for
it. Whoever owns the transport is told when the rest gets fewer (`on_progress`) and when the
connection turns out to be broken (`on_lost`).
"""

import os
import socket
from collections.abc import Callable
from contextlib import suppress

import trio

READ_BYTES = 65536


def _tell_nobody() -> None:
    pass


class Transport:
    """Base of the two ways to write; made by `open_transport`."""

    def __init__(
        self,
        tasks: trio.Nursery,
        on_progress: Callable[[], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._tasks = tasks
        self._on_progress = on_progress
        self._on_lost = on_lost
        self._unsent = bytearray()
        self._progress: trio.Event | None = None
        #: Nothing can be sent any more.
        self.is_lost = False

    @property
    def unsent(self) -> int:
        """Bytes that the socket has not taken yet."""
        return len(self._unsent)

    async def receive(self) -> bytes:
        """Wait for bytes; b"" when the peer has ended its side.  Raises OSError and Trio's errors
        for a connection that is broken."""
        raise AssertionError

    def send(self, data: bytes) -> None:
        """Send without waiting; what the socket does not take is kept in order."""
        raise AssertionError

    async def send_eof(self) -> None:
        """End our side, the peer's stays open."""
        raise AssertionError

    async def wait_unsent_below(self, limit: int) -> None:
        """Wait until fewer than *limit* bytes are unsent, or the connection is lost."""
        while len(self._unsent) >= limit and not self.is_lost:
            if self._progress is None:
                self._progress = trio.Event()
            await self._progress.wait()

    async def say_goodbye(self) -> None:
        """Let the last bytes leave and the peer's last ones come.

        A socket that is closed with unread bytes is reset, and a reset may overtake what was sent.
        """
        await self.wait_unsent_below(1)
        await self.send_eof()
        while await self.receive():
            pass

    def let_go(self) -> None:
        """Tell nobody any more: whoever was told keeps this, and the two would keep each other."""
        self._on_progress = self._on_lost = _tell_nobody

    def _sent(self, count: int) -> None:
        del self._unsent[:count]
        if self._progress is not None:
            self._progress.set()
            self._progress = None
        self._on_progress()

    def _lose(self) -> None:
        self.is_lost = True
        self._sent(len(self._unsent))
        self._on_lost()


class _SocketTransport(Transport):
    """A plain socket, by its descriptor: the Trio stream keeps it and somebody else closes that."""

    def __init__(
        self,
        stream: trio.SocketStream,
        tasks: trio.Nursery,
        on_progress: Callable[[], None],
        on_lost: Callable[[], None],
    ) -> None:
        super().__init__(tasks, on_progress, on_lost)
        self._socket = stream.socket
        self._descriptor = stream.socket.fileno()
        self._writing = False
        self._yielding = False

    async def receive(self) -> bytes:
        if self._yielding:  # a peer that always has more must not keep the loop
            self._yielding = False
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.wait_readable(self._descriptor)
        while True:
            try:
                data = os.read(self._descriptor, READ_BYTES)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._descriptor)
                continue
            self._yielding = len(data) == READ_BYTES
            return data

    def send(self, data: bytes) -> None:
        if self._writing:
            self._unsent += data
            return
        if self.is_lost:
            return
        try:
            sent = os.write(self._descriptor, data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._lose()
            return
        if sent < len(data):
            self._unsent += memoryview(data)[sent:]
            self._writing = True
            self._tasks.start_soon(self._write_rest)

    async def _write_rest(self) -> None:
        try:
            while self._unsent:
                await trio.lowlevel.wait_writable(self._descriptor)
                with suppress(BlockingIOError):  # woken for nothing
                    self._sent(os.write(self._descriptor, self._unsent))
        except (OSError, trio.ClosedResourceError):
            self._lose()
        self._writing = False

    async def send_eof(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)


class _StreamTransport(Transport):
    """Any other Trio stream, TLS above all: one task is the only writer."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        tasks: trio.Nursery,
        on_progress: Callable[[], None],
        on_lost: Callable[[], None],
    ) -> None:
        super().__init__(tasks, on_progress, on_lost)
        self._stream = stream
        self._writing = False

    async def receive(self) -> bytes:
        return bytes(await self._stream.receive_some(READ_BYTES))

    def send(self, data: bytes) -> None:
        if self.is_lost:
            return
        self._unsent += data
        if not self._writing:
            self._writing = True
            self._tasks.start_soon(self._write)

    async def _write(self) -> None:
        try:
            while self._unsent:
                data = bytes(self._unsent[:READ_BYTES])
                await self._stream.send_all(data)
                self._sent(len(data))
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            self._lose()
        self._writing = False

    async def send_eof(self) -> None:
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            await self._stream.send_eof()
        else:
            await self._stream.aclose()


def open_transport(
    stream: trio.abc.Stream,
    tasks: trio.Nursery,
    *,
    on_progress: Callable[[], None],
    on_lost: Callable[[], None],
) -> Transport:
    """Wrap *stream*, which stays the caller's to close.  Tasks that write are put into *tasks*."""
    if isinstance(stream, trio.SocketStream):
        return _SocketTransport(stream, tasks, on_progress, on_lost)
    return _StreamTransport(stream, tasks, on_progress, on_lost)
