"""A client that writes frames itself: for what no library would send, or leave unread."""

import struct
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import hpack
import trio
from google.protobuf.wrappers_pb2 import BytesValue

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE = range(9)
CONTINUATION = 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4
MOST = 2**31 - 1
INITIAL_WINDOW_SIZE = 4

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

FIELDS = {
    ":method": "POST",
    ":scheme": "http",
    ":authority": "test",
    ":path": "/test.Peers/Echo",
    "te": "trailers",
    "content-type": "application/grpc",
}


def frame(kind: int, flags: int = 0, stream_id: int = 0, payload: bytes = b"") -> bytes:
    length = len(payload).to_bytes(3, "big")
    return length + struct.pack(">BBI", kind, flags, stream_id) + payload


def settings(**values: int) -> bytes:
    """`settings(_4=7)` sets parameter 4 to 7."""
    pairs = (struct.pack(">HI", int(key[1:]), value) for key, value in values.items())
    return frame(SETTINGS, 0, 0, b"".join(pairs))


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def rst_stream(stream_id: int, code: int = 8) -> bytes:
    return frame(RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def block_of(fields: Iterable[tuple[str, str]]) -> bytes:
    """A header block that neither side's table knows of: it is the same bytes at any time."""
    out = b""
    for name, value in fields:
        out += b"\0"
        for text in (name.encode("latin-1"), value.encode("latin-1")):
            out += bytes(hpack.hpack.encode_integer(len(text), 7)) + text
    return out


def ping(payload: bytes = b"12345678", flags: int = 0) -> bytes:
    return frame(PING, flags, 0, payload)


def fields_with(changes: dict[str, str | None] | None = None) -> list[tuple[str, str]]:
    """The usual fields with some others; None leaves one out."""
    fields: dict[str, str | None] = {**FIELDS, **(changes or {})}
    return [(name, value) for name, value in fields.items() if value is not None]


def headers(
    stream_id: int, changes: dict[str, str | None] | None = None, *, flags: int = END_HEADERS
) -> bytes:
    return frame(HEADERS, flags, stream_id, block_of(fields_with(changes)))


def message(value: bytes = b"") -> bytes:
    body = BytesValue(value=value).SerializeToString()
    return b"\0" + len(body).to_bytes(4, "big") + body


def request(stream_id: int, method: str = "Echo", value: bytes = b"", **changes: str) -> bytes:
    """HEADERS and one DATA that ends the stream."""
    path = f"/test.Peers/{method}"
    return headers(stream_id, {":path": path, **changes}) + frame(
        DATA, END_STREAM, stream_id, message(value)
    )


@attrs.frozen
class Frame:
    kind: int
    flags: int
    stream_id: int
    payload: bytes

    @property
    def code(self) -> int:
        """The error code of RST_STREAM and GOAWAY."""
        return int.from_bytes(
            self.payload[-4:] if self.kind == RST_STREAM else self.payload[4:8], "big"
        )


@attrs.define
class Answer:
    """What has come on one stream."""

    fields: dict[str, str] = attrs.Factory(dict)
    body: bytearray = attrs.Factory(bytearray)
    ended: bool = False
    reset: int | None = None

    @property
    def status(self) -> int:
        return int(self.fields["grpc-status"])

    @property
    def values(self) -> list[bytes]:
        found, at = [], 0
        while at < len(self.body):
            length = int.from_bytes(self.body[at + 1 : at + 5], "big")
            found.append(BytesValue.FromString(bytes(self.body[at + 5 : at + 5 + length])).value)
            at += 5 + length
        return found


class RawClient:
    """Sends what it is told; reads only when it is told."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.frames: list[Frame] = []
        self.answers: dict[int, Answer] = {}
        self.is_over = False
        self.spent = 0
        self._rest = b""
        self._decoder = hpack.Decoder()

    async def send(self, *pieces: bytes) -> None:
        await self.stream.send_all(b"".join(pieces))

    async def read(self) -> bool:
        """Read once; False at the end of the connection."""
        try:
            data = await self.stream.receive_some(1 << 20)
        except trio.BrokenResourceError:
            data = b""
        if not data:
            self.is_over = True
            return False
        self._rest += data
        at = 0
        while len(self._rest) - at >= 9:
            length = int.from_bytes(self._rest[at : at + 3], "big")
            if len(self._rest) - at - 9 < length:
                break
            kind, flags, stream_id = struct.unpack_from(">BBI", self._rest, at + 3)
            self._take(Frame(kind, flags, stream_id, self._rest[at + 9 : at + 9 + length]))
            at += 9 + length
        self._rest = self._rest[at:]
        return True

    def _take(self, got: Frame) -> None:
        self.frames.append(got)
        if not got.stream_id:
            return
        answer = self.answers.setdefault(got.stream_id, Answer())
        if got.kind == HEADERS:
            answer.fields |= dict(self._decoder.decode(got.payload))
        elif got.kind == DATA:
            answer.body += got.payload
        elif got.kind == RST_STREAM:
            answer.reset = got.code
        if got.kind in (HEADERS, DATA) and got.flags & END_STREAM:
            answer.ended = True

    async def until(self, condition: Any, *, seconds: float = 5.0) -> None:
        """Read until *condition()*.  An end of the connection before that is a failure."""
        with trio.fail_after(seconds):
            while not condition():
                assert await self.read() or condition(), f"the connection has ended: {self.frames}"

    async def answer(self, stream_id: int, *, seconds: float = 5.0) -> Answer:
        """Read until a stream has ended or was reset."""

        def is_over() -> bool:
            answer = self.answers.get(stream_id)
            return answer is not None and (answer.ended or answer.reset is not None)

        await self.until(is_over, seconds=seconds)
        return self.answers[stream_id]

    async def end(self, *, seconds: float = 2.0) -> None:
        """Read until the server has closed the connection."""
        with trio.fail_after(seconds):
            while await self.read():
                pass

    async def read_on(self) -> None:
        """Read until the end, however long that takes."""
        while await self.read():
            pass

    def of_kind(self, kind: int) -> list[Frame]:
        return [each for each in self.frames if each.kind == kind]

    def granted(self, stream_id: int) -> int:
        """How much DATA a stream may still carry, when `spent` is how much it has."""
        updates = [
            each.payload
            for each in self.frames
            if each.kind == WINDOW_UPDATE and each.stream_id == stream_id
        ]
        return (1 << 20) + sum(int.from_bytes(each, "big") for each in updates) - self.spent

    @property
    def goaway(self) -> Frame:
        """The last GOAWAY."""
        return self.of_kind(GOAWAY)[-1]


@asynccontextmanager
async def raw_client(
    port: int, *hello: bytes, buffer: int | None = None
) -> AsyncIterator[RawClient]:
    """Connect and send *hello*: by default the preface and empty SETTINGS."""
    sock = trio.socket.socket()
    if buffer is not None:
        sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, buffer)
    await sock.connect(("127.0.0.1", port))
    async with trio.SocketStream(sock) as stream:
        client = RawClient(stream)
        await client.send(*(hello or (PREFACE, settings())))
        yield client


async def assert_answers(port: int, values: Sequence[bytes] = (b"still here",)) -> None:
    """Another connection is served, and within a second."""
    async with raw_client(port) as client:
        for number, value in enumerate(values):
            await client.send(request(2 * number + 1, value=value))
            answer = await client.answer(2 * number + 1, seconds=1)
            assert answer.values == [value]
            assert answer.status == 0
