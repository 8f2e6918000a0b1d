"""The answer to one Generate: what an engine makes, turned into messages and shown to the taps.

A client that reads slowly costs its tokens and not its messages: while the call is full the ids
wait (they are needed for the `Complete` in any case) and leave as one larger chunk when there is
room.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.engines.base import Generation, Model
from replay.engines.sampling import output_logprobs
from replay.rpc.calls import Call, frame_message
from replay.rpc.hpack import Field
from replay.taps.finish_reasons import error_word, finish_word
from replay.worker.encode import (
    MAX_CUT_TOKENS,
    ChoiceShape,
    CutAnswers,
    chunk_message,
    complete_message,
    token_message,
)


class Observer(Protocol):
    """Somebody who watches an answer as it passes: a tap's recording, or the worker's metrics.

    Finish reasons are in the words of a record (`replay.taps.finish_reasons`).
    """

    def observe(self, ids: Sequence[int], index: int = 0, finish_reason: str | None = None) -> None:
        """Take note of tokens of choice *index*, or of its end."""
        ...

    def observe_whole(self, ids: Sequence[int], finish_reason: str) -> None:
        """Take note of a whole answer of one choice, a chunk for each token."""
        ...


class _Choice:
    """What one choice has so far."""

    __slots__ = ("finished", "ids", "shape", "unsent")

    def __init__(self, shape: ChoiceShape) -> None:
        self.shape = shape
        self.ids: list[int] = []
        #: How many of the ids wait for room.
        self.unsent = 0
        self.finished = False


class GenerateAnswer:
    """Implements `replay.engines.base.Answer` on a call."""

    __slots__ = (
        "_cached_tokens",
        "_call",
        "_choices",
        "_cut",
        "_generation",
        "_held",
        "_model",
        "_observers",
        "_open_choices",
        "_with_logprobs",
        "streams",
        "token_times",
    )

    def __init__(
        self,
        call: Call,
        generation: Generation,
        model: Model,
        cut: CutAnswers,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._call = call
        self._generation = generation
        self._model = model
        self._cut = cut
        self._observers = tuple(observers)
        self._cached_tokens = 0
        self._choices: list[_Choice] | None = None
        self._open_choices = generation.choices
        self._held = False
        message = generation.message
        self.streams = message.stream
        self._with_logprobs = message.return_logprob

    # ---- replay.engines.base.Answer

    @property
    def is_open(self) -> bool:
        """Whether anybody still wants tokens."""
        return self._open_choices > 0 and self._call.is_open

    def set_cached_tokens(self, count: int) -> None:
        """Say how many prompt tokens came out of a cache."""
        self._cached_tokens = count

    def tokens(self, ids: Sequence[int], index: int = 0) -> None:
        """Put the next tokens of choice *index*."""
        call = self._call
        if not ids:
            return
        choice = (self._choices or self._open_all())[index]
        if choice.finished:
            return
        has_left = False
        if len(ids) == 1 and self.streams and not (self._held or self._with_logprobs):
            # The path of every token of a paced stream.
            message = token_message(choice.shape, ids[0], len(choice.ids) + 1)
            has_left = call.write_ready(message)
        if not has_left and not call.is_open:
            return
        choice.ids += ids
        for observer in self._observers:
            observer.observe(ids, index)
        if has_left or not self.streams:
            return
        choice.unsent += len(ids)
        if self._held:
            return
        if call.is_full:
            self._hold()
        else:
            self._send_chunk(choice)

    def finish(
        self,
        reason: str,
        index: int = 0,
        *,
        matched: int | str | None = None,
        spec_accepted: int = 0,
        spec_draft: int = 0,
    ) -> None:
        """End choice *index*; the last one ends the answer."""
        word = self._word(reason, matched)
        self._finish(reason, index, word, matched, spec_accepted, spec_draft)

    def fail(self, message: str, index: int = 0) -> None:
        """End choice *index* as failed."""
        self._finish("error", index, error_word(message))

    def whole(self, ids: Sequence[int], reason: str, *, matched: int | None = None) -> None:
        """Put a whole answer of one choice at once."""
        if (
            not self.streams
            or self._with_logprobs
            or self._choices is not None
            or self._generation.choices != 1
            or len(ids) > MAX_CUT_TOKENS
            or self._call.is_full
        ):
            for token in ids if self.streams else ():
                self.tokens((token,))
            if not self.streams:
                self.tokens(ids)
            self.finish(reason, matched=matched)
            return
        if not self._call.is_open:
            return
        if self._observers:
            word = self._word(reason, matched)
            for observer in self._observers:
                observer.observe_whole(ids, word)
        self._open_choices = 0
        self._call.write_whole(
            self._cut.message_bytes(
                self._generation.request_id,
                ids,
                reason,
                matched=matched,
                prompt_tokens=self._generation.prompt_tokens,
                cached_tokens=self._cached_tokens,
                weight_version=self._model.weight_version,
            )
        )

    def respond(self, metadata: Iterable[Field] = ()) -> None:
        """Send the initial headers, unless they have been sent."""
        self._call.respond(metadata)

    def set_trailing_metadata(self, metadata: Sequence[Field]) -> None:
        """Say what the trailers will have beside the status."""
        self._call.trailing_metadata = metadata

    def forward(self, response: pb.GenerateResponse, packed: bytes | None = None) -> None:
        """Pass on a response that is already made, field for field."""
        if not self._call.is_open:
            return
        kind = response.WhichOneof("response")
        if kind == "chunk":
            self._note_chunk(response.chunk)
        elif kind == "complete":
            self._note_complete(response.complete)
        self._call.write(frame_message(response.SerializeToString() if packed is None else packed))

    def _note_chunk(self, chunk: pb.GenerateStreamChunk) -> None:
        ids, index = chunk.token_ids, chunk.index
        if index < self._generation.choices:  # what else another engine says passes all the same
            choice = self._choice(index)
            choice.ids += ids
        for observer in self._observers:
            observer.observe(ids, index)

    def _note_complete(self, complete: pb.GenerateComplete) -> None:
        index, known = complete.index, 0
        if index < self._generation.choices:
            choice = self._choice(index)
            known = len(choice.ids)
            if not choice.finished:
                choice.finished = True
                self._open_choices -= 1
        if self._observers:
            kind = complete.WhichOneof("matched_stop")
            matched = getattr(complete, kind) if kind else None
            word = self._word(complete.finish_reason, matched)
            for observer in self._observers:
                observer.observe(complete.output_ids[known:], index, word)

    @property
    def is_full(self) -> bool:
        """Whether the client has so much left to read that `room` would wait."""
        return self._call.is_full

    async def room(self) -> None:
        """Wait until the client has read enough to take more."""
        await self._call.room()

    # ---- the service's side

    @property
    def unfinished(self) -> list[int]:
        """The choices that have not ended."""
        if self._open_choices == 0:
            return []
        if self._choices is None:
            return list(range(self._generation.choices))
        return [index for index, choice in enumerate(self._choices) if not choice.finished]

    def abort(self) -> None:
        """End every open choice with finish `abort`.  Nobody watches any more: what the request was
        cut short by has been seen."""
        self._observers = ()
        for index in self.unfinished:
            self._finish("abort", index, "")

    # ---- inside

    def _word(self, reason: str, matched: int | str | None) -> str:
        return finish_word(reason, matched, self._model.eos_token_ids) if self._observers else ""

    def _choice(self, index: int) -> _Choice:
        return (self._choices or self._open_all())[index]

    def _open_all(self) -> list[_Choice]:
        generation = self._generation
        self._choices = [
            _Choice(
                ChoiceShape(
                    generation.request_id,
                    prompt_tokens=generation.prompt_tokens,
                    cached_tokens=self._cached_tokens,
                    index=each,
                    weight_version=self._model.weight_version,
                )
            )
            for each in range(generation.choices)
        ]
        return self._choices

    def _send_chunk(self, choice: _Choice) -> None:
        """Send what has not been sent yet."""
        ids = choice.ids
        sent, choice.unsent = len(ids) - choice.unsent, 0
        fresh = ids[sent:] if sent else ids
        logprobs = self._logprobs(fresh, sent) if self._with_logprobs else None
        self._call.write(chunk_message(choice.shape, fresh, len(ids), logprobs))

    def _logprobs(self, ids: Sequence[int], position: int) -> pb.OutputLogProbs:
        return output_logprobs(self._generation.message, self._model, ids, position)

    def _hold(self) -> None:
        self._held = True
        self._call.when_room(self._release)

    def _release(self) -> None:
        self._held = False
        for choice in self._choices or ():
            if choice.unsent and not choice.finished:
                if self._call.is_full:
                    self._hold()
                    return
                self._send_chunk(choice)

    def _finish(
        self,
        reason: str,
        index: int,
        observed: str,
        matched: int | str | None = None,
        spec_accepted: int = 0,
        spec_draft: int = 0,
    ) -> None:
        if not self._call.is_open:
            return
        choice = self._choice(index)
        if choice.finished:
            return
        choice.finished = True
        self._open_choices -= 1
        for observer in self._observers:
            observer.observe((), index, observed)
        if choice.unsent:
            # What was held leaves with the end: it is no more than the end itself repeats.
            self._send_chunk(choice)
        logprobs = self._logprobs(choice.ids, 0) if self._with_logprobs else None
        self._call.write(
            complete_message(
                choice.shape,
                choice.ids,
                reason,
                matched=matched,
                logprobs=logprobs,
                spec_accepted=spec_accepted,
                spec_draft=spec_draft,
            )
        )
        if self._open_choices == 0:
            # Here and not when the engine's coroutine returns: the trailers leave in the same
            # flush.
            self._call.finish()
