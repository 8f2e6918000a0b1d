"""One call: its cancel scope, why it ended, and what its handler may do.

A service is a `purerpc.Service`; its methods are called as purerpc calls them, `method(message)` or
`method(message, request=call)`, where *call* is the `Call` below.  What a method gives back decides
how it is run:

* an awaitable of a message, for one answer;
* an async generator of messages, for a stream of answers;
* an awaitable of None, for a method that writes through its call (the hot path).

Everything that ends a call early cancels its scope, and `ending` says what it was.  The scope and
the ending exist before the task does: a reset can arrive in the same bytes as the request.
"""

import enum
import struct
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol

import attrs
import purerpc
import trio
from purerpc.grpclib.exceptions import RpcFailedError
from purerpc.grpclib.status import Status, StatusCode

from replay.rpc.hpack import Field
from replay.rpc.http2_server import RequestStream, checked_metadata

OK = Status(StatusCode.OK)

#: A stream holds back its engine beyond this many bytes that the client's window does not take.
STREAM_HIGH_WATER = 64 * 1024
#: What a handler that never waits may send before the others get a turn, and the socket its bytes.
TURN_BYTES = 64 * 1024


class Ending(enum.Enum):
    """Why a call ended before its handler had finished."""

    RESET = "the client reset the stream"
    CLOSED = "the connection is gone"
    DEADLINE = "the deadline passed"
    ABORT = "aborted by request id"
    SHUTDOWN = "the server shuts down"


class Channel(Protocol):
    """What a call needs of its connection."""

    def respond(self, stream: RequestStream, metadata: Iterable[Field]) -> None:
        """Queue the initial headers."""
        ...

    def write(self, stream: RequestStream, payload: bytes) -> None:
        """Queue DATA."""
        ...

    def answer(self, stream: RequestStream, payload: bytes) -> None:
        """Queue headers, DATA and OK trailers."""
        ...

    def finish(self, stream: RequestStream, status: Status, metadata: Iterable[Field]) -> None:
        """Queue the trailers."""
        ...

    @property
    def is_clogged(self) -> bool:
        """Whether the connection as a whole holds more than it should."""
        ...

    def when_room(self, call: "Call") -> None:
        """Have `call.room_again` called once there is room."""
        ...


class Call:
    """One request, from its headers to its trailers."""

    __slots__ = (
        "_channel",
        "_room_callbacks",
        "_trailing_metadata",
        "arrival",
        "ending",
        "epilogue",
        "finished",
        "method",
        "scope",
        "standing",
        "status",
        "stream",
    )

    def __init__(
        self, channel: Channel, stream: RequestStream, method: "Method", arrival: float
    ) -> None:
        self._channel = channel
        self.stream = stream
        self.method = method
        #: `trio.current_time()` when the request was whole.
        self.arrival = arrival
        timeout = stream.head.timeout
        self.scope = (
            trio.CancelScope() if timeout is None else trio.CancelScope(deadline=arrival + timeout)
        )
        self.ending: Ending | None = None
        #: Asked after a cancelled call has unwound, while the client may still be there: it may
        #: write last messages, and returns the status, or None for the usual one.
        self.epilogue: Callable[[Ending], Status | None] | None = None
        #: Whether the trailers are queued.
        self.finished = False
        self._trailing_metadata: Sequence[Field] = ()
        #: A call that waits for events and so never ends by itself; a drain does not wait for it.
        self.standing = False
        #: The status that was sent; None while there is none, and for a client that left.
        self.status: Status | None = None
        self._room_callbacks: list[Callable[[], None]] = []

    @property
    def metadata(self) -> Sequence[Field]:
        """The client's headers, names in lower case."""
        return self.stream.head.metadata

    @property
    def trailing_metadata(self) -> Sequence[Field]:
        """What the trailers will have beside the status.

        Raises ValueError or TypeError when it is set to what cannot be sent.
        """
        return self._trailing_metadata

    @trailing_metadata.setter
    def trailing_metadata(self, metadata: Iterable[Field]) -> None:
        self._trailing_metadata = checked_metadata(metadata)

    @property
    def is_open(self) -> bool:
        """Whether the client still waits for something."""
        return not (self.finished or self.stream.closed or self.ending is not None)

    def respond(self, metadata: Iterable[Field] = ()) -> None:
        """Send the initial headers now rather than with the first message.

        Raises ValueError or TypeError for metadata that cannot be sent.
        """
        self._channel.respond(self.stream, checked_metadata(metadata) if metadata else ())

    def send(self, message: Any) -> None:
        """Send one message, behind initial headers if there were none."""
        self.write(frame_message(message.SerializeToString()))

    def write(self, payload: bytes) -> None:
        """Send bytes that are whole gRPC messages, length prefixes included."""
        if self.is_open:
            self._channel.write(self.stream, payload)

    def write_ready(self, payload: bytes) -> bool:
        """Do as `write` if the call is open and nothing before it waits for the client, so that it
        is not full either; return whether that was so."""
        stream, channel = self.stream, self._channel
        if stream.pending is not None or channel.is_clogged or self.ending is not None:
            return False
        if self.finished or stream.closed:
            return False
        channel.write(stream, payload)
        return True

    def write_whole(self, payload: bytes) -> None:
        """Send all messages of the answer and end it with OK: one write instead of three."""
        if self.is_open:
            self.finished = True
            self.status = OK
            self._channel.answer(self.stream, payload)

    def finish(self, status: Status = OK) -> None:
        """Send the trailers.  Only the first call counts."""
        if not self.finished:
            if not self.stream.closed and self.ending is not Ending.CLOSED:
                self._channel.finish(self.stream, status, self._trailing_metadata)
                self.status = status
            self.finished = True

    def cancel(self, ending: Ending) -> None:
        """End the call early.  The first reason is the one that counts."""
        if self.ending is None and not self.finished:
            self.ending = ending
            self.scope.cancel()

    # ---- back-pressure

    @property
    def is_full(self) -> bool:
        """Whether the client has so much left to read that no more should be made for it."""
        pending = self.stream.pending
        return (pending is not None and len(pending) > STREAM_HIGH_WATER) or (
            self._channel.is_clogged
        )

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call *callback* once, when the client has read on.  It runs on the loop and must not
        wait."""
        self._room_callbacks.append(callback)
        self._channel.when_room(self)

    def room_again(self) -> None:
        """Tell everybody who waits for room; the connection calls this."""
        callbacks, self._room_callbacks = self._room_callbacks, []
        for callback in callbacks:
            callback()

    async def room(self) -> None:
        """Wait until the call is not full; others get a turn in any case."""
        if not (self.is_full and self.is_open):
            await trio.lowlevel.checkpoint()
        while self.is_full and self.is_open:
            event = trio.Event()
            self.when_room(event.set)
            await event.wait()


# ---- methods


@attrs.frozen(kw_only=True)
class Method:
    """A method of a service, as the server looks it up by its path."""

    path: str
    parse: Callable[[bytes], Any]
    function: Callable[..., Any]
    takes_stream: bool
    returns_stream: bool


def methods_of(services: Iterable[purerpc.Service]) -> dict[str, Method]:
    """List the methods of *services* by path, `/package.Service/Method`."""
    table: dict[str, Method] = {}
    for service in services:
        for name, bound in service.methods.items():
            cardinality = bound.signature.cardinality
            path = f"/{service.name}/{name}"
            table[path] = Method(
                path=path,
                parse=bound.signature.request_type.FromString,
                function=bound.method_fn,
                takes_stream=cardinality
                in (purerpc.Cardinality.STREAM_UNARY, purerpc.Cardinality.STREAM_STREAM),
                returns_stream=cardinality
                in (purerpc.Cardinality.UNARY_STREAM, purerpc.Cardinality.STREAM_STREAM),
            )
    return table


async def run_method(call: Call, argument: Any) -> None:
    """Run the handler of *call* and send what it gives back; the trailers are the caller's."""
    result: Awaitable[Any] | AsyncIterator[Any] = call.method.function(argument, request=call)
    if isinstance(result, Awaitable):
        message = await result
        if message is not None:
            call.send(message)
        return
    try:
        sent = 0
        async for message in result:
            payload = frame_message(message.SerializeToString())
            call.write(payload)
            sent += len(payload)
            if sent > TURN_BYTES:
                sent = 0
                await trio.lowlevel.checkpoint()
            if call.is_full:
                await call.room()
    finally:
        close = getattr(result, "aclose", None)
        if close is not None:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                await close()


# ---- messages

_PREFIX = struct.Struct(">BI")


def frame_message(message: bytes) -> bytes:
    """Put the length prefix of gRPC before one message."""
    return _PREFIX.pack(0, len(message)) + message


class MessageError(RpcFailedError):  # type: ignore[misc]  # purerpc is untyped
    """What the client sent is no gRPC message, or too large a one."""


def unframe_message(
    body: bytes | bytearray, *, encoding: bytes, limit: int | None, inflated_limit: int
) -> bytes:
    """Take the one message out of a whole request body.

    Raises MessageError: RESOURCE_EXHAUSTED above *limit* (None: no limit) or, for a compressed
    message, above *inflated_limit*; UNIMPLEMENTED for an unknown compression; INTERNAL for bytes
    that are not one message.
    """
    if len(body) < 5:
        raise MessageError(Status(StatusCode.INTERNAL, "the request has no whole message"))
    compressed, length = _PREFIX.unpack_from(body)
    check_length(length, limit)
    if length != len(body) - 5 or compressed > 1:
        raise MessageError(Status(StatusCode.INTERNAL, "the request is not one whole message"))
    message = bytes(memoryview(body)[5:])
    if compressed:
        return _inflate(message, encoding, inflated_limit if limit is None else limit)
    return message


def check_length(length: int, limit: int | None) -> None:
    """Raise RESOURCE_EXHAUSTED for a message above the limit."""
    if limit is not None and length > limit:
        raise MessageError(
            Status(
                StatusCode.RESOURCE_EXHAUSTED,
                f"the message of {length} bytes is larger than {limit}",
            )
        )


def _inflate(message: bytes, encoding: bytes, limit: int) -> bytes:
    if encoding not in (b"gzip", b"deflate"):
        if encoding == b"identity":
            raise MessageError(Status(StatusCode.INTERNAL, "compressed, but no grpc-encoding"))
        raise MessageError(Status(StatusCode.UNIMPLEMENTED, "this compression is not supported"))
    inflater = zlib.decompressobj(47)  # gzip or zlib, by its header
    try:
        inflated = inflater.decompress(message, limit + 1)
    except zlib.error:
        raise MessageError(Status(StatusCode.INTERNAL, "the message does not inflate")) from None
    check_length(len(inflated), limit)
    if not inflater.eof:
        raise MessageError(Status(StatusCode.INTERNAL, "the compressed message is cut off"))
    return inflated
