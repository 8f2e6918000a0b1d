"""PURE.  Tells of a record who, when and how it ended, without reading its tokens.

A file of records is in the order in which requests ended.  A player needs the order in which they
arrived: it scans the file for the arrivals first, and reads it again with the places known.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgpack

from replay.plane.codec import MalformedMessageError, decode_message
from replay.player.traces.fault import Notes
from replay.player.traces.record import SCHEMA_VERSION

Item = TypeVar("Item")


class Scanned(NamedTuple):
    """The head of one record."""

    request_id: str
    arrival_unix_ns: int
    outcome: str | None
    """None for a record without a response."""


def payload_of(frames: Sequence[bytes], notes: Notes) -> bytes | None:
    """Return the record that a message carries; one that cannot be read is counted."""
    try:
        return decode_message(frames).payload
    except MalformedMessageError:
        notes.undecodable += 1
        return None


def record_of(frames: Sequence[bytes], notes: Notes) -> Mapping[str, Any] | None:
    """Return the record that a message carries, decoded; one that cannot be read is counted."""
    payload = payload_of(frames, notes)
    return None if payload is None else record_of_payload(payload, notes)


def record_of_payload(payload: bytes, notes: Notes) -> Mapping[str, Any] | None:
    """Return a record, decoded; one that cannot be read is counted."""
    try:
        record = msgpack.unpackb(payload, strict_map_key=False)
    except (ValueError, msgpack.UnpackException):
        record = None
    if not isinstance(record, dict):
        notes.undecodable += 1
        return None
    return record


def scan(payload: bytes) -> Scanned | None:
    """Return the head of a record; None for what is no record of a request, or not of this schema.

    Raises ValueError for what cannot be decoded.
    """
    try:
        unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=max(1, len(payload)))
        unpacker.feed(payload)
        values: dict[str, Any] = {}
        for _ in range(unpacker.read_map_header()):
            key = unpacker.unpack()
            if key == "request":
                unpacker.skip()
            elif key == "response":
                values["outcome"] = _outcome(unpacker)
            else:
                values[key] = unpacker.unpack()
    except (msgpack.UnpackException, TypeError) as error:
        raise ValueError(f"no record: {type(error).__name__}") from None
    request_id, arrival = values.get("request_id"), values.get("arrival_unix_ns")
    if values.get("schema_version") != SCHEMA_VERSION or type(arrival) is not int:
        return None
    return Scanned(str(request_id), arrival, values.get("outcome"))


def _outcome(unpacker: msgpack.Unpacker) -> str | None:
    outcome = None
    for _ in range(unpacker.read_map_header()):
        if unpacker.unpack() == "outcome":
            outcome = unpacker.unpack()
        else:
            unpacker.skip()
    return outcome


def places_by_arrival(arrivals_ns: Sequence[int]) -> "array[int]":
    """Return for each record, in the order of the file, its place in the order of arrival."""
    order = sorted(range(len(arrivals_ns)), key=arrivals_ns.__getitem__)
    places = array("I", bytes(4 * len(order)))
    for place, record in enumerate(order):
        places[record] = place
    return places


def in_order(items: Iterable[Item], places: Sequence[int]) -> Iterator[Item]:
    """Yield *items* by their *places*, holding back only what overtook others."""
    held: dict[int, Item] = {}
    following = 0
    for item, place in zip(items, places, strict=False):
        held[place] = item
        while following in held:
            yield held.pop(following)
            following += 1
    # Only if the file shrank between the two readings.
    yield from (held[place] for place in sorted(held))
