"""What both ends of an HTTP/2 connection share, without I/O: frames in, and what follows from them.

Bytes go in by `receive`; what happened is told synchronously through the methods that the two
halves (`http2_server`, `http2_client`) define; bytes to send gather in `out`, a list that the owner
joins and writes (`http2_sending`).  Time is an argument.

Rules kept here:

* an error of the connection queues a GOAWAY and raises ConnectionDeadError; an error of a stream
  resets that stream and nothing else;
* flow control holds in both directions, also when the peer makes its windows smaller (they may get
  negative) and when one frame opens the windows of many streams;
* what a peer can make us do without cost to itself is limited: PINGs and SETTINGS that come while
  we have nothing to say, resets, header blocks, bytes of requests that never become whole.
"""

import attrs

from replay.rpc import frames
from replay.rpc.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    MAX_WINDOW,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTING,
    SETTINGS,
    WINDOW_UPDATE,
)
from replay.rpc.hpack import HeaderDecoder
from replay.rpc.http2_sending import S, Sending

_unpack_header = FRAME_HEADER.unpack_from


@attrs.frozen(kw_only=True)
class Http2Limits:
    """What one peer may ask of one connection."""

    streams: int = 1024
    """Streams that may be open at once; more are refused (the peer may try them again)."""
    header_bytes: int = 65536
    """Size of a header list, and of a block on the wire."""
    resets_per_second: float = 500
    """A gateway that multiplexes 700 requests/s and cancels a quarter makes 175 on one
    connection."""
    reset_burst: int = 2000
    idle_pings: int = 20
    """PING and SETTINGS frames since our last DATA or HEADERS; one more is allowed each second, so
    that the keep-alive of an idle connection is never punished."""
    buffered_bytes: int = 256 << 20
    """Bytes of requests that are not whole yet, over all streams."""
    stream_window: int = 1 << 20
    connection_window: int = 16 << 20


#: SETTINGS in a burst, and in a second.  Clients that fit their windows to the link send a few;
#: each may touch every stream, so that thousands of them would keep the loop busy.
SETTINGS_BURST = 200
SETTINGS_PER_SECOND = 20.0


class ConnectionDeadError(Exception):
    """The connection is over.  `code` is the HTTP/2 error code that the GOAWAY carries."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"{why} (HTTP/2 error {code})")
        self.code = code


class Bucket:
    """A token bucket: *burst* at once, *rate* a second in the long run.  Time is given."""

    __slots__ = ("_at", "_burst", "_left", "_rate")

    def __init__(self, burst: float, rate: float) -> None:
        self._burst = self._left = float(burst)
        self._rate = rate
        self._at = 0.0

    def take(self, now: float) -> bool:
        """Take one token; False when there is none."""
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def refill(self) -> None:
        """Forgive everything."""
        self._left = self._burst


class Connection(Sending[S]):
    """Base of both halves; see the module."""

    def __init__(self, limits: Http2Limits) -> None:
        super().__init__()
        self.limits = limits
        self.peer_max_streams = MAX_WINDOW
        #: Highest stream id that either side opened.
        self.last_stream_id = 0
        self.dead = False
        self.goaway_received = False
        self._receive_window = limits.connection_window
        self._rest = b""
        self._preface_left = b""
        self._settings_seen = False
        #: Stream id, flags and bytes so far while CONTINUATION frames are awaited.
        self._partial_block: tuple[int, int, bytearray] | None = None
        self._decoder = HeaderDecoder(max_list_bytes=limits.header_bytes)
        self._buffered = 0
        self._pings = Bucket(limits.idle_pings, 1.0)
        self._settings = Bucket(SETTINGS_BURST, SETTINGS_PER_SECOND)
        self._resets = Bucket(limits.reset_burst, limits.resets_per_second)
        #: Closed before the peer had ended them: frames that were on their way are no error.
        self._closed_early: dict[int, None] = {}
        self._forgot_early = False
        self._now = 0.0

    @property
    def is_greeted(self) -> bool:
        """Whether the peer has shown that it speaks HTTP/2."""
        return self._settings_seen

    # ---- what the halves define

    def _on_headers(self, stream_id: int, flags: int, block: bytes) -> None:
        """Take a whole header block."""
        raise AssertionError

    def _on_data(self, stream: S, final: bool) -> None:
        """Take note that `stream.body` has grown, or (final) is whole."""
        raise AssertionError

    def _on_gone(self, stream: S, code: int) -> None:
        """Take note that *stream* is over without an end: reset, or for a fault of the peer's."""
        raise AssertionError

    def _on_over_budget(self, stream: S) -> None:
        """Take note that unfinished bodies hold more than they may, *stream*'s the newest piece."""
        raise AssertionError

    def _on_ping_ack(self, payload: bytes) -> None:
        """Take note that the peer has answered a PING of ours."""

    def _on_goaway(self, last_stream_id: int, code: int) -> None:
        """Take note that the peer opens nothing more.  A client may finish what it has begun."""

    # ---- in

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes that came from the peer at *now* (any clock that does not go back).

        Raises ConnectionDeadError, after which nothing may be received; `out` then ends in a
        GOAWAY.
        """
        self._now = now
        try:
            self._receive(data)
        except ConnectionDeadError as error:
            self._die(error)
            raise

    def _die(self, error: ConnectionDeadError) -> None:
        self.dead = True
        self.out.append(frames.goaway(self._last_peer_stream(), error.code, str(error).encode()))

    def _last_peer_stream(self) -> int:
        """Return the id that a GOAWAY names: the newest stream that the *peer* opened."""
        return 0

    def _receive(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        position, size = 0, len(data)
        if self._preface_left:
            known = self._preface_left[:size]
            if data[: len(known)] != known:
                raise ConnectionDeadError(frames.PROTOCOL_ERROR, "not HTTP/2")
            self._preface_left = self._preface_left[len(known) :]
            position = len(known)
        while size - position >= 9:
            high, low, kind, flags, stream_id = _unpack_header(data, position)
            length = high << 8 | low
            start = position + 9
            end = start + length
            if length > frames.DEFAULT_FRAME_SIZE:
                raise ConnectionDeadError(frames.FRAME_SIZE_ERROR, "frame too large")
            if not self._settings_seen and kind != SETTINGS:
                raise ConnectionDeadError(frames.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            if end > size:
                break
            position = end
            stream_id &= 0x7FFFFFFF
            if self._partial_block is not None and kind != CONTINUATION:
                raise ConnectionDeadError(frames.PROTOCOL_ERROR, "frame inside a header block")
            if kind == DATA:
                self._data_frame(stream_id, flags, data, start, end)
            elif kind == HEADERS:
                self._headers_frame(stream_id, flags, data, start, end)
            elif kind == WINDOW_UPDATE:
                if length != 4:
                    raise ConnectionDeadError(frames.FRAME_SIZE_ERROR, "WINDOW_UPDATE")
                self._window_frame(stream_id, int.from_bytes(data[start:end], "big") & 0x7FFFFFFF)
            else:
                self._other_frame(kind, flags, stream_id, data[start:end])
        self._rest = data[position:] if position < size else b""

    def _data_frame(self, stream_id: int, flags: int, data: bytes, start: int, end: int) -> None:
        length = end - start
        # Padding counts too: the window is about bytes on the wire.
        self._receive_window -= length
        if self._receive_window < self.limits.connection_window >> 1:
            if self._receive_window < 0:
                raise ConnectionDeadError(frames.FLOW_CONTROL_ERROR, "connection window exceeded")
            self.out.append(
                frames.window_update(0, self.limits.connection_window - self._receive_window)
            )
            self._receive_window = self.limits.connection_window
        stream = self.streams.get(stream_id)
        if flags & PADDED:
            if not length:
                raise ConnectionDeadError(frames.FRAME_SIZE_ERROR, "padding")
            end -= data[start]
            start += 1
            if end < start:
                raise ConnectionDeadError(frames.PROTOCOL_ERROR, "padding")
        if stream is None:
            self._late_frame(stream_id, "DATA")
            return
        if stream.remote_closed:
            self._stream_error(stream, frames.STREAM_CLOSED)
            return
        body = stream.body
        if body is None:
            stream.body = data[start:end]
        elif end != start:
            if isinstance(body, bytes):
                body = stream.body = bytearray(body)
            body += data[start:end]
        stream.receive_window -= length
        if stream.receive_window < 0:
            self._stream_error(stream, frames.FLOW_CONTROL_ERROR)
            return
        if flags & END_STREAM:
            stream.remote_closed = True
            if stream.buffered:
                self._unbuffer(stream)
            self._on_data(stream, True)
            return
        stream.buffered += end - start
        self._buffered += end - start
        if self._buffered > self.limits.buffered_bytes:
            self._on_over_budget(stream)
        else:
            self._on_data(stream, False)
        if stream.receive_window < self.limits.stream_window >> 1:
            self.open_window(stream)

    def open_window(self, stream: S) -> None:
        """Let the peer send a whole window again, unless the stream is held or over."""
        if not (stream.held or stream.closed or stream.remote_closed):
            grant = self.limits.stream_window - stream.receive_window
            if grant > 0:
                self.out.append(frames.window_update(stream.id, grant))
                stream.receive_window += grant

    def take_body(self, stream: S) -> bytes | bytearray:
        """Take away what has come of the body, and its claim on the connection's budget."""
        body, stream.body = stream.body, None
        self._unbuffer(stream)
        return body or b""

    def _unbuffer(self, stream: S) -> None:
        self._buffered -= stream.buffered
        stream.buffered = 0

    def _late_frame(self, stream_id: int, what: str) -> None:
        """Judge a frame of a stream that is not open."""
        if stream_id == 0 or self._is_idle(stream_id):
            raise ConnectionDeadError(frames.PROTOCOL_ERROR, f"{what} on an idle stream")
        if stream_id not in self._closed_early and not self._forgot_early:
            raise ConnectionDeadError(frames.STREAM_CLOSED, f"{what} on a closed stream")

    def _is_idle(self, stream_id: int) -> bool:
        return stream_id > self.last_stream_id or stream_id & 1 != 1

    def _headers_frame(self, stream_id: int, flags: int, data: bytes, start: int, end: int) -> None:
        if stream_id == 0:
            raise ConnectionDeadError(frames.PROTOCOL_ERROR, "HEADERS on stream 0")
        if flags & (PADDED | HAS_PRIORITY):
            padding = 0
            if flags & PADDED:
                if start == end:
                    raise ConnectionDeadError(frames.FRAME_SIZE_ERROR, "padding")
                padding = data[start]
                start += 1
            if flags & HAS_PRIORITY:
                if end - start < 5:
                    raise ConnectionDeadError(frames.FRAME_SIZE_ERROR, "priority")
                start += 5
            end -= padding
            if end < start:
                raise ConnectionDeadError(frames.PROTOCOL_ERROR, "padding")
        if flags & END_HEADERS:
            self._on_headers(stream_id, flags, data[start:end])
        else:
            self._partial_block = (stream_id, flags, bytearray(data[start:end]))

    def _continuation_frame(self, stream_id: int, flags: int, payload: bytes) -> None:
        if self._partial_block is None or self._partial_block[0] != stream_id:
            raise ConnectionDeadError(frames.PROTOCOL_ERROR, "CONTINUATION")
        _, first_flags, block = self._partial_block
        block += payload
        if len(block) > self.limits.header_bytes or not (payload or flags & END_HEADERS):
            raise ConnectionDeadError(frames.ENHANCE_YOUR_CALM, "header block too large")
        if flags & END_HEADERS:
            self._partial_block = None
            self._on_headers(stream_id, first_flags, bytes(block))

    def _window_frame(self, stream_id: int, increment: int) -> None:
        if stream_id == 0:
            if increment == 0:
                raise ConnectionDeadError(frames.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            self.send_window += increment
            if self.send_window > MAX_WINDOW:
                raise ConnectionDeadError(frames.FLOW_CONTROL_ERROR, "window overflow")
            self._pump_blocked()
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            if self._is_idle(stream_id):
                raise ConnectionDeadError(frames.PROTOCOL_ERROR, "WINDOW_UPDATE on an idle stream")
            return  # it was on its way when the stream ended
        stream.send_window += increment
        if increment == 0:
            self._stream_error(stream, frames.PROTOCOL_ERROR)
        elif stream.send_window > MAX_WINDOW:
            self._stream_error(stream, frames.FLOW_CONTROL_ERROR)
        elif stream.pending is not None:
            self._pump(stream)

    def _other_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == RST_STREAM:
            if len(payload) != 4:
                raise ConnectionDeadError(frames.FRAME_SIZE_ERROR, "RST_STREAM")
            if stream_id == 0 or self._is_idle(stream_id):
                raise ConnectionDeadError(frames.PROTOCOL_ERROR, "RST_STREAM on an idle stream")
            stream = self.streams.get(stream_id)
            if stream is not None:
                self._count_reset()
                self._forget(stream)
                self._on_gone(stream, int.from_bytes(payload, "big"))
        elif kind == PING:
            if stream_id:
                raise ConnectionDeadError(frames.PROTOCOL_ERROR, "PING on a stream")
            if len(payload) != 8:
                raise ConnectionDeadError(frames.FRAME_SIZE_ERROR, "PING")
            if flags & ACK:
                self._on_ping_ack(payload)
            else:
                self._count_ping()
                self.out.append(frames.frame(PING, ACK, 0, payload))
        elif kind == SETTINGS:
            self._settings_frame(flags, stream_id, payload)
        elif kind == CONTINUATION:
            self._continuation_frame(stream_id, flags, payload)
        elif kind == PUSH_PROMISE:
            raise ConnectionDeadError(frames.PROTOCOL_ERROR, "PUSH_PROMISE")
        elif kind == PRIORITY:
            if stream_id == 0:
                raise ConnectionDeadError(frames.PROTOCOL_ERROR, "PRIORITY on stream 0")
            if len(payload) != 5:
                raise ConnectionDeadError(frames.FRAME_SIZE_ERROR, "PRIORITY")
        elif kind == GOAWAY:
            if stream_id:
                raise ConnectionDeadError(frames.PROTOCOL_ERROR, "GOAWAY on a stream")
            if len(payload) < 8:
                raise ConnectionDeadError(frames.FRAME_SIZE_ERROR, "GOAWAY")
            self.goaway_received = True
            self._on_goaway(
                int.from_bytes(payload[:4], "big") & 0x7FFFFFFF,
                int.from_bytes(payload[4:8], "big"),
            )
        # Frames of other types are ignored (RFC 9113, 5.5).

    def _settings_frame(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionDeadError(frames.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & ACK:
            if payload:
                raise ConnectionDeadError(frames.FRAME_SIZE_ERROR, "SETTINGS acknowledgement")
            if not self._settings_seen:
                raise ConnectionDeadError(
                    frames.PROTOCOL_ERROR, "the first frame acknowledges nothing"
                )
            return
        if len(payload) % 6:
            raise ConnectionDeadError(frames.FRAME_SIZE_ERROR, "SETTINGS")
        if self._settings_seen:
            self._count_ping()
            if not self._settings.take(self._now):
                raise ConnectionDeadError(frames.ENHANCE_YOUR_CALM, "too many settings")
        self._settings_seen = True
        initial_window = self.peer_initial_window
        for key, value in SETTING.iter_unpack(payload):
            if key == frames.SETTING_INITIAL_WINDOW_SIZE:
                if value > MAX_WINDOW:
                    raise ConnectionDeadError(frames.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE")
                # Not applied yet: a frame may say it 2,730 times, and there may be 1,024 streams.
                initial_window = value
            elif key == frames.SETTING_MAX_FRAME_SIZE:
                if not 16384 <= value <= 16777215:
                    raise ConnectionDeadError(frames.PROTOCOL_ERROR, "MAX_FRAME_SIZE")
                self.peer_max_frame = value
            elif key == frames.SETTING_HEADER_TABLE_SIZE:
                if value < 4096:
                    # We keep no table for what we send; RFC 7541, 4.2 wants that said, once.
                    self._table_update = b"\x20"
            elif key == frames.SETTING_ENABLE_PUSH:
                if value > 1:
                    raise ConnectionDeadError(frames.PROTOCOL_ERROR, "ENABLE_PUSH")
            elif key == frames.SETTING_MAX_CONCURRENT_STREAMS:
                self.peer_max_streams = value
        # The peer may hold us to its old values until it has read this.
        self.out.append(frames.frame(SETTINGS, ACK, 0))
        if initial_window != self.peer_initial_window:
            self._set_initial_window(initial_window)

    def _set_initial_window(self, value: int) -> None:
        change, self.peer_initial_window = value - self.peer_initial_window, value
        for stream in list(self.streams.values()):
            stream.send_window += change
            if stream.send_window > MAX_WINDOW:
                raise ConnectionDeadError(frames.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE")
            if change > 0 and stream.pending is not None:
                self._pump(stream)

    def _count_ping(self) -> None:
        if self._has_spoken:
            self._has_spoken = False
            self._pings.refill()
        if not self._pings.take(self._now):
            raise ConnectionDeadError(frames.ENHANCE_YOUR_CALM, "too many pings")

    def _count_reset(self) -> None:
        if not self._resets.take(self._now):
            raise ConnectionDeadError(frames.ENHANCE_YOUR_CALM, "too many resets")

    def _stream_error(self, stream: S, code: int) -> None:
        """End one stream for a fault of the peer's; it counts as a reset, since it costs us as
        much.
        """
        self._count_reset()
        self.reset(stream, code)
        self._on_gone(stream, code)

    # ---- the end of a stream

    def reset(self, stream: S, code: int) -> None:
        """End a stream at once, in both directions."""
        if stream.closed:
            return
        self._forget(stream)
        self.out.append(frames.rst_stream(stream.id, code))

    def _forget(self, stream: S) -> None:
        self.streams.pop(stream.id, None)
        self._blocked.pop(stream.id, None)
        stream.pending = None
        stream.closed = True
        if stream.buffered:
            self._unbuffer(stream)
        if not stream.remote_closed:
            self._remember_early(stream.id)

    def _remember_early(self, stream_id: int) -> None:
        self._closed_early[stream_id] = None
        if len(self._closed_early) > 4096:
            del self._closed_early[next(iter(self._closed_early))]
            self._forgot_early = True
