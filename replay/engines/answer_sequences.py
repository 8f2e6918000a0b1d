"""What a scheduled sequence means to its client.

A request has a stream with a sequence for each of its choices; the scheduler knows the sequences
only, and whoever ends a pass hands on what they have generated.
"""

from array import array

import trio

from replay.engines.base import Answer
from replay.engines.sampling import Choice
from replay.engines.scheduler import KvSequence


class AnswerStream:
    """One request that is being answered."""

    __slots__ = ("answer", "ended", "error", "is_started", "sequences", "unfinished")

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.sequences: list[AnswerSequence] = []
        self.unfinished = 0
        #: Whether anything was written.
        self.is_started = False
        self.ended = trio.Event()
        self.error: Exception | None = None

    def close(self) -> None:
        """Write nothing more: the request is gone."""
        for sequence in self.sequences:
            sequence.answer = None

    def start(self, cached_tokens: int) -> None:
        """Say how much was cached, once."""
        if not self.is_started:
            self.is_started = True
            self.answer.set_cached_tokens(cached_tokens)

    def finish_one(self) -> None:
        """Take note of the end of a choice."""
        self.unfinished -= 1
        if not self.unfinished:
            self.ended.set()

    def fail(self, error: Exception) -> None:
        """End with *error*."""
        self.error = error
        self.close()
        self.ended.set()


class AnswerSequence(KvSequence):
    """One choice of a request."""

    __slots__ = ("answer", "choice", "index", "stream")

    def __init__(
        self,
        stream: AnswerStream,
        index: int,
        choice: Choice,
        prompt: "array[int]",
        hashes: list[int],
        *,
        trims: bool,
    ) -> None:
        # A stop id that is cut off has to be generated all the same.
        steps = len(choice.ids) + (trims and choice.matched is not None)
        super().__init__(prompt, choice.ids, steps, hashes)
        self.stream = stream
        #: The stream's; None once nothing more is to be written.
        self.answer: Answer | None = stream.answer
        self.index = index
        self.choice = choice
        stream.sequences.append(self)
        stream.unfinished += 1

    def write(self, first: int, last: int) -> int:
        """Hand on what was generated; return how many tokens a client sees of it."""
        answer = self.answer
        if answer is None:
            return 0
        ids = self.says[first:last]
        try:
            if not first:
                self.stream.start(self.cached_tokens or 0)
            if ids:
                answer.tokens(ids, self.index)
            if last == self.steps:
                self._finish(answer)
        except Exception as error:  # belongs to one request; the others go on
            self.stream.fail(error)
            return 0
        return len(ids)

    def _finish(self, answer: Answer) -> None:
        answer.finish(
            self.choice.reason,
            self.index,
            matched=self.choice.matched,
            spec_accepted=self.draft_accepted,
            spec_draft=self.drafted,
        )
        self.stream.finish_one()
