"""The four-frame message, byte for byte, and what a reader takes and refuses."""

import base64
import contextlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.plane.codec import (
    MAX_PUBLISHER_ID,
    MAX_U64,
    MalformedMessageError,
    MessageEncoder,
    bin_header,
    decode_message,
    new_publisher_id,
)

DYNAMO = Path(__file__).parents[1] / "data" / "dynamo" / "event_plane_frames.jsonl"


def dynamo_messages() -> list[list[bytes]]:
    lines = DYNAMO.read_text().splitlines()
    return [[base64.b64decode(frame) for frame in json.loads(line)] for line in lines]


def with_envelope(packed: bytes) -> list[bytes]:
    return [b"shadow", b"\0" * 8, b"\0" * 8, struct.pack(">BI", 1, len(packed)) + packed]


def fields(**changes: Any) -> dict[str, Any]:
    whole = {
        "publisher_id": 7,
        "sequence": 3,
        "published_at": 1_700_000_000_000,
        "topic": "shadow",
        "payload": b"record",
    }
    return {key: each for key, each in (whole | changes).items() if each is not ...}


def packed(**changes: Any) -> list[bytes]:
    return with_envelope(msgpack.packb(fields(**changes)))


def test_all_messages_of_a_real_dynamo_decode_and_encode_to_the_same_bytes() -> None:
    messages = dynamo_messages()
    assert len(messages) == 75
    for frames in messages:
        envelope = decode_message(frames)
        encoder = MessageEncoder(envelope.topic, envelope.publisher_id)
        again = encoder.encode(envelope.sequence, envelope.published_at_ms, envelope.payload)
        assert list(again) == frames


def test_the_live_sample_of_the_field_has_our_layout() -> None:
    encoder = MessageEncoder("kv_metrics", 0x3209A37B0A98B)
    frames = encoder.encode(0, 0x1A22A227BE4, b"\x2a" * 90)
    assert [frame.hex() for frame in frames[:3]] == [
        "6b765f6d657472696373",
        "0003209a37b0a98b",
        "0000000000000000",
    ]
    assert frames[3].hex() == (
        "01000000ac85ac7075626c69736865725f6964cf0003209a37b0a98ba873657175656e636500"
        "ac7075626c69736865645f6174cf000001a22a227be4a5746f706963aa6b765f6d657472696373"
        "a77061796c6f6164c45a" + "2a" * 90
    )


ACCEPTED: dict[str, Callable[[], list[bytes]]] = {
    "map in order": packed,
    "map reordered": lambda: with_envelope(msgpack.packb(dict(reversed(list(fields().items()))))),
    "extra unknown key": lambda: packed(shard=[{"deep": None}]),
    "array of five": lambda: with_envelope(msgpack.packb(list(fields().values()))),
    "payload as str": lambda: packed(payload="record"),
    "frame 0 with a suffix": lambda: [b"shadow-more", *packed()[1:]],
    "frame 2 differs": lambda: [*packed()[:2], struct.pack(">Q", 99), packed()[3]],
    "the largest numbers": lambda: packed(published_at=MAX_U64),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_dynamo_accepts_is_read_and_the_envelope_counts(case: str) -> None:
    envelope = decode_message(ACCEPTED[case]())
    assert (envelope.publisher_id, envelope.sequence) == (7, 3)
    assert (envelope.topic, envelope.payload) == ("shadow", b"record")


REFUSED: dict[str, Callable[[], list[bytes]]] = {
    "header version 2": lambda: [*packed()[:3], b"\x02" + packed()[3][1:]],
    "3 frames": lambda: packed()[:3],
    "5 frames": lambda: [*packed(), b""],
    "no frame": list,
    "N shorter than the data": lambda: [*packed()[:3], packed()[3] + b"\0"],
    "N longer than the data": lambda: [*packed()[:3], packed()[3][:-1]],
    "no byte behind the header": lambda: with_envelope(b""),
    "half a header": lambda: [*packed()[:3], b"\x01\x00"],
    "payload as array of ints": lambda: packed(payload=list(b"record")),
    **{f"no {name}": lambda name=name: packed(**{name: ...}) for name in fields()},  # type: ignore[misc]
    "four of five in an array": lambda: with_envelope(msgpack.packb(list(fields().values())[:4])),
    "six in an array": lambda: with_envelope(msgpack.packb([*fields().values(), 1])),
    "a negative sequence": lambda: packed(sequence=-1),
    "a sequence that is true": lambda: packed(sequence=True),
    "a float for a number": lambda: packed(published_at=1.0),
    "bytes for the topic": lambda: packed(topic=b"shadow"),
    "a key twice": lambda: with_envelope(
        b"\x86" + msgpack.packb(fields())[1:] + msgpack.packb("sequence") + b"\x05"
    ),
    "a key twice in a map of a u16": lambda: with_envelope(
        b"\xde\x00\x06" + msgpack.packb(fields())[1:] + msgpack.packb("sequence") + b"\x05"
    ),
    "a key twice in a map of a u32": lambda: with_envelope(
        b"\xdf\x00\x00\x00\x06" + msgpack.packb(fields())[1:] + msgpack.packb("sequence") + b"\x05"
    ),
    "a number for a key": lambda: with_envelope(b"\x81\x01\x02"),
    "a topic that is not UTF-8": lambda: with_envelope(
        msgpack.packb(fields()).replace(b"\xa6shadow", b"\xa6shado\xff")
    ),
    "text that is not UTF-8": lambda: with_envelope(b"\xa2\xff\xfe"),
    "nothing but a number": lambda: with_envelope(b"\x01"),
    "an end too early": lambda: with_envelope(msgpack.packb(fields())[:-3]),
    "more behind the end": lambda: with_envelope(msgpack.packb(fields()) + b"\x00"),
    "nested without end": lambda: with_envelope(b"\x91" * 3000),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_dynamo_refuses_is_refused(case: str) -> None:
    with pytest.raises(MalformedMessageError):
        decode_message(REFUSED[case]())


def test_a_payload_of_a_publisher_without_bytes_is_read_whatever_its_bytes_are() -> None:
    """Records are seldom UTF-8: `\xce` stands before each larger number."""
    whole = fields(payload=bytes(range(256)))
    frames = with_envelope(msgpack.packb(whole).replace(b"\xc5\x01\x00", b"\xda\x01\x00"))
    assert decode_message(frames).payload == whole["payload"]


def test_a_map_may_announce_its_length_in_a_longer_form() -> None:
    for head in (b"\xde\x00\x05", b"\xdf\x00\x00\x00\x05"):
        assert decode_message(with_envelope(head + msgpack.packb(fields())[1:])).sequence == 3


def test_a_refusal_quotes_nothing_of_the_message() -> None:
    secret = "sk-very-secret"
    for frames in (packed(payload=[secret]), with_envelope(b"\xa9" + secret.encode())):
        with pytest.raises(MalformedMessageError) as caught:
            decode_message(frames)
        assert secret not in str(caught.value)
        assert caught.value.__cause__ is None


@given(
    topic=st.text("abcXYZ019-_", min_size=1),
    publisher_id=st.integers(0, MAX_PUBLISHER_ID),
    sequence=st.integers(0, MAX_U64),
    published_at_ms=st.integers(0, MAX_U64),
    payload=st.binary(max_size=300) | st.integers(65_500, 65_600).map(bytes),
)
def test_an_encoded_message_is_what_msgpack_makes_of_it_and_reads_back(
    topic: str, publisher_id: int, sequence: int, published_at_ms: int, payload: bytes
) -> None:
    frames = MessageEncoder(topic, publisher_id).encode(sequence, published_at_ms, payload)
    envelope = decode_message(frames)
    assert (envelope.publisher_id, envelope.sequence) == (publisher_id, sequence)
    assert (envelope.published_at_ms, envelope.payload) == (published_at_ms, payload)
    expected = msgpack.packb(
        {
            "publisher_id": publisher_id,
            "sequence": sequence,
            "published_at": published_at_ms,
            "topic": topic,
            "payload": payload,
        }
    )
    assert frames[3] == struct.pack(">BI", 1, len(expected)) + expected
    assert frames[0] == topic.encode()
    assert struct.unpack(">Q", frames[1])[0] == publisher_id
    assert struct.unpack(">Q", frames[2])[0] == sequence


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_any_frames_are_read_or_refused_with_one_kind_of_error(frames: list[bytes]) -> None:
    with contextlib.suppress(MalformedMessageError):
        decode_message(frames)


@given(st.binary(max_size=80))
def test_any_envelope_is_read_or_refused_with_one_kind_of_error(body: bytes) -> None:
    with contextlib.suppress(MalformedMessageError):
        decode_message(with_envelope(body))


def test_publisher_ids_are_random_and_fit_into_a_double() -> None:
    ids = {new_publisher_id() for _ in range(200)}
    assert len(ids) == 200
    assert all(1 <= each <= MAX_PUBLISHER_ID for each in ids)
    assert max(ids) > 2**50  # 200 draws below it: once in 10^11 runs
    with pytest.raises(ValueError, match="2\\^53-1"):
        MessageEncoder("shadow", MAX_PUBLISHER_ID + 1)


class HugeBytes(bytes):
    """Says to be longer than a message can be."""

    def __len__(self) -> int:
        return 2**32


def test_a_payload_that_no_length_can_hold_is_refused_before_it_is_copied() -> None:
    with pytest.raises(ValueError, match="4294967296 bytes"):
        MessageEncoder("shadow", 7).encode(0, 0, HugeBytes())


@given(st.integers(0, 2**32 - 1))
def test_the_head_of_bytes_is_the_shortest_that_holds_their_length(length: int) -> None:
    head = bin_header(length)
    assert head[:1] == {2: b"\xc4", 3: b"\xc5", 5: b"\xc6"}[len(head)]
    assert int.from_bytes(head[1:], "big") == length
    assert (len(head) == 2) == (length < 256)
    assert (len(head) == 5) == (length > 65_535)
