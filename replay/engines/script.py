"""Scripted answers over an engine: what the script has an answer for, the engine is not asked.

Chunks leave as they are written, several ids in one if so, each at its time from the arrival of the
request.  A client that reads slowly delays what follows; nothing is merged.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import trio
from purerpc.grpclib.exceptions import NotFoundError, raise_status
from purerpc.grpclib.status import Status, StatusCode

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.engines.base import Answer, Engine, Generation, Loads, Model
from replay.engines.engine_layer import EngineLayer
from replay.engines.own_abort import with_own_aborts
from replay.engines.realistic import RealisticEngine
from replay.engines.sampling import output_logprobs
from replay.engines.script_book import ScriptBook, Step, plan_steps
from replay.engines.script_file import ScriptedChoice
from replay.worker.in_flight import InFlight


class ScriptEngine(EngineLayer):
    """Answers from *book* what it has an answer for, and lets *below* answer the rest.

    With *strict* the rest gets NOT_FOUND.  *simulator* is the realistic engine at the bottom, if
    there is one: what is scripted counts in the load that it tells.
    """

    def __init__(
        self,
        below: Engine,
        book: ScriptBook,
        *,
        strict: bool = False,
        simulator: RealisticEngine | None = None,
    ) -> None:
        super().__init__(below)
        self._simulator = simulator
        if simulator is not None:
            simulator.reported_loads = self.loads
        self._book = book
        self._strict = strict
        self._playing: InFlight[trio.CancelScope] = InFlight()

    @property
    def sends_headers(self) -> bool:
        """True: an answer that is an error from the start has none, as a refusal has none."""
        return True

    async def generate(self, generation: Generation, answer: Answer) -> None:
        """Answer one request; raises the status that the script says, or the engine's."""
        choices = self._book.take(generation.request_id, generation.choices)
        if choices is not None:
            with self._abortable(generation, answer):
                await _play(choices, generation, answer, self.model)
        elif self._strict:
            raise NotFoundError("the script has no answer for this request")
        else:
            if not self.below.sends_headers:
                answer.respond()
            await self.below.generate(generation, answer)

    def loads(self) -> Loads:
        """Return what the engine below holds; a scripted request is a running one."""
        loads = self.below.loads()
        return attrs.evolve(loads, running=loads.running + len(self._playing))

    def methods(self) -> Mapping[str, Any]:
        """Return the methods of the engine below; its Abort ends what is scripted, too."""
        return with_own_aborts(self.below.methods(), self._end)

    # ---- inside

    @contextmanager
    def _abortable(self, generation: Generation, answer: Answer) -> Iterator[None]:
        scope = trio.CancelScope()
        self._playing.add(generation.request_id, scope)
        self._tell_load()
        try:
            with scope:
                yield
        finally:
            self._playing.remove(generation.request_id, scope)
            self._tell_load()
        if scope.cancelled_caught:
            for index in range(generation.choices):
                answer.finish("abort", index)

    def _tell_load(self) -> None:
        if self._simulator is not None:
            self._simulator.kv_events.tell()

    def _end(self, request_id: str) -> int:
        playing = self._playing.find(request_id)
        for scope in playing:
            scope.cancel()
        return len(playing)


# ---- playing


async def _play(
    choices: Sequence[ScriptedChoice], generation: Generation, answer: Answer, model: Model
) -> None:
    steps = plan_steps(choices)
    if steps[0].error is None:
        answer.respond()
    for step in steps:
        await trio.sleep_until(generation.arrival + step.offset_seconds)
        await answer.room()
        if step.error is not None:
            raise_status(Status(StatusCode[step.error.code], step.error.message))
        elif step.chunk is None:
            answer.forward(_complete(step, generation, model))
        elif generation.message.stream:
            answer.forward(_chunk(step, step.chunk, generation, model))
        else:
            answer.tokens(step.chunk, step.choice.index)


def _chunk(
    step: Step, ids: Sequence[int], generation: Generation, model: Model
) -> pb.GenerateResponse:
    chunk = pb.GenerateStreamChunk(
        token_ids=ids,
        prompt_tokens=generation.prompt_tokens,
        completion_tokens=step.start + len(ids),
        output_logprobs=_logprobs(step.choice, ids, step.start, generation, model),
        index=step.choice.index,
        weight_version=model.weight_version or None,
    )
    return pb.GenerateResponse(request_id=generation.request_id, chunk=chunk)


def _complete(step: Step, generation: Generation, model: Model) -> pb.GenerateResponse:
    choice = step.choice
    ids = [token for chunk in choice.chunks for token in chunk]
    complete = pb.GenerateComplete(
        output_ids=ids,
        finish_reason=choice.finish_reason,
        prompt_tokens=generation.prompt_tokens,
        completion_tokens=len(ids),
        output_logprobs=_logprobs(choice, ids, 0, generation, model),
        index=choice.index,
        weight_version=model.weight_version or None,
    )
    if isinstance(choice.matched_stop, int):
        complete.matched_token_id = choice.matched_stop
    elif choice.matched_stop is not None:
        complete.matched_stop_str = choice.matched_stop
    return pb.GenerateResponse(request_id=generation.request_id, complete=complete)


def _logprobs(
    choice: ScriptedChoice, ids: Sequence[int], start: int, generation: Generation, model: Model
) -> pb.OutputLogProbs | None:
    """Return what the script says, made-up values where it says nothing, None if nobody asked."""
    message = generation.message
    if not message.return_logprob:
        return None
    if choice.logprobs is None:
        return output_logprobs(message, model, ids, start)
    logprobs = pb.OutputLogProbs(
        token_ids=ids, token_logprobs=choice.logprobs[start : start + len(ids)]
    )
    for token, logprob in zip(ids, logprobs.token_logprobs, strict=True):
        top = logprobs.top_logprobs.add()
        if message.top_logprobs_num:
            top.token_ids.append(token)
            top.values.append(logprob)
    return logprobs
