"""The messages of a client's stream, for methods that take one."""

from collections import deque

import trio
from purerpc.grpclib.status import Status, StatusCode

from replay.rpc.calls import Call, MessageError, check_length, unframe_message
from replay.rpc.http2_server import RequestStream, ServerConnection

#: Messages that the handler may leave unread.
UNREAD_MESSAGES = 64
#: Bytes of a message that has not come whole.  Such methods take small ones (reflection).
UNREAD_BYTES = 1 << 20


class Incoming:
    """An async iterator of messages, fed by the connection."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self._messages: deque[bytes] = deque()
        self._body = bytearray()
        self._more = trio.Event()
        self._ended = False

    def feed(self, connection: ServerConnection, stream: RequestStream, limit: int | None) -> None:
        """Take what has come; a fault of the client's ends the call."""
        body = connection.take_body(stream)
        if self.call.finished:
            return  # the trailers wait for the client's window, and nobody reads any more
        self._body += body
        self._ended = stream.remote_closed
        try:
            while len(self._body) >= 5:
                length = int.from_bytes(self._body[1:5], "big")
                check_length(length, limit)
                if len(self._body) < 5 + length:
                    break
                whole = bytes(self._body[: 5 + length])
                del self._body[: 5 + length]
                self._messages.append(
                    unframe_message(
                        whole,
                        encoding=stream.head.encoding,
                        limit=limit,
                        inflated_limit=connection.limits.buffered_bytes,
                    )
                )
            if len(self._messages) > UNREAD_MESSAGES or len(self._body) > UNREAD_BYTES:
                raise MessageError(
                    Status(StatusCode.RESOURCE_EXHAUSTED, "more messages than are read")
                )
        except MessageError as error:
            self.call.finish(error.status)
            self.call.scope.cancel()
        self._more.set()

    def __aiter__(self) -> "Incoming":
        return self

    async def __anext__(self) -> object:
        while not self._messages:
            if self._ended:
                raise StopAsyncIteration
            self._more = trio.Event()
            await self._more.wait()
        return self.call.method.parse(self._messages.popleft())
