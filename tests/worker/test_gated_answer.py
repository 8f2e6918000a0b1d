"""What passes a gate, with an answer below that keeps the rules."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.worker.gated_answer import GatedAnswer
from tests.engines.fake_answer import FakeAnswer


class Forwarded(FakeAnswer):
    """An answer that takes responses that are already made."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: 0.0)
        self.responses: list[pb.GenerateResponse] = []

    def forward(self, response: pb.GenerateResponse, packed: bytes | None = None) -> None:
        assert packed == b"packed"
        self.responses.append(response)


def fake(choices: int = 1) -> FakeAnswer:
    return FakeAnswer(choices, clock=lambda: 0.0)


def gate(answer: FakeAnswer, **faults: Any) -> tuple[GatedAnswer, list[str]]:
    failures: list[str] = []
    return GatedAnswer(answer, on_failed=lambda: failures.append("failed"), **faults), failures


CHUNKS = st.lists(
    st.tuples(st.integers(0, 1), st.lists(st.integers(0, 9), min_size=1, max_size=4)), max_size=12
)


def written(answer: FakeAnswer) -> dict[int, list[int]]:
    return {index: answer[index].ids for index in (0, 1)}


def put(answer: Any, chunks: list[tuple[int, list[int]]]) -> None:
    for index, ids in chunks:
        answer.tokens(tuple(ids), index)


@given(chunks=CHUNKS, after=st.integers(1, 30))
def test_exactly_so_many_tokens_leave_before_a_failure(
    chunks: list[tuple[int, list[int]]], after: int
) -> None:
    plain, answer = fake(2), fake(2)
    flat = [(index, [token]) for index, ids in chunks for token in ids]
    put(plain, flat[:after])
    gated, failures = gate(answer, fail_after=after)
    put(gated, chunks)
    gated.finish("stop", 0)
    assert written(answer) == written(plain)
    assert (failures == ["failed"]) is gated.has_failed is (len(flat) >= after)
    assert (answer[0].reason is None) is gated.has_failed


@given(chunks=CHUNKS, after=st.integers(0, 30), shuts=st.sets(st.integers(0, 12)))
def test_what_was_held_leaves_whole_and_in_order(
    chunks: list[tuple[int, list[int]]], after: int, shuts: set[int]
) -> None:
    plain, answer = fake(2), fake(2)
    put(plain, chunks)
    gated, _ = gate(answer, stall_after=after)
    for number, chunk in enumerate(chunks):
        if number in shuts:
            gated.shut()
        put(gated, [chunk])
        if number + 1 in shuts:
            gated.open()
    gated.finish("stop", 0)
    gated.finish("length", 1)
    gated.open()
    total = sum(len(ids) for _, ids in chunks)
    if total > after:
        assert sum(len(ids) for ids in written(answer).values()) == after
        assert answer[1].reason is None
    gated.go_on()
    assert written(answer) == written(plain)
    assert (answer[0].reason, answer[1].reason) == ("stop", "length")


def test_tokens_that_were_held_together_leave_in_one_chunk() -> None:
    answer = fake(2)
    gated, _ = gate(answer, is_shut=True)
    put(gated, [(0, [1]), (0, [2, 3]), (1, [4]), (0, [5])])
    gated.open()
    assert [chunk for _, chunk in answer[0].chunks] == [(1, 2, 3), (5,)]


def test_a_failure_comes_behind_a_stall() -> None:
    answer = fake()
    gated, failures = gate(answer, stall_after=2, fail_after=3)
    put(gated, [(0, [1, 2, 3, 4, 5])])
    assert (answer[0].ids, failures) == ([1, 2], [])
    gated.go_on()
    assert (answer[0].ids, failures) == ([1, 2, 3], ["failed"])


def test_a_whole_answer_passes_as_one_unless_something_is_to_befall_it() -> None:
    answer = fake()
    gate(answer)[0].whole([1, 2], "length")
    assert answer.whole_calls == 1
    for faults in ({"fail_after": 9}, {"stall_after": 9}):
        answer = fake()
        gate(answer, **faults)[0].whole([1, 2], "stop", matched=7)
        assert (answer.whole_calls, answer[0].ids) == (0, [1, 2])
        assert (answer[0].reason, answer[0].matched) == ("stop", 7)


def chunk(*ids: int) -> pb.GenerateResponse:
    return pb.GenerateResponse(chunk=pb.GenerateStreamChunk(token_ids=ids))


def complete(*ids: int, index: int = 0) -> pb.GenerateResponse:
    return pb.GenerateResponse(complete=pb.GenerateComplete(output_ids=ids, index=index))


def test_a_forwarded_chunk_that_reaches_the_place_leaves_whole() -> None:
    answer = Forwarded()
    gated, failures = gate(answer, fail_after=3)
    for response in (chunk(1, 2), chunk(3, 4), chunk(5), complete(1, 2, 3, 4, 5)):
        gated.forward(response, b"packed")
    assert answer.responses == [chunk(1, 2), chunk(3, 4)]
    assert failures == ["failed"]


@pytest.mark.parametrize(("after", "left"), [(3, 1), (4, 2)])
def test_a_forwarded_end_that_brings_its_tokens_leaves_if_they_may(after: int, left: int) -> None:
    answer = Forwarded()
    gated, _ = gate(answer, stall_after=after)
    for response in (complete(1), complete(2, 3, index=1)):
        gated.forward(response, b"packed")
    assert len(answer.responses) == left
    gated.go_on()
    assert len(answer.responses) == 2


@pytest.mark.parametrize("forwards", [True, False])
def test_an_end_that_repeats_its_tokens_does_not_count_them_again(forwards: bool) -> None:
    answer = Forwarded()
    gated, failures = gate(answer, fail_after=4)
    if forwards:
        gated.forward(chunk(1, 2, 3), b"packed")
    else:
        gated.tokens((1, 2, 3))
    gated.forward(complete(1, 2, 3), b"packed")
    assert (answer.responses[-1], failures) == (complete(1, 2, 3), [])


async def test_an_engine_that_waits_for_room_waits_while_the_answer_is_held() -> None:
    answer = fake()
    gated, _ = gate(answer, stall_after=1)
    assert not gated.is_full
    put(gated, [(0, [1])])
    assert gated.is_full
    gated.go_on()
    await gated.room()
    assert answer.room_calls == 1
