"""The frames by which a reader asks for messages that it missed.

PURE.  Behind the peer's identity, which ROUTER and DEALER take care of: a request is an empty
frame, the publisher's id, the first and the last sequence; an answer is one message for each stored
one, unchanged behind an empty frame, and then an end marker.  Numbers are u64, big-endian.
"""

import struct
from collections.abc import Sequence

import attrs

_U64 = struct.Struct(">Q")
_END = b"\xff" * 8

#: No frame of a request is longer than 8 bytes, but those of ZeroMQ's handshake count as well, and
#: with CURVE they have some hundred.
LONGEST_REQUEST_FRAME = 1024


@attrs.frozen
class Gap:
    """A range of sequence numbers of a publisher, both ends included."""

    publisher_id: int
    first: int
    last: int


def request_frames(gap: Gap) -> list[bytes]:
    """Return the request for *gap*."""
    return [b"", *map(_U64.pack, (gap.publisher_id, gap.first, gap.last))]


def parse_request(frames: Sequence[bytes]) -> Gap | None:
    """Read a request; None for what is none."""
    if len(frames) != 4 or frames[0] or any(len(frame) != _U64.size for frame in frames[1:]):
        return None
    return Gap(*(_U64.unpack(frame)[0] for frame in frames[1:]))


def end_marker(publisher_id: int) -> list[bytes]:
    """Return the message after the last one of an answer."""
    return [b"", b"", _U64.pack(publisher_id), _END, b""]


def is_end_marker(frames: Sequence[bytes]) -> bool:
    """Say whether *frames* end an answer.  A stored message has a topic in the second frame."""
    return len(frames) == 5 and not frames[1] and frames[3] == _END
