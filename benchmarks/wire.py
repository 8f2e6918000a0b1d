"""The client's half of HTTP/2, as little as a benchmark needs: no I/O, no TLS, no padding.

It sends requests that were framed in advance and returns answers as bytes, so that the client costs
less than the servers that it measures.  It never runs out of window itself (both windows are opened
to 2^31-1 once) and keeps to the window that the server grants.
"""

from collections import deque
from struct import Struct

import attrs
from hpack import Decoder, Encoder

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
MAX_WINDOW = 2**31 - 1
DEFAULT_WINDOW = 65535
#: No server may refuse a frame of this size.
MAX_FRAME = 16384

_HEAD = Struct(">BHBBI")
_SETTING = Struct(">HI")
HEADER_TABLE_SIZE, INITIAL_WINDOW_SIZE = 1, 4


class WireError(Exception):
    """The server did what ends a connection, or what this client does not speak."""


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return one frame."""
    return _HEAD.pack(len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream_id) + payload


def call_headers(path: str, authority: str) -> list[tuple[str, str]]:
    """Return the headers of a gRPC call, without a deadline."""
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "replay-benchmarks"),
    ]


def literal_block(headers: list[tuple[str, str]]) -> bytes:
    """Encode *headers* as literals that no table remembers: right at any time."""
    block = bytearray()
    for name, value in headers:
        block += b"\0"
        for text in (name.encode(), value.encode()):
            if len(text) > 126:
                raise ValueError(f"{name} is too long for a length of one byte")
            block.append(len(text))
            block += text
    return bytes(block)


class IndexedBlocks:
    """Encodes header blocks as a gateway's library does: Huffman codes, and a table that remembers.

    One for each connection, used in the order in which the blocks are sent.
    """

    def __init__(self) -> None:
        """Begin with an empty table."""
        self._encoder = Encoder()

    def encode(self, headers: list[tuple[str, str]]) -> bytes:
        """Encode the next block."""
        return bytes(self._encoder.encode(headers))


@attrs.frozen
class Finished:
    """A call that the server ended."""

    stream_id: int
    data: bytes
    grpc_status: str | None
    """None when there was no such trailer, as after a reset."""
    reset: int | None = None
    """The error code of RST_STREAM."""


@attrs.define
class _Open:
    parts: list[bytes] = attrs.field(factory=list)
    headers_seen: bool = False
    status: str | None = None


class Calls:
    """One connection: `call` and `receive` bytes in, `take` bytes out."""

    def __init__(self) -> None:
        """Queue the preface.

        The header table of the server's encoder is set to 0, so that each block of an answer stands
        for itself and equal blocks are decoded once.
        """
        settings = _SETTING.pack(HEADER_TABLE_SIZE, 0) + _SETTING.pack(
            INITIAL_WINDOW_SIZE, MAX_WINDOW
        )
        self._out = [
            PREFACE,
            frame(SETTINGS, 0, 0, settings),
            frame(WINDOW_UPDATE, 0, 0, (MAX_WINDOW - DEFAULT_WINDOW).to_bytes(4, "big")),
        ]
        self._decoder = Decoder()
        self._statuses: dict[bytes, tuple[str | None, bool]] = {}
        self._open: dict[int, _Open] = {}
        self._left = b""
        self._credit = DEFAULT_WINDOW
        self._waiting: deque[bytes] = deque()
        self._next_id = 1
        self.settings_seen = False

    @property
    def open_calls(self) -> int:
        """How many calls have not ended."""
        return len(self._open)

    def headers_seen(self) -> int:
        """Count the open calls whose initial headers have arrived."""
        return sum(call.headers_seen for call in self._open.values())

    def data_seen(self) -> int:
        """Count the open calls of whose answer something has arrived."""
        return sum(bool(call.parts) for call in self._open.values())

    def call(self, block: bytes, body: bytes) -> int:
        """Queue a request; return its stream id.

        A *body* of more than one frame, or of more than a stream's first window, is refused with
        ValueError: it could not be sent in one go.
        """
        if len(body) > MAX_FRAME:
            raise ValueError(f"the body has {len(body)} bytes, a frame holds {MAX_FRAME}")
        stream_id = self._next_id
        self._next_id += 2
        self._open[stream_id] = _Open()
        data = frame(DATA, END_STREAM, stream_id, body)
        self._out.append(frame(HEADERS, END_HEADERS, stream_id, block))
        # Requests keep their order: one that waits for window holds back those behind it.
        if self._waiting or len(body) > self._credit:
            self._waiting.append(data)
        else:
            self._credit -= len(body)
            self._out.append(data)
        return stream_id

    def take(self) -> bytes:
        """Return, and forget, the bytes that have to be sent."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def receive(self, data: bytes) -> list[Finished]:
        """Read *data*; return the calls that have ended with it.  Raises WireError."""
        if self._left:
            data = self._left + data
        finished: list[Finished] = []
        at, end = 0, len(data)
        unpack = _HEAD.unpack_from
        opened = self._open
        while end - at >= 9:
            high, low, kind, flags, stream_id = unpack(data, at)
            start = at + 9
            stop = start + (high << 16 | low)
            if stop > end:
                break
            at = stop
            if kind == DATA:
                if flags & PADDED:
                    raise WireError("a padded DATA frame")
                if stream_id in opened:
                    opened[stream_id].parts.append(data[start:stop])
                    if flags & END_STREAM:
                        finished.append(self._finished(stream_id))
            elif kind == HEADERS:
                self._on_headers(stream_id, flags, data[start:stop], finished)
            else:
                self._on_control(kind, flags, stream_id, data[start:stop], finished)
        self._left = data[at:]
        return finished

    def _on_headers(
        self, stream_id: int, flags: int, block: bytes, finished: list[Finished]
    ) -> None:
        if not flags & END_HEADERS or flags & PADDED:
            raise WireError("a header block that is padded or split")
        known = self._statuses.get(block)
        if known is None:
            fields = dict(self._decoder.decode(block))
            known = (fields.get("grpc-status"), fields.get(":status", "200") == "200")
            if block[0] & 0xE0 != 0x20:  # a block with a table size update has to be read each time
                self._statuses[block] = known
        status, accepted = known
        if not accepted:
            raise WireError("an HTTP status other than 200")
        call = self._open.get(stream_id)
        if call is None:
            return
        call.headers_seen = True
        if status is not None:
            call.status = status
        if flags & END_STREAM:
            finished.append(self._finished(stream_id))

    def _finished(self, stream_id: int, reset: int | None = None) -> Finished:
        call = self._open.pop(stream_id)
        parts = call.parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        return Finished(stream_id, data, call.status, reset)

    def _on_control(
        self, kind: int, flags: int, stream_id: int, payload: bytes, finished: list[Finished]
    ) -> None:
        if kind == SETTINGS and not flags & ACK:
            self.settings_seen = True
            self._out.append(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self._out.append(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE and stream_id == 0:
            self._credit += int.from_bytes(payload, "big")
            while self._waiting and len(self._waiting[0]) - 9 <= self._credit:
                data = self._waiting.popleft()
                self._credit -= len(data) - 9
                self._out.append(data)
        elif kind == RST_STREAM and stream_id in self._open:
            code = int.from_bytes(payload, "big")
            finished.append(self._finished(stream_id, code))
        elif kind == GOAWAY and int.from_bytes(payload[4:8], "big"):
            code = int.from_bytes(payload[4:8], "big")
            raise WireError(f"GOAWAY with error {code}: {payload[8:].decode('latin-1')}")
