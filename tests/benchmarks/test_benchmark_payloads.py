"""Bytes that are cut around a request id equal what protobuf writes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.payloads import (
    Shape,
    Template,
    answer,
    canned_ids,
    framed,
    prompt_ids,
    request,
    unframed,
)
from replay._proto import tokenspeed_scheduler_pb2 as pb

SHAPES = st.builds(Shape, st.integers(0, 700), st.integers(0, 40))
IDS = st.text("abcdef0123456789-", min_size=1, max_size=300)


@given(SHAPES, IDS, st.none() | st.integers(0, 2**64 - 1))
def test_a_template_equals_the_messages_of_protobuf(shape, request_id, seed):
    template = Template(shape, id_bytes=len(request_id), seed=seed)
    wanted = request(shape, request_id, seed=seed)
    told = answer(shape, request_id, canned_ids(shape.output_tokens))
    asked = template.request(request_id.encode())
    assert pb.GenerateRequest.FromString(unframed(asked)[0]) == wanted
    assert asked == framed(wanted.SerializeToString())
    whole = template.answer(request_id.encode())
    assert [pb.GenerateResponse.FromString(message) for message in unframed(whole)] == told
    assert len(whole) == template.answer_bytes


def test_a_request_id_of_another_length_is_refused():
    with pytest.raises(ValueError, match="16 bytes"):
        Template(Shape(4, 4)).request(b"short")


def test_a_torn_message_is_refused():
    whole = framed(b"abc")
    assert unframed(whole) == [b"abc"]
    with pytest.raises(ValueError, match="no whole message"):
        unframed(whole[:-1])


def test_prompts_are_always_the_same_and_within_the_vocabulary():
    assert prompt_ids(512) == prompt_ids(512)
    assert 0 < min(prompt_ids(2048)) < max(prompt_ids(2048)) < 32000
