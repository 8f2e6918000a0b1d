"""What is remembered of a response, and how it ended: rules 37 to 49."""

from array import array
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.taps.finish_reasons import error_word, finish_word
from replay.taps.recorder import ByteBudget, Recorder, RecordingBounds
from replay.taps.response import Outcome, Response


def ended(recorder: Recorder, **changes: Any) -> Response:
    values: dict[str, Any] = {
        "expected_choices": 1,
        "ended": True,
        "is_cancelled": False,
        "end_offset_ns": 99,
        **changes,
    }
    return recorder.response(**values)


def recorder(**bounds: Any) -> Recorder:
    return Recorder(RecordingBounds(**bounds))


def test_rule_37_choices_are_sorted_by_index_whatever_their_order() -> None:
    each = recorder()
    for index in (2, 0, 1, 2):
        each.tokens([index], index, 1)
    assert [choice.index for choice in ended(each).choices] == [0, 1, 2]
    assert [choice.output_tokens for choice in ended(each).choices] == [1, 1, 2]


def test_rule_37_a_chunk_without_tokens_makes_a_choice_and_an_error_without_data_none() -> None:
    each = recorder()
    each.tokens([], 1, 5)
    each.error()
    response = ended(each)
    assert [(choice.index, choice.output_tokens) for choice in response.choices] == [(1, 0)]
    assert response.first_token_offset_ns is None
    assert response.last_token_offset_ns is None
    assert response.outcome is Outcome.ERROR


def test_rule_38_tokens_are_counted_for_each_choice_and_in_total() -> None:
    each = recorder()
    each.tokens([1, 2], 0, 1)
    each.tokens([3], 1, 2)
    each.tokens([4], 0, 3)
    response = ended(each)
    assert response.output_tokens == 4
    assert [list(choice.token_ids) for choice in response.choices] == [[1, 2, 4], [3]]


def test_rule_38_without_tokens_only_the_counts_are_kept() -> None:
    each = recorder(tokens=False)
    each.tokens([1, 2], 0, 1)
    response = ended(each)
    assert response.output_tokens == 2
    assert list(response.choices[0].token_ids) == []
    assert not response.choices[0].truncated
    assert "token_ids" not in msgpack.unpackb(response.packed)["choices"][0]
    assert response.first_token_offset_ns == 1


@pytest.mark.parametrize("cut", [[5], [2, 3], [1] * 5, [4, 1]])
@pytest.mark.parametrize(("cap", "truncated"), [(4, True), (5, False), (6, False)])
def test_rule_39_a_cap_keeps_the_first_tokens_of_each_choice_and_counts_all(
    cap: int, truncated: bool, cut: list[int]
) -> None:
    each = recorder(max_tokens=cap)
    for index in (0, 1):
        ids = list(range(5))
        for size in cut:
            each.tokens(ids[:size], index, 1)
            del ids[:size]
    for choice in ended(each).choices:
        assert choice.output_tokens == 5
        assert list(choice.token_ids) == list(range(5))[:cap]
        assert choice.truncated is truncated


def test_rule_40_the_last_finish_reason_counts() -> None:
    each = recorder()
    each.finish("length", 0)
    each.finish(error_word("out of memory"), 0)
    assert ended(each).choices[0].finish_reason == "error: out of memory"


def test_rule_41_first_and_last_token_come_from_chunks_with_tokens() -> None:
    each = recorder()
    each.tokens([], 0, 1)
    each.tokens([1], 0, 10)
    each.tokens([2], 1, 20)
    each.tokens([], 0, 30)
    response = ended(each)
    assert (response.first_token_offset_ns, response.last_token_offset_ns) == (10, 20)
    assert response.end_offset_ns == 99
    assert list(response.chunk_offsets_ns) == []


def test_rule_41_chunk_timing_has_one_offset_a_chunk_with_tokens_and_no_cap() -> None:
    each = recorder(chunk_timing=True, max_tokens=1)
    each.tokens([1, 2, 3], 0, 10)
    each.tokens([], 0, 15)
    each.tokens([4], 1, 20)
    each.tokens([5, 6], 0, 30, chunks=2)
    assert list(ended(each).chunk_offsets_ns) == [10, 20, 30, 30]


def test_rule_42_bytes_are_4_a_recorded_token_and_8_an_offset() -> None:
    each = recorder(chunk_timing=True, max_tokens=3)
    for index in (0, 1):
        for number in range(5):
            each.tokens([number], index, number)
    assert each.recorded_bytes == 4 * 3 * 2 + 8 * 10
    assert ended(each).recorded_bytes == each.recorded_bytes


#: What happened, and what it is.  A row: n, finish reasons by choice, an error without a choice,
#: whether the stream ended, whether the context was cancelled, outcome, rules.
TABLE = [
    (1, {0: ["stop"]}, False, True, False, "complete", "44"),
    (1, {0: ["length"]}, False, True, False, "complete", "44"),
    (1, {0: ["stop"]}, False, True, True, "complete", "44: cancelled after it was complete"),
    (1, {0: ["stop"]}, False, False, False, "complete", "44: dropped after it was complete"),
    (2, {0: ["stop"], 1: ["eos"]}, False, True, False, "complete", "44"),
    (1, {0: ["stop"], 1: ["stop"]}, False, True, False, "complete", "44: more than expected"),
    (1, {0: ["content_filter"]}, False, True, False, "complete", "43: any other word finishes"),
    (1, {0: ["cancelled"]}, False, True, False, "cancelled", "45"),
    (2, {0: ["stop"], 1: ["cancelled"]}, False, True, False, "cancelled", "45"),
    (1, {0: ["error: x"]}, False, True, True, "cancelled", "45: an error after a cancel"),
    (1, {}, True, False, True, "cancelled", "45: a failed call after a cancel"),
    (1, {}, False, False, True, "cancelled", "45"),
    (2, {0: ["error: x"], 1: ["cancelled"]}, False, True, False, "cancelled", "45 before 46"),
    (1, {0: ["error: x"]}, False, True, False, "error", "46"),
    (1, {0: ["error"]}, False, True, False, "error", "46"),
    (1, {}, True, False, False, "error", "46: the call failed"),
    (1, {0: ["stop"]}, True, True, False, "error", "46: an error chunk beside a finished choice"),
    (2, {0: ["stop"], 1: ["error: x"]}, False, True, False, "error", "49"),
    (2, {0: ["stop"], 1: ["error: x"]}, False, False, False, "error", "46 before 47"),
    (1, {0: ["error: x", "stop"]}, False, True, False, "error", "43: the first reason decides"),
    (1, {}, False, False, False, "cancelled", "47"),
    (2, {0: ["stop"]}, False, False, False, "cancelled", "47 and 49: stop and dropped"),
    (1, {}, False, True, False, "incomplete", "48"),
    (2, {0: ["stop"]}, False, True, False, "incomplete", "48"),
    (3, {0: ["stop"], 1: ["error: x"]}, False, True, False, "error", "48 after 46"),
]


@pytest.mark.parametrize(
    ("n", "reasons", "failed", "was_ended", "is_cancelled", "outcome", "rule"),
    TABLE,
    ids=[f"rule {row[-1]}" for row in TABLE],
)
def test_rules_43_to_49_the_outcome(
    n: int,
    reasons: dict[int, list[str]],
    failed: bool,
    was_ended: bool,
    is_cancelled: bool,
    outcome: str,
    rule: str,
) -> None:
    each = recorder()
    for index, words in reasons.items():
        for word in words:
            each.finish(word, index)
    if failed:
        each.error()
    response = ended(each, expected_choices=n, ended=was_ended, is_cancelled=is_cancelled)
    assert response.outcome == outcome


WORDS = st.sampled_from(["stop", "eos", "length", "cancelled", "error: x", "content_filter"])


def is_bad(word: str) -> bool:
    return word == "cancelled" or word.startswith("error")


@given(
    n=st.integers(1, 4),
    events=st.lists(st.tuples(st.integers(0, 3), WORDS), max_size=8),
    failed=st.booleans(),
    was_ended=st.booleans(),
    is_cancelled=st.booleans(),
)
def test_rules_43_to_49_read_one_after_the_other(
    n: int, events: list[tuple[int, str]], failed: bool, was_ended: bool, is_cancelled: bool
) -> None:
    each = recorder()
    for index, word in events:
        each.finish(word, index)
    if failed:
        each.error()

    first = dict(reversed(events))
    finished = sum(not is_bad(word) for word in first.values())
    words = {word for _, word in events}
    any_error = failed or any(word.startswith("error") for word in words)
    if finished >= n and not any_error and "cancelled" not in words:
        expected = Outcome.COMPLETE
    elif "cancelled" in words or is_cancelled:
        expected = Outcome.CANCELLED
    elif any_error:
        expected = Outcome.ERROR
    elif not was_ended:
        expected = Outcome.CANCELLED
    else:
        expected = Outcome.INCOMPLETE
    response = ended(each, expected_choices=n, ended=was_ended, is_cancelled=is_cancelled)
    assert response.outcome is expected
    assert {choice.index: choice.finish_reason for choice in response.choices} == dict(events)


CHUNKS = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.integers(0, 2**32 - 1), max_size=40)), max_size=30
)


@given(
    chunks=CHUNKS,
    max_tokens=st.none() | st.integers(1, 50),
    chunk_timing=st.booleans(),
    limit=st.none() | st.integers(0, 600),
)
def test_what_is_recorded_is_a_beginning_within_every_bound(
    chunks: list[tuple[int, list[int]]],
    max_tokens: int | None,
    chunk_timing: bool,
    limit: int | None,
) -> None:
    budget = None if limit is None else ByteBudget(limit)
    each = Recorder(RecordingBounds(True, max_tokens, chunk_timing), budget)
    whole: dict[int, list[int]] = {}
    for offset, (index, ids) in enumerate(chunks):
        each.tokens(array("I", ids), index, offset)
        whole.setdefault(index, []).extend(ids)
        if budget is not None:
            assert each.recorded_bytes == budget.used <= budget.limit
    response = ended(each)
    assert budget is None or budget.used == 0
    assert [choice.index for choice in response.choices] == sorted(whole)
    for choice in response.choices:
        ids = whole[choice.index]
        recorded = list(choice.token_ids)
        assert choice.output_tokens == len(ids)
        assert recorded == ids[: len(recorded)]
        assert max_tokens is None or len(recorded) <= max_tokens
        if len(recorded) < len(ids):
            assert choice.truncated
        if limit is None:
            assert choice.truncated is (max_tokens is not None and len(ids) > max_tokens)


def test_a_budget_is_shared_by_the_responses_of_a_tap_and_given_back() -> None:
    budget = ByteBudget(40)
    first, second = (Recorder(RecordingBounds(), budget) for _ in range(2))
    first.tokens([1] * 8, 0, 1)
    second.tokens([2] * 4, 0, 1)
    assert budget.used == 40
    response = ended(second)
    assert list(response.choices[0].token_ids) == [2, 2]
    assert response.choices[0].truncated
    assert budget.used == 32
    third = Recorder(RecordingBounds(), budget)
    third.tokens([3, 3], 0, 1)
    assert not ended(third).choices[0].truncated
    ended(first)
    assert budget.used == 0


def test_after_a_refusal_nothing_is_added_to_a_choice() -> None:
    """A hole in the middle would read as another answer."""
    budget = ByteBudget(8)
    each = Recorder(RecordingBounds(), budget)
    each.tokens([1, 2, 3], 0, 1)
    budget.limit = 100
    each.tokens([4], 0, 2)
    assert list(ended(each).choices[0].token_ids) == [1, 2]


@pytest.mark.parametrize("budget", [None, ByteBudget(10**9)], ids=["free", "bounded"])
def test_a_long_response_comes_back_whole(budget: ByteBudget | None) -> None:
    each = Recorder(RecordingBounds(chunk_timing=True), budget)
    ids = [number * 7 % 50_000 for number in range(10_000)]
    for offset, id_ in enumerate(ids):
        each.tokens([id_], 0, offset)
    response = ended(each)
    assert list(response.choices[0].token_ids) == ids
    assert list(response.chunk_offsets_ns) == list(range(10_000))


@pytest.mark.parametrize(
    ("reason", "matched", "word"),
    [
        ("stop", 2, "eos"),
        ("stop", 9, "stop"),
        ("stop", "END", "stop"),
        ("stop", None, "stop"),
        ("length", None, "length"),
        ("abort", None, "cancelled"),
        ("error: broken", None, "error: broken"),
        ("content_filter", None, "content_filter"),
    ],
)
def test_rule_40_a_workers_reason_in_the_words_of_a_record(
    reason: str, matched: int | str | None, word: str
) -> None:
    assert finish_word(reason, matched, (2, 3)) == word
