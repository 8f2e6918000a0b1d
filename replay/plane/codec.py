"""The four-frame message of the event plane: bytes to values, values to bytes.

PURE.  What a message is, and which deviations a reader takes, was seen on Dynamo 1.6.1: the map may
come in any order, with more keys, or as an array; the payload may be a str; frames 1 and 2 are a
copy for routers, the envelope counts.  Everything else is refused with a reason that holds no
content.  Frame 0 is the subscriber's business: it compares topics, this file does not.
"""

import secrets
import struct
from collections.abc import Sequence
from typing import TypeGuard

import attrs
import msgpack

from replay.errors import ReplayError

#: First byte of frame 3; a reader drops every other version.
HEADER_VERSION = 1
#: Readers in other languages keep the id in a double.
MAX_PUBLISHER_ID = 2**53 - 1
MAX_U64 = 2**64 - 1

Frames = tuple[bytes, bytes, bytes, bytes]

_FIELDS = ("publisher_id", "sequence", "published_at", "topic", "payload")
_FRAME_3_HEADER = struct.Struct(">BI")
_U64 = struct.Struct(">Q")
_MAP_OF_FIVE = 0x85


class MalformedMessageError(ReplayError):
    """A message cannot be read.  The text says why and holds nothing of its content."""


@attrs.define
class EventEnvelope:
    """What frame 3 carries: who published which bytes when, as which number."""

    publisher_id: int
    sequence: int
    published_at_ms: int
    """Unix milliseconds at the time of publishing."""
    topic: str
    payload: bytes


@attrs.define
class Message:
    """A message as it was received: the frames unchanged, and what they say."""

    frames: Sequence[bytes]
    envelope: EventEnvelope


def new_publisher_id() -> int:
    """Draw the id of a publisher, 1 to 2^53-1.  Chance keeps ids apart, nobody hands them out."""
    return 1 + secrets.randbelow(MAX_PUBLISHER_ID)


class MessageEncoder:
    """The frames of one publisher.  What is the same in each of its messages is packed once."""

    def __init__(self, topic: str, publisher_id: int) -> None:
        if not 0 <= publisher_id <= MAX_PUBLISHER_ID:
            raise ValueError(f"a publisher id is 0 to 2^53-1, not {publisher_id}")
        self.topic = topic
        self.publisher_id = publisher_id
        self._pack = msgpack.Packer().pack
        self._frame_0 = topic.encode()
        self._frame_1 = _U64.pack(publisher_id)
        key, value = self._pack("publisher_id"), self._pack(publisher_id)
        self._before_sequence = bytes([_MAP_OF_FIVE]) + key + value + self._pack("sequence")
        self._before_time = self._pack("published_at")
        self._before_payload = b"".join(map(self._pack, ("topic", topic, "payload")))

    def encode(self, sequence: int, published_at_ms: int, payload: bytes) -> Frames:
        """Return the four frames.  *payload*, which can be megabytes, is copied once.

        Raises `ValueError` if the payload is too long for the u32 in front of the envelope.
        """
        head = b"".join(
            (
                self._before_sequence,
                self._pack(sequence),
                self._before_time,
                self._pack(published_at_ms),
                self._before_payload,
                bin_header(len(payload)),
            )
        )
        length = len(head) + len(payload)
        if length > 0xFFFFFFFF:
            raise ValueError(f"a payload of {len(payload)} bytes does not fit into a message")
        frame_3 = b"".join((_FRAME_3_HEADER.pack(HEADER_VERSION, length), head, payload))
        return self._frame_0, self._frame_1, _U64.pack(sequence), frame_3


def bin_header(length: int) -> bytes:
    """Return what MessagePack writes before *length* bytes.  Raises `ValueError` from 4 GiB on."""
    if length <= 0xFF:
        return bytes((0xC4, length))
    if length <= 0xFFFF:
        return struct.pack(">BH", 0xC5, length)
    if length <= 0xFFFFFFFF:
        return struct.pack(">BI", 0xC6, length)
    raise ValueError(f"{length} bytes do not fit into one MessagePack value")


def decode_message(frames: Sequence[bytes]) -> EventEnvelope:
    """Read the envelope of a received message.

    Raises `MalformedMessageError` for a wrong number of frames, another header version, a length
    that does not fit, and an envelope that is not one.
    """
    if len(frames) != 4:
        raise MalformedMessageError(f"4 frames make a message, not {len(frames)}")
    frame = frames[3]
    if len(frame) <= _FRAME_3_HEADER.size:
        raise MalformedMessageError(f"frame 3 has only {len(frame)} bytes")
    version, length = _FRAME_3_HEADER.unpack_from(frame)
    if version != HEADER_VERSION:
        raise MalformedMessageError(f"header version {version} is not known")
    if length != len(frame) - _FRAME_3_HEADER.size:
        raise MalformedMessageError(f"frame 3 announces {length} bytes and has {len(frame) - 5}")
    try:
        # A publisher without MessagePack's type for bytes writes the payload as a str, which then
        # is seldom UTF-8.
        value = msgpack.unpackb(
            memoryview(frame)[_FRAME_3_HEADER.size :], unicode_errors="surrogateescape"
        )
    except ValueError as error:
        # The text of a UnicodeDecodeError or of msgpack may quote bytes of the message.
        raise MalformedMessageError(
            f"the envelope is not MessagePack ({type(error).__name__})"
        ) from None
    return _envelope(value, frame)


def _envelope(value: object, frame: bytes) -> EventEnvelope:
    if isinstance(value, dict):
        if _map_length(frame) != len(value):
            raise MalformedMessageError("the envelope has a key twice")
        try:
            fields = [value[name] for name in _FIELDS]
        except KeyError as error:
            raise MalformedMessageError(f"the envelope lacks {error.args[0]}") from None
    elif isinstance(value, list) and len(value) == len(_FIELDS):
        fields = value
    else:
        raise MalformedMessageError(f"the envelope is neither a map nor an array of {len(_FIELDS)}")
    publisher_id, sequence, published_at_ms, topic, payload = fields
    if not (is_u64(publisher_id) and is_u64(sequence) and is_u64(published_at_ms)):
        raise MalformedMessageError("a number of the envelope is not an unsigned 64-bit one")
    if type(topic) is not str or not (topic.isascii() or _is_utf8(topic)):
        raise MalformedMessageError("the envelope's topic is not text")
    if type(payload) is str:
        payload = payload.encode(errors="surrogateescape")
    elif type(payload) is not bytes:
        raise MalformedMessageError("the envelope's payload is not bytes")
    return EventEnvelope(publisher_id, sequence, published_at_ms, topic, payload)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_u64(value: object) -> TypeGuard[int]:
    """Say whether *value* is an unsigned 64-bit number.  True is an int to isinstance, not here."""
    return type(value) is int and 0 <= value <= MAX_U64


def _map_length(frame: bytes) -> int:
    """Return how many entries the map behind the header of frame 3 announces."""
    first = frame[5]
    if first == 0xDE:
        return int.from_bytes(frame[6:8], "big")
    if first == 0xDF:
        return int.from_bytes(frame[6:10], "big")
    return first & 0x0F
