"""Which line of a script a request gets, and when its parts are due."""

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.engines.script_book import ScriptBook, plan_steps
from replay.engines.script_file import ScriptedChoice, ScriptedError


def choice(request_id: str = "r", *, line: int = 1, **keys: Any) -> ScriptedChoice:
    return ScriptedChoice(line=line, request_id=request_id, **{"chunks": ((line,),), **keys})


def lines(book: ScriptBook, request_id: str, choices: int = 1) -> list[int] | None:
    taken = book.take(request_id, choices)
    return None if taken is None else [each.line for each in taken]


def test_the_exact_id_wins_over_the_id_without_a_uuid_and_that_over_the_fallback():
    with_uuid = f"head-{uuid.uuid4()}"
    book = ScriptBook([choice(with_uuid, line=1), choice("head", line=2), choice("*", line=3)])
    assert lines(book, with_uuid) == [1]
    assert lines(book, f"head-{uuid.uuid4()}") == [2]
    assert lines(book, "head") == [2]
    assert lines(book, "other") == [3]
    assert lines(book, "") == [3]


@pytest.mark.parametrize(
    ("request_id", "found"),
    [
        (f"head-{uuid.UUID(int=7)}", True),
        (f"head-{uuid.UUID(int=7).hex}", True),
        (f"head-{uuid.UUID(int=2**127)}".upper().replace("HEAD", "head"), True),
        (f"head-{uuid.UUID(int=7)}-p0", False),
        (f"head{uuid.UUID(int=7)}", False),
        ("head-n0", False),
        ("head-", False),
        (f"-{uuid.UUID(int=7)}", False),
    ],
)
def test_only_a_whole_uuid_behind_a_dash_is_left_out(request_id: str, found: bool):
    assert (ScriptBook([choice("head")]).take(request_id, 1) is not None) is found


def test_lines_of_one_id_are_used_in_order_each_as_often_as_it_says():
    book = ScriptBook([choice(line=1, times=2), choice(line=2, times=1), choice("*", line=3)])
    assert [lines(book, "r") for _ in range(5)] == [[1], [1], [2], [3], [3]]


def test_without_an_answer_there_is_none():
    book = ScriptBook([choice(times=1)])
    assert lines(book, "other") is None
    assert lines(book, "r") == [1]
    assert lines(book, "r") is None


def test_each_choice_has_its_line_or_says_what_the_first_one_says():
    book = ScriptBook([choice(line=1), choice(line=2, index=2)])
    taken = book.take("r", 4)
    assert taken is not None
    assert [(each.index, each.line) for each in taken] == [(0, 1), (1, 1), (2, 2), (3, 1)]


def test_a_line_that_several_choices_say_is_used_once():
    book = ScriptBook([choice(line=1, times=2)])
    assert lines(book, "r", 3) == [1, 1, 1]
    assert lines(book, "r", 3) == [1, 1, 1]
    assert lines(book, "r", 3) is None


@given(st.lists(st.integers(1, 3), max_size=6), st.integers(0, 20))
def test_uses_are_counted(times: list[int], asked: int):
    book = ScriptBook([choice(line=at, times=each) for at, each in enumerate(times)])
    expected = [[at] for at, each in enumerate(times) for _ in range(each)]
    found = [lines(book, "r") for _ in range(asked)]
    assert found == [*expected, *[None] * asked][:asked]


def test_a_book_knows_its_longest_answer_and_its_largest_id():
    book = ScriptBook([choice(chunks=((3, 9), ()), offsets_ms=(5.0, 2500.0)), choice("s", line=4)])
    assert (book.longest_seconds, book.largest_id) == (2.5, 9)
    assert (ScriptBook([]).longest_seconds, ScriptBook([]).largest_id) == (0.0, -1)


# ---- steps


def told(*choices: ScriptedChoice) -> list[tuple[float, int, Any]]:
    """Return when which choice does what: a chunk's ids, "end" or a code."""
    return [
        (
            step.offset_seconds * 1000,
            step.choice.index,
            step.error.code if step.error else "end" if step.chunk is None else step.chunk,
        )
        for step in plan_steps(choices)
    ]


def test_chunks_are_due_at_their_offsets_and_the_end_with_the_last():
    answer = choice(chunks=((1,), (2, 3), (4,)), offsets_ms=(0.0, 10.0, 200.0))
    assert told(answer) == [(0, 0, (1,)), (10, 0, (2, 3)), (200, 0, (4,)), (200, 0, "end")]


def test_without_offsets_all_is_due_at_once_a_choice_after_the_other():
    answer = choice(chunks=((1,), (2,)))
    other = choice(index=1, chunks=())
    assert told(answer, other) == [(0, 0, (1,)), (0, 0, (2,)), (0, 0, "end"), (0, 1, "end")]


def test_choices_are_interleaved_by_time():
    answer = choice(chunks=((1,), (2,)), offsets_ms=(0.0, 20.0))
    other = choice(index=1, chunks=((3,),), offsets_ms=(10.0,))
    assert told(answer, other) == [
        (0, 0, (1,)),
        (10, 1, (3,)),
        (10, 1, "end"),
        (20, 0, (2,)),
        (20, 0, "end"),
    ]


@pytest.mark.parametrize(
    ("after", "steps"),
    [
        (0, [(5, 0, "INTERNAL")]),
        (1, [(5, 0, (1,)), (30, 0, "INTERNAL")]),
        (2, [(5, 0, (1,)), (30, 0, (2,)), (30, 0, "INTERNAL")]),
    ],
)
def test_an_error_comes_in_the_place_of_a_chunk_or_behind_the_last(after: int, steps: list[Any]):
    error = ScriptedError(code="INTERNAL", after_chunks=after)
    assert told(choice(chunks=((1,), (2,)), offsets_ms=(5.0, 30.0), error=error)) == steps


def test_an_error_alone_is_due_at_once():
    error = ScriptedError(code="INTERNAL", after_chunks=0)
    assert told(choice(chunks=(), error=error)) == [(0, 0, "INTERNAL")]
    assert told(choice(chunks=(), offsets_ms=(), error=error)) == [(0, 0, "INTERNAL")]


def test_a_step_knows_how_many_tokens_went_before():
    steps = plan_steps([choice(chunks=((1, 2), (), (3,)))])
    assert [step.start for step in steps] == [0, 2, 2, 3]
