"""The record on the wire: order, absence, and what a reader takes."""

from array import array
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.packed import TokenIds
from replay.request import Request
from replay.taps.envelope import (
    EnvelopePacker,
    ShadowEnvelope,
    UndecodableRecordError,
    UnsupportedRecordError,
)
from replay.taps.response import Choice, Outcome, Response

REQUEST = Request(model="m", token_ids=TokenIds([1, 300, 70000]))
RESPONSE = Response(
    outcome=Outcome.COMPLETE,
    choices=(
        Choice(index=0, finish_reason="eos", output_tokens=2, token_ids=array("I", [7, 8])),
        Choice(index=1, finish_reason=None, output_tokens=0),
        Choice(
            index=2,
            finish_reason="error: no",
            output_tokens=3,
            token_ids=array("I", [9]),
            truncated=True,
        ),
    ),
    first_token_offset_ns=10,
    last_token_offset_ns=2_000_000,
    end_offset_ns=3_000_000_000,
    chunk_offsets_ns=array("Q", [10, 20]),
)


def packed(response: Response | None = None, **changes: Any) -> bytes:
    values = {
        "seq": 5,
        "request_id": "r-1",
        "origin": "preprocessed",
        "arrival_unix_ns": 1_700_000_000_000_000_000,
        "packed_request": REQUEST.packed,
        **changes,
    }
    return EnvelopePacker("shadow", ("tokens-only", "strip-worker-pins")).pack(
        response=response, **values
    )


def test_rule_33_a_plain_record_has_its_keys_in_order_and_no_response() -> None:
    record = msgpack.unpackb(packed())
    assert list(record.items()) == [
        ("schema_version", 1),
        ("tap", "shadow"),
        ("seq", 5),
        ("request_id", "r-1"),
        ("origin", "preprocessed"),
        ("filters", ["tokens-only", "strip-worker-pins"]),
        ("arrival_unix_ns", 1_700_000_000_000_000_000),
        ("request", msgpack.unpackb(REQUEST.packed)),
    ]


def test_a_joined_record_ends_with_the_response_in_order() -> None:
    record = msgpack.unpackb(packed(RESPONSE))
    assert list(record)[-1] == "response"
    assert list(record["response"].items()) == [
        ("outcome", "complete"),
        (
            "choices",
            [
                {"index": 0, "finish_reason": "eos", "output_tokens": 2, "token_ids": [7, 8]},
                {"index": 1, "output_tokens": 0},
                {
                    "index": 2,
                    "finish_reason": "error: no",
                    "output_tokens": 3,
                    "token_ids": [9],
                    "truncated": True,
                },
            ],
        ),
        ("output_tokens", 5),
        ("first_token_offset_ns", 10),
        ("last_token_offset_ns", 2_000_000),
        ("end_offset_ns", 3_000_000_000),
        ("chunk_offsets_ns", [10, 20]),
    ]
    assert [list(choice) for choice in record["response"]["choices"]][2] == [
        *("index", "finish_reason", "output_tokens", "token_ids", "truncated")
    ]


def test_what_did_not_happen_is_absent() -> None:
    silent = Response(
        outcome=Outcome.CANCELLED,
        choices=(),
        first_token_offset_ns=None,
        last_token_offset_ns=None,
        end_offset_ns=0,
    )
    assert msgpack.unpackb(silent.packed) == {
        "outcome": "cancelled",
        "choices": [],
        "output_tokens": 0,
        "end_offset_ns": 0,
    }


@pytest.mark.parametrize("response", [None, RESPONSE], ids=["plain", "joined"])
def test_the_bytes_are_those_of_msgpack_for_the_same_values(response: Response | None) -> None:
    """Integers in their shortest form, as Dynamo's serialiser writes them."""
    data = packed(response)
    assert data == msgpack.packb(msgpack.unpackb(data))


@pytest.mark.parametrize("response", [None, RESPONSE], ids=["plain", "joined"])
def test_a_record_comes_back(response: Response | None) -> None:
    record = ShadowEnvelope.unpacked(packed(response))
    assert record.tap == "shadow"
    assert record.seq == 5
    assert record.request_id == "r-1"
    assert record.origin == "preprocessed"
    assert record.filters == ("tokens-only", "strip-worker-pins")
    assert record.arrival_unix_ns == 1_700_000_000_000_000_000
    assert record.request == REQUEST
    assert record.prompt_tokens == 3
    assert record.response == response
    assert "r-1" not in repr(record)


@pytest.mark.parametrize(
    ("on_the_wire", "read"),
    [({}, False), ({"truncated": False}, False), ({"truncated": True}, True)],
    ids=["absent", "false", "true"],
)
def test_rule_39_a_reader_takes_truncated_absent_false_and_true(
    on_the_wire: dict[str, bool], read: bool
) -> None:
    record = msgpack.unpackb(packed(RESPONSE))
    record["response"]["choices"] = [{"index": 0, "output_tokens": 1, **on_the_wire}]
    response = ShadowEnvelope.unpacked(msgpack.packb(record)).response
    assert response is not None
    assert response.choices[0].truncated is read


def changed(**changes: Any) -> bytes:
    """Return a joined record with some keys changed; ... removes one."""
    record = msgpack.unpackb(packed(RESPONSE))
    record.update(changes)
    return msgpack.packb({key: value for key, value in record.items() if value is not ...})


def test_keys_that_are_not_known_and_another_order_are_taken() -> None:
    record = msgpack.unpackb(changed(new={"x": [1]}))
    again = msgpack.packb(dict(reversed(record.items())))
    assert ShadowEnvelope.unpacked(again).response == RESPONSE


@pytest.mark.parametrize(
    "data",
    [
        changed(schema_version=2),
        changed(response={**msgpack.unpackb(RESPONSE.packed), "outcome": "paused"}),
    ],
    ids=["schema_version", "outcome"],
)
def test_a_record_of_a_newer_schema_is_unsupported_and_not_undecodable(data: bytes) -> None:
    with pytest.raises(UnsupportedRecordError):
        ShadowEnvelope.unpacked(data)


BROKEN_RESPONSES: list[Any] = [
    "text",
    {},
    {"outcome": "complete"},
    {**msgpack.unpackb(RESPONSE.packed), "choices": [{}]},
    {**msgpack.unpackb(RESPONSE.packed), "choices": [1]},
    {**msgpack.unpackb(RESPONSE.packed), "end_offset_ns": -1},
    {**msgpack.unpackb(RESPONSE.packed), "end_offset_ns": "sk-1"},
    {**msgpack.unpackb(RESPONSE.packed), "chunk_offsets_ns": ["sk-1"]},
    {**msgpack.unpackb(RESPONSE.packed), "outcome": 1},
    {
        **msgpack.unpackb(RESPONSE.packed),
        "choices": [{"index": 0, "output_tokens": 1, "finish_reason": 3}],
    },
    {
        **msgpack.unpackb(RESPONSE.packed),
        "choices": [{"index": 0, "output_tokens": 1, "token_ids": [2**32]}],
    },
]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgpack.packb([1, 2]),
        packed()[:-1],
        packed() + b"\x01",
        changed(schema_version=...),
        changed(schema_version="1"),
        changed(tap=...),
        changed(seq="5"),
        changed(request_id=5),
        changed(filters="x"),
        changed(arrival_unix_ns=None),
        changed(request=...),
        *(changed(response=response) for response in BROKEN_RESPONSES),
    ],
)
def test_rule_68_what_is_no_record_is_undecodable_without_its_content(data: bytes) -> None:
    with pytest.raises(UndecodableRecordError) as caught:
        ShadowEnvelope.unpacked(data)
    assert "sk-1" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("request_field", [5, {}, {"model": "m"}, {"token_ids": 5}])
def test_rule_68_a_request_without_ids_is_undecodable(request_field: Any) -> None:
    record = ShadowEnvelope.unpacked(changed(request=request_field))
    with pytest.raises(UndecodableRecordError):
        _ = record.prompt_tokens


@given(st.binary(max_size=80))
def test_any_bytes_are_a_record_or_an_error(data: bytes) -> None:
    with pytest.raises((UndecodableRecordError, UnsupportedRecordError)):
        ShadowEnvelope.unpacked(data)


CHOICES = st.builds(
    Choice,
    index=st.integers(0, 300),
    finish_reason=st.none() | st.text(),
    output_tokens=st.integers(0, 2**40),
    token_ids=st.lists(st.integers(0, 2**32 - 1), max_size=20).map(lambda ids: array("I", ids)),
    truncated=st.booleans(),
)
OFFSET = st.integers(0, 2**63)


@given(
    st.builds(
        Response,
        outcome=st.sampled_from(Outcome),
        choices=st.lists(CHOICES, max_size=20).map(tuple),
        first_token_offset_ns=OFFSET,
        last_token_offset_ns=OFFSET,
        end_offset_ns=OFFSET,
        chunk_offsets_ns=st.lists(OFFSET, max_size=20).map(lambda offsets: array("Q", offsets)),
    )
)
def test_any_response_comes_back(response: Response) -> None:
    assert ShadowEnvelope.unpacked(packed(response)).response == response


def test_a_response_is_packed_once_for_all_taps() -> None:
    assert RESPONSE.packed is RESPONSE.packed


def test_recorded_bytes_are_4_an_id_and_8_an_offset() -> None:
    assert RESPONSE.recorded_bytes == 3 * 4 + 2 * 8
