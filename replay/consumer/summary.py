"""What a reader wants to know of each record: a few fields, read past all the others.

PURE.  Nothing of the prompt is unpacked, so a record of 2,048 tokens costs a fifth of unpacking it
whole.  The price: the request is only known to be well-formed MessagePack with token ids in it.
`replay.taps.envelope` reads a record whole.
"""

from typing import Any, Final

import attrs
import msgpack

from replay.plane.codec import MAX_U64
from replay.taps.envelope import SCHEMA_VERSION, UndecodableRecordError, UnsupportedRecordError
from replay.taps.filter_names import parse_filter
from replay.taps.response import Outcome

_OUTCOMES: Final = frozenset(word.value for word in Outcome)
#: Fields that are kept as they stand, and those of the response.
_WANTED: Final = frozenset(("schema_version", "tap", "seq", "request_id", "arrival_unix_ns"))
_WANTED_OF_RESPONSE: Final = frozenset(("outcome", "output_tokens"))
_NIL: Final = 0xC0
#: Taps say the same filters in each record; this many different ones are remembered.
_MOST_FILTERS: Final = 256


@attrs.define
class RecordSummary:
    """The fields of a record that totals and joins need."""

    tap: str
    seq: int
    request_id: str
    arrival_unix_ns: int
    prompt_tokens: int
    outcome: str | None
    """One of `replay.taps.response.Outcome`; None for a record without a response."""
    output_tokens: int


class SummaryReader:
    """Reads summaries.  One for each task: it keeps a buffer."""

    def __init__(self) -> None:
        self._unpacker = _new_unpacker()
        self._known_filters: set[bytes] = set()

    def read(self, payload: bytes) -> RecordSummary:
        """Read the record that a message carries.

        Raises `UndecodableRecordError`, and `UnsupportedRecordError` for a schema version, an
        outcome or a filter that is not known here.
        """
        try:
            return self._read(payload)
        except (UndecodableRecordError, UnsupportedRecordError):
            self._unpacker = _new_unpacker()  # it stands somewhere in the record
            raise
        except Exception as error:  # msgpack raises many kinds, some with the content in the text
            self._unpacker = _new_unpacker()
            raise UndecodableRecordError(
                f"the record does not decode: {type(error).__name__}"
            ) from None

    def _read(self, payload: bytes) -> RecordSummary:
        unpacker = self._unpacker
        start = unpacker.tell()
        unpacker.feed(payload)
        fields: dict[str, Any] = {}
        filters = b""
        for _ in range(unpacker.read_map_header()):
            key = unpacker.unpack()
            if key in _WANTED:
                fields[key] = unpacker.unpack()
                if key == "schema_version" and _number(fields, key) != SCHEMA_VERSION:
                    raise UnsupportedRecordError("the schema version is not known here")
            elif key == "request":
                fields["prompt_tokens"] = self._prompt_tokens(payload, start)
            elif key == "response":
                if payload[unpacker.tell() - start] == _NIL:
                    unpacker.skip()
                else:
                    fields.update(self._response())
            elif key == "filters":
                before = unpacker.tell() - start
                unpacker.skip()
                filters = payload[before : unpacker.tell() - start]
            else:
                unpacker.skip()
        if unpacker.tell() - start != len(payload):
            raise UndecodableRecordError("the record is followed by other bytes")
        _number(fields, "schema_version")
        outcome = fields.get("outcome")
        if outcome is not None and outcome not in _OUTCOMES:
            raise UnsupportedRecordError("the outcome is not known here")
        if filters not in self._known_filters:
            self._check_filters(filters)
        return RecordSummary(
            _text(fields, "tap"),
            _number(fields, "seq"),
            _text(fields, "request_id"),
            _number(fields, "arrival_unix_ns"),
            _number(fields, "prompt_tokens"),
            outcome,
            0 if outcome is None else _number(fields, "output_tokens"),
        )

    def _prompt_tokens(self, payload: bytes, start: int) -> int | None:
        """Read past the request; return how many prompt ids it has."""
        unpacker = self._unpacker
        count = None
        for _ in range(unpacker.read_map_header()):
            if unpacker.unpack() == "token_ids":
                count = _array_length(payload, unpacker.tell() - start)
            unpacker.skip()
        return count

    def _response(self) -> dict[str, Any]:
        unpacker = self._unpacker
        fields: dict[str, Any] = {}
        for _ in range(unpacker.read_map_header()):
            key = unpacker.unpack()
            if key in _WANTED_OF_RESPONSE:
                fields[key] = unpacker.unpack()
            else:
                unpacker.skip()
        _text(fields, "outcome")
        return fields

    def _check_filters(self, packed: bytes) -> None:
        filters = msgpack.unpackb(packed) if packed else None
        if not isinstance(filters, list) or any(type(each) is not str for each in filters):
            raise UndecodableRecordError("filters is missing or of the wrong type")
        try:
            for each in filters:
                parse_filter(each)
        except ValueError:
            raise UnsupportedRecordError("a filter is not known here") from None
        if len(self._known_filters) < _MOST_FILTERS:
            self._known_filters.add(packed)


def read_seq(payload: bytes) -> int | None:
    """Return the `seq` of a record that is otherwise not understood; None if that fails too."""
    try:
        seq = msgpack.unpackb(payload, strict_map_key=False)["seq"]
    except Exception:  # what is no record can fail in any way
        return None
    return seq if type(seq) is int and 0 <= seq <= MAX_U64 else None


def _new_unpacker() -> Any:
    return msgpack.Unpacker(max_buffer_size=2**31 - 1)


def _array_length(data: bytes, position: int) -> int:
    """Return how many values the MessagePack array at *position* has."""
    first = data[position]
    if 0x90 <= first <= 0x9F:
        return first & 0x0F
    if first == 0xDC:
        return int.from_bytes(data[position + 1 : position + 3], "big")
    if first == 0xDD:
        return int.from_bytes(data[position + 1 : position + 5], "big")
    raise UndecodableRecordError("token_ids is no array")


def _number(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    if type(value) is not int or not 0 <= value <= MAX_U64:
        raise UndecodableRecordError(f"{name} is missing or no unsigned number")
    return value


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if type(value) is not str:
        raise UndecodableRecordError(f"{name} is missing or no text")
    return value
