"""PURE.  What a tap remembers of a response while it passes, and how it ended (rules 37 to 49).

Times are nanoseconds from the arrival of the request; they are given, nobody asks a clock here.
"""

from array import array
from collections.abc import Sequence
from typing import Final

import attrs

from replay.packed import TOKEN_BYTES
from replay.taps.column import BLOCK, Column
from replay.taps.response import Choice, Outcome, Response

OFFSET_BYTES: Final = array("Q").itemsize

#: What a finish reason that is a failure begins with on the wire.
ERROR_PREFIX: Final = "error: "
CANCELLED_REASON: Final = "cancelled"


@attrs.frozen
class RecordingBounds:
    """What is recorded of a response.  Taps with equal bounds share one recorder."""

    tokens: bool = True
    max_tokens: int | None = None
    """Recorded ids of each choice."""
    chunk_timing: bool = False


@attrs.define
class ByteBudget:
    """The bytes that all open responses of a tap may hold together."""

    limit: int
    used: int = 0

    def grant(self, wanted: int, size: int) -> int:
        """Take room for up to *wanted* items of *size* bytes; return for how many there was."""
        granted = min(wanted, max(0, self.limit - self.used) // size)
        self.used += granted * size
        return granted

    def give_back(self, count: int) -> None:
        """Return *count* bytes."""
        self.used -= count


class _OpenChoice:
    """One of the n answers while it comes."""

    __slots__ = ("finish_reason", "ids", "is_finished", "output_tokens", "truncated")

    def __init__(self) -> None:
        self.ids = Column("I")
        self.output_tokens = 0
        self.finish_reason: str | None = None
        self.is_finished = False
        self.truncated = False


class Recorder:
    """Remembers one response within *bounds* and, if there is one, a budget of bytes."""

    __slots__ = (
        "_bounds",
        "_budget",
        "_choices",
        "_first_token_ns",
        "_last_token_ns",
        "_offsets",
        "_records_all",
        "_saw_cancelled",
        "_saw_error",
    )

    def __init__(self, bounds: RecordingBounds, budget: ByteBudget | None = None) -> None:
        self._bounds = bounds
        self._budget = budget
        self._choices: dict[int, _OpenChoice] = {}
        self._offsets = Column("Q")
        self._first_token_ns: int | None = None
        self._last_token_ns: int | None = None
        self._saw_error = False
        self._saw_cancelled = False
        # The common case pays for no bound.
        self._records_all = bounds.tokens and bounds.max_tokens is None and budget is None

    @property
    def recorded_bytes(self) -> int:
        """Bytes of the recorded ids and offsets: what rule 42 bounds."""
        ids = sum(len(choice.ids) for choice in self._choices.values())
        return ids * TOKEN_BYTES + len(self._offsets) * OFFSET_BYTES

    def tokens(self, ids: Sequence[int], index: int, offset_ns: int, chunks: int = 1) -> None:
        """Remember the next tokens of choice *index*, which came in *chunks* chunks at once."""
        choice = self._choices.get(index)
        if choice is None:
            choice = self._choices[index] = _OpenChoice()
        count = len(ids)
        if not count:
            return
        choice.output_tokens += count
        if self._first_token_ns is None:
            self._first_token_ns = offset_ns
        self._last_token_ns = offset_ns
        if self._records_all:
            column = choice.ids
            column.open.extend(ids)
            if len(column.open) >= BLOCK:
                column.seal()
        elif self._bounds.tokens:
            self._record_within_bounds(choice, ids)
        if self._bounds.chunk_timing:
            self._record_offsets(choice, offset_ns, chunks)

    def _record_within_bounds(self, choice: _OpenChoice, ids: Sequence[int]) -> None:
        if choice.truncated:
            # A choice with a hole would read as another answer: after a refusal nothing is added.
            return
        column = choice.ids
        cap = self._bounds.max_tokens
        room = len(ids)
        if cap is not None:
            room = min(room, cap - len(column))
        if self._budget is not None:
            room = self._budget.grant(room, TOKEN_BYTES)
        if room < len(ids):
            choice.truncated = True
            ids = ids[:room]
        column.open.extend(ids)
        if choice.truncated or len(column) == cap:
            column.trim()
        elif len(column.open) >= BLOCK:
            column.seal()

    def _record_offsets(self, choice: _OpenChoice, offset_ns: int, chunks: int) -> None:
        # Rule 41: `max_tokens` does not cap these; the tap's budget does.
        if self._budget is not None:
            granted = self._budget.grant(chunks, OFFSET_BYTES)
            choice.truncated |= granted < chunks
            chunks = granted
        self._offsets.open.extend([offset_ns] * chunks)
        if len(self._offsets.open) >= BLOCK:
            self._offsets.seal()

    def finish(self, reason: str, index: int) -> None:
        """Remember why choice *index* ended: a finish reason in the words of the wire."""
        choice = self._choices.get(index)
        if choice is None:
            choice = self._choices[index] = _OpenChoice()
        if reason == CANCELLED_REASON:
            self._saw_cancelled = True
        elif reason.startswith(ERROR_PREFIX) or reason == "error":
            self._saw_error = True
        else:
            # Rule 43 asks for the first reason.  Any will do: after a bad one nothing is complete.
            choice.is_finished = True
        choice.finish_reason = reason

    def error(self) -> None:
        """Remember that something went wrong which belongs to no choice (rules 37 and 46)."""
        self._saw_error = True

    def response(
        self, *, expected_choices: int, ended: bool, is_cancelled: bool, end_offset_ns: int
    ) -> Response:
        """Return the response as it is now; the recorder is not to be used any more.

        *ended* says that the stream came to its normal end, *is_cancelled* that the request's
        context was cancelled, by whomever.
        """
        response = Response(
            outcome=self._outcome(expected_choices, ended, is_cancelled),
            choices=tuple(
                Choice(
                    index=index,
                    finish_reason=choice.finish_reason,
                    output_tokens=choice.output_tokens,
                    token_ids=choice.ids.numbers(),
                    truncated=choice.truncated,
                )
                for index, choice in sorted(self._choices.items())
            ),
            first_token_offset_ns=self._first_token_ns,
            last_token_offset_ns=self._last_token_ns,
            end_offset_ns=end_offset_ns,
            chunk_offsets_ns=self._offsets.numbers(),
        )
        if self._budget is not None:
            self._budget.give_back(response.recorded_bytes)
        return response

    def _outcome(self, expected_choices: int, ended: bool, is_cancelled: bool) -> Outcome:
        """Decide the outcome: the first of the rules 44 to 48 that matches."""
        finished = sum(choice.is_finished for choice in self._choices.values())
        if finished >= expected_choices and not self._saw_error and not self._saw_cancelled:
            return Outcome.COMPLETE
        if self._saw_cancelled or is_cancelled:
            return Outcome.CANCELLED
        if self._saw_error:
            return Outcome.ERROR
        return Outcome.INCOMPLETE if ended else Outcome.CANCELLED
