"""What comes back for a request, put together."""

from array import array

import pytest

from replay.player.answer_log import AnswerLog
from replay.player.observation import Outcome


def log(*, expected: int = 1, is_streamed: bool = True) -> AnswerLog:
    made = AnswerLog("r", 3)
    made.sent(1_000, expected=expected, is_streamed=is_streamed)
    return made


@pytest.mark.parametrize(
    ("reasons", "expected", "outcome"),
    [
        (["stop"], 1, Outcome.COMPLETE),
        (["stop", "length"], 2, Outcome.COMPLETE),
        (["stop"], 2, Outcome.INCOMPLETE),
        ([], 1, Outcome.INCOMPLETE),
        (["abort"], 1, Outcome.CANCELLED),
        (["stop", "abort"], 2, Outcome.CANCELLED),
        (["stop", "error"], 2, Outcome.ERROR),
        (["abort", "error: x"], 2, Outcome.ERROR),
        # A server that reads n = 0 as 1 ends one choice.
        (["stop"], 0, Outcome.COMPLETE),
    ],
)
def test_the_ends_of_the_choices_make_the_outcome(
    reasons: list[str], expected: int, outcome: Outcome
) -> None:
    made = log(expected=expected)
    for index, reason in enumerate(reasons):
        made.finish(index, reason)
    assert made.ended(2_000).outcome is outcome


def test_events_are_measured_from_the_sending() -> None:
    made = log()
    made.tokens(0, [1, 2], 1_010)
    made.tokens(0, [], 1_015)
    made.tokens(0, [3], 1_030)
    found = made.cancelled(1_040)
    assert (found.first_token_offset_ns, found.last_token_offset_ns) == (10, 30)
    assert list(found.chunk_offsets_ns or ()) == [10, 30]
    assert (found.end_offset_ns, found.output_tokens) == (40, 3)


def test_the_tokens_at_the_end_are_the_answer() -> None:
    made = log()
    made.tokens(0, [1], 1_010)
    made.whole(0, [1, 2, 3])
    made.whole(0, [])
    assert made.ended(1_020).choices[0].token_ids == array("I", (1, 2, 3))


def test_a_request_that_never_left_has_no_offset_below_zero() -> None:
    found = AnswerLog("r", 3).cancelled(50, reason="the run ended")
    assert (found.sent_ns, found.end_offset_ns, found.error) == (None, 50, "the run ended")


def test_a_count_that_the_target_gives_is_not_put_on_one_of_several_choices() -> None:
    made = log(expected=2)
    for index in (0, 1):
        made.text(index, "a", 1_010)
    made.counted(9)
    assert [choice.output_tokens for choice in made.ended(1_020).choices] == [1, 1]
