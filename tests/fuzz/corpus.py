"""The conversations that fuzzing starts from; `python -m tests.fuzz.corpus` writes them anew."""

from pathlib import Path

import hpack

from replay.rpc import frames
from replay.rpc.frames import frame

FOLDER = Path(__file__).parent / "corpus"


def conversations() -> dict[str, bytes]:
    """Return whole and broken conversations by name."""
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
        + frame(frames.HEADERS, 4, 1, b"\x3f\xe1\x1f\x20" + long_block)
        + frame(frames.HEADERS, 4, 3, b"\x40\1a\x7f\x81\x1e" + b"v" * 4000)
        + frame(frames.HEADERS, 4, 5, b"\xbe" * 60),
        "http1": b"GET / HTTP/1.1\r\nhost: test\r\n\r\n",
        "cut-off": (greeting + requests)[:-5],
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, conversation in conversations().items():
        (FOLDER / name).write_bytes(conversation)
