"""Targets that answer by themselves, for tests of the player without a network."""

from collections.abc import Callable, Sequence

import attrs
import trio

from replay.player.answer_log import AnswerLog
from replay.player.outgoing import Outgoing, Speaks
from replay.player.targets import Clock, SendError, TargetModel


@attrs.define
class FakeTarget:
    """Answers each request with two tokens, the second after `seconds`."""

    seconds: float = 1.0
    speaks: Speaks = Speaks.IDS
    failing: Callable[[Outgoing], bool] = lambda _: False
    sent: list[tuple[float, Outgoing]] = attrs.field(factory=list)
    """When which request left."""
    in_flight: int = 0
    most_in_flight: int = 0
    taken_back: int = 0
    """Requests that were cancelled."""

    async def describe(self) -> TargetModel:
        return TargetModel(name="fake", vocab_size=1000)

    def pack(self, outgoing: Outgoing) -> "_PackedFake":
        return _PackedFake(self, outgoing)

    @property
    def ids(self) -> Sequence[str]:
        """The ids of what was sent, in that order."""
        return [outgoing.request_id for _, outgoing in self.sent]


@attrs.frozen
class _PackedFake:
    target: FakeTarget
    outgoing: Outgoing

    async def send(self, log: AnswerLog, clock: Clock) -> None:
        target = self.target
        log.sent(clock.now_ns(), expected=1, is_streamed=self.outgoing.stream)
        target.sent.append((trio.current_time() - clock.started, self.outgoing))
        target.in_flight += 1
        target.most_in_flight = max(target.most_in_flight, target.in_flight)
        try:
            log.tokens(0, [1], clock.now_ns())
            await trio.sleep(target.seconds)
            if target.failing(self.outgoing):
                raise SendError("UNAVAILABLE")
            if target.speaks is Speaks.IDS:
                log.tokens(0, [2], clock.now_ns())
            else:
                log.text(0, f"answer to {self.outgoing.request_id}", clock.now_ns())
            log.finish(0, "length")
        except trio.Cancelled:
            target.taken_back += 1
            raise
        finally:
            target.in_flight -= 1
