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

    __slots__ = ("answer", "ended", "error", "is_closed", "is_started", "sequences", "unfinished")

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.sequences: list[AnswerSequence] = []
        self.unfinished = 0
        #: Whether anything was written.
        self.is_started = False
        #: Whether its request is gone.
        self.is_closed = False
        self.ended = trio.Event()
        self.error: Exception | None = None


class AnswerSequence(KvSequence):
    """One choice of a request."""

    __slots__ = ("choice", "index", "stream")

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
        self.index = index
        self.choice = choice
        stream.sequences.append(self)
        stream.unfinished += 1

    def write(self, first: int, last: int) -> int:
        """Hand on what was generated; return how many tokens a client sees of it."""
        stream = self.stream
        if stream.is_closed:
            return 0
        ids = self.says[first:last]
        try:
            if not stream.is_started:
                stream.is_started = True
                stream.answer.set_cached_tokens(self.cached_tokens or 0)
            if ids:
                stream.answer.tokens(ids, self.index)
            if last == self.steps:
                self._finish()
        except Exception as error:  # belongs to one request; the others go on
            stream.error = error
            stream.is_closed = True
            stream.ended.set()
            return 0
        return len(ids)

    def _finish(self) -> None:
        stream = self.stream
        stream.answer.finish(
            self.choice.reason,
            self.index,
            matched=self.choice.matched,
            spec_accepted=self.draft_accepted,
            spec_draft=self.drafted,
        )
        stream.unfinished -= 1
        if not stream.unfinished:
            stream.ended.set()
