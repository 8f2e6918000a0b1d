"""A server's connection without I/O, under test: bare frames in, and what comes out, read."""

from collections.abc import Iterable, Sequence

import attrs
import hpack

from replay.rpc import frames
from replay.rpc.frames import frame
from replay.rpc.http2 import ConnectionDeadError, Http2Limits
from replay.rpc.http2_server import RequestStream, ServerConnection

PATH = "/package.Service/Method"
REQUEST = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", PATH),
    (":authority", "test"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)
MESSAGE = b"\0\0\0\0\3abc"


@attrs.frozen
class Sent:
    """One frame that the connection has sent."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes


class Owner:
    """Answers each request with *answer*, or leaves it open; remembers what it was told."""

    def __init__(self, answer: bytes | None = MESSAGE) -> None:
        self.connection: ServerConnection
        self.answer = answer
        self.requests: list[RequestStream] = []
        self.bodies: dict[int, bytes] = {}
        self.opened: list[int] = []
        self.gone: list[int] = []
        self.drained: list[int] = []
        self.over_budget: list[int] = []
        self.pieces: list[int] = []

    def on_open(self, stream: RequestStream) -> None:
        self.opened.append(stream.id)

    def on_piece(self, stream: RequestStream) -> None:
        self.pieces.append(stream.id)

    def on_request(self, stream: RequestStream) -> None:
        self.requests.append(stream)
        self.bodies[stream.id] = bytes(stream.body or b"")
        if stream.head.http_status:
            self.connection.finish_http(stream, stream.head.http_status)
        elif self.answer is not None:
            self.connection.answer(stream, self.answer)

    def on_over_budget(self, stream: RequestStream) -> None:
        self.over_budget.append(stream.id)
        self.connection.finish(stream, 8, "too much")

    def on_gone(self, stream: RequestStream) -> None:
        self.gone.append(stream.id)

    def on_drained(self, stream: RequestStream) -> None:
        self.drained.append(stream.id)


class Conversation:
    """A client made of bare frames, and the connection that it talks to."""

    def __init__(
        self,
        *,
        limits: Http2Limits | None = None,
        settings: dict[int, int] | None = None,
        answer: bytes | None = MESSAGE,
        greet: bool = True,
    ) -> None:
        self.owner = Owner(answer)
        self.connection = ServerConnection(limits or Http2Limits(), self.owner)
        self.owner.connection = self.connection
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()
        self.now = 0.0
        self._unread = b""
        self.error: ConnectionDeadError | None = None
        if greet:
            self.send(frames.PREFACE, frames.settings(settings or {}))
            self.received()

    def send(self, *data: bytes) -> None:
        """Give bytes to the connection; what it says to a fault is kept in `error`."""
        try:
            self.connection.receive(b"".join(data), self.now)
        except ConnectionDeadError as error:
            self.error = error

    def received(self) -> list[Sent]:
        """Return the frames that have come since the last call."""
        data = self._unread + b"".join(self.connection.out)
        self.connection.out.clear()
        found = []
        while len(data) >= 9:
            length = int.from_bytes(data[:3], "big")
            found.append(
                Sent(data[3], data[4], int.from_bytes(data[5:9], "big"), data[9 : 9 + length])
            )
            data = data[9 + length :]
        self._unread = data
        return found

    def outcome(self) -> list[str]:
        """Return what came, in words: `status 0 @1`, `RST 8 @3`, `GOAWAY 1`, `PING ACK`."""
        words = []
        for each in self.received():
            code = int.from_bytes(each.payload[:4], "big")
            if each.kind == frames.HEADERS:
                fields = dict(self.decoder.decode(each.payload))
                if "grpc-status" in fields:
                    words.append(f"status {fields['grpc-status']} @{each.stream_id}")
                elif fields.get(":status") != "200":
                    words.append(f"HTTP {fields[':status']} @{each.stream_id}")
            elif each.kind == frames.RST_STREAM:
                words.append(f"RST {code} @{each.stream_id}")
            elif each.kind == frames.GOAWAY:
                words.append(f"GOAWAY {int.from_bytes(each.payload[4:8], 'big')}")
            elif each.kind == frames.PING:
                words.append("PING ACK" if each.flags & frames.ACK else "PING")
        return words

    def headers(
        self,
        stream_id: int = 1,
        fields: Iterable[tuple[str, str]] = REQUEST,
        flags: int = frames.END_HEADERS,
    ) -> bytes:
        """Make a HEADERS frame with this client's table."""
        return frame(frames.HEADERS, flags, stream_id, self.encoder.encode(list(fields)))

    def request(self, stream_id: int = 1, fields: Sequence[tuple[str, str]] = REQUEST) -> bytes:
        """Make a whole request."""
        return self.headers(stream_id, fields) + data(stream_id)


def data(stream_id: int = 1, body: bytes = MESSAGE, flags: int = frames.END_STREAM) -> bytes:
    """Make a DATA frame."""
    return frame(frames.DATA, flags, stream_id, body)


def window(stream_id: int, increment: int) -> bytes:
    """Make a WINDOW_UPDATE frame, whatever its increment."""
    return frame(frames.WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def reset(stream_id: int, code: int = frames.CANCEL) -> bytes:
    """Make a RST_STREAM frame."""
    return frames.rst_stream(stream_id, code)
