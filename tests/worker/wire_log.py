"""A client that only writes down what comes and when, and reads it afterwards.

So it delays nothing that it measures.  All calls are on one connection: the order of the bytes is
the order in which the server said things.
"""

import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import attrs

from benchmarks import wire
from benchmarks.client import split_address
from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.engines.methods import SIGNATURES, method_path
from replay.rpc.calls import frame_message

_HEAD = struct.Struct(">BHBBI")


@attrs.frozen
class Said:
    """One thing that the server said of one call."""

    unix_ns: int
    """When all of it was here."""
    stream_id: int
    message: Any = None
    """None for headers."""
    is_end: bool = False


class WireLog:
    """One connection to a worker, and all that came on it."""

    def __init__(self, address: str) -> None:
        self._socket = socket.create_connection(split_address(address), 10)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._address = address
        self._next_id = 1
        self._methods: dict[int, str] = {}
        self._pieces: list[tuple[int, bytes]] = []
        self._socket.sendall(
            wire.PREFACE
            + wire.frame(
                wire.SETTINGS, 0, 0, struct.pack(">HI", wire.INITIAL_WINDOW_SIZE, wire.MAX_WINDOW)
            )
            + wire.frame(
                wire.WINDOW_UPDATE, 0, 0, struct.pack(">I", wire.MAX_WINDOW - wire.DEFAULT_WINDOW)
            )
        )
        self._receive()  # the server's settings
        self._socket.sendall(wire.frame(wire.SETTINGS, wire.ACK, 0))

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def call(self, name: str, *messages: Any) -> None:
        """Call a method, once for each message, in one write."""
        out = b""
        for message in messages:
            block = wire.literal_block(wire.call_headers(method_path(name), self._address))
            body = frame_message(message.SerializeToString())
            assert len(body) <= wire.MAX_FRAME
            out += wire.frame(wire.HEADERS, wire.END_HEADERS, self._next_id, block)
            out += wire.frame(wire.DATA, wire.END_STREAM, self._next_id, body)
            self._methods[self._next_id] = name
            self._next_id += 2
        self._socket.sendall(out)

    def read_for(self, seconds: float) -> int:
        """Write down what comes meanwhile; return how many bytes it was."""
        deadline, count = time.monotonic() + seconds, 0
        while (left := deadline - time.monotonic()) > 0:
            self._socket.settimeout(left)
            try:
                count += self._receive()
            except TimeoutError:
                break
        return count

    def _receive(self) -> int:
        data = self._socket.recv(1 << 20)
        assert data, "the server closed the connection"
        self._pieces.append((time.time_ns(), data))
        return len(data)

    def said(self) -> Iterator[Said]:
        """Yield what has come, in order."""
        buffer, messages = b"", dict[int, bytes]()
        for unix_ns, data in self._pieces:
            buffer += data
            at = 0
            while len(buffer) - at >= _HEAD.size:
                high, low, kind, flags, stream_id = _HEAD.unpack_from(buffer, at)
                end = at + _HEAD.size + (high << 16 | low)
                if len(buffer) < end:
                    break
                payload, at = buffer[at + _HEAD.size : end], end
                is_end = bool(flags & wire.END_STREAM)
                assert kind not in (wire.RST_STREAM, wire.GOAWAY)
                if kind == wire.HEADERS:
                    yield Said(unix_ns, stream_id, is_end=is_end)
                elif kind == wire.DATA:
                    left = messages.pop(stream_id, b"") + payload
                    while len(left) >= 5 and len(left) >= 5 + int.from_bytes(left[1:5], "big"):
                        size = 5 + int.from_bytes(left[1:5], "big")
                        answer = SIGNATURES[self._methods[stream_id]][2]
                        yield Said(unix_ns, stream_id, answer.FromString(left[5:size]))
                        left = left[size:]
                    messages[stream_id] = left
            buffer = buffer[at:]

    def is_generate(self, said: Said) -> bool:
        """Tell whether something was said of a Generate."""
        return self._methods[said.stream_id] == "Generate"


def tokens_of(said: Said) -> int:
    """Return how many tokens a message brought to a client that streams."""
    if isinstance(said.message, pb.GenerateResponse):
        return len(said.message.chunk.token_ids)
    return 0
