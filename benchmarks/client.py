"""Pre-framed calls over plain sockets: a client whose requests all differ, and one that samples.

Each answer is compared whole with the bytes that were expected, and its `grpc-status` read.
"""

import selectors
import socket
import time
from typing import Self

import attrs

from benchmarks.payloads import GENERATE_PATH, Template
from benchmarks.wire import Calls, Finished, IndexedBlocks, WireError, call_headers, literal_block

#: A server that says nothing for so long has failed.
PATIENCE_SECONDS = 30.0

#: How many wrong answers are described; the others are only counted.
KEPT_FAULTS = 3

RECEIVE_BYTES = 262144


@attrs.define
class Tally:
    """What became of the calls."""

    asked: int = 0
    right: int = 0
    faults: list[str] = attrs.field(factory=list)
    seconds: float = 0.0

    @property
    def wrong(self) -> int:
        """How many answers were not the expected ones."""
        return self.asked - self.right

    def judge(self, finished: Finished, template: Template, request_id: bytes) -> None:
        """Count one answer, after comparing every byte and the status."""
        self.asked += 1
        is_right = template.accepts(request_id, finished.data)
        if is_right and finished.grpc_status == "0":
            self.right += 1
        elif len(self.faults) < KEPT_FAULTS:
            self.faults.append(
                f"{len(finished.data)} bytes of {template.answer_bytes}, "
                f"{'right' if is_right else 'wrong'}, grpc-status {finished.grpc_status}, "
                f"reset {finished.reset}"
            )


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port`."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def connect(address: str) -> socket.socket:
    """Connect to *address*; small writes leave at once."""
    connection = socket.create_connection(split_address(address), timeout=PATIENCE_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def numbered_id(template: Template, number: int) -> bytes:
    """Return a request id that fits *template* and belongs to *number* only."""
    return b"%0*d" % (template.id_bytes, number)


class Sampler:
    """One connection that asks once in a while, and waits for each answer.

    It is what says that a server under h2load, which counts any `:status 200`, answers rightly.
    """

    def __init__(self, address: str, template: Template) -> None:
        """Connect to *address*."""
        self._socket = connect(address)
        self._calls = Calls()
        self._block = literal_block(call_headers(GENERATE_PATH, address))
        self._template = template
        self.tally = Tally()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the connection."""
        self._socket.close()

    def ask(self) -> Finished:
        """Send one request, wait for its answer and count it.  Raises WireError, OSError."""
        request_id = numbered_id(self._template, self.tally.asked)
        self._calls.call(self._block, self._template.request(request_id))
        self._socket.sendall(self._calls.take())
        finished: list[Finished] = []
        while not finished:
            data = self._socket.recv(RECEIVE_BYTES)
            if not data:
                raise WireError("the server closed the connection")
            finished = self._calls.receive(data)
            if answer := self._calls.take():
                self._socket.sendall(answer)
        self.tally.judge(finished[0], self._template, request_id)
        return finished[0]


class Connection:
    """A non-blocking socket with the calls that run on it."""

    def __init__(self, address: str) -> None:
        """Connect, and queue HTTP/2's first bytes."""
        self.socket = connect(address)
        self.socket.setblocking(False)
        self.calls = Calls()
        self.request_ids: dict[int, bytes] = {}
        self._unsent = b""

    def fileno(self) -> int:
        """Return the socket's descriptor, for a selector."""
        return self.socket.fileno()

    def flush(self) -> bool:
        """Send what the socket takes; return whether all of it has gone."""
        data = self._unsent + self.calls.take()
        if not data:
            return True
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        self._unsent = data[sent:]
        return not self._unsent

    def ask(self, block: bytes, template: Template, number: int) -> None:
        """Queue the request *number*."""
        request_id = numbered_id(template, number)
        self.request_ids[self.calls.call(block, template.request(request_id))] = request_id

    def receive(self, template: Template, tally: Tally) -> int:
        """Read what has come, judge the answers in it and return their number.

        Raises WireError, OSError.
        """
        data = self.socket.recv(RECEIVE_BYTES)
        if not data:
            raise WireError("the server closed the connection")
        ended = self.calls.receive(data)
        for finished in ended:
            tally.judge(finished, template, self.request_ids.pop(finished.stream_id))
        return len(ended)


class VaryingCalls:
    """*count* calls of which no two share their request id or their timeout.

    *streams* are open on each of *connections* at a time.  With *indexed* the headers go through
    HPACK's table and Huffman code as a gateway's library sends them, so the table changes with each
    call; else they are literals.  The header blocks are made in advance: `run` only sends.
    """

    def __init__(
        self,
        address: str,
        template: Template,
        count: int,
        *,
        connections: int,
        streams: int,
        indexed: bool,
    ) -> None:
        """Connect and encode.  Raises OSError."""
        self._template, self._count, self._streams = template, count, streams
        self._connections: list[Connection] = []
        self._blocks: list[list[tuple[int, bytes]]] = []
        headers = call_headers(GENERATE_PATH, address)
        for first in range(connections):
            encode = IndexedBlocks().encode if indexed else literal_block
            blocks = [
                (number, encode([*headers, ("grpc-timeout", f"{60_000_000 + number}u")]))
                for number in range(first, count, connections)
            ]
            blocks.reverse()  # they are taken from the end
            self._blocks.append(blocks)
            self._connections.append(Connection(address))

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the connections."""
        for connection in self._connections:
            connection.socket.close()

    def run(self) -> Tally:
        """Make the calls.  Raises WireError, OSError."""
        tally = Tally()
        template = self._template
        started = time.perf_counter()
        with selectors.DefaultSelector() as selector:

            def fill(connection: Connection, blocks: list[tuple[int, bytes]]) -> None:
                while blocks and connection.calls.open_calls < self._streams:
                    number, block = blocks.pop()
                    connection.ask(block, template, number)
                events = selectors.EVENT_READ
                if not connection.flush():
                    events |= selectors.EVENT_WRITE
                if selector.get_key(connection).events != events:
                    selector.modify(connection, events, blocks)

            for connection, blocks in zip(self._connections, self._blocks, strict=True):
                selector.register(connection, selectors.EVENT_READ, blocks)
                fill(connection, blocks)
            while tally.asked < self._count:
                ready = selector.select(PATIENCE_SECONDS)
                if not ready:
                    raise WireError(f"silence after {tally.asked} of {self._count} answers")
                for key, events in ready:
                    connection = key.fileobj  # type: ignore[assignment]
                    if events & selectors.EVENT_READ:
                        connection.receive(template, tally)
                    fill(connection, key.data)
        tally.seconds = time.perf_counter() - started
        return tally


class HeldCalls:
    """Many connections with many calls each, all open at the same time."""

    def __init__(self, address: str, template: Template, *, connections: int, streams: int) -> None:
        """Remember what to open; `open` opens it."""
        self._address, self._template = address, template
        self._wanted, self._streams = connections, streams
        self._connections: list[Connection] = []
        self._selector = selectors.DefaultSelector()
        self.tally = Tally()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the connections."""
        self._selector.close()
        for connection in self._connections:
            connection.socket.close()

    @property
    def calls(self) -> int:
        """How many calls are made in all."""
        return self._wanted * self._streams

    def open(self) -> None:
        """Open all connections and calls; every server has sent its settings when this returns.

        Raises WireError, OSError.
        """
        block = literal_block(call_headers(GENERATE_PATH, self._address))
        number = 0
        for _ in range(self._wanted):
            connection = Connection(self._address)
            self._connections.append(connection)
            self._selector.register(connection, selectors.EVENT_READ)
            for _ in range(self._streams):
                connection.ask(block, self._template, number)
                number += 1
            self._flush(connection)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not all(connection.calls.settings_seen for connection in self._connections):
            self._serve(deadline)

    def idle(self, seconds: float) -> None:
        """Do nothing for *seconds* but answer what the server asks.  Raises WireError, OSError."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._serve(deadline, patient=False)

    def finish(self) -> None:
        """Wait until every call has its answer.  Raises WireError, OSError."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.tally.asked < self.calls:
            self._serve(deadline)

    def _serve(self, deadline: float, *, patient: bool = True) -> None:
        """Wait for the next bytes, until *deadline*, and read them."""
        ready = self._selector.select(max(0.0, deadline - time.monotonic()))
        if not ready and patient:
            raise WireError(f"silence after {self.tally.asked} of {self.calls} answers")
        for key, events in ready:
            connection: Connection = key.fileobj  # type: ignore[assignment]
            if events & selectors.EVENT_READ:
                connection.receive(self._template, self.tally)
            self._flush(connection)

    def _flush(self, connection: Connection) -> None:
        events = selectors.EVENT_READ
        if not connection.flush():
            events |= selectors.EVENT_WRITE
        if self._selector.get_key(connection).events != events:
            self._selector.modify(connection, events)
