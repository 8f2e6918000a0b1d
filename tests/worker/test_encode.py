"""What is encoded by hand equals protobuf's own bytes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.worker.encode import ChoiceShape, CutAnswers, chunk_message, complete_message

UINT32 = st.integers(0, 2**32 - 1)
SMALL = st.integers(0, 300) | UINT32
IDS = st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 200_000), max_size=40)
TEXT = st.text(max_size=300)
LOGPROBS = st.none() | st.builds(
    lambda ids: pb.OutputLogProbs(token_ids=ids, token_logprobs=[-0.5] * len(ids)), IDS
)


def framed(message: pb.GenerateResponse) -> bytes:
    encoded = message.SerializeToString(deterministic=True)
    return b"\0" + len(encoded).to_bytes(4, "big") + encoded


def shape_of(request_id: str, prompt: int, cached: int, index: int, version: str) -> ChoiceShape:
    return ChoiceShape(
        request_id,
        prompt_tokens=prompt,
        cached_tokens=cached,
        index=index,
        weight_version=version,
    )


@given(TEXT, IDS, SMALL, SMALL, SMALL, SMALL, TEXT, LOGPROBS)
def test_a_chunk_equals_protobufs_bytes(
    request_id, ids, completion, prompt, cached, index, version, logprobs
):
    chunk = pb.GenerateStreamChunk(
        token_ids=ids,
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
        index=index,
        output_logprobs=logprobs,
    )
    if version:
        chunk.weight_version = version

    made = chunk_message(
        shape_of(request_id, prompt, cached, index, version), ids, completion, logprobs
    )

    assert made == framed(pb.GenerateResponse(request_id=request_id, chunk=chunk))


@given(
    TEXT,
    IDS,
    st.sampled_from(["stop", "length", "abort", "error", ""]),
    st.none() | UINT32 | TEXT,
    SMALL,
    SMALL,
    SMALL,
    TEXT,
    LOGPROBS,
    SMALL,
)
def test_the_end_of_a_choice_equals_protobufs_bytes(
    request_id, ids, reason, matched, prompt, cached, index, version, logprobs, spec
):
    complete = pb.GenerateComplete(
        output_ids=ids,
        finish_reason=reason,
        prompt_tokens=prompt,
        completion_tokens=len(ids),
        cached_tokens=cached,
        output_logprobs=logprobs,
        index=index,
        spec_accepted_tokens=spec,
        spec_draft_tokens=spec // 2,
    )
    if isinstance(matched, int):
        complete.matched_token_id = matched
    elif matched is not None:
        complete.matched_stop_str = matched
    if version:
        complete.weight_version = version

    made = complete_message(
        shape_of(request_id, prompt, cached, index, version),
        ids,
        reason,
        matched=matched,
        logprobs=logprobs,
        spec_accepted=spec,
        spec_draft=spec // 2,
    )

    assert made == framed(pb.GenerateResponse(request_id=request_id, complete=complete))


@settings(max_examples=50)
@given(
    st.lists(TEXT, min_size=2, max_size=4),
    IDS.map(tuple),
    st.none() | UINT32,
    SMALL,
    SMALL,
    st.sampled_from(["", "v1"]),
)
def test_a_cut_answer_equals_its_messages_one_by_one(
    request_ids, ids, matched, prompt, cached, version
):
    """Also when its pieces come from the table, for ids of the same and of another length."""
    cut = CutAnswers()

    for request_id in request_ids + request_ids[::-1]:
        shape = shape_of(request_id, prompt, cached, 0, version)
        expected = b"".join(
            chunk_message(shape, (token,), at) for at, token in enumerate(ids, 1)
        ) + complete_message(shape, ids, "length", matched=matched)
        assert expected == cut.message_bytes(
            request_id,
            ids,
            "length",
            matched=matched,
            prompt_tokens=prompt,
            cached_tokens=cached,
            weight_version=version,
        )


def test_cut_answers_of_equal_ids_are_not_mixed_up_when_their_objects_are_gone():
    cut = CutAnswers()
    for first in range(500):
        ids = tuple(range(first, first + 3))
        made = cut.message_bytes(
            "r", ids, "stop", matched=None, prompt_tokens=1, cached_tokens=0, weight_version=""
        )
        assert made.endswith(complete_message(ChoiceShape("r", prompt_tokens=1), ids, "stop"))


@pytest.mark.parametrize("count", [127, 128, 16383, 16384])
def test_a_length_of_more_than_one_byte_is_right(count):
    ids = [5] * count
    shape = ChoiceShape("r", prompt_tokens=1)
    message = pb.GenerateStreamChunk(token_ids=ids, prompt_tokens=1, completion_tokens=count)

    assert chunk_message(shape, ids, count) == framed(
        pb.GenerateResponse(request_id="r", chunk=message)
    )
