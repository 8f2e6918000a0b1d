"""What one end of an HTTP/2 connection sends, without I/O: frames out, as the peer's windows allow.

Rules kept here:

* nothing is sent on a stream that is over: `send` and its like do nothing there, so that a handler
  need not know what arrived in the same batch of bytes as its own reset;
* what the windows do not let through waits on its stream, also while they are negative;
* streams that wait for the connection's window get it in turn, a frame each.
"""

from typing import Generic, TypeVar

from replay.rpc import frames
from replay.rpc.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    MAX_WINDOW,
    PING,
    pack_header,
)


class Stream:
    """One stream.  `body` is what has come of the peer's DATA and was not taken away."""

    __slots__ = (
        "body",
        "buffered",
        "closed",
        "headers_sent",
        "held",
        "id",
        "id_bytes",
        "pending",
        "receive_window",
        "remote_closed",
        "send_window",
        "trailer",
    )

    def __init__(self, stream_id: int, send_window: int, receive_window: int) -> None:
        self.id = stream_id
        self.id_bytes = stream_id.to_bytes(4, "big")
        self.send_window = send_window
        self.receive_window = receive_window
        self.body: bytes | bytearray | None = None
        #: How much of `body` counts against the connection's budget for unfinished requests.
        self.buffered = 0
        #: Bytes that the windows did not let through yet.
        self.pending: bytearray | None = None
        #: Header block that ends the stream once `pending` is empty; b"" ends it with the last
        #: DATA.
        self.trailer: bytes | None = None
        self.headers_sent = False
        #: Whether the peer's window is kept shut, because nobody reads what has come.
        self.held = False
        #: The peer has sent its END_STREAM.
        self.remote_closed = False
        #: Nothing more may be sent or will be told.
        self.closed = False


S = TypeVar("S", bound=Stream)


class Sending(Generic[S]):
    """The sending side of a connection; `replay.rpc.http2` has the rest of it."""

    def __init__(self) -> None:
        self.out: list[bytes] = []
        self.streams: dict[int, S] = {}
        self.send_window = frames.DEFAULT_WINDOW
        self.peer_initial_window = frames.DEFAULT_WINDOW
        self.peer_max_frame = frames.DEFAULT_FRAME_SIZE
        #: Streams that wait for the connection's window, in the order in which they began to.
        self._blocked: dict[int, S] = {}
        #: What the next header block begins with.
        self._table_update = b""
        #: Whether DATA or HEADERS were sent since the last PING that counted.
        self._has_spoken = False

    # ---- what the halves define

    def _on_drained(self, stream: S) -> None:
        """Take note that all that *stream* had to send has left."""
        raise AssertionError

    def _local_end(self, stream: S) -> None:
        """Take note that our side of *stream* has ended."""
        raise AssertionError

    # ---- nothing here does anything on a stream that is over

    def send(self, stream: S, payload: bytes) -> None:
        """Queue *payload* as DATA, as far as the windows allow; the rest waits in
        `stream.pending`."""
        if stream.closed or stream.trailer is not None:
            return
        length = len(payload)
        if stream.pending is None:
            if (
                length <= stream.send_window
                and length <= self.send_window
                and length <= self.peer_max_frame
            ):
                stream.send_window -= length
                self.send_window -= length
                self._has_spoken = True
                self.out += (
                    pack_header(length >> 8, length & 255, DATA, 0, stream.id),
                    payload,
                )
                return
            stream.pending = bytearray(payload)
        else:
            stream.pending += payload
        self._pump(stream)

    def end(self, stream: S, trailer: bytes) -> None:
        """End our side: with a header block, or for b"" with END_STREAM on the last DATA."""
        if stream.closed or stream.trailer is not None:
            return
        stream.trailer = trailer
        if stream.pending is None:
            self._end_now(stream)

    def _end_now(self, stream: S) -> None:
        trailer = stream.trailer
        if trailer:
            self._headers_out(stream, END_STREAM | END_HEADERS, trailer)
        else:
            self.out.append(pack_header(0, 0, DATA, END_STREAM, stream.id))
        self._local_end(stream)

    def _headers_out(self, stream: S, flags: int, block: bytes) -> None:
        stream.headers_sent = True
        if self._table_update:
            block, self._table_update = self._table_update + block, b""
        self._has_spoken = True
        limit = self.peer_max_frame
        if len(block) <= limit:
            self.out += (
                pack_header(len(block) >> 8, len(block) & 255, HEADERS, flags, stream.id),
                block,
            )
            return
        self.out.append(frames.frame(HEADERS, flags & ~END_HEADERS, stream.id, block[:limit]))
        for at in range(limit, len(block), limit):
            last = END_HEADERS if at + limit >= len(block) else 0
            self.out.append(frames.frame(CONTINUATION, last, stream.id, block[at : at + limit]))

    def _pump(self, stream: S, *, most: int = MAX_WINDOW) -> None:
        """Send what the windows allow of what is pending, and not more than *most* of it."""
        self._blocked.pop(stream.id, None)
        pending = stream.pending
        if pending is None:
            return
        self._has_spoken = True
        while pending:
            length = min(
                len(pending), stream.send_window, self.send_window, self.peer_max_frame, most
            )
            if length <= 0:
                if stream.send_window > 0:  # behind all others that wait for the connection
                    self._blocked[stream.id] = stream
                return
            most -= length
            stream.send_window -= length
            self.send_window -= length
            self.out += (
                pack_header(length >> 8, length & 255, DATA, 0, stream.id),
                bytes(pending[:length]),
            )
            del pending[:length]
        stream.pending = None
        if stream.trailer is not None:
            self._end_now(stream)
        else:
            self._on_drained(stream)

    def _pump_blocked(self) -> None:
        """Share out what the connection's window lets through now."""
        while self._blocked and self.send_window > 0:
            # A frame each, in turn: a long answer must not keep the others waiting.
            self._pump(next(iter(self._blocked.values())), most=frames.DEFAULT_FRAME_SIZE)

    def ping(self, payload: bytes) -> None:
        """Ask the peer for a sign of life; `on_ping_ack` tells of it."""
        self.out.append(frames.frame(PING, 0, 0, payload))
