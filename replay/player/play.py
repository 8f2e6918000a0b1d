"""Sends planned requests at their times, and hands on what comes of each.

Rules.  An open loop goes by absolute deadlines of the loop's monotonic clock; nothing with a bound
stands between a deadline and its request: a task for each request, no pool, no queue that can be
full.  What can be computed before a deadline is.  How late each request was sent is part of its
result, and a sleeper that does nothing else shows how late the loop itself was.  However a run
ends, each request that was read has exactly one result.
"""

from array import array
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import trio

from replay.player.answer_log import AnswerLog
from replay.player.arrival import Arrival, ChatPrompt
from replay.player.feed import Feed
from replay.player.observation import Observation, Outcome
from replay.player.outgoing import Fill, RefusedError, outgoing
from replay.player.progress import Progress
from replay.player.schedule import Planned
from replay.player.sessions import Dispatcher, OnFailure, Sessions, Start
from replay.player.statistics import Sample
from replay.player.synthesis import Synthesizer
from replay.player.targets import Clock, Packed, SendError, Target

#: Requests that are made ready before their moment: their bytes wait, not their authors.
_READY = 64
#: How often the sleeper looks.
_SLEEPER_SECONDS = 0.01
#: How long the rest of a source is counted after the end of a run.
_COUNT_SECONDS = 2.0


@attrs.frozen(kw_only=True)
class PlaySettings:
    """How a run goes."""

    concurrency: int | None = None
    """Requests in flight of a closed loop.  None: an open loop, by the plan's deadlines."""
    speed: float = 1.0
    max_gap_ns: int | None = None
    on_failure: OnFailure = OnFailure.END
    cancels: bool = True
    """Whether requests that were cancelled when recorded are cancelled again at that moment."""
    fill: Fill = Fill.REFUSE
    max_seconds: float | None = None
    """After this long nothing more is sent."""
    drain_seconds: float = 5.0
    """How long requests in flight may go on after a run was stopped or its time was up."""
    seed: int = 0
    """Of the prompts that are made up."""


@attrs.frozen(kw_only=True)
class RunEnd:
    """How a run ended."""

    reason: str
    """`done`, `stopped`, `time is up`, or `source` for a source that was at fault."""
    seconds: float
    """From the start until the last request was sent."""
    not_read: int
    """Requests of the source that the run did not come to, as far as they were counted."""
    is_counted: bool
    """Whether that is all of them."""
    fault: str | None
    """What was wrong with the source."""
    loop_delay_ms: Mapping[str, float | None]
    """How late a sleeper was that did nothing else: p50, p99, max."""

    def as_values(self, progress: Progress) -> dict[str, Any]:
        """Return what the last line of a results file says."""
        return {
            "reason": self.reason,
            "fault": self.fault,
            "seconds": self.seconds,
            "sent": progress.sent,
            "outcomes": dict(progress.outcomes),
            "late": progress.late,
            "refused": progress.refused,
            "not_read": self.not_read,
            "not_read_is_exact": self.is_counted,
            "loop_delay_ms": dict(self.loop_delay_ms),
        }


class Player:
    """One run."""

    def __init__(
        self,
        target: Target,
        feed: Feed,
        *,
        vocab_size: int,
        settings: PlaySettings,
        on_result: Callable[[Observation], None],
    ) -> None:
        self.progress = Progress()
        self.clock: Clock | None = None
        """None until the run has begun."""
        self.begun = trio.Event()
        self._target = target
        self._feed = feed
        self._settings = settings
        self._on_result = on_result
        self._synthesizer = Synthesizer(vocab_size, seed=settings.seed)
        self._sessions = Sessions(
            on_failure=settings.on_failure, speed=settings.speed, max_gap_ns=settings.max_gap_ns
        )
        self._dispatcher = Dispatcher(settings.concurrency)
        self._starting: deque[Start] = deque()
        self._ready: dict[int, tuple[Packed, tuple[str, ...]]] = {}
        self._histories: dict[str, list[Mapping[str, Any]]] = {}
        self._news = trio.Event()
        self._sending = trio.CancelScope()
        self._draining = trio.CancelScope()
        self._last_sent_ns = 0
        self._requests: trio.Nursery
        feed.on_news = self._wake

    async def run(self, *, stop: trio.Event, quit_now: trio.Event) -> RunEnd:
        """Play until the source has ended and every answer has come.

        *stop* ends it in order: nothing more is sent, what is in flight may go on for a while.
        *quit_now* ends that while.
        """
        reason = "done"
        lateness: array[float] = array("d")
        async with trio.open_nursery() as helpers:
            helpers.start_soon(self._feed.run)
            helpers.start_soon(_cancel_when, stop, self._sending)
            helpers.start_soon(_cancel_when, quit_now, self._draining)
            with self._draining:
                async with trio.open_nursery() as self._requests:
                    try:
                        with self._sending:
                            await self._feed.wait_filled()
                            self._make_ready()
                            self.clock = clock = Clock(trio.current_time, trio.current_time())
                            self.begun.set()
                            if self._settings.max_seconds is not None:
                                self._sending.deadline = clock.started + self._settings.max_seconds
                            helpers.start_soon(_sleep_and_look, clock, lateness)
                            await self._dispatch(clock)
                    finally:
                        self._give_up()
                    if self._sending.cancelled_caught:
                        reason = "time is up"
                        self._draining.deadline = trio.current_time() + self._settings.drain_seconds
            with trio.move_on_after(_COUNT_SECONDS):
                await self._feed.wait_ended()
            helpers.cancel_scope.cancel()
        if stop.is_set() or quit_now.is_set():
            reason = "stopped"
        elif self._feed.error is not None:
            reason = "source"
        delays = Sample(delay * 1e3 for delay in lateness)
        return RunEnd(
            reason=reason,
            seconds=self._last_sent_ns / 1e9,
            not_read=self._feed.rest,
            is_counted=self._feed.is_counted,
            fault=None if self._feed.error is None else str(self._feed.error),
            loop_delay_ms={
                name: delays.quantile(share)
                for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
            },
        )

    def _make_ready(self) -> None:
        """Prepare the first requests before the run begins: the first of all are due at once."""
        if self._settings.concurrency is not None:
            return
        self.clock = Clock(trio.current_time, trio.current_time())
        while self._wants_more(0) and (planned := self._feed.take()) is not None:
            self._admit(planned)

    async def _dispatch(self, clock: Clock) -> None:
        """Start requests at their moments until all have ended."""
        while True:
            now_ns = clock.now_ns()
            while (start := self._dispatcher.take(now_ns)) is not None:
                self._starting.append(start)
                self._requests.start_soon(self._play_next, clock)
            if self._starting:
                # What has started is sent before more is prepared.
                await trio.lowlevel.checkpoint()
                continue
            if self._wants_more(now_ns) and (planned := self._feed.take()) is not None:
                self._admit(planned)
                continue
            if self._feed.is_over and not (
                self._dispatcher.waiting or self._dispatcher.in_flight or self._sessions.held
            ):
                return
            self._news = trio.Event()
            wakes_at_ns = self._dispatcher.wakes_at_ns()
            with trio.CancelScope() as waiting:
                if wakes_at_ns is not None:
                    waiting.deadline = clock.seconds(wakes_at_ns)
                await self._news.wait()

    def _wants_more(self, now_ns: int) -> bool:
        if self._settings.concurrency is not None:
            return self._dispatcher.lacks_work(now_ns)
        return self._dispatcher.waiting < _READY

    def _wake(self) -> None:
        self._news.set()

    def _admit(self, planned: Planned) -> None:
        abandoned = len(self._sessions.abandoned)
        start = self._sessions.admit(planned)
        self._offer(start)
        self._report_abandoned(abandoned)

    def _offer(self, start: Start | None) -> None:
        """Make a request ready and have it wait for its moment."""
        while start is not None:
            arrival = start.arrival
            try:
                self._ready[id(arrival)] = self._packed(arrival)
            except (RefusedError, ValueError) as error:
                self.progress.refusals[str(error)] += 1
                self._not_sent(arrival, str(error))
            else:
                self._dispatcher.offer(start)
                return
            assert self.clock is not None
            start = self._next_turn(arrival, self.clock.now_ns(), failed=True)

    def _packed(self, arrival: Arrival) -> tuple[Packed, tuple[str, ...]]:
        history = self._histories.get(arrival.session or "", ())
        sent = outgoing(
            arrival,
            speaks=self._target.speaks,
            synthesizer=self._synthesizer,
            fill=self._settings.fill,
            history=history,
        )
        return self._target.pack(sent), sent.filled

    async def _play_next(self, clock: Clock) -> None:
        # Tasks that start together run in any order; requests leave in that of the source.
        await self._play_one(self._starting.popleft(), clock)

    async def _play_one(self, start: Start, clock: Clock) -> None:
        """Send one request, and report what came of it whatever ends it."""
        arrival = start.arrival
        packed, filled = self._ready.pop(id(arrival))
        log = AnswerLog(arrival.request_id, arrival.position)
        log.filled = filled
        if self._settings.concurrency is None:
            log.scheduled_ns = start.due_ns
        self.progress.started()
        self._last_sent_ns = max(self._last_sent_ns, clock.now_ns())
        try:
            with trio.CancelScope() as leaving:
                if self._settings.cancels and arrival.cancel_offset_ns is not None:
                    leaving.deadline = trio.current_time() + arrival.cancel_offset_ns / 1e9
                try:
                    await packed.send(log, clock)
                    observation = log.ended(clock.now_ns())
                except SendError as error:
                    observation = log.failed(clock.now_ns(), error.label)
            if leaving.cancelled_caught:
                observation = log.cancelled(clock.now_ns())
        except BaseException:  # a cancellation above all, which a nursery gives in a group
            self._ended(arrival, log.cancelled(clock.now_ns(), reason="the run ended"), clock)
            raise
        self._ended(arrival, observation, clock)

    def _ended(self, arrival: Arrival, observation: Observation, clock: Clock) -> None:
        self.progress.ended(observation)
        self._dispatcher.release()
        self._on_result(observation)
        self._remember(arrival, observation)
        failed = observation.outcome in (Outcome.ERROR, Outcome.INCOMPLETE)
        self._offer(self._next_turn(arrival, clock.now_ns(), failed=failed))
        self._wake()

    def _next_turn(self, arrival: Arrival, now_ns: int, *, failed: bool) -> Start | None:
        abandoned = len(self._sessions.abandoned)
        following = self._sessions.ended(arrival, now_ns, failed=failed)
        self._report_abandoned(abandoned)
        return following

    def _remember(self, arrival: Arrival, observation: Observation) -> None:
        """Keep what was said, for the turns that follow on it."""
        prompt = arrival.prompt
        if arrival.session is None or not isinstance(prompt, ChatPrompt) or not prompt.is_delta:
            return
        history = self._histories.setdefault(arrival.session, [])
        history += prompt.messages
        text = observation.choices[0].text if observation.choices else None
        history.append({"role": "assistant", "content": text or ""})

    def _report_abandoned(self, known: int) -> None:
        for arrival in self._sessions.abandoned[known:]:
            self._not_sent(arrival, "the turn before failed")

    def _give_up(self) -> None:
        """Report what was read and will not be sent."""
        for arrival in (
            *self._dispatcher.give_up(),
            *self._sessions.give_up(),
            *(planned.arrival for planned in self._feed.give_up()),
        ):
            self._not_sent(arrival, "the run ended")

    def _not_sent(self, arrival: Arrival, reason: str) -> None:
        observation = Observation(
            request_id=arrival.request_id,
            position=arrival.position,
            outcome=Outcome.NOT_SENT,
            error=reason,
        )
        self.progress.not_sent(observation)
        self._on_result(observation)


async def _cancel_when(asked: trio.Event, scope: trio.CancelScope) -> None:
    await asked.wait()
    scope.cancel()


async def _sleep_and_look(clock: Clock, lateness: "array[float]") -> None:
    """Note how late a sleeper wakes that does nothing else."""
    due = clock.started
    while True:
        due += _SLEEPER_SECONDS
        await trio.sleep_until(due)
        late = trio.current_time() - due
        lateness.append(late)
        # After a stall the missed looks are not made up for: one stall is one late look.
        due += late // _SLEEPER_SECONDS * _SLEEPER_SECONDS
