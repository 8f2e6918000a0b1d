"""The realistic engine: one task that sleeps through the passes of a simulated scheduler.

The model's own time is absolute: a pass begins where the one before it ended, however late the loop
was to notice, so delays of the loop do not add up.  A pass hands its tokens to all of its streams
in one wake-up.
"""

import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, cast

import attrs
import trio
from purerpc.grpclib.exceptions import ResourceExhaustedError

from replay._proto import common_pb2 as common
from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.config.engines import RealisticConfig
from replay.engines.answer_sequences import AnswerSequence, AnswerStream
from replay.engines.base import Answer, Generation, Loads, Model
from replay.engines.kv_event_delay import KvEventDelay
from replay.engines.kv_event_log import KvEventLog
from replay.engines.kv_event_publisher import open_kv_publisher
from replay.engines.kv_event_stream import KvEventStreams
from replay.engines.kv_pool import KvPool
from replay.engines.load_timing import load_timing
from replay.engines.pass_log import PassLog
from replay.engines.read_prompt import read_prompt
from replay.engines.sampling import plan_choice
from replay.engines.scheduler import Pass, Scheduler
from replay.engines.throughput import Throughput
from replay.engines.validation import check_request
from replay.exact_timer import ExactTimer

#: Chunks that are written before others get a turn: about a millisecond.
BURST_CHUNKS = 512

#: From the arrival of a request until the engine has it, reading is all that happens: that is no
#: work of the engine that is simulated, whose time has begun.  If it took longer the request was
#: held, and the time begins when it is let go.
OWN_WORK_SECONDS = 0.005

#: A loop that was held up longer than this (a machine that slept) does not catch up.
MAX_BEHIND_SECONDS = 1.0

Progress = list[tuple[AnswerSequence, int, int]]


class RealisticEngine:
    """Answers requests at the pace of an engine with continuous batching and a prefix cache.

    It is the *number*-th engine of its process and publishes KV events on *host*, if it does that
    on ZMQ.  Raises ConfigError for a calibration file that cannot be used.
    """

    #: Once a request is known to fit: what is refused before that, a gateway sends elsewhere.
    sends_headers = True

    def __init__(
        self,
        model: Model,
        config: RealisticConfig | None = None,
        *,
        host: str = "127.0.0.1",
        number: int = 0,
    ) -> None:
        config = config or RealisticConfig()
        self.model = model
        self._config = config
        timing, overhead_ms = load_timing(config)
        self._scheduler = Scheduler(config, timing)
        self._overhead_seconds = overhead_ms / 1000 / config.speedup
        self._throughput = Throughput()
        self._submitted = trio.Event()
        self._submitted_at = 0.0
        self._idle = trio.lowlevel.ParkingLot()
        self._seen_requests = (0, 0)
        self._late: deque[_Written] = deque()
        self._late_news = trio.Event()
        self.kv_events = KvEventLog(config.kv_events_buffer_steps)
        self._kv_delay = KvEventDelay(self.kv_events)
        #: What subscribers to KV events are told of the load: a layer above may hold requests too.
        self.reported_loads: Callable[[], Loads] = self.loads
        self._is_paused = False
        self._resumed = trio.Event()
        self._pass_log: PassLog | None = None
        self._host = host
        base_port = config.kv_events_zmq_base_port
        self._kv_port = None if base_port is None else base_port + 2 * number

    # ---- replay.engines.base.Engine

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run passes until cancelled.  Raises BindError when the KV events have no port."""
        async with AsyncExitStack() as opened:
            publisher = None
            if self._kv_port is not None:
                opening = open_kv_publisher(
                    self.kv_events, self._config, host=self._host, port=self._kv_port
                )
                publisher = await opened.enter_async_context(opening)
            async with trio.open_nursery() as parts:
                if publisher is not None:
                    parts.start_soon(publisher.run)
                if self._overhead_seconds:
                    parts.start_soon(self._write_late)
                parts.start_soon(self._kv_delay.run)
                parts.start_soon(self._run_passes)
                task_status.started()

    def check(self, request: pb.GenerateRequest) -> str | None:
        """Return what is wrong with *request*, its field named, or None."""
        return check_request(request, self.model)

    async def generate(self, generation: Generation, answer: Answer) -> None:
        """Answer one request; return when every choice is finished.

        Raises RESOURCE_EXHAUSTED for what the KV pool could not hold even if it were empty.
        """
        now = trio.current_time()
        asked_at = generation.arrival if now - generation.arrival < OWN_WORK_SECONDS else now
        prompt, hashes = await self._read_prompt(generation)
        stream = AnswerStream(answer)
        trims = not generation.message.sampling_params.no_stop_trim
        for index in range(generation.choices):
            if index:
                await trio.lowlevel.checkpoint()
            choice = plan_choice(
                generation,
                self.model,
                index=index,
                output_tokens=self._config.output_tokens,
                seed=self._config.seed,
            )
            sequence = AnswerSequence(stream, index, choice, prompt, hashes, trims=trims)
            if not self._scheduler.can_ever_fit(len(prompt), sequence.steps):
                raise ResourceExhaustedError(
                    f"{len(prompt)} prompt tokens and {sequence.steps} more never fit into "
                    f"{self._scheduler.pool.capacity} KV blocks of {self._config.block_size}"
                )
        answer.respond()
        try:
            self._submit(stream, asked_at)
            await stream.ended.wait()
        finally:
            self._withdraw(stream)
        if stream.error is not None:
            raise stream.error

    def loads(self) -> Loads:
        """Return what the engine holds now.  Each choice counts as a request.

        Idle cached blocks are not used: engines report so, as those blocks are there for the
        taking.
        """
        scheduler = self._scheduler
        used = scheduler.used_tokens()
        return Loads(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            waiting_uncached_tokens=scheduler.waiting_uncached_tokens(),
            used_tokens=used,
            active_tokens=used,
            max_total_tokens=scheduler.pool.capacity * self._config.block_size,
            max_running=self._config.max_running,
            throughput=self._throughput.rate(trio.current_time()),
            cache_hit_rate=scheduler.cache_hit_rate(),
        )

    def methods(self) -> Mapping[str, Any]:
        """Return FlushCache and SubscribeKvEvents, if there is a prefix cache."""
        if not self._config.prefix_cache:
            return {}
        streams = KvEventStreams(self.kv_events, lambda: self.reported_loads())
        return {"FlushCache": self.flush_cache, "SubscribeKvEvents": streams.subscribe}

    async def flush_cache(self, message: common.FlushCacheRequest) -> common.FlushCacheResponse:
        """Forget all cached content, once nothing runs; fail when something still does."""
        with trio.move_on_after(max(0.0, message.timeout_s)):
            while self._is_busy:
                await self._idle.park()
        if self._is_busy:
            return common.FlushCacheResponse(success=False, message="requests are in flight")
        self.clear_cache()
        return common.FlushCacheResponse(success=True, message="the cache is empty")

    def clear_cache(self) -> None:
        """Forget all cached content now.  What runs goes on, outside the cache."""
        self._kv_delay.append(self._scheduler.clear_cache(), time.time())

    # ---- what an operator may see and do

    @property
    def pool(self) -> KvPool:
        """The KV pool, to look at."""
        return self._scheduler.pool

    @property
    def block_size(self) -> int:
        """Tokens of a KV block."""
        return self._config.block_size

    @property
    def has_prefix_cache(self) -> bool:
        """Whether prompts share cached blocks, and KV events are sent."""
        return self._config.prefix_cache

    @property
    def kv_event_delay_seconds(self) -> float:
        """By how much KV events come late."""
        return self._kv_delay.seconds

    @kv_event_delay_seconds.setter
    def kv_event_delay_seconds(self, seconds: float) -> None:
        self._kv_delay.seconds = seconds

    def cached_tokens(self, prompt_tokens: int, hashes: Sequence[int]) -> int:
        """Return how much of a prompt a request that was admitted now would find cached.

        *hashes* are those of the prompt's full blocks.
        """
        return self._scheduler.cached_tokens(prompt_tokens, hashes)

    def pause(self) -> None:
        """Begin no pass until `resume`; the one that is under way ends."""
        self._is_paused = True

    def resume(self) -> None:
        """Go on with passes."""
        self._is_paused = False
        self._resumed.set()
        self._resumed = trio.Event()

    def keep_passes(self, log: PassLog | None) -> None:
        """Write every pass down in *log*; None: no more."""
        self._pass_log = log

    # ---- a request's side

    async def _read_prompt(self, generation: Generation) -> "tuple[array[int], list[int]]":
        """Return the prompt's ids and the hashes of its full blocks.

        A prompt without ids is computed as its first token.
        """
        prompt, hashes = await read_prompt(
            generation.message.tokenized.input_ids,
            self._config.block_size if self._config.prefix_cache else None,
        )
        return prompt or array("I", [self.model.bos_token_id]), hashes

    def _submit(self, stream: AnswerStream, asked_at: float) -> None:
        for sequence in stream.sequences:
            self._scheduler.submit(sequence)
        self._submitted_at = asked_at
        self._submitted.set()
        self._tell_load()

    def _withdraw(self, stream: AnswerStream) -> None:
        stream.close()
        if stream.sequences:
            for sequence in stream.sequences:
                self._scheduler.cancel(sequence)
            stream.sequences = []
            self._tell_load()
        if not self._is_busy:
            self._idle.unpark_all()

    @property
    def _is_busy(self) -> bool:
        return bool(self._scheduler.running or self._scheduler.waiting)

    def _tell_load(self) -> None:
        """Tell subscribers of the load, if the number of requests is another."""
        requests = len(self._scheduler.running), len(self._scheduler.waiting)
        if requests != self._seen_requests:
            self._seen_requests = requests
            self.kv_events.tell()

    # ---- the engine's side

    async def _run_passes(self) -> None:
        model_time = trio.current_time()
        with ExactTimer() as timer:
            while True:
                while self._is_paused:
                    await self._resumed.wait()
                    model_time = max(model_time, trio.current_time())
                next_pass = self._scheduler.begin_pass()
                if next_pass is None:
                    await self._submitted.wait()
                    self._submitted = trio.Event()
                    model_time = max(model_time, self._submitted_at)
                    continue
                model_time += next_pass.duration_ms / 1000 / self._config.speedup
                await timer.sleep_until(model_time)
                now = trio.current_time()
                if now - model_time > MAX_BEHIND_SECONDS:
                    model_time = now
                await self._finish_pass(next_pass, model_time)

    async def _finish_pass(self, finished: Pass, model_time: float) -> None:
        outcome = self._scheduler.finish_pass(finished)
        due = model_time + self._overhead_seconds
        written = _Written(finished, due, cast(Progress, outcome.progress))
        if self._overhead_seconds:
            self._late.append(written)
            self._late_news.set()
        else:
            # Before the events, which take their time; nobody gets a turn in between.
            self._write_burst(written)
        if outcome.events:
            self._seen_requests = len(self._scheduler.running), len(self._scheduler.waiting)
            self._kv_delay.append(outcome.events, time.time())
        else:
            self._tell_load()
        if not self._overhead_seconds:
            await self._write(written)

    async def _write_late(self) -> None:
        """Write what passes made, each of them the overhead later."""
        with ExactTimer() as timer:
            while True:
                while self._late:
                    written = self._late.popleft()
                    await timer.sleep_until(written.due)
                    await self._write(written)
                await self._late_news.wait()
                self._late_news = trio.Event()

    async def _write(self, written: "_Written") -> None:
        """Hand the tokens of a pass to their streams, in turns with others."""
        while not written.is_done:
            self._write_burst(written)
            await trio.lowlevel.checkpoint()

    def _write_burst(self, written: "_Written") -> None:
        """Hand tokens to the next streams of a pass."""
        start, tokens = written.position, 0
        for sequence, first, last in written.progress[start : start + BURST_CHUNKS]:
            tokens += sequence.write(first, last)
        written.position += BURST_CHUNKS
        written.tokens += tokens
        now = trio.current_time()
        self._throughput.add(tokens, now)
        if written.is_done and self._pass_log is not None:
            self._pass_log.note(written.of, written.tokens, late_seconds=now - written.due)


@attrs.define(eq=False)
class _Written:
    """What a pass made, when it is due, and how much of it has been written."""

    of: Pass
    due: float
    progress: Progress
    position: int = 0
    tokens: int = 0

    @property
    def is_done(self) -> bool:
        return 0 < self.position >= len(self.progress)
