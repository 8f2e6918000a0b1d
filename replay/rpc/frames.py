"""The bytes of HTTP/2 (RFC 9113): frame types, error codes, and how a frame is put together."""

from struct import Struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE = range(9)
CONTINUATION = 9

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20

NO_ERROR = 0
PROTOCOL_ERROR = 1
INTERNAL_ERROR = 2
FLOW_CONTROL_ERROR = 3
STREAM_CLOSED = 5
FRAME_SIZE_ERROR = 6
REFUSED_STREAM = 7
CANCEL = 8
COMPRESSION_ERROR = 9
ENHANCE_YOUR_CALM = 11

SETTING_HEADER_TABLE_SIZE = 1
SETTING_ENABLE_PUSH = 2
SETTING_MAX_CONCURRENT_STREAMS = 3
SETTING_INITIAL_WINDOW_SIZE = 4
SETTING_MAX_FRAME_SIZE = 5
SETTING_MAX_HEADER_LIST_SIZE = 6

MAX_WINDOW = 2**31 - 1
MAX_STREAM_ID = 2**31 - 1
DEFAULT_WINDOW = 65535
DEFAULT_FRAME_SIZE = 16384

#: Length (its high 16 and low 8 bits), type, flags, stream id.
FRAME_HEADER = Struct(">HBBBI")
SETTING = Struct(">HI")

pack_header = FRAME_HEADER.pack


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Put one frame together.  The fast paths of the connection pack their headers themselves."""
    length = len(payload)
    return pack_header(length >> 8, length & 255, kind, flags, stream_id) + payload


def window_update(stream_id: int, increment: int) -> bytes:
    """Give the peer *increment* bytes more."""
    return pack_header(0, 4, WINDOW_UPDATE, 0, stream_id) + increment.to_bytes(4, "big")


def rst_stream(stream_id: int, code: int) -> bytes:
    """End one stream at once."""
    return pack_header(0, 4, RST_STREAM, 0, stream_id) + code.to_bytes(4, "big")


def goaway(last_stream_id: int, code: int, text: bytes = b"") -> bytes:
    """Say that no stream above *last_stream_id* will be served."""
    return frame(
        GOAWAY, 0, 0, last_stream_id.to_bytes(4, "big") + code.to_bytes(4, "big") + text[:200]
    )


def settings(values: dict[int, int]) -> bytes:
    """Put a SETTINGS frame together."""
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*item) for item in values.items()))
