"""A gateway of tomorrow sends fields that we do not know.  The rest of its request still counts."""

import pytest

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.worker.capture import capture_line

#: One unknown field of each wire type, number 4000 (tag = number << 3 | wire type).
UNKNOWN = {
    "varint": b"\x80\xfa\x01" + b"\xff" * 9 + b"\x01",
    "fixed64": b"\x81\xfa\x01" + b"\x01" * 8,
    "bytes": b"\x82\xfa\x01" + b"\x05hello",
    "group": b"\x83\xfa\x01" + b"\x08\x01" + b"\x84\xfa\x01",
    "fixed32": b"\x85\xfa\x01" + b"\x01" * 4,
}


def request() -> pb.GenerateRequest:
    return pb.GenerateRequest(
        request_id="known",
        tokenized=pb.TokenizedInput(input_ids=[1, 2, 3], original_text="text"),
        sampling_params=pb.SamplingParams(temperature=0.7, regex="a+"),
        stream=True,
    )


def with_unknown(field: bytes) -> bytes:
    """Return the request's bytes with *field* in it and in the messages below."""
    message = request()
    for inner in (message.tokenized, message.sampling_params):
        inner.MergeFromString(field)
    message.MergeFromString(field)
    return message.SerializeToString()


@pytest.mark.parametrize("kind", UNKNOWN)
def test_a_field_of_a_newer_gateway_changes_nothing_that_we_read(kind: str) -> None:
    data = with_unknown(UNKNOWN[kind])
    assert data.count(UNKNOWN[kind]) == 3
    read = pb.GenerateRequest.FromString(data)
    assert capture_line(read) == capture_line(request())
    assert read.SerializeToString() == data  # an upstream engine gets them all the same


def test_a_known_number_with_another_wire_type_is_an_unknown_field() -> None:
    read = pb.GenerateRequest.FromString(request().SerializeToString() + b"\x45\x01\x00\x00\x00")
    assert read.stream


def test_a_kind_of_media_that_we_do_not_know_keeps_its_number() -> None:
    message = pb.GenerateRequest()
    message.mm_inputs.items.add(modality=9)  # type: ignore[arg-type]
    read = pb.GenerateRequest.FromString(message.SerializeToString())
    assert read.mm_inputs.items[0].modality == 9
