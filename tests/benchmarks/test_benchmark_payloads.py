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


def merged(messages, sizes):
    """Join the chunks in *messages* to chunks of so many tokens."""
    chunks, joined = list(messages[:-1]), []
    for size in sizes:
        taken, chunks = chunks[:size], chunks[size:]
        if taken:
            chunk = pb.GenerateResponse()
            chunk.CopyFrom(taken[-1])
            chunk.chunk.token_ids[:] = [one.chunk.token_ids[0] for one in taken]
            joined.append(chunk)
    return joined + chunks + [messages[-1]]


@given(st.lists(st.integers(1, 9), max_size=9), st.integers(2, 140))
def test_merged_chunks_are_right_only_where_they_may_come(sizes, output_tokens):
    shape, request_id = Shape(500, output_tokens), "r" * 16
    told = answer(shape, request_id, canned_ids(output_tokens))
    messages = merged(told, sizes)
    data = b"".join(framed(message.SerializeToString()) for message in messages)
    tolerant, strict = Template(shape, may_merge=True), Template(shape)
    assert tolerant.accepts(request_id.encode(), data)
    assert strict.accepts(request_id.encode(), data) == (messages == told)
    assert tolerant.least_answer_bytes <= len(data) <= tolerant.answer_bytes
    count = len(told) - len(messages)
    saved = (tolerant.answer_bytes - len(data)) / tolerant.bytes_saved_by_a_merge
    assert saved == pytest.approx(count, abs=0.1 * count + 0.1)


@pytest.mark.parametrize("wrong", ["token", "count", "order", "missing", "torn", "complete"])
def test_merging_excuses_no_other_difference(wrong):
    shape, request_id = Shape(8, 4), "r" * 16
    messages = merged(answer(shape, request_id, canned_ids(4)), [2, 2])
    if wrong == "token":
        messages[0].chunk.token_ids[0] = 7
    elif wrong == "count":
        messages[0].chunk.completion_tokens = 3
    elif wrong == "order":
        messages[:2] = messages[1::-1]
    elif wrong == "missing":
        del messages[0]
    elif wrong == "complete":
        messages[-1].complete.finish_reason = "stop"
    data = b"".join(framed(message.SerializeToString()) for message in messages)
    if wrong == "torn":
        data = data[:-1]
    assert not Template(shape, may_merge=True).accepts(request_id.encode(), data)
