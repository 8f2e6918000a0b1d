"""One connection's I/O: a reader task, writes done at once, a task an RPC.

Writes are made directly: `flush` sends what the connection has queued, and only while the socket is
full is there a task that waits for it.  Whoever queues bytes says `flush_soon`, and the server's
one flusher task sends for all connections that are due, after the tasks that are ready have run: a
pass of an engine over many streams is one send for each connection.

What a client that does not read can cost is bounded: beyond `CLOGGED_BYTES` of unsent bytes its
streams count as full, beyond `UNREAD_BYTES` it is not read from any more.
"""

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

import trio
from purerpc.grpclib.exceptions import RpcFailedError
from purerpc.grpclib.status import Status, StatusCode

from replay.logger import get_logger
from replay.rpc import frames
from replay.rpc.calls import (
    OK,
    Call,
    Ending,
    MessageError,
    Method,
    check_length,
    run_method,
    unframe_message,
)
from replay.rpc.hpack import Field
from replay.rpc.http2 import ConnectionDeadError, Http2Limits
from replay.rpc.http2_server import RequestStream, ServerConnection
from replay.rpc.incoming import Incoming
from replay.rpc.transport import Transport, open_transport

log = get_logger(__name__)

#: Streams of a connection that has this much to send are held back.
CLOGGED_BYTES = 256 * 1024
#: A client that leaves this much unread is not read from: headers have no flow control.
UNREAD_BYTES = 1024 * 1024
#: How long a new connection may take to say that it speaks HTTP/2.
GREETING_SECONDS = 10.0
#: How long the last bytes of a broken connection may take, its GOAWAY above all.
GOODBYE_SECONDS = 1.0


class Host(Protocol):
    """What a connection needs of its server."""

    methods: dict[str, Method]
    limits: Http2Limits
    message_limit: int | None
    is_draining: bool
    answered_while_draining: frozenset[str]
    """Paths of the methods that a server which shuts down still answers."""

    def flush_soon(self, peer: "Peer") -> None:
        """Have `peer.flush` called after the tasks that are ready have run."""
        ...

    def call_started(self, call: Call) -> None:
        """Take note of a call."""
        ...

    def call_ended(self, call: Call) -> None:
        """Take note of its end."""
        ...


class Peer:
    """A client's connection, from its first byte to its last."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.connection = ServerConnection(host.limits, self)
        #: Whether the flusher has it on its list.
        self.is_due = False
        #: Whether the socket has refused so much that nothing more should be made.
        self.is_clogged = False
        self.calls: set[Call] = set()
        self._opened: list[RequestStream] = []
        self._waiting: set[Call] = set()
        self._tasks: trio.Nursery
        self._transport: Transport

    # ---- life

    async def run(self, stream: trio.abc.Stream) -> None:
        """Serve the connection until it ends; leave no task behind.  *stream* is the caller's."""
        async with trio.open_nursery() as self._tasks:
            self._transport = open_transport(
                stream, self._tasks, on_progress=self._on_progress, on_lost=self._cancel_calls
            )
            try:
                await self._exchange()
            except ConnectionDeadError as error:
                log.debug("connection refused", code=error.code)
                self.flush()
                with trio.move_on_after(GOODBYE_SECONDS):
                    await self._say_goodbye()
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # the client has gone; what that means is below
            finally:
                self._transport.is_lost = True
                self._cancel_calls()
            self._tasks.cancel_scope.cancel()
        self._transport.let_go()
        self.connection.let_go()

    async def _say_goodbye(self) -> None:
        with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            await self._transport.say_goodbye()

    async def _exchange(self) -> None:
        with trio.CancelScope(deadline=trio.current_time() + GREETING_SECONDS) as greeting:
            self.flush()
            while True:
                data = await self._transport.receive()
                if not data:
                    return
                self.connection.receive(data, trio.current_time())
                if self._opened:
                    self._judge_opened()
                self.flush()
                if self.connection.is_greeted:
                    greeting.deadline = math.inf
                if self._transport.unsent > UNREAD_BYTES:
                    await self._transport.wait_unsent_below(UNREAD_BYTES)

    def _cancel_calls(self) -> None:
        for call in list(self.calls):
            call.cancel(Ending.CLOSED)

    # ---- out

    def flush(self) -> None:
        """Send what is queued, as far as it goes without waiting."""
        out = self.connection.out
        if out:
            data = b"".join(out)
            out.clear()
            self._transport.send(data)
            self.is_clogged = self._transport.unsent > CLOGGED_BYTES

    async def wait_sent(self) -> None:
        """Wait until all that was flushed has been taken by the socket."""
        await self._transport.wait_unsent_below(1)

    def _on_progress(self) -> None:
        self.is_clogged = self._transport.unsent > CLOGGED_BYTES
        if self._waiting and not self.is_clogged:
            waiting, self._waiting = self._waiting, set()
            for call in waiting:
                call.room_again()

    def when_room(self, call: Call) -> None:
        """Have `call.room_again` called when the stream or the socket has drained."""
        self._waiting.add(call)

    def respond(self, stream: RequestStream, metadata: Iterable[Field]) -> None:
        """Queue the initial headers."""
        self.connection.respond(stream, metadata)
        self._flush_soon()

    def write(self, stream: RequestStream, payload: bytes) -> None:
        """Queue DATA, behind initial headers if there were none."""
        if not stream.headers_sent:
            self.connection.respond(stream)
        self.connection.send(stream, payload)
        if not self.is_due:  # as in _flush_soon: this is the path of every token
            self.is_due = True
            self.host.flush_soon(self)

    def answer(self, stream: RequestStream, payload: bytes) -> None:
        """Queue headers, DATA and OK trailers."""
        self.connection.answer(stream, payload)
        self._flush_soon()

    def finish(self, stream: RequestStream, status: Status, metadata: Iterable[Field] = ()) -> None:
        """Queue the trailers."""
        self._end_wait(stream)
        self.connection.finish(stream, status.int_value, status.status_message, metadata)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self.is_due:
            self.is_due = True
            self.host.flush_soon(self)

    # ---- in (told by the connection)

    def on_open(self, stream: RequestStream) -> None:
        """Note a request whose body is to come; most bodies come in the same bytes."""
        method = self.host.methods.get(stream.head.path)
        if method is not None and method.takes_stream and self._refusal(stream, method) is None:
            self._start_streaming(stream, method)
        else:
            self._opened.append(stream)

    def _judge_opened(self) -> None:
        """Look after requests that are still not whole when all bytes have been read."""
        opened, self._opened = self._opened, []
        for stream in opened:
            if stream.remote_closed or stream.closed:
                continue
            method = self.host.methods.get(stream.head.path)
            refusal = self._refusal(stream, method)
            if refusal is not None:
                refusal()
            elif stream.head.timeout is not None:
                deadline = trio.current_time() + stream.head.timeout
                stream.call = scope = trio.CancelScope(deadline=deadline)
                self._tasks.start_soon(self._expire, stream, scope)

    async def _expire(self, stream: RequestStream, scope: trio.CancelScope) -> None:
        """Enforce the deadline of a request that never becomes whole.

        Until there is a call, *scope* stands for it: whatever else ends the wait cancels it.
        """
        with scope:
            await trio.sleep_forever()
        if stream.call is scope:
            self.finish(stream, Status(StatusCode.DEADLINE_EXCEEDED, "deadline exceeded"))

    def on_piece(self, stream: RequestStream) -> None:
        """Refuse a message by its length prefix, before it has come; feed a client's stream."""
        if isinstance(stream.call, Incoming):
            stream.call.feed(self.connection, stream, self.host.message_limit)
        elif stream.body is not None and len(stream.body) >= 5:
            try:
                check_length(int.from_bytes(stream.body[1:5], "big"), self.host.message_limit)
            except MessageError as error:
                self.finish(stream, error.status)

    def on_over_budget(self, stream: RequestStream) -> None:
        """Refuse the request that would make the connection hold too much."""
        self.finish(
            stream,
            Status(StatusCode.RESOURCE_EXHAUSTED, "too many bytes of unfinished requests"),
        )

    def on_request(self, stream: RequestStream) -> None:
        """Start the call of a whole request, or refuse it."""
        self._end_wait(stream)
        method = self.host.methods.get(stream.head.path)
        refusal = self._refusal(stream, method)
        if refusal is not None:
            refusal()
            return
        assert method is not None
        try:
            message = unframe_message(
                stream.body or b"",
                encoding=stream.head.encoding,
                limit=self.host.message_limit,
                inflated_limit=self.host.limits.buffered_bytes,
            )
        except MessageError as error:
            self.finish(stream, error.status)
            return
        stream.body = None
        self._start(stream, method, message)

    def _refusal(self, stream: RequestStream, method: Method | None) -> Callable[[], None] | None:
        """Return what refuses the request, or None for one that can be served."""
        head = stream.head
        if head.http_status:
            return lambda: self._refuse_http(stream)
        if method is None:
            service, _, name = head.path[1:].partition("/")
            text = f"method {name} of service {service} is not implemented"
            return lambda: self.finish(stream, Status(StatusCode.UNIMPLEMENTED, text))
        if head.timeout_bad:
            return lambda: self.finish(stream, Status(StatusCode.INTERNAL, "bad grpc-timeout"))
        if self.host.is_draining and head.path not in self.host.answered_while_draining:
            return lambda: self.finish(
                stream, Status(StatusCode.UNAVAILABLE, "the server shuts down")
            )
        return None

    def _refuse_http(self, stream: RequestStream) -> None:
        self.connection.finish_http(stream, stream.head.http_status)
        self._flush_soon()

    @staticmethod
    def _end_wait(stream: RequestStream) -> None:
        """End the task that waits for the rest of a request, if there is one."""
        if isinstance(stream.call, trio.CancelScope):
            stream.call.cancel()

    def _start(self, stream: RequestStream, method: Method, message: bytes) -> None:
        waited = stream.call
        call = Call(self, stream, method, trio.current_time())
        if isinstance(waited, trio.CancelScope):  # the time has run since the headers came
            call.scope.deadline = waited.deadline
        stream.call = call
        self.calls.add(call)
        self.host.call_started(call)
        self._tasks.start_soon(self._serve, call, message)

    def _start_streaming(self, stream: RequestStream, method: Method) -> None:
        stream.eager = True
        call = Call(self, stream, method, trio.current_time())
        incoming = Incoming(call)
        stream.call = incoming
        self.calls.add(call)
        self.host.call_started(call)
        self._tasks.start_soon(self._serve, call, incoming)

    def on_gone(self, stream: RequestStream) -> None:
        """End the call of a stream that was reset."""
        self._end_wait(stream)
        call = _call_of(stream)
        if call is not None:
            call.cancel(Ending.RESET)

    def on_drained(self, stream: RequestStream) -> None:
        """Wake the call that waited for the client's window."""
        call = _call_of(stream)
        if call is not None and call in self._waiting and not self.is_clogged:
            self._waiting.discard(call)
            call.room_again()

    # ---- calls

    async def _serve(self, call: Call, argument: object) -> None:
        """Run one call.  *argument* is the message's bytes, or the messages of a client's
        stream."""
        status = OK
        try:
            with call.scope:
                if call.ending is None:
                    if isinstance(argument, bytes):
                        argument = call.method.parse(argument)
                    await run_method(call, argument)
        except RpcFailedError as error:
            status = error.status
        except Exception as error:
            status = self._fault(call, error)
        except BaseException:
            # Cancelled from further out than the call, or the process is to end: whatever has been
            # sent is not the whole answer.
            call.cancel(Ending.SHUTDOWN)
            raise
        finally:
            self._end(call, status)

    def _fault(self, call: Call, error: Exception) -> Status:
        """Turn what a handler did not expect into a short text.

        The exception's own text stays here: it may quote the request.
        """
        if type(error).__name__ == "DecodeError":
            return Status(StatusCode.INTERNAL, "the request message cannot be decoded")
        if call.ending is None:
            log.error("handler failed", path=call.method.path, **describe_fault(error))
        return Status(StatusCode.INTERNAL, f"internal error ({type(error).__name__})")

    def _end(self, call: Call, status: Status) -> None:
        if call.scope.cancelled_caught and call.ending is None:
            call.ending = Ending.DEADLINE
        if call.ending is not None and not call.finished:
            status = self._status_after(call, call.ending)
        try:
            call.finish(status)
        except Exception as error:  # a status of the handler's that is none
            call.finish(self._fault(call, error))
        self.calls.discard(call)
        self._waiting.discard(call)
        self.host.call_ended(call)
        # What points back to the call would keep it, and its request, until garbage is collected.
        call.epilogue = None
        if call.stream.call is call:
            call.stream.call = None

    def _status_after(self, call: Call, ending: Ending) -> Status:
        """Let a cancelled call say its last words and choose the status."""
        if ending not in (Ending.RESET, Ending.CLOSED) and call.epilogue is not None:
            # The epilogue may write: the call counts as open once more.
            call.ending = None
            try:
                chosen = call.epilogue(ending)
            finally:
                call.ending = ending
            if chosen is not None:
                return chosen
        return {
            Ending.DEADLINE: Status(StatusCode.DEADLINE_EXCEEDED, "deadline exceeded"),
            Ending.SHUTDOWN: Status(StatusCode.UNAVAILABLE, "the server shuts down"),
        }.get(ending, Status(StatusCode.CANCELLED, ending.value))


def _call_of(stream: RequestStream) -> Call | None:
    """Return the call that a stream has; None while its request is not whole."""
    call = stream.call.call if isinstance(stream.call, Incoming) else stream.call
    return call if isinstance(call, Call) else None


def describe_fault(error: BaseException) -> dict[str, str]:
    """Say where an exception came from, without its text, which may hold a prompt.

    A group stands for the first of its exceptions.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = ""
    if trace is not None:
        code = trace.tb_frame.f_code
        place = f"{code.co_filename.rpartition('/')[2]}:{trace.tb_lineno} in {code.co_name}"
    return {"error": type(error).__name__, "at": place}


async def refuse_connection(host: Host, stream: trio.abc.Stream) -> None:
    """Tell a client that there are too many; wait a moment for it to take that in.

    A socket that is closed with unread bytes is reset, and a reset may overtake what was sent.
    """
    connection = Peer(host).connection
    connection.refuse_new(frames.ENHANCE_YOUR_CALM, b"too many connections")
    connection.let_go()
    with (
        trio.move_on_after(GOODBYE_SECONDS),
        suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError),
    ):
        await stream.send_all(b"".join(connection.out))
        if isinstance(stream, trio.abc.HalfCloseableStream):
            await stream.send_eof()
        while await stream.receive_some():
            pass
