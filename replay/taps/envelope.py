"""PURE.  The record of a tap: Dynamo's ShadowEnvelope in MessagePack (event-plane section 3)."""

from collections.abc import Sequence
from typing import Any, Final

import attrs
import msgpack

from replay.errors import ReplayError
from replay.packed import map_header, pack
from replay.request import ORIGINS, Request
from replay.taps.response import Outcome, Response, response_of

SCHEMA_VERSION: Final = 1
_OUTCOMES: Final = frozenset(word.value for word in Outcome)


class UndecodableRecordError(ReplayError):
    """The bytes are no record (rule 68).  The text says why, without the content."""


class UnsupportedRecordError(ReplayError):
    """A record of a newer schema: well-formed, but not to be counted with the others."""


@attrs.frozen(kw_only=True, repr=False)
class ShadowEnvelope:
    """One record of one tap."""

    tap: str
    seq: int
    """Counts the tap's records from 0; a hole is a dropped record (rule 51)."""
    request_id: str
    origin: str
    """One of `replay.request.ORIGINS`, or a newer word."""
    filters: tuple[str, ...]
    arrival_unix_ns: int
    packed_request: bytes
    """The request in MessagePack.  `request` reads it."""
    response: Response | None
    """None with `capture: request`."""

    @property
    def request(self) -> Request:
        """The request, read anew at each call.  Raises `replay.wire_map.WireMapError`."""
        return Request.unpacked(self.packed_request)

    @property
    def prompt_tokens(self) -> int:
        """How many ids the prompt has, without reading them.

        Raises `UndecodableRecordError` if the request is no map with ids in it.
        """
        try:
            unpacker = msgpack.Unpacker(max_buffer_size=len(self.packed_request))
            unpacker.feed(self.packed_request)
            for _ in range(unpacker.read_map_header()):
                if unpacker.unpack() == "token_ids":
                    count: int = unpacker.read_array_header()
                    return count
                unpacker.skip()
        except Exception as error:  # msgpack raises many kinds
            raise _undecodable("request", error) from None
        raise UndecodableRecordError("request has no token_ids")

    @classmethod
    def unpacked(cls, payload: bytes) -> "ShadowEnvelope":
        """Read a record.

        Keys that are not known are passed over.  Raises `UndecodableRecordError` and
        `UnsupportedRecordError`.
        """
        fields: dict[Any, Any] = {}
        try:
            unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=max(1, len(payload)))
            unpacker.feed(payload)
            for _ in range(unpacker.read_map_header()):
                key = unpacker.unpack()
                if key == "request":
                    start = unpacker.tell()
                    unpacker.skip()
                    fields[key] = payload[start : unpacker.tell()]
                else:
                    fields[key] = unpacker.unpack()
            if unpacker.tell() != len(payload):
                raise UndecodableRecordError("the record is followed by other bytes")
        except UndecodableRecordError:
            raise
        except Exception as error:  # msgpack raises many kinds, some with the content in the text
            raise _undecodable("record", error) from None
        return _envelope_of(fields)


def _undecodable(what: str, error: Exception) -> UndecodableRecordError:
    return UndecodableRecordError(f"{what} does not decode: {type(error).__name__}")


#: The type of each key that is always there.
_REQUIRED: Final = {
    "tap": str,
    "seq": int,
    "request_id": str,
    "origin": str,
    "filters": list,
    "arrival_unix_ns": int,
    "request": bytes,
}


def _envelope_of(fields: dict[Any, Any]) -> ShadowEnvelope:
    version = fields.get("schema_version")
    if not isinstance(version, int):
        raise UndecodableRecordError("schema_version is missing or no number")
    if version != SCHEMA_VERSION:
        raise UnsupportedRecordError(f"schema_version {version} is not known here")
    for key, expected in _REQUIRED.items():
        if not isinstance(fields.get(key), expected):
            raise UndecodableRecordError(f"{key} is missing or of the wrong type")
    response = fields.get("response")
    if isinstance(response, dict):
        outcome = response.get("outcome")
        if isinstance(outcome, str) and outcome not in _OUTCOMES:
            raise UnsupportedRecordError("the outcome is not known here")
    try:
        return ShadowEnvelope(
            tap=fields["tap"],
            seq=fields["seq"],
            request_id=fields["request_id"],
            origin=fields["origin"],
            filters=tuple(fields["filters"]),
            arrival_unix_ns=fields["arrival_unix_ns"],
            packed_request=fields["request"],
            response=None if response is None else response_of(response),
        )
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise _undecodable("response", error) from None


class EnvelopePacker:
    """Packs the records of one tap.  What all of them have in common is packed once."""

    __slots__ = ("_before_seq", "_filters")

    def __init__(self, tap: str, filters: Sequence[str]) -> None:
        self._before_seq = b"".join(
            map(pack, ("schema_version", SCHEMA_VERSION, "tap", tap, "seq"))
        )
        self._filters = b"".join(map(pack, ("filters", list(filters), "arrival_unix_ns")))

    def pack(
        self,
        *,
        seq: int,
        request_id: str,
        origin: str,
        arrival_unix_ns: int,
        packed_request: bytes,
        response: Response | None,
    ) -> bytes:
        """Return the record in MessagePack."""
        pieces = (
            _WITHOUT_RESPONSE if response is None else _WITH_RESPONSE,
            self._before_seq,
            pack(seq),
            _REQUEST_ID,
            pack(request_id),
            _ORIGIN[origin],
            self._filters,
            pack(arrival_unix_ns),
            _REQUEST,
            packed_request,
        )
        if response is None:
            return b"".join(pieces)
        return b"".join((*pieces, _RESPONSE, response.packed))


_WITHOUT_RESPONSE: Final = map_header(8)
_WITH_RESPONSE: Final = map_header(9)
_REQUEST_ID: Final = pack("request_id")
_ORIGIN: Final = {word: pack("origin") + pack(word) for word in ORIGINS}
_REQUEST: Final = pack("request")
_RESPONSE: Final = pack("response")
