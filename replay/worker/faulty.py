"""A layer over one worker's engine that does to its requests what the operator asked for.

It holds requests before the engine gets them, ends or stalls their answers, and pauses the whole
worker.  The engine below runs without it: its life is not this layer's concern.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs
import trio
from purerpc.grpclib.exceptions import RpcFailedError, raise_status
from purerpc.grpclib.status import Status, StatusCode

from replay.engines.base import Answer, Engine, Generation, Loads
from replay.engines.engine_layer import EngineLayer
from replay.engines.own_abort import with_own_aborts
from replay.engines.realistic import RealisticEngine
from replay.worker.faults import Admission, Aim, Failing, FaultRules, Stalling
from replay.worker.gated_answer import GatedAnswer
from replay.worker.in_flight import InFlight


@attrs.define(eq=False)
class _Request:
    """One request that is here."""

    scope: trio.CancelScope
    gate: GatedAnswer
    prompt_tokens: int
    choices: int
    arrival: float
    admit_at: float
    """When the engine gets it, unless the worker is paused then."""
    is_waiting: bool = True
    """Whether the engine has not got it yet."""
    is_done: bool = False
    """Whether the engine has put all of its answer."""

    @property
    def is_held(self) -> bool:
        return self.is_waiting or self.gate.is_held

    async def let_out(self) -> None:
        """Wait until all that the engine has put has left."""
        self.is_done = True
        await self.gate.emptied()


class FaultyEngine(EngineLayer):
    """Answers as the engine *below* does, with faults.

    *simulator* is the realistic engine at the bottom, if there is one: a pause stops its passes,
    and what is held here counts in the load that it tells.
    """

    def __init__(self, below: Engine, simulator: RealisticEngine | None = None) -> None:
        super().__init__(below)
        self._simulator = simulator
        self._requests: InFlight[_Request] = InFlight()
        self._here: dict[_Request, None] = {}
        self._news = trio.Event()
        #: What is set; changed by the methods below only.
        self.rules = FaultRules()
        if simulator is not None:
            simulator.reported_loads = self.loads

    # ---- what the operator asks for

    def set_failing(self, failing: Failing | None) -> None:
        """Fail requests that arrive from now on; None: no more."""
        self.rules.failing = None if failing is None else Aim(failing, trio.current_time())

    def set_stalling(self, stalling: Stalling | None) -> None:
        """Stall requests that arrive from now on; None: no more.  What is stalled goes on."""
        self.rules.stalling = None if stalling is None else Aim(stalling, trio.current_time())
        for request in self._here:
            request.gate.go_on()

    def set_admission(self, admission: Admission | None) -> None:
        """Delay requests before the engine gets them, also those that wait; None: no more."""
        self.rules.admission = admission
        now = trio.current_time()
        for request in self._here:
            if request.is_waiting:
                request.admit_at = self.rules.admit_at(now, request.arrival)
        self._wake()

    def pause(self) -> None:
        """Let no request in and no token out.  A pass of a simulated engine that runs ends."""
        self.rules.is_paused = True
        if self._simulator is not None:
            self._simulator.pause()
        for request in self._here:
            request.gate.shut()

    def resume(self) -> None:
        """End a pause."""
        self.rules.is_paused = False
        if self._simulator is not None:
            self._simulator.resume()
        for request in self._here:
            request.gate.open()
        self._wake()

    def clear(self) -> None:
        """Take back all faults, and end a pause."""
        self.set_failing(None)
        self.set_stalling(None)
        self.set_admission(None)
        self.resume()

    # ---- replay.engines.base.Engine

    @property
    def sends_headers(self) -> bool:
        """True: a request that fails at once has none, which is how a gateway knows to retry."""
        return True

    async def generate(self, generation: Generation, answer: Answer) -> None:
        """Answer one request; raises the status that was asked for, or the engine's."""
        now = trio.current_time()
        failing, stalling = self.rules.hits(now)
        fails_at_once = failing is not None and failing.after_tokens == 0
        if not fails_at_once and not self.below.sends_headers:
            answer.respond()
        scope = trio.CancelScope()
        gate = GatedAnswer(
            answer,
            fail_after=None if failing is None else failing.after_tokens,
            stall_after=None if stalling is None else stalling.after_tokens,
            is_shut=self.rules.is_paused,
            on_failed=scope.cancel,
        )
        request = _Request(
            scope,
            gate,
            generation.prompt_tokens,
            generation.choices,
            arrival=now,
            admit_at=self.rules.admit_at(now),
        )
        with self._holding(generation.request_id, request), scope:
            if await self._admit(request):
                # What the engine times from the arrival begins when it gets the request.
                generation = attrs.evolve(generation, arrival=trio.current_time())
            request.is_waiting = False
            self._tell_load()
            if fails_at_once:
                gate.has_failed = True
            else:
                try:
                    await self.below.generate(generation, gate)
                except RpcFailedError:
                    await request.let_out()  # the status comes behind what was said before it
                    raise
                await request.let_out()
        if failing is not None and gate.has_failed:
            raise_status(Status(StatusCode[failing.code], failing.message))
        if scope.cancelled_caught:
            answer.respond()
            for index in range(generation.choices):
                answer.finish("abort", index)

    def loads(self) -> Loads:
        """Return what the engine below holds, and what is held here.

        Nobody knows yet what of a request that waits here is cached: its whole prompt counts.
        """
        loads = self.below.loads()
        waiting = [each for each in self._here if each.is_waiting]
        return attrs.evolve(
            loads,
            running=loads.running + sum(each.choices for each in self._here if each.is_done),
            waiting=loads.waiting + sum(each.choices for each in waiting),
            waiting_uncached_tokens=loads.waiting_uncached_tokens
            + sum(each.choices * each.prompt_tokens for each in waiting),
        )

    def methods(self) -> Mapping[str, Any]:
        """Return the methods of the engine below; its Abort ends what is held here, too."""
        return with_own_aborts(self.below.methods(), self._end_held)

    # ---- inside

    @contextmanager
    def _holding(self, request_id: str, request: _Request) -> Iterator[None]:
        self._requests.add(request_id, request)
        self._here[request] = None
        self._tell_load()
        try:
            yield
        finally:
            self._requests.remove(request_id, request)
            del self._here[request]
            self._tell_load()

    async def _admit(self, request: _Request) -> bool:
        """Wait until *request* may reach the engine; return whether that took time.

        A pause is waited for too, unless the engine is simulated: that one has a queue of its own.
        """
        has_waited = False
        while True:
            is_kept = self.rules.is_paused and self._simulator is None
            if not is_kept and request.admit_at <= trio.current_time():
                return has_waited
            has_waited, news = True, self._news
            with trio.move_on_at(math.inf if is_kept else request.admit_at):
                await news.wait()

    def _wake(self) -> None:
        """Have those that wait look again."""
        news, self._news = self._news, trio.Event()
        news.set()

    def _tell_load(self) -> None:
        if self._simulator is not None:
            self._simulator.kv_events.tell()

    def _end_held(self, request_id: str) -> int:
        held = [each for each in self._requests.find(request_id) if each.is_held]
        for each in held:
            each.scope.cancel()
        return len(held)
