"""The client: channels, unary calls and streams of answers.

* Cancelling the scope around a call resets its stream.
* A deadline is sent and also enforced here.
* A channel connects when it is first needed, again when its connection has gone, and opens another
  connection when the server takes no more streams on those that it has: a bounded number of streams
  may not delay a call.  How it dials is in `replay.rpc.dialling`.
* A call whose connection breaks ends with UNAVAILABLE.

Errors are purerpc's: `RpcFailedError` and its subclasses, by status.
"""

import math
import re
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Generic, Self, TypeVar

import attrs
import trio
from purerpc.grpclib.exceptions import (
    DeadlineExceededError,
    InternalError,
    raise_status,
)
from purerpc.grpclib.status import Status, StatusCode

from replay.rpc import frames
from replay.rpc.calls import OK, MessageError, frame_message, unframe_message
from replay.rpc.dialling import Dialler, open_stream
from replay.rpc.hpack import Field
from replay.rpc.http2 import ConnectionDeadError
from replay.rpc.http2_client import ClientConnection, RequestTemplate, ResponseStream
from replay.rpc.listeners import split_host_port
from replay.rpc.transport import Transport, open_transport

M = TypeVar("M")

#: Bytes of answers that nobody has read, beyond which the server's window is kept shut.
UNREAD_BYTES = 1 << 20
#: The largest message that an answer may hold when compressed.
INFLATED_BYTES = 256 << 20

_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")

#: What error codes of HTTP/2 mean as a status (gRPC over HTTP/2, "Errors").
_STATUS_OF_RESET = {
    frames.REFUSED_STREAM: StatusCode.UNAVAILABLE,
    frames.CANCEL: StatusCode.CANCELLED,
    frames.ENHANCE_YOUR_CALM: StatusCode.RESOURCE_EXHAUSTED,
}
_STATUS_OF_HTTP = {
    b"400": StatusCode.INTERNAL,
    b"401": StatusCode.UNAUTHENTICATED,
    b"403": StatusCode.PERMISSION_DENIED,
    b"404": StatusCode.UNIMPLEMENTED,
    b"429": StatusCode.UNAVAILABLE,
    b"502": StatusCode.UNAVAILABLE,
    b"503": StatusCode.UNAVAILABLE,
    b"504": StatusCode.UNAVAILABLE,
}


@attrs.frozen
class ClientMethod(Generic[M]):
    """A method as a client calls it: its path, and how an answer's message is read."""

    path: str
    parse: Callable[[bytes], M]


class Answers(Generic[M]):
    """The answer to one call, as an async iterator of messages.

    Ends with the stream; raises the status of a call that failed.
    """

    def __init__(self, link: "_Link", method: ClientMethod[M]) -> None:
        self._link = link
        self._method = method
        self._stream: ResponseStream
        self._messages: deque[tuple[float, bytes]] = deque()
        self._unread = 0
        self._partial = bytearray()
        self._is_grpc = True
        self._news: trio.Event | None = None
        self._over = False
        #: The status, once the call is over.
        self.status: Status | None = None
        self.initial_metadata: Sequence[Field] | None = None
        self.trailing_metadata: Sequence[Field] = ()
        #: `trio.current_time()` at which the message returned last had arrived.
        self.received_at = -math.inf

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> M:
        message = await self.receive()
        if message is None:
            raise StopAsyncIteration
        return message

    async def receive(self) -> M | None:
        """Wait for the next message; None at the end.  Raises the status of a failed call."""
        while not self._messages:
            if self._over:
                assert self.status is not None
                if self.status.int_value:
                    raise_status(self.status)
                return None
            await self._wait()
        self.received_at, message = self._messages.popleft()
        self._unread -= len(message)
        if self._stream.held and self._unread < UNREAD_BYTES // 2:
            self._stream.held = False
            self._link.open_window(self._stream)
        return self._method.parse(message)

    async def wait_head(self) -> Sequence[Field]:
        """Wait for the initial headers and return the server's metadata.

        Raises the status of a call that ended without any.
        """
        while self.initial_metadata is None:
            if self._over:
                assert self.status is not None
                if self.status.int_value:
                    raise_status(self.status)
                return ()
            await self._wait()
        return self.initial_metadata

    async def _wait(self) -> None:
        self._news = trio.Event()
        await self._news.wait()

    # ---- told by the connection

    def on_head(self, head: Sequence[Field]) -> None:
        """Take the initial headers."""
        self.initial_metadata = [each for each in head if each[0][:1] != b":"]
        found = dict(head)
        self._is_grpc = found[b":status"] == b"200" and (
            found.get(b"content-type", b"").startswith(b"application/grpc")
        )
        self._tell()

    def on_piece(self, body: bytes | bytearray) -> None:
        """Take bytes of messages.  Raises MessageError for what is none."""
        if not self._is_grpc:  # a proxy's page, say, which may look like anything
            raise MessageError(_status_without_grpc(self._stream.head or ()))
        if self._partial:
            self._partial += body
            body = self._partial
        position, size = 0, len(body)
        now = trio.current_time()
        while size - position >= 5:
            length = int.from_bytes(body[position + 1 : position + 5], "big")
            end = position + 5 + length
            if end > size:
                break
            if body[position] == 0:
                message = bytes(body[position + 5 : end])
            else:
                message = unframe_message(
                    body[position:end],
                    encoding=self._encoding(),
                    limit=None,
                    inflated_limit=INFLATED_BYTES,
                )
            self._messages.append((now, message))
            self._unread += length
            position = end
        if position == size:
            self._partial = bytearray()
        elif body is self._partial:  # a long message: what has come of it is not copied again
            del self._partial[:position]
        else:
            self._partial = bytearray(body[position:])
        if self._unread > UNREAD_BYTES:
            self._stream.held = True
        self._tell()

    def _encoding(self) -> bytes:
        for name, value in self.initial_metadata or ():
            if name == b"grpc-encoding":
                return value
        return b"identity"

    def on_end(self, fields: Sequence[Field]) -> None:
        """Take the trailers."""
        if fields is self._stream.head:  # an answer of trailers only
            self.initial_metadata = None
        found = dict(fields)
        code = found.get(b"grpc-status")
        if code is None or not code.isdigit() or len(code) > 3:
            self.end(_status_without_grpc(self._stream.head or ()))
            return
        self.trailing_metadata = [
            each
            for each in fields
            if each[0] not in (b"grpc-status", b"grpc-message") and each[0][:1] != b":"
        ]
        text = percent_decode(found.get(b"grpc-message", b""))
        if int(code):
            self.end(Status(int(code), text))
        elif self._partial:
            self.end(Status(StatusCode.INTERNAL, "the answer ends inside of a message"))
        else:
            self.end(OK)

    def end(self, status: Status) -> None:
        """Take note that nothing more comes."""
        if not self._over:
            self._over = True
            self.status = status
            self._tell()

    def _tell(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = None

    # ---- the other direction

    @property
    def is_over(self) -> bool:
        """Whether the status is known."""
        return self._over

    def send(self, message: Any) -> None:
        """Send one more message of a client's stream."""
        self._link.send(self._stream, frame_message(message.SerializeToString()))

    def end_requests(self) -> None:
        """End a client's stream."""
        self._link.end(self._stream)

    def cancel(self) -> None:
        """Reset the stream if it is still open."""
        if not self._over:
            self._link.reset(self._stream)
            self.end(Status(StatusCode.CANCELLED, "cancelled by the client"))

    def let_go(self) -> None:
        """Hear no more of the stream: the two would keep each other."""
        self._stream.call = None


class _Link:
    """One connection of a channel."""

    def __init__(self) -> None:
        self.connection = ClientConnection(self)
        self._transport: Transport
        self._flushing = False
        self.is_open = True

    @property
    def has_room(self) -> bool:
        """Whether another call may be put on it."""
        return self.is_open and self.connection.has_room

    async def run(self, stream: trio.abc.Stream, *, task_status: trio.TaskStatus[None]) -> None:
        """Exchange bytes until the connection ends, then end what is still open.

        It has started when the server has spoken: only then it is known how many calls it takes.
        Raises BrokenResourceError for a connection that ends before.
        """
        try:
            async with trio.open_nursery() as tasks:
                self._transport = open_transport(
                    stream, tasks, on_progress=lambda: None, on_lost=self._lost
                )
                self._flush()
                with suppress(
                    OSError,
                    trio.BrokenResourceError,
                    trio.ClosedResourceError,
                    ConnectionDeadError,
                ):
                    await self._exchange(task_status)
                self._flush()
                tasks.cancel_scope.cancel()
            if not self.connection.is_greeted:
                raise trio.BrokenResourceError("the connection ended before the server had spoken")
        finally:
            self._lost()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                await trio.aclose_forcefully(stream)

    async def _exchange(self, task_status: trio.TaskStatus[None]) -> None:
        is_started = False
        while data := await self._transport.receive():
            self.connection.receive(data, trio.current_time())
            self._flush()
            if not is_started and self.connection.is_greeted:
                is_started = True
                task_status.started()
            if not self.is_open or self._is_finished():
                break

    def _is_finished(self) -> bool:
        return self.connection.goaway_received and not self.connection.streams

    def _lost(self) -> None:
        self.is_open = False
        for stream in list(self.connection.streams.values()):
            stream.closed = True
            if answers := _answers(stream):
                answers.end(Status(StatusCode.UNAVAILABLE, "the connection to the server is gone"))
        self.connection.streams.clear()

    def start(self, block: bytes, payload: bytes | None, answers: Answers[Any]) -> None:
        """Put a call on the connection."""
        stream = self.connection.request(block, payload)
        stream.call = answers
        answers._stream = stream
        self._flush()

    def send(self, stream: ResponseStream, payload: bytes) -> None:
        """Send more of a request."""
        self.connection.send(stream, payload)
        self._flush()

    def end(self, stream: ResponseStream) -> None:
        """End a request."""
        self.connection.end(stream, b"")
        self._flush()

    def reset(self, stream: ResponseStream) -> None:
        """Reset a stream."""
        if self.is_open:
            self.connection.reset(stream, frames.CANCEL)
            self._flush()

    def open_window(self, stream: ResponseStream) -> None:
        """Let the server send again."""
        if self.is_open:
            self.connection.open_window(stream)
            self._flush()

    def _flush(self) -> None:
        out = self.connection.out
        if out:
            data = b"".join(out)
            out.clear()
            self._transport.send(data)

    # ---- told by the connection

    def on_head(self, stream: ResponseStream) -> None:
        """Hand the initial headers on."""
        if answers := _answers(stream):
            answers.on_head(stream.head or ())

    def on_piece(self, stream: ResponseStream) -> None:
        """Hand bytes of messages on; what cannot be read ends the call."""
        body = self.connection.take_body(stream)
        answers = _answers(stream)
        if answers is None:
            return
        try:
            answers.on_piece(body)
        except MessageError as error:
            self.connection.reset(stream, frames.CANCEL)
            answers.end(error.status)

    def on_end(self, stream: ResponseStream, trailers: Sequence[Field]) -> None:
        """Hand the trailers on."""
        if answers := _answers(stream):
            answers.on_end(trailers)

    def on_gone(self, stream: ResponseStream, code: int) -> None:
        """End a call whose stream was reset."""
        status = _STATUS_OF_RESET.get(code, StatusCode.INTERNAL)
        if answers := _answers(stream):
            answers.end(Status(status, f"stream reset (HTTP/2 error {code})"))

    def on_refused(self, stream: ResponseStream) -> None:
        """End a call that the server has not looked at."""
        if answers := _answers(stream):
            answers.end(Status(StatusCode.UNAVAILABLE, "the server is going away"))

    def on_drained(self, stream: ResponseStream) -> None:
        """Nobody waits for it."""


def _answers(stream: ResponseStream) -> Answers[Any] | None:
    """Return who hears of a stream; None when nobody does any more."""
    return stream.call if isinstance(stream.call, Answers) else None


Dial = Callable[[], Awaitable[trio.abc.Stream]]


def _nobody_is_told() -> None:
    pass


class Channel:
    """Connections to one server; made by `open_channel`."""

    def __init__(
        self,
        tasks: trio.Nursery,
        dial: Dial,
        *,
        authority: str,
        scheme: str,
        connections: int,
        on_connected: Callable[[], None],
    ) -> None:
        self._tasks = tasks
        self._dial = dial
        self._on_connected = on_connected
        self._authority = authority
        self._scheme = scheme
        self._links: list[_Link] = []
        self._wanted = connections
        self._turn = 0
        self._dialler = Dialler(tasks, self._open_link, server=authority)
        self._templates: dict[str, RequestTemplate] = {}

    async def unary(
        self,
        method: ClientMethod[M],
        message: Any,
        *,
        timeout: float | None = None,
        metadata: Iterable[Field] = (),
    ) -> M:
        """Call a method that gives one answer.  Raises the status of a call that failed."""
        async with self.stream(method, message, timeout=timeout, metadata=metadata) as answers:
            first = await answers.receive()
            if first is None:
                raise InternalError("the server gave no answer")
            if await answers.receive() is not None:
                raise InternalError("the server gave more than one answer")
        return first

    @asynccontextmanager
    async def stream(
        self,
        method: ClientMethod[M],
        message: Any = None,
        *,
        timeout: float | None = None,
        metadata: Iterable[Field] = (),
    ) -> AsyncIterator[Answers[M]]:
        """Call a method that gives a stream of answers; leaving the block early resets it.

        Without *message* the request is a stream too: `Answers.send` and `end_requests`.  *timeout*
        is in seconds from now and covers the whole block: DeadlineExceededError.
        """
        payload = None if message is None else frame_message(message.SerializeToString())
        deadline = math.inf if timeout is None else trio.current_time() + timeout
        answers: Answers[M] | None = None
        with trio.CancelScope(deadline=deadline) as scope:
            try:
                block = self._block(method.path, timeout, metadata)
                link = await self._link()
                answers = Answers(link, method)
                link.start(block, payload, answers)
                yield answers
            finally:
                if answers is not None:
                    answers.cancel()
                    answers.let_go()
        if scope.cancelled_caught:
            raise DeadlineExceededError("deadline exceeded")

    def _block(self, path: str, timeout: float | None, metadata: Iterable[Field]) -> bytes:
        template = self._templates.get(path)
        if template is None:
            template = RequestTemplate.of(path, authority=self._authority, scheme=self._scheme)
            self._templates[path] = template
        return template.with_fields(timeout, metadata)

    async def _link(self) -> _Link:
        """Return a connection that takes another call, opening one if there is none."""
        while True:
            self._links = [link for link in self._links if link.is_open]
            if len(self._links) >= self._wanted:
                for _ in self._links:
                    self._turn = (self._turn + 1) % len(self._links)
                    link = self._links[self._turn]
                    if link.has_room:
                        return link
            link = await self._dialler.connect()
            if link.has_room:  # else the others who waited for it were quicker
                return link

    async def _open_link(self) -> _Link:
        stream = await self._dial()
        link = _Link()
        try:
            await self._tasks.start(_run_link, link, stream)
        except BaseException:  # cancelled before the task had begun, which closes it otherwise
            await trio.aclose_forcefully(stream)
            raise
        if not link.has_room:
            raise trio.BrokenResourceError("the server takes no calls")
        self._links.append(link)
        self._on_connected()
        return link


async def _run_link(
    link: _Link, stream: trio.abc.Stream, *, task_status: trio.TaskStatus[None]
) -> None:
    await link.run(stream, task_status=task_status)


@asynccontextmanager
async def open_channel(
    target: str,
    *,
    tls: ssl.SSLContext | None = None,
    connections: int = 1,
    on_connected: Callable[[], None] = _nobody_is_told,
) -> AsyncIterator[Channel]:
    """Call methods of the server at *target*: `host:port`, `[v6]:port`, `unix:/path`, with or
    without `grpc://` or `grpcs://` before it.

    *connections* are opened as calls need them and used in turn.  Nothing is connected until the
    first call; *on_connected* is called, on the loop, for each connection that has been opened.
    Leaving the block closes all connections; calls in flight end with UNAVAILABLE.
    Raises ValueError for a target that is no address.  Errors of the block come out as an exception
    group, as from any nursery.
    """
    scheme, separator, rest = target.partition("://")
    if not separator:
        rest = target
    elif scheme not in ("grpc", "grpcs"):
        raise ValueError(f"not a gRPC target: {target}")
    if scheme == "grpcs" and tls is None:
        tls = ssl.create_default_context()
    address = split_host_port(rest)
    async with trio.open_nursery() as tasks:
        channel = Channel(
            tasks,
            lambda: open_stream(address, tls),
            authority="localhost" if address.unix_path is not None else str(address),
            scheme="http" if tls is None else "https",
            connections=connections,
            on_connected=on_connected,
        )
        yield channel
        tasks.cancel_scope.cancel()


def _status_without_grpc(head: Sequence[Field]) -> Status:
    """Choose a status for an answer that has none of gRPC's, by its initial headers."""
    http_status = dict(head).get(b":status", b"200")
    code = _STATUS_OF_HTTP.get(http_status, StatusCode.UNKNOWN)
    return Status(code, f"no grpc-status; HTTP status {http_status.decode('latin-1')}")


def percent_decode(text: bytes) -> str:
    """Read a `grpc-message`; what is not percent-encoded well stays as it is."""
    plain = _ESCAPE.sub(lambda found: bytes.fromhex(found[1].decode()), text)
    return plain.decode("utf-8", "replace")
