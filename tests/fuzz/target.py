"""What is fuzzed, and what must hold whatever comes in."""

import time

from replay.rpc.http2 import ConnectionDeadError, Http2Limits
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
#: What may be queued for a client that opens no window: answers of open streams and control frames.
MOST_PENDING = 8 * 40_000


class BrokenPromiseError(AssertionError):
    """The connection did what it must not."""


class _Owner:
    """Does with each request something else, by its stream's id."""

    def __init__(self) -> None:
        self.connection: ServerConnection

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


def run(data: bytes, step: int) -> None:
    """Give *data* to a connection in pieces of *step* bytes.  Raises BrokenPromiseError."""
    owner = _Owner()
    connection = owner.connection = ServerConnection(LIMITS, owner)
    started = time.perf_counter()
    for at in range(0, len(data), step):
        try:
            connection.receive(data[at : at + step], at / 1e4)
        except ConnectionDeadError:
            if not (connection.dead and b"".join(connection.out)):
                raise BrokenPromiseError("dead without a GOAWAY") from None
            break
        connection.out.clear()  # as a flush does
        _check(connection)
    if time.perf_counter() - started > LONGEST_SECONDS:
        raise BrokenPromiseError(f"took {time.perf_counter() - started:.1f} s")


def _check(connection: ServerConnection) -> None:
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
