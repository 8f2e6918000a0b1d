"""The server's half of an HTTP/2 connection that carries gRPC, without I/O.

Rules kept here:

* a request whose header block is not HTTP/2 (pseudo-headers, `te`, upper case), or whose body is
  not as long as it says, resets its stream; one that is no gRPC request is answered with a status
  of HTTP or of gRPC;
* a header block of the same bytes that changed no table is decoded and judged once;
* an answer that is given before the request has ended is followed by RST_STREAM(NO_ERROR);
* a drain takes two GOAWAYs: one that refuses nothing, and, when a PING has come back and so every
  request that was on its way has arrived, one with the real last stream.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Protocol

from replay.rpc import frames
from replay.rpc.frames import END_HEADERS, END_STREAM, HEADERS, pack_header
from replay.rpc.hpack import Field, HeaderBlockError, HeaderListTooLargeError, literal
from replay.rpc.http2 import Connection, ConnectionDeadError, Http2Limits
from replay.rpc.http2_sending import Stream

#: `:status: 200` and `content-type: application/grpc`, by static indexes, without the dynamic
#: table.
RESPONSE_BLOCK = b"\x88\x0f\x10\x10application/grpc"
OK_BLOCK = literal(b"grpc-status", b"0")

#: Header blocks that are remembered for a connection, and the longest one worth it.
_CACHED_BLOCKS = 256
_CACHED_BLOCK_BYTES = 2048

#: Names that mean something to the transport; every other one is the client's metadata.
_PSEUDO, _KNOWN, _FORBIDDEN = "pseudo", "known", "forbidden"
_NAMES = {
    **dict.fromkeys((b":method", b":scheme", b":path", b":authority"), _PSEUDO),
    **dict.fromkeys(
        (b"te", b"content-type", b"content-length", b"grpc-timeout", b"grpc-encoding"), _KNOWN
    ),
    # RFC 9113, 8.2.2: they speak of a connection of HTTP/1.
    **dict.fromkeys(
        (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"),
        _FORBIDDEN,
    ),
}
_BAD_NAME = re.compile(rb"[A-Z\0-\x20\x7f-\xff:]").search
_BAD_VALUE = re.compile(rb"[\0\r\n]").search
_TIMEOUT_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_DRAIN_PING = b"drain..\0"


class RequestHead:
    """A decoded and judged header block.  Requests with the same block share one."""

    __slots__ = (
        "_metadata",
        "content_length",
        "encoding",
        "fields",
        "http_status",
        "malformed",
        "malformed_as_trailers",
        "path",
        "timeout",
        "timeout_bad",
    )

    def __init__(self, fields: Sequence[Field]) -> None:
        self.fields = fields
        self._metadata: list[Field] | None = None
        #: A status of HTTP to answer with, for what is not gRPC; 0 for gRPC.
        self.http_status = 0
        known: dict[bytes, bytes] = {}
        pseudo_fields = 0
        malformed = _BAD_VALUE(b"".join([value for _, value in fields])) is not None
        for position, (name, value) in enumerate(fields):
            kind = _NAMES.get(name)
            if kind is None:
                malformed |= _is_bad_name(name)
            elif kind is _PSEUDO:
                malformed |= position != pseudo_fields or name in known
                pseudo_fields += 1
                known[name] = value
            elif kind is _KNOWN:
                known[name] = value
            else:
                malformed = True
        if known.get(b"te", b"trailers") != b"trailers":
            malformed = True
        #: What the body has to have in bytes; None when the client does not say.
        self.content_length: int | None = None
        length = known.get(b"content-length")
        if length is not None:
            if length.isdigit() and len(length) < 20:
                self.content_length = int(length)
            else:
                malformed = True
        self.malformed_as_trailers = malformed or pseudo_fields > 0
        path = known.get(b":path", b"")
        if not path or b":method" not in known or b":scheme" not in known:
            malformed = True
        self.malformed = malformed
        self.path = path.decode("latin-1")
        if known.get(b":method") != b"POST":
            self.http_status = 405
        elif not _is_grpc(known.get(b"content-type", b"")):
            self.http_status = 415
        self.encoding = known.get(b"grpc-encoding", b"identity")
        #: Seconds, or None for no deadline.
        self.timeout: float | None = None
        self.timeout_bad = False
        timeout = known.get(b"grpc-timeout")
        if timeout is not None:
            digits, unit = timeout[:-1], _TIMEOUT_UNITS.get(timeout[-1:])
            if unit is None or not 1 <= len(digits) <= 8 or not digits.isdigit():
                self.timeout_bad = True
            else:
                self.timeout = int(digits) * unit

    @property
    def metadata(self) -> list[Field]:
        """The fields that are the client's own."""
        if self._metadata is None:
            self._metadata = [field for field in self.fields if field[0] not in _NAMES]
        return self._metadata


def _is_grpc(content_type: bytes) -> bool:
    return content_type[:16] == b"application/grpc" and content_type[16:17] in (b"", b"+", b";")


def _is_bad_name(name: bytes) -> bool:
    """Whether RFC 9113, 8.2.1 calls a field of this name malformed."""
    return not name or name[:1] == b":" or _BAD_NAME(name) is not None


def checked_metadata(fields: Iterable[Field]) -> Sequence[Field]:
    """Return *fields* as they may be sent; the names must be in lower case.

    Raises ValueError for what HTTP/2 cannot carry, and TypeError for what is no pair of bytes.
    """
    fields = tuple(fields)
    for name, value in fields:
        if _is_bad_name(name) or name in _NAMES or _BAD_VALUE(value):
            raise ValueError("metadata that HTTP/2 cannot carry")
    return fields


class RequestStream(Stream):
    """One request and its answer."""

    __slots__ = ("call", "eager", "head")

    def __init__(
        self, stream_id: int, send_window: int, receive_window: int, head: RequestHead
    ) -> None:
        super().__init__(stream_id, send_window, receive_window)
        self.head = head
        #: Whether the owner wants to hear of each piece of the body, not only of the whole.
        self.eager = False
        #: What the owner keeps for it.
        self.call: object = None


class RequestOwner(Protocol):
    """What a `ServerConnection` tells of, synchronously, while it takes bytes."""

    def on_open(self, stream: RequestStream) -> None:
        """Take note that a request has begun whose body is still to come."""
        ...

    def on_piece(self, stream: RequestStream) -> None:
        """Take note that the body has grown; for an eager stream also that it has ended."""
        ...

    def on_request(self, stream: RequestStream) -> None:
        """Take a whole request: `stream.head` and `stream.body`."""
        ...

    def on_over_budget(self, stream: RequestStream) -> None:
        """Answer a request that would make the connection hold more than it may."""
        ...

    def on_gone(self, stream: RequestStream) -> None:
        """Take note that the client has reset the stream, or made a fault that ended it."""
        ...

    def on_drained(self, stream: RequestStream) -> None:
        """Take note that everything queued on the stream has left."""
        ...


class ServerConnection(Connection[RequestStream]):
    """Requests in, answers out."""

    def __init__(self, limits: Http2Limits, owner: RequestOwner) -> None:
        super().__init__(limits)
        self._owner = owner
        self._preface_left = frames.PREFACE
        self._heads: dict[bytes, RequestHead] = {}
        self._final_goaway = False
        self.out += (
            frames.settings(
                {
                    frames.SETTING_MAX_CONCURRENT_STREAMS: limits.streams,
                    frames.SETTING_INITIAL_WINDOW_SIZE: limits.stream_window,
                    frames.SETTING_MAX_HEADER_LIST_SIZE: limits.header_bytes,
                }
            ),
            frames.window_update(0, limits.connection_window - frames.DEFAULT_WINDOW),
        )

    def let_go(self) -> None:
        """Forget the owner, once no more bytes come and go: the two would keep each other."""
        del self._owner

    # ---- in

    def _on_headers(self, stream_id: int, flags: int, block: bytes) -> None:
        head = self._heads.get(block)
        if head is None:
            head = self._decode(block)
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._trailers(stream, flags, head)
            return
        if not stream_id & 1:
            raise ConnectionDeadError(frames.PROTOCOL_ERROR, "a client's stream has an odd id")
        if stream_id <= self.last_stream_id:
            if stream_id in self._closed_early or self._forgot_early:
                return
            raise ConnectionDeadError(frames.PROTOCOL_ERROR, "stream ids go up")
        self.last_stream_id = stream_id
        if head is None:
            self._refuse(stream_id, frames.ENHANCE_YOUR_CALM)
        elif head.malformed:
            self._refuse(stream_id, frames.PROTOCOL_ERROR)
        elif len(self.streams) >= self.limits.streams or self._final_goaway:
            self._refuse(stream_id, frames.REFUSED_STREAM)
        else:
            stream = self.streams[stream_id] = RequestStream(
                stream_id, self.peer_initial_window, self.limits.stream_window, head
            )
            if flags & END_STREAM:
                stream.remote_closed = True
                self._on_whole(stream)
            else:
                self._owner.on_open(stream)

    def _decode(self, block: bytes) -> RequestHead | None:
        """Decode and judge a block; None for a list that is too large."""
        decoder = self._decoder
        version = decoder.version
        try:
            head = RequestHead(decoder.decode(block))
        except HeaderBlockError as error:
            raise ConnectionDeadError(frames.COMPRESSION_ERROR, str(error)) from None
        except HeaderListTooLargeError:
            head = None
        if decoder.version != version:
            # Bytes that refer to the table mean something else from now on.
            self._heads.clear()
        elif head is not None and len(block) <= _CACHED_BLOCK_BYTES:
            if len(self._heads) >= _CACHED_BLOCKS:
                self._heads.clear()
            self._heads[block] = head
        return head

    def _refuse(self, stream_id: int, code: int) -> None:
        if code != frames.REFUSED_STREAM:  # that one is our own wish
            self._count_reset()
        self._remember_early(stream_id)
        self.out.append(frames.rst_stream(stream_id, code))

    def _trailers(self, stream: RequestStream, flags: int, head: RequestHead | None) -> None:
        if stream.remote_closed:
            self._stream_error(stream, frames.STREAM_CLOSED)
        elif not flags & END_STREAM or (head is not None and head.malformed_as_trailers):
            self._stream_error(stream, frames.PROTOCOL_ERROR)
        else:
            stream.remote_closed = True
            self._on_data(stream, True)

    def _on_data(self, stream: RequestStream, final: bool) -> None:
        if final and not stream.eager:
            self._on_whole(stream)
        else:
            self._owner.on_piece(stream)

    def _on_whole(self, stream: RequestStream) -> None:
        length = stream.head.content_length
        if length is not None and length != len(stream.body or b""):
            self._stream_error(stream, frames.PROTOCOL_ERROR)
        else:
            self._owner.on_request(stream)

    def _on_gone(self, stream: RequestStream, code: int) -> None:
        self._owner.on_gone(stream)

    def _on_drained(self, stream: RequestStream) -> None:
        self._owner.on_drained(stream)

    def _on_over_budget(self, stream: RequestStream) -> None:
        self._owner.on_over_budget(stream)

    def _last_peer_stream(self) -> int:
        return self.last_stream_id

    # ---- out

    def respond(self, stream: RequestStream, metadata: Iterable[Field] = ()) -> None:
        """Send the initial headers."""
        if stream.closed or stream.headers_sent:
            return
        if not (metadata or self._table_update):
            stream.headers_sent = True
            self._has_spoken = True
            self.out += (_HEAD_PREFIX, stream.id_bytes, RESPONSE_BLOCK)
            return
        block = RESPONSE_BLOCK
        for name, value in metadata:
            block += literal(name, value)
        self._headers_out(stream, END_HEADERS, block)

    def finish(
        self,
        stream: RequestStream,
        status: int = 0,
        message: str = "",
        metadata: Iterable[Field] = (),
    ) -> None:
        """Send the trailers after all that is pending; without initial headers they are the
        answer."""
        if stream.closed or stream.trailer is not None:
            return
        block = OK_BLOCK if status == 0 else literal(b"grpc-status", b"%d" % status)
        if not stream.headers_sent:
            block = RESPONSE_BLOCK + block
        if message:
            block += literal(b"grpc-message", percent_encode(message))
        for name, value in metadata:
            block += literal(name, value)
        self.end(stream, block)

    def finish_http(self, stream: RequestStream, status: int) -> None:
        """Answer what is not gRPC with a status of HTTP."""
        self.end(stream, literal(b":status", b"%d" % status))

    def answer(self, stream: RequestStream, payload: bytes) -> None:
        """Send *payload* and OK trailers, behind initial headers if there were none.

        In one piece where windows and state allow it.
        """
        length = len(payload)
        if (
            stream.remote_closed
            and stream.pending is None
            and stream.trailer is None
            and not stream.closed
            and not self._table_update
            and length <= stream.send_window
            and length <= self.send_window
            and length <= self.peer_max_frame
        ):
            self.send_window -= length
            self._has_spoken = True
            stream_id = stream.id_bytes
            if not stream.headers_sent:
                stream.headers_sent = True
                self.out += (_HEAD_PREFIX, stream_id, RESPONSE_BLOCK)
            self.out += (
                length.to_bytes(3, "big"),
                b"\0\0",
                stream_id,
                payload,
                _OK_PREFIX,
                stream_id,
                OK_BLOCK,
            )
            del self.streams[stream.id]
            stream.closed = True
        else:
            self.respond(stream)
            self.send(stream, payload)
            self.finish(stream)

    def _local_end(self, stream: RequestStream) -> None:
        early = not stream.remote_closed
        self._forget(stream)
        if early:  # whatever the client still wants to send, nobody reads
            self.out.append(frames.rst_stream(stream.id, frames.NO_ERROR))

    # ---- the end

    def begin_drain(self) -> None:
        """Ask the peer to open no more streams; those that are on their way are still served."""
        if not (self.dead or self._final_goaway):
            self.out.append(frames.goaway(frames.MAX_STREAM_ID, frames.NO_ERROR))
            self.ping(_DRAIN_PING)

    def _on_ping_ack(self, payload: bytes) -> None:
        """End the first half of a drain: all that came before the PING was answered is here."""
        if payload == _DRAIN_PING:
            self.refuse_new()

    def refuse_new(self, code: int = frames.NO_ERROR, text: bytes = b"") -> None:
        """Send the GOAWAY with the real last stream; streams above it are refused from now on."""
        if not (self.dead or self._final_goaway):
            self._final_goaway = True
            self.out.append(frames.goaway(self.last_stream_id, code, text))


_HEAD_PREFIX = pack_header(0, len(RESPONSE_BLOCK), HEADERS, END_HEADERS, 0)[:5]
_OK_PREFIX = pack_header(0, len(OK_BLOCK), HEADERS, END_HEADERS | END_STREAM, 0)[:5]


def percent_encode(message: str) -> bytes:
    """Encode a status message for the `grpc-message` trailer, at most about 1 KB of it."""
    return b"".join(
        bytes((byte,)) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte
        for byte in message[:1024].encode("utf-8", "replace")
    )
