"""Recorded answers as scripts: what comes back out of one is what went in."""

from array import array

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import observation

from replay.engines.script_file import read_script
from replay.player.answers import compare_answers
from replay.player.observation import Choice, Observation, Outcome
from replay.player.to_script import NotScriptableError, has_recorded_moments, script_lines
from replay.player.traces.fault import Notes
from replay.player.traces.lines import split_lines
from replay.player.traces.options import ReadOptions
from replay.player.traces.script import read


def again(recorded: Observation) -> Observation:
    [arrival] = read(split_lines(script_lines(recorded)), ReadOptions(), Notes())
    assert arrival.recorded is not None
    return arrival.recorded


@given(st.integers(0, 40), st.integers(1, 40))
def test_tokens_and_moments_survive(tokens: int, chunks: int) -> None:
    ids = [*range(100, 100 + tokens)]
    recorded = attrs.evolve(observation(ids=ids), chunk_offsets_ns=None)
    chunks = min(chunks, tokens)
    if tokens:
        recorded = attrs.evolve(
            recorded,
            chunk_offsets_ns=array("Q", (number * 1_000_000 for number in range(1, chunks + 1))),
            first_token_offset_ns=1_000_000,
            last_token_offset_ns=chunks * 1_000_000,
        )
    found = again(recorded)
    assert compare_answers(recorded, found).is_equal
    assert found.first_token_offset_ns == recorded.first_token_offset_ns
    assert found.last_token_offset_ns == recorded.last_token_offset_ns
    if tokens:
        assert list(found.chunk_offsets_ns or ()) == list(recorded.chunk_offsets_ns or ())


def test_tokens_without_recorded_moments_come_evenly_between_first_and_last() -> None:
    recorded = attrs.evolve(observation(ids=(1, 2, 3), ttft_ms=10, gap_ms=5), chunk_offsets_ns=None)
    assert again(recorded).itl_ns == [5_000_000, 5_000_000]


def test_several_choices_are_lines_of_one_request() -> None:
    recorded = observation(ids=(1, 2))
    second = Choice(index=1, finish_reason="eos", output_tokens=1, token_ids=array("I", (9,)))
    recorded = attrs.evolve(recorded, choices=(*recorded.choices, second))
    found = again(recorded)
    assert compare_answers(recorded, found).is_equal
    assert [choice.finish_reason for choice in found.choices] == ["length", "stop"]


@pytest.mark.parametrize(
    ("outcome", "finish", "expected"),
    [
        (Outcome.CANCELLED, None, "abort"),
        (Outcome.CANCELLED, "length", "abort"),
        (Outcome.COMPLETE, "eos", "stop"),
        (Outcome.COMPLETE, "content_filter", "stop"),
        (Outcome.INCOMPLETE, None, "abort"),
    ],
)
def test_ends_have_the_words_of_a_script(
    outcome: Outcome, finish: str | None, expected: str
) -> None:
    found = again(observation(outcome=outcome, finish=finish))
    assert found.choices[0].finish_reason == expected


def test_a_failure_fails_again_after_as_many_chunks() -> None:
    found = again(observation(outcome=Outcome.ERROR))
    assert (found.outcome, found.error) == (Outcome.ERROR, "INTERNAL")
    assert found.output_tokens == 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"is_truncated": True}, "only the first tokens"),
        ({"token_ids": None}, "were not recorded"),
    ],
)
def test_what_was_not_recorded_whole_cannot_be_answered_again(
    change: dict[str, object], reason: str
) -> None:
    recorded = observation()
    recorded = attrs.evolve(recorded, choices=(attrs.evolve(recorded.choices[0], **change),))
    with pytest.raises(NotScriptableError, match=reason):
        script_lines(recorded)
    with pytest.raises(NotScriptableError, match="how it ended"):
        script_lines(observation(outcome=Outcome.UNKNOWN))


def test_choices_with_a_hole_between_them_are_not_answered_again() -> None:
    recorded = observation()
    second = attrs.evolve(recorded.choices[0], index=2)
    with pytest.raises(NotScriptableError, match="not all of its choices"):
        script_lines(attrs.evolve(recorded, choices=(*recorded.choices, second)))


def test_a_failure_before_any_token_is_a_failure() -> None:
    failed = attrs.evolve(observation(outcome=Outcome.ERROR), choices=(), chunk_offsets_ns=None)
    found = again(failed)
    assert (found.outcome, found.output_tokens) == (Outcome.ERROR, 0)
    assert has_recorded_moments(failed)


def test_moments_are_known_of_one_choice_with_a_time_for_each_chunk() -> None:
    recorded = attrs.evolve(observation(ids=(1, 2, 3)), chunk_offsets_ns=array("Q", (1, 2)))
    assert has_recorded_moments(recorded)
    assert not has_recorded_moments(attrs.evolve(recorded, chunk_offsets_ns=None))
    second = attrs.evolve(recorded.choices[0], index=1)
    assert not has_recorded_moments(attrs.evolve(recorded, choices=(*recorded.choices, second)))


def test_the_lines_are_a_script_that_a_worker_takes() -> None:
    recorded = observation(ids=(1, 2, 3))
    second = attrs.evolve(recorded.choices[0], index=1)
    several = attrs.evolve(recorded, choices=(*recorded.choices, second))
    script = read_script([*script_lines(several, times=2), *script_lines(recorded)])
    assert script.faults == []
    assert [(choice.index, choice.times) for choice in script.choices] == [
        (0, 2),
        (1, 2),
        (0, None),
    ]
