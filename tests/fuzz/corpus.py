"""The conversations that fuzzing starts from; `python -m tests.fuzz.corpus` writes them anew."""

from collections.abc import Callable
from pathlib import Path

import hpack

from replay.rpc import frames
from replay.rpc.frames import frame

FOLDER = Path(__file__).parent / "corpus"


def conversations() -> dict[str, dict[str, bytes]]:
    """Return whole and broken conversations by name, for each half that may hear them."""
    return {"server": _of_clients(), "client": _of_servers()}


def _of_clients() -> dict[str, bytes]:
    encoder = hpack.Encoder()
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/package.Service/Method"),
        (":authority", "test"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ]
    greeting = frames.PREFACE + frames.settings({})

    def head(stream_id: int, more: tuple[tuple[str, str], ...] = (), flags: int = 4) -> bytes:
        return frame(frames.HEADERS, flags, stream_id, encoder.encode([*fields, *more]))

    def data(stream_id: int, size: int = 8, flags: int = 1) -> bytes:
        return frame(frames.DATA, flags, stream_id, bytes(size))

    def window(stream_id: int, increment: int) -> bytes:
        return frames.window_update(stream_id, increment)

    requests = b"".join(head(number) + data(number) for number in range(1, 40, 2))
    encoder = hpack.Encoder()
    long_block = encoder.encode([*fields, ("x-long", "v" * 900)])
    encoder = hpack.Encoder()
    first = head(1)
    return {
        "requests": greeting + requests,
        "small-windows": frames.PREFACE
        + frames.settings({frames.SETTING_INITIAL_WINDOW_SIZE: 100})
        + first
        + data(1)
        + window(1, 1000)
        + window(0, 50_000)
        + frames.settings({frames.SETTING_INITIAL_WINDOW_SIZE: 0})
        + window(1, 2**31 - 1 - 60_000)
        + frames.settings({frames.SETTING_INITIAL_WINDOW_SIZE: 65_535}),
        "pieces": greeting
        + frame(frames.HEADERS, 0, 1, long_block[:20])
        + frame(frames.CONTINUATION, 0, 1, long_block[20:60])
        + frame(frames.CONTINUATION, 4, 1, long_block[60:])
        + data(1, 500, 0)
        + data(1, 0),
        "padding": greeting
        + frame(frames.HEADERS, 0x2C, 1, b"\3" + b"\0\0\0\0\x10" + long_block + bytes(3))
        + frame(frames.DATA, 9, 1, b"\4" + bytes(12)),
        "uploads": greeting
        + first
        + b"".join(data(1, 16_000, 0) for _ in range(6))
        + frame(frames.HEADERS, 4, 3, long_block)
        + data(3, 16_000, 0),
        "resets": greeting
        + first
        + frames.rst_stream(1, 8)
        + b"".join(
            frame(frames.HEADERS, 4, number, long_block) + frames.rst_stream(number, 8)
            for number in range(3, 30, 2)
        ),
        "control": greeting
        + frame(frames.PING, 0, 0, b"12345678")
        + frame(frames.PRIORITY, 0, 1, b"\0\0\0\0\x10")
        + frames.settings({frames.SETTING_HEADER_TABLE_SIZE: 0, 5: 20_000, 2: 0, 3: 10})
        + frame(frames.SETTINGS, 1, 0)
        + frames.goaway(0, 0, b"bye")
        + frame(200, 3, 5, b"?"),
        "trailers": greeting + first + data(1, 9, 0) + frame(frames.HEADERS, 5, 1, b"\0\1a\1b"),
        "table": greeting
        + frame(frames.HEADERS, 4, 1, b"\x20\x3f\xe1\x1f" + long_block)
        + frame(frames.HEADERS, 4, 3, b"\x40\1a\x7f\x81\x1e" + b"v" * 3968)
        + frame(frames.HEADERS, 4, 5, b"\xbe" * 60),
        "http1": b"GET / HTTP/1.1\r\nhost: test\r\n\r\n",
        "cut-off": (greeting + requests)[:-5],
    }


class _Speaker:
    """A server's frames, with a table of its own."""

    def __init__(self) -> None:
        self._encoder = hpack.Encoder()

    def head(self, stream_id: int, flags: int = 4, status: str = "200") -> bytes:
        fields = [(":status", status), ("content-type", "application/grpc")]
        return frame(frames.HEADERS, flags, stream_id, self._encoder.encode(fields))

    def data(self, stream_id: int, size: int = 8, flags: int = 0) -> bytes:
        return frame(frames.DATA, flags, stream_id, bytes(size))

    def trailers(self, stream_id: int, status: str = "0") -> bytes:
        fields = [("grpc-status", status), ("grpc-message", f"number {stream_id}")]
        return frame(frames.HEADERS, 5, stream_id, self._encoder.encode(fields))

    def answer(self, stream_id: int) -> bytes:
        return self.head(stream_id) + self.data(stream_id) + self.trailers(stream_id)


def _of_servers() -> dict[str, bytes]:
    """Make answers to a client that has the streams 1 to 15 open."""
    streams = range(1, 16, 2)
    greeting = frames.settings({frames.SETTING_MAX_CONCURRENT_STREAMS: 100})
    greeting += frame(frames.SETTINGS, 1, 0)
    wide = frames.window_update(0, 1 << 20) + b"".join(
        frames.window_update(stream_id, 100_000) for stream_id in streams
    )
    made: dict[str, Callable[[_Speaker], bytes]] = {
        "answers": lambda say: b"".join(map(say.answer, streams)),
        "interleaved": lambda say: (
            wide
            + b"".join(map(say.head, streams))
            + b"".join(say.data(stream_id, 50) for stream_id in streams) * 3
            + b"".join(map(say.trailers, streams))
        ),
        "trailers-only": lambda say: (
            say.head(1, 5) + say.head(3, 5, "404") + say.head(5, 4, "100") + say.answer(5)
        ),
        "long": lambda say: (
            say.head(9) + say.data(9, 16_000) * 5 + say.head(11) + say.data(11, 16_000) * 4
        ),
        "goaway": lambda say: (
            say.answer(1)
            + frames.goaway(2**31 - 1, 0)
            + frame(frames.PING, 0, 0, b"drain..\0")
            + frames.goaway(7, 0)
            + say.answer(3)
            + say.answer(7)
        ),
        "resets": lambda say: b"".join(frames.rst_stream(each, each % 12) for each in streams),
        "early": lambda say: (
            say.head(5) + say.trailers(5) + say.head(13) + say.data(13) + say.trailers(13, "8")
        ),
        "windows": lambda say: (
            frames.settings(
                {frames.SETTING_INITIAL_WINDOW_SIZE: 10, frames.SETTING_MAX_FRAME_SIZE: 20_000}
            )
            + frames.settings({frames.SETTING_INITIAL_WINDOW_SIZE: 60_000})
            + frames.window_update(0, 30_000)
            + frames.window_update(3, 1000)
        ),
    }
    found = {name: greeting + make(_Speaker()) for name, make in made.items()}
    return {**found, "http1": b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"}


def write() -> None:
    """Write all of them where fuzzing looks for them."""
    for half, found in conversations().items():
        (FOLDER / half).mkdir(parents=True, exist_ok=True)
        for name, conversation in found.items():
            (FOLDER / half / name).write_bytes(conversation)


if __name__ == "__main__":
    write()
