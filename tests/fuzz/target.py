"""What is fuzzed: either half of the connection, and what must hold whatever comes in."""

import time
from collections.abc import Callable, Sequence

from replay.rpc.hpack import Field
from replay.rpc.http2 import Connection, ConnectionDeadError, Http2Limits
from replay.rpc.http2_client import ClientConnection, RequestTemplate, ResponseStream
from replay.rpc.http2_server import RequestStream, ServerConnection

#: Small, so that a few kilobytes reach every limit.
LIMITS = Http2Limits(
    streams=8,
    header_bytes=4096,
    reset_burst=50,
    buffered_bytes=60_000,
    stream_window=70_000,
    connection_window=150_000,
)
#: What one input may take; a quadratic loop over its kilobytes takes more.
LONGEST_SECONDS = 2.0
#: What may be queued for a peer that opens no window: answers or requests of open streams.
MOST_PENDING = 8 * 40_000


class BrokenPromiseError(AssertionError):
    """The connection did what it must not."""


class _Server:
    """Does with each request something else, by its stream's id."""

    def __init__(self) -> None:
        self.connection = ServerConnection(LIMITS, self)

    def on_open(self, stream: RequestStream) -> None:
        if stream.id % 16 == 7:
            self.connection.finish(stream, 12, "early")
        stream.eager = stream.id % 16 == 9

    def on_piece(self, stream: RequestStream) -> None:
        if stream.eager:
            self.connection.take_body(stream)
            if stream.remote_closed:
                self.connection.answer(stream, b"taken")

    def on_request(self, stream: RequestStream) -> None:
        connection = self.connection
        if stream.id % 16 == 1:
            connection.answer(stream, b"x" * 40_000)
        elif stream.id % 16 == 3:
            connection.respond(stream, [(b"x-a", b"b" * 100)])
            connection.send(stream, b"y" * 20_000)
        elif stream.id % 16 == 5:
            connection.reset(stream, 2)
        else:
            connection.finish(stream, 3, "no")

    def on_over_budget(self, stream: RequestStream) -> None:
        self.connection.finish(stream, 8, "too much")

    def on_gone(self, stream: RequestStream) -> None:
        # Nothing may be sent any more, and trying to must not harm.
        self.connection.send(stream, b"late")

    def on_drained(self, stream: RequestStream) -> None:
        self.connection.finish(stream)


class _Client:
    """Has eight requests open, and wants one end for each, with nothing behind it."""

    def __init__(self) -> None:
        self.connection = ClientConnection(self, LIMITS)
        self._ended: set[int] = set()
        block = RequestTemplate.of("/package.Service/Method", authority="test").block
        for payload in (b"a", b"b" * 40_000, None, b"", b"c" * 20_000, b"d", None, b"e"):
            self.connection.request(block, payload)

    def on_head(self, stream: ResponseStream) -> None:
        self._must_be_open(stream)

    def on_piece(self, stream: ResponseStream) -> None:
        self._must_be_open(stream)
        self.connection.take_body(stream)
        if stream.id == 11:
            stream.held = True  # nobody reads it
        elif stream.id == 13:
            self.connection.reset(stream, 8)

    def on_end(self, stream: ResponseStream, trailers: Sequence[Field]) -> None:
        self._end(stream)

    def on_gone(self, stream: ResponseStream, code: int) -> None:
        self._end(stream)

    def on_refused(self, stream: ResponseStream) -> None:
        self._end(stream)

    def on_drained(self, stream: ResponseStream) -> None:
        self._must_be_open(stream)

    def _end(self, stream: ResponseStream) -> None:
        self._must_be_open(stream)
        self._ended.add(stream.id)
        if not stream.closed:
            raise BrokenPromiseError("an end that is none")
        self.connection.send(stream, b"late")

    def _must_be_open(self, stream: ResponseStream) -> None:
        if stream.id in self._ended:
            raise BrokenPromiseError("something behind the end")


#: What starts a half anew.
HALVES: dict[str, Callable[[], _Server | _Client]] = {"server": _Server, "client": _Client}


def run(half: str, data: bytes, step: int) -> None:
    """Give *data* to one *half* in pieces of *step* bytes.  Raises BrokenPromiseError."""
    started = time.perf_counter()
    in_pieces = _feed(half, data, step)
    if time.perf_counter() - started > LONGEST_SECONDS:
        raise BrokenPromiseError(f"took {time.perf_counter() - started:.1f} s")
    if in_pieces != _feed(half, data, len(data) or 1):
        raise BrokenPromiseError("the same bytes in other pieces mean something else")


def _feed(half: str, data: bytes, step: int) -> tuple[bytes, str | None]:
    """Return what the connection said, and why it died if it did."""
    connection = HALVES[half]().connection
    said = []
    for at in range(0, len(data), step):
        try:
            connection.receive(data[at : at + step], 0.0)
        except ConnectionDeadError as error:
            said += connection.out
            if not (connection.dead and said[-1][3] == 7):
                raise BrokenPromiseError("dead without a GOAWAY") from None
            return b"".join(said), str(error)
        said += connection.out
        connection.out.clear()  # as a flush does
        _check(connection)
    return b"".join(said), None


def _check(connection: Connection) -> None:
    streams = connection.streams.values()
    if len(streams) > LIMITS.streams:
        raise BrokenPromiseError("more streams than allowed")
    if any(stream.closed for stream in streams):
        raise BrokenPromiseError("a closed stream is kept")
    if sum(len(stream.pending or b"") for stream in streams) > MOST_PENDING:
        raise BrokenPromiseError("more pending than was sent")
    held = sum(stream.buffered for stream in streams)
    if held != connection._buffered or held > LIMITS.buffered_bytes + 16_384:
        raise BrokenPromiseError("the budget does not add up")
    if len(connection._rest) > 16_384 + 9:
        raise BrokenPromiseError("an incomplete frame is larger than a frame")
    if set(connection._blocked) - set(connection.streams):
        raise BrokenPromiseError("a stream that is gone waits for a window")
