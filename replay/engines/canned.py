"""The canned engine: counted or drawn tokens at a fixed pace, whatever the prompt.

Without waits an answer is written at once, in the request's own task.  With time between tokens one
task paces all streams: a wake-up, a cancel scope and a write for each token of each stream would
cost twenty times as much.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import trio

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.config.engines import CannedConfig
from replay.engines.base import Answer, Generation, Loads, Model
from replay.engines.pass_grid import PacedStream, PassGrid
from replay.engines.sampling import Choice, plan_choice
from replay.engines.throughput import Throughput
from replay.engines.validation import check_request

#: Tokens that one stream may write before others get a turn: about a millisecond.
BURST_TOKENS = 512

#: What the wire's int32 can say for "no limit": a canned engine is never full, and a gateway that
#: divides by it sees an idle one.
UNLIMITED = 2**31 - 1


class CannedEngine:
    """Answers every request with tokens that are known before it begins."""

    sends_headers = False

    def __init__(self, model: Model, config: CannedConfig | None = None) -> None:
        config = config or CannedConfig()
        self.model = model
        self._output_tokens = config.output_tokens
        self._seed = config.seed
        self._first_token_seconds = config.gen_ms / 1000
        self._pacer = _Pacer(config.token_ms / 1000) if config.token_ms else None
        self._streams: set[_Stream] = set()
        self._throughput = Throughput()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Pace all streams until cancelled."""
        task_status.started()
        if self._pacer is None:
            await trio.sleep_forever()
        else:
            await self._pacer.run(self._throughput)

    def check(self, request: pb.GenerateRequest) -> str | None:
        """Return what is wrong with *request*, its field named, or None."""
        return check_request(request, self.model)

    async def generate(self, generation: Generation, answer: Answer) -> None:
        """Answer one request; return when every choice is finished."""
        if self._pacer is not None:
            choices = {}
            for index in range(generation.choices):
                if index:
                    await trio.lowlevel.checkpoint()  # a long one takes milliseconds
                choices[index] = self._plan(generation, index)
            with self._holding(_Stream(answer, generation, choices)) as stream:
                await self._pacer.pace(stream, trio.current_time() + self._first_token_seconds)
            return
        if not self._first_token_seconds and generation.choices == 1:
            choice = self._plan(generation, 0)
            if len(choice.ids) <= BURST_TOKENS:
                answer.whole(choice.ids, choice.reason, matched=choice.matched)
                self._throughput.add(len(choice.ids), generation.arrival)
                return
        with self._holding(_Stream(answer, generation, {})) as stream:
            if self._first_token_seconds:
                await trio.sleep(self._first_token_seconds)
            for index in range(generation.choices):
                await self._write(stream, index, self._plan(generation, index))

    def loads(self) -> Loads:
        """Return what the engine holds now."""
        used = sum(stream.prompt_tokens + stream.written for stream in self._streams)
        return Loads(
            running=len(self._streams),
            used_tokens=used,
            active_tokens=used,
            max_total_tokens=UNLIMITED,
            max_running=UNLIMITED,
            throughput=self._throughput.rate(trio.current_time()),
        )

    def methods(self) -> Mapping[str, Any]:
        """Return no methods: there is no cache to flush or to tell of."""
        return {}

    def _plan(self, generation: Generation, index: int) -> Choice:
        return plan_choice(
            generation,
            self.model,
            index=index,
            output_tokens=self._output_tokens,
            seed=self._seed,
        )

    @contextmanager
    def _holding(self, stream: "_Stream") -> Iterator["_Stream"]:
        self._streams.add(stream)
        try:
            yield stream
        finally:
            self._streams.remove(stream)

    async def _write(self, stream: "_Stream", index: int, choice: Choice) -> None:
        """Write one choice as fast as the client reads, in turns with other streams."""
        answer = stream.answer
        chunk = 1 if stream.is_streaming else BURST_TOKENS
        for start in range(0, len(choice.ids), BURST_TOKENS):
            await trio.lowlevel.checkpoint()
            await answer.room()
            burst = choice.ids[start : start + BURST_TOKENS]
            for at in range(0, len(burst), chunk):
                answer.tokens(burst[at : at + chunk], index)
            stream.written += len(burst)
            self._throughput.add(len(burst), trio.current_time())
        answer.finish(choice.reason, index, matched=choice.matched)


class _Stream(PacedStream):
    """One request that is being answered."""

    __slots__ = (
        "answer",
        "choices",
        "ended",
        "error",
        "is_streaming",
        "position",
        "prompt_tokens",
        "written",
    )

    def __init__(self, answer: Answer, generation: Generation, choices: dict[int, Choice]) -> None:
        super().__init__()
        self.answer = answer
        self.prompt_tokens = generation.prompt_tokens
        self.is_streaming = generation.message.stream
        self.choices = choices
        """Those that are open, by index."""
        self.position = 0
        """Tokens written of each open choice."""
        self.written = 0
        """Tokens written of all choices together."""
        self.ended = trio.Event()
        self.error: Exception | None = None

    def advance(self, tokens: int) -> int:
        """Write the next *tokens* of every open choice; return how many there were."""
        start = self.position
        self.position = end = start + tokens
        written = 0
        # Mostly there is one choice, and it goes on: then nothing has to be copied.
        ended: list[int] = []
        for index, choice in self.choices.items():
            ids = choice.ids[start:end]
            if ids:
                self.answer.tokens(ids, index)
                written += len(ids)
            if end >= len(choice.ids):
                ended.append(index)
        for index in ended:
            choice = self.choices.pop(index)
            self.answer.finish(choice.reason, index, matched=choice.matched)
        self.written += written
        return written


class _Pacer:
    """One task that writes for many streams."""

    def __init__(self, token_seconds: float) -> None:
        self._grid: PassGrid[_Stream] = PassGrid(token_seconds, origin=0.0)
        self._earlier = trio.Event()
        """Set when a stream is due before the pass that the task waits for."""

    async def pace(self, stream: _Stream, first_token_due: float) -> None:
        """Wait until all of *stream* is written, one token of each choice at a time."""
        next_pass = self._grid.next_pass()
        self._grid.enter(stream, first_token_due)
        if self._grid.next_pass() < next_pass:
            self._earlier.set()
        try:
            await stream.ended.wait()
        finally:
            self._grid.leave(stream)
        if stream.error:
            raise stream.error

    async def run(self, throughput: Throughput) -> None:
        """Write what is due at each pass.  While there is no stream, no timer runs."""
        while True:
            await self._run_pass(throughput)
            with trio.move_on_at(self._grid.next_pass()):
                await self._earlier.wait()
                self._earlier = trio.Event()

    async def _run_pass(self, throughput: Throughput) -> None:
        now = trio.current_time()
        written = 0
        for streams, tokens in self._grid.take_due(now):
            for stream in streams:
                if written >= BURST_TOKENS:
                    throughput.add(written, now)
                    written = 0
                    await trio.lowlevel.checkpoint()
                if stream.bucket is not None:  # else it was cancelled in another's turn
                    written += self._advance(stream, tokens)
        throughput.add(written, now)

    def _advance(self, stream: _Stream, tokens: int) -> int:
        try:
            written = stream.advance(tokens)
        except Exception as error:  # belongs to one request; the others go on
            stream.error = error
            written = 0
        if stream.error or not stream.choices:
            self._grid.leave(stream)
            stream.ended.set()
        return written
