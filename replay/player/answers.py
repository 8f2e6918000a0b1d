"""PURE.  Compares two answers to one request, token by token.

Rules.  Choices are compared by index.  Ids are compared where both sides have them, else text where
both have it, else nothing is said.  A choice that was recorded only in part (a cap of the tap) is
compared as far as it goes; so is an answer that did not end by itself (cancelled, failed), because
where it was cut off depends on the moment.  Lengths and finish reasons are compared of answers that
are complete on both sides.
"""

from collections.abc import Sequence
from enum import StrEnum

import attrs

from replay.player.observation import Choice, Observation, Outcome


class Tokens(StrEnum):
    """What can be said of the tokens of two answers."""

    EQUAL = "equal"
    DIFFER = "differ"
    UNKNOWN = "unknown"
    """At least one side did not record them."""


@attrs.frozen(kw_only=True)
class AnswerDifference:
    """How two answers to one request differ."""

    tokens: Tokens
    choice: int | None = None
    """Index of the first choice whose tokens differ."""
    first_index: int | None = None
    """Place of the first token that differs, from 0; the shorter one's length if one is the
    beginning of the other.
    """
    is_text: bool = False
    """Whether `first_index` counts characters, where no ids were recorded."""
    lengths_differ: bool = False
    finishes_differ: bool = False
    outcomes_differ: bool = False

    @property
    def is_equal(self) -> bool:
        """Whether nothing that could be compared differs."""
        return self.tokens is not Tokens.DIFFER and not (
            self.lengths_differ or self.finishes_differ or self.outcomes_differ
        )


def compare_answers(baseline: Observation, candidate: Observation) -> AnswerDifference:
    """Compare two answers to one request."""
    both_complete = baseline.outcome is candidate.outcome is Outcome.COMPLETE
    untold = Outcome.UNKNOWN in (baseline.outcome, candidate.outcome)
    ours = {choice.index: choice for choice in baseline.choices}
    theirs = {choice.index: choice for choice in candidate.choices}
    tokens = Tokens.EQUAL
    choice: int | None = None
    first_index: int | None = None
    is_text = False
    for index in sorted(ours.keys() | theirs.keys()):
        own, other = ours.get(index), theirs.get(index)
        if own is None or other is None:
            if both_complete:
                tokens, choice, first_index = Tokens.DIFFER, index, 0
                break
            continue
        sequences = _comparable(own, other)
        if sequences is None:
            tokens = Tokens.UNKNOWN
            continue
        place = _first_difference(
            *sequences,
            first_is_whole=both_complete and not own.is_truncated,
            second_is_whole=both_complete and not other.is_truncated,
        )
        if place is not None:
            tokens, choice, first_index = Tokens.DIFFER, index, place
            is_text = isinstance(sequences[0], str)
            break
    return AnswerDifference(
        tokens=tokens,
        choice=choice,
        first_index=first_index,
        is_text=is_text,
        lengths_differ=both_complete and _lengths(baseline) != _lengths(candidate),
        finishes_differ=both_complete and _finishes(baseline) != _finishes(candidate),
        outcomes_differ=not untold and baseline.outcome is not candidate.outcome,
    )


class Prompts(StrEnum):
    """What can be said of the prompt ids of two captures of one request."""

    MATCH = "match"
    DIFFERS = "differs"
    UNKNOWN = "unknown"


@attrs.frozen(kw_only=True)
class PromptDifference:
    """How the prompt that one side gave the engine differs from the other's."""

    prompts: Prompts
    first_index: int | None = None
    """Place of the first id that differs, from 0."""


def compare_prompts(baseline: Observation, candidate: Observation) -> PromptDifference:
    """Compare the prompt ids of one request."""
    if baseline.prompt_ids is None or candidate.prompt_ids is None:
        return PromptDifference(prompts=Prompts.UNKNOWN)
    place = _first_difference(
        baseline.prompt_ids, candidate.prompt_ids, first_is_whole=True, second_is_whole=True
    )
    if place is None:
        return PromptDifference(prompts=Prompts.MATCH)
    return PromptDifference(prompts=Prompts.DIFFERS, first_index=place)


def _comparable(one: Choice, other: Choice) -> tuple[Sequence[object], Sequence[object]] | None:
    if one.token_ids is not None and other.token_ids is not None:
        return one.token_ids, other.token_ids
    if one.text is not None and other.text is not None:
        return one.text, other.text
    return None


def _first_difference(
    first: Sequence[object],
    second: Sequence[object],
    *,
    first_is_whole: bool,
    second_is_whole: bool,
) -> int | None:
    """Return the first place at which two sequences differ, or None.

    A sequence that is not whole may go on beyond its end, so only a whole one can be too short.
    """
    if first == second:
        return None
    common = min(len(first), len(second))
    for place, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return place
    shorter_is_whole = first_is_whole if len(first) < len(second) else second_is_whole
    return common if shorter_is_whole else None


def _lengths(observation: Observation) -> list[tuple[int, int]]:
    return [(choice.index, choice.output_tokens) for choice in observation.choices]


def _finishes(observation: Observation) -> list[tuple[int, object]]:
    return [(choice.index, choice.finish) for choice in observation.choices]
