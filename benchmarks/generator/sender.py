"""One process's share of a run: sends requests at their times, and notes what comes of each.

Nothing that is bounded stands between a request's time and the request: it has a task of its own,
and what can be computed before its time is.
"""

from collections import deque
from collections.abc import Iterator

import attrs
import trio

from benchmarks.generator.rows import Row, row_of
from benchmarks.generator.spec import LoadSpec
from benchmarks.generator.workload import Request, RequestMaker
from replay.exact_timer import ExactTimer
from replay.player.answer_log import AnswerLog
from replay.player.observation import Observation
from replay.player.targets import Clock, Packed, SendError, Target

#: Requests that are packed before their time.
READY = 64
#: Packing one is begun only so long before the next is due.
PACKING_SECONDS = 0.0005
#: So long after the last request was due nothing is sent any more: the rate was not kept.
LATE_END_SECONDS = 0.5

#: The label of a request that had not ended when the run had.
UNFINISHED = "unfinished"


@attrs.frozen
class Share:
    """Which requests are this process's: every `of`-th one, beginning with `index`."""

    index: int = 0
    of: int = 1

    def numbers(self, count: int | None) -> Iterator[int]:
        """Yield the numbers of its requests, below *count* if there is one."""
        number = self.index
        while count is None or number < count:
            yield number
            number += self.of

    def part(self, total: int) -> int:
        """Return its part of *total*; the parts of all processes add up."""
        return total // self.of + (self.index < total % self.of)


@attrs.define
class Counts:
    """What a live view shows."""

    sent: int = 0
    ended: int = 0
    failed: int = 0


@attrs.frozen
class _Ready:
    number: int
    request: Request
    packed: Packed


class Sender:
    """Sends its share of a run's requests."""

    def __init__(self, spec: LoadSpec, share: Share, target: Target, *, vocab_size: int) -> None:
        """Prepare; raises ValueError for a workload that cannot be made."""
        self._spec, self._share, self._target = spec, share, target
        self._maker = RequestMaker(spec.workload, vocab_size=vocab_size, run=spec.run)
        self._due_ns = spec.due_ns()[share.index :: share.of] if spec.is_open else []
        count = len(spec.due_ns()) if spec.is_open else spec.requests
        self._numbers = share.numbers(count)
        self._ready: deque[_Ready] = deque()
        self._clock: Clock
        self.rows: list[Row] = []
        self.counts = Counts()
        self.prepare(READY)

    def prepare(self, count: int) -> None:
        """Pack up to *count* of the next requests."""
        while len(self._ready) < count and self._pack_next():
            pass

    async def run(self, started: float) -> None:
        """Send from *started* (`trio.current_time()`) on, and wait for the answers."""
        self._clock = Clock(trio.current_time, started)
        async with trio.open_nursery() as requests:
            if self._spec.is_open:
                await self._open_loop(requests)
                requests.cancel_scope.deadline = trio.current_time() + self._spec.drain_s
            else:
                await trio.sleep_until(started)
                if self._spec.seconds is not None:
                    end = started + self._spec.seconds
                    requests.cancel_scope.deadline = end + self._spec.drain_s
                assert self._spec.concurrency is not None
                for _ in range(self._share.part(self._spec.concurrency)):
                    requests.start_soon(self._closed_loop)

    async def _open_loop(self, requests: trio.Nursery) -> None:
        last = self._due_ns[-1] if self._due_ns else 0
        end = self._clock.seconds(last) + LATE_END_SECONDS
        with ExactTimer() as timer:
            for place, due_ns in enumerate(self._due_ns):
                due = self._clock.seconds(due_ns)
                if not self._ready:
                    self._pack_next()
                await timer.sleep_until(due)
                if trio.current_time() > end:
                    return
                requests.start_soon(self._send, self._ready.popleft(), due_ns)
                if place + 1 < len(self._due_ns):
                    await self._pack_ahead(self._clock.seconds(self._due_ns[place + 1]))

    async def _pack_ahead(self, next_due: float) -> None:
        """Pack while the next request has time."""
        while len(self._ready) < READY:
            # First what has just been started is sent, and what has come is read.
            await trio.lowlevel.checkpoint()
            if next_due - trio.current_time() < PACKING_SECONDS or not self._pack_next():
                return

    async def _closed_loop(self) -> None:
        seconds = self._spec.seconds
        while seconds is None or self._clock.now_ns() < seconds * 1e9:
            if not self._ready and not self._pack_next():
                return
            await self._send(self._ready.popleft(), None)

    def _pack_next(self) -> bool:
        number = next(self._numbers, None)
        if number is None:
            return False
        request = self._maker.make(number)
        self._ready.append(_Ready(number, request, self._target.pack(request.outgoing)))
        return True

    async def _send(self, ready: _Ready, due_ns: int | None) -> None:
        """Send one request; it has one row, whatever ends it."""
        log = AnswerLog(ready.request.outgoing.request_id, ready.number)
        log.scheduled_ns = due_ns
        clock, after = self._clock, ready.request.cancel_after_s
        self.counts.sent += 1
        try:
            with trio.CancelScope() as leaving:
                if after is not None:
                    leaving.deadline = trio.current_time() + after
                try:
                    await ready.packed.send(log, clock)
                    seen = log.ended(clock.now_ns())
                except SendError as error:
                    seen = log.failed(clock.now_ns(), error.label)
            if leaving.cancelled_caught:
                seen = log.cancelled(clock.now_ns())
        except trio.Cancelled:
            self._note(ready, log.failed(clock.now_ns(), UNFINISHED))
            raise
        self._note(ready, seen)

    def _note(self, ready: _Ready, seen: Observation) -> None:
        self.counts.ended += 1
        self.counts.failed += seen.error is not None
        self.rows.append(row_of(ready.number, ready.request.asked_tokens, seen))
