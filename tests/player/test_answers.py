"""Two answers to one request, token by token."""

from array import array

import attrs
import pytest
from runs import observation

from replay.player.answers import Prompts, Tokens, compare_answers, compare_prompts
from replay.player.observation import Choice, Finish, Observation, Outcome, finish_of


def test_equal_answers_differ_in_nothing() -> None:
    found = compare_answers(observation(), observation())
    assert found.is_equal
    assert (found.tokens, found.first_index) == (Tokens.EQUAL, None)


@pytest.mark.parametrize(
    ("ids", "first_index", "lengths_differ"),
    [
        ((9, 2, 3), 0, False),
        ((1, 2, 9), 2, False),
        ((1, 2), 2, True),
        ((1, 2, 3, 4), 3, True),
        ((), 0, True),
    ],
)
def test_the_first_token_that_differs_is_named(
    ids: tuple[int, ...], first_index: int, lengths_differ: bool
) -> None:
    found = compare_answers(observation(), observation(ids=ids))
    assert (found.tokens, found.choice, found.first_index) == (Tokens.DIFFER, 0, first_index)
    assert found.lengths_differ is lengths_differ
    assert not found.is_equal


def test_a_choice_that_one_side_lacks_differs_from_its_first_token_on() -> None:
    one = observation()
    second = Choice(index=1, finish_reason="length", output_tokens=1, token_ids=array("I", (4,)))
    found = compare_answers(one, attrs.evolve(one, choices=(*one.choices, second)))
    assert (found.tokens, found.choice, found.first_index) == (Tokens.DIFFER, 1, 0)


def test_a_cancelled_answer_is_compared_as_far_as_it_goes() -> None:
    """Where it was cut off depends on the moment, and is no difference."""
    cut = observation(ids=(1, 2), outcome=Outcome.CANCELLED, finish=None)
    longer = observation(ids=(1, 2, 3), outcome=Outcome.CANCELLED, finish="cancelled")
    assert compare_answers(cut, longer).is_equal
    other = observation(ids=(1, 9, 3), outcome=Outcome.CANCELLED)
    assert compare_answers(cut, other).first_index == 1


def test_a_capped_recording_is_compared_as_far_as_it_goes() -> None:
    whole = observation(ids=(1, 2, 3))
    capped = attrs.evolve(
        whole,
        choices=(attrs.evolve(whole.choices[0], token_ids=array("I", (1, 2)), is_truncated=True),),
    )
    assert compare_answers(whole, capped).is_equal
    short = observation(ids=(1,))
    assert compare_answers(capped, short).first_index == 1


def test_tokens_that_were_not_recorded_are_not_called_equal() -> None:
    one = observation()
    untold = attrs.evolve(one, choices=(attrs.evolve(one.choices[0], token_ids=None),))
    assert compare_answers(one, untold).tokens is Tokens.UNKNOWN


def test_text_is_compared_where_there_are_no_ids() -> None:
    found = compare_answers(observation(text="abc"), observation(text="abd"))
    assert (found.tokens, found.first_index, found.is_text) == (Tokens.DIFFER, 2, True)


def test_outcomes_and_finish_reasons_are_compared() -> None:
    failed = observation(outcome=Outcome.ERROR)
    assert compare_answers(observation(), failed).outcomes_differ
    assert not compare_answers(observation(), observation(outcome=Outcome.UNKNOWN)).outcomes_differ
    assert compare_answers(observation(), observation(finish="stop")).finishes_differ


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("eos", Finish.STOP),
        ("stop", Finish.STOP),
        ("abort", Finish.CANCELLED),
        ("error: the prompt was too long", Finish.ERROR),
        ("something new", Finish.OTHER),
        ("", None),
        (None, None),
    ],
)
def test_the_words_of_taps_and_of_the_wire_mean_the_same(
    reason: str | None, finish: Finish | None
) -> None:
    assert finish_of(reason) is finish


def prompt(*ids: int) -> Observation:
    return Observation(request_id="a", prompt_ids=array("I", ids))


def test_prompts_match_or_differ_at_an_index_or_are_not_known() -> None:
    assert compare_prompts(prompt(1, 2), prompt(1, 2)).prompts is Prompts.MATCH
    found = compare_prompts(prompt(1, 2, 3), prompt(1, 2))
    assert (found.prompts, found.first_index) == (Prompts.DIFFERS, 2)
    assert compare_prompts(prompt(1), Observation(request_id="a")).prompts is Prompts.UNKNOWN


def test_latencies_that_are_not_defined_are_none_and_not_zero() -> None:
    nothing = observation(ids=())
    assert (nothing.ttft_ns, nothing.tpot_ns, nothing.normalised_tpot_ns) == (None, None, None)
    assert nothing.itl_ns == []
    single = observation(ids=(1,))
    assert single.tpot_ns is None
    assert single.normalised_tpot_ns == single.e2e_ns
