"""Where requests are sent: what the player needs of a target."""

from collections.abc import Callable
from typing import Protocol

import attrs

from replay.errors import ReplayError
from replay.player.answer_log import AnswerLog
from replay.player.outgoing import Outgoing, Speaks


class TargetError(ReplayError):
    """A target cannot be used at all.  The text names it and says why."""


class SendError(Exception):
    """A request has failed.  `label` is one of few words: a status, never a message."""

    def __init__(self, label: str) -> None:
        super().__init__(label)
        self.label = label


@attrs.frozen(kw_only=True)
class TargetModel:
    """What a target says of its model."""

    name: str
    vocab_size: int
    context_length: int | None = None


@attrs.frozen
class Clock:
    """The time of a run: nanoseconds from its start."""

    now: Callable[[], float]
    """Seconds of the loop's clock."""
    started: float

    def now_ns(self) -> int:
        """Return the present."""
        return self.at_ns(self.now())

    def at_ns(self, seconds: float) -> int:
        """Return a moment of the loop's clock."""
        return round((seconds - self.started) * 1e9)

    def seconds(self, moment_ns: int) -> float:
        """Return a moment of the run on the loop's clock."""
        return self.started + moment_ns / 1e9


class Packed(Protocol):
    """A request that is ready to be sent: nothing is computed for it any more."""

    async def send(self, log: AnswerLog, clock: Clock) -> None:
        """Send it, note what comes back, and return at its end.

        Raises SendError.  Being cancelled takes the request back.
        """
        ...


class Target(Protocol):
    """Somebody who answers requests."""

    speaks: Speaks

    async def describe(self) -> TargetModel:
        """Connect and ask for the model.  Raises TargetError."""
        ...

    def pack(self, outgoing: Outgoing) -> Packed:
        """Prepare a request.  Raises ValueError for a value that cannot be sent."""
        ...
