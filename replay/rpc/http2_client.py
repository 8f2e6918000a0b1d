"""The client's half of an HTTP/2 connection that carries gRPC, without I/O.

Requests out, answers in: initial headers, DATA, trailers.  What the server may do wrong ends the
stream or the connection as on the other side; what it may do often (resets, pings) is not limited,
for a client chose its server.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import attrs

from replay.rpc import frames
from replay.rpc.frames import DATA, END_HEADERS, END_STREAM, pack_header
from replay.rpc.hpack import Field, HeaderBlockError, HeaderListTooLargeError, literal
from replay.rpc.http2 import Connection, ConnectionDeadError, Http2Limits
from replay.rpc.http2_sending import Stream

#: What a client allows its server.
CLIENT_LIMITS = Http2Limits(resets_per_second=1e9, reset_burst=10**9, idle_pings=10**9)

_CACHED_BLOCKS = 64
_CACHED_BLOCK_BYTES = 2048


class ResponseStream(Stream):
    """One request and its answer, as the client sees it."""

    __slots__ = ("call", "head", "local_closed")

    def __init__(self, stream_id: int, send_window: int, receive_window: int) -> None:
        super().__init__(stream_id, send_window, receive_window)
        #: The initial headers, once they have come.
        self.head: Sequence[Field] | None = None
        self.local_closed = False
        #: What the owner keeps for it.
        self.call: object = None


class ResponseOwner(Protocol):
    """What a `ClientConnection` tells of, synchronously, while it takes bytes."""

    def on_head(self, stream: ResponseStream) -> None:
        """Take note of the initial headers, `stream.head`."""
        ...

    def on_piece(self, stream: ResponseStream) -> None:
        """Take what has come of the body."""
        ...

    def on_end(self, stream: ResponseStream, trailers: Sequence[Field]) -> None:
        """Take note that the answer is over.  An answer of trailers only has them as its head."""
        ...

    def on_gone(self, stream: ResponseStream, code: int) -> None:
        """Take note that the stream was reset, with an error code of HTTP/2."""
        ...

    def on_drained(self, stream: ResponseStream) -> None:
        """Take note that everything queued on the stream has left."""
        ...

    def on_refused(self, stream: ResponseStream) -> None:
        """Take note that the server has gone before it looked at the stream: it may be retried."""
        ...


class ClientConnection(Connection[ResponseStream]):
    """Requests out, answers in."""

    def __init__(self, owner: ResponseOwner, limits: Http2Limits = CLIENT_LIMITS) -> None:
        super().__init__(limits)
        self._owner = owner
        self._next_id = 1
        self._heads: dict[bytes, Sequence[Field]] = {}
        self.out += (
            frames.PREFACE,
            frames.settings(
                {
                    frames.SETTING_ENABLE_PUSH: 0,
                    frames.SETTING_INITIAL_WINDOW_SIZE: limits.stream_window,
                    frames.SETTING_MAX_HEADER_LIST_SIZE: limits.header_bytes,
                }
            ),
            frames.window_update(0, limits.connection_window - frames.DEFAULT_WINDOW),
        )

    @property
    def has_room(self) -> bool:
        """Whether another request may be sent now."""
        return not (self.dead or self.goaway_received) and (
            len(self.streams) < self.peer_max_streams and self._next_id < frames.MAX_STREAM_ID
        )

    # ---- out

    def request(self, block: bytes, payload: bytes | None = None) -> ResponseStream:
        """Send a header block (see `request_block`) and, if given, the whole body.

        Without *payload* the body follows by `send` and `end`.
        """
        stream_id = self._next_id
        self._next_id += 2
        self.last_stream_id = stream_id
        stream = self.streams[stream_id] = ResponseStream(
            stream_id, self.peer_initial_window, self.limits.stream_window
        )
        self._headers_out(stream, END_HEADERS, block)
        if payload is not None:
            length = len(payload)
            if (
                length <= stream.send_window
                and length <= self.send_window
                and length <= self.peer_max_frame
            ):
                stream.local_closed = True
                self.send_window -= length
                self.out += (
                    pack_header(length >> 8, length & 255, DATA, END_STREAM, stream_id),
                    payload,
                )
            else:
                self.send(stream, payload)
                self.end(stream, b"")
        return stream

    def _local_end(self, stream: ResponseStream) -> None:
        stream.local_closed = True

    # ---- in

    def _on_headers(self, stream_id: int, flags: int, block: bytes) -> None:
        fields = self._decode(block)
        stream = self.streams.get(stream_id)
        if stream is None:
            self._late_frame(stream_id, "HEADERS")
            return
        if fields is None:
            self._stream_error(stream, frames.ENHANCE_YOUR_CALM)
            return
        final = bool(flags & END_STREAM)
        if stream.head is None:
            status = next((value for name, value in fields if name == b":status"), None)
            if status is None or not status.isdigit():
                self._stream_error(stream, frames.PROTOCOL_ERROR)
                return
            if status[:1] == b"1" and not final:
                return  # informational; the real ones follow
            stream.head = fields
            self._owner.on_head(stream)
            if final:
                self._end_of(stream, fields)
        elif final:
            self._end_of(stream, fields)
        else:
            self._stream_error(stream, frames.PROTOCOL_ERROR)

    def _decode(self, block: bytes) -> Sequence[Field] | None:
        fields = self._heads.get(block)
        if fields is not None:
            return fields
        version = self._decoder.version
        try:
            fields = self._decoder.decode(block)
        except HeaderBlockError as error:
            raise ConnectionDeadError(frames.COMPRESSION_ERROR, str(error)) from None
        except HeaderListTooLargeError:
            fields = None
        if self._decoder.version != version:
            self._heads.clear()
        elif fields is not None and len(block) <= _CACHED_BLOCK_BYTES:
            if len(self._heads) >= _CACHED_BLOCKS:
                self._heads.clear()
            self._heads[block] = fields
        return fields

    def _on_data(self, stream: ResponseStream, final: bool) -> None:
        if stream.head is None:
            self._stream_error(stream, frames.PROTOCOL_ERROR)
            return
        self._owner.on_piece(stream)
        if final and not stream.closed:
            self._end_of(stream, ())

    def _end_of(self, stream: ResponseStream, trailers: Sequence[Field]) -> None:
        stream.remote_closed = True
        if not stream.local_closed:  # the server does not want the rest of the request
            self.out.append(frames.rst_stream(stream.id, frames.NO_ERROR))
        self._forget(stream)
        self._owner.on_end(stream, trailers)

    def _on_gone(self, stream: ResponseStream, code: int) -> None:
        self._owner.on_gone(stream, code)

    def _on_drained(self, stream: ResponseStream) -> None:
        self._owner.on_drained(stream)

    def _on_over_budget(self, stream: ResponseStream) -> None:
        self._stream_error(stream, frames.ENHANCE_YOUR_CALM)

    def _on_goaway(self, last_stream_id: int, code: int) -> None:
        for stream in [each for each in self.streams.values() if each.id > last_stream_id]:
            self._forget(stream)
            self._owner.on_refused(stream)


@attrs.frozen
class RequestTemplate:
    """The header block of a method's requests, up to what changes with each request."""

    block: bytes

    @classmethod
    def of(cls, path: str, *, authority: str, scheme: str = "http") -> "RequestTemplate":
        """Encode the fields that every request of a method shares."""
        # Static indexes: 3 is POST, 6 and 7 are the schemes, 1 the authority, 4 the path's name.
        return cls(
            b"".join(
                (
                    b"\x83",
                    b"\x86" if scheme == "http" else b"\x87",
                    literal(b":path", path.encode()),
                    literal(b":authority", authority.encode()),
                    literal(b"te", b"trailers"),
                    literal(b"content-type", b"application/grpc"),
                    literal(b"user-agent", b"grpc-python-replay"),
                )
            )
        )

    def with_fields(self, timeout: float | None, metadata: Iterable[Field]) -> bytes:
        """Add a deadline in seconds and the caller's metadata."""
        block = self.block
        if timeout is not None:
            block += literal(b"grpc-timeout", encode_timeout(timeout))
        for name, value in metadata:
            block += literal(name.lower(), value)
        return block


def encode_timeout(seconds: float) -> bytes:
    """Write a deadline for `grpc-timeout`, at most eight digits and not shorter than it is."""
    for unit, factor in ((b"u", 1e6), (b"m", 1e3), (b"S", 1.0), (b"M", 1 / 60), (b"H", 1 / 3600)):
        amount = -(-max(seconds, 0.0) * factor // 1)
        if amount < 100_000_000:
            return b"%d" % amount + unit
    return b"99999999H"
