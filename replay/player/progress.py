"""PURE.  What a run has done so far, in numbers that a live view shows and the end keeps."""

from collections import Counter

import attrs

from replay.player.observation import Observation, Outcome
from replay.player.report import LATE_MS


@attrs.define
class Progress:
    """Counts of a run."""

    sent: int = 0
    in_flight: int = 0
    late: int = 0
    """Requests that were sent more than `LATE_MS` after their time."""
    refusals: Counter[str] = attrs.field(factory=Counter)
    """Requests that could not be sent, by what they lacked or what did not fit."""
    output_tokens: int = 0
    outcomes: Counter[str] = attrs.field(factory=Counter)
    errors: Counter[str] = attrs.field(factory=Counter)
    """Failed requests by their label."""

    @property
    def refused(self) -> int:
        """Requests that could not be sent."""
        return self.refusals.total()

    def started(self) -> None:
        """Count a request that is sent."""
        self.sent += 1
        self.in_flight += 1

    def ended(self, observation: Observation) -> None:
        """Count what came of a request that was sent."""
        self.in_flight -= 1
        self.output_tokens += observation.output_tokens
        delay_ns = observation.schedule_delay_ns
        if delay_ns is not None and delay_ns > LATE_MS * 1e6:
            self.late += 1
        self._count(observation)

    def not_sent(self, observation: Observation) -> None:
        """Count a request that is not sent."""
        self._count(observation)

    def _count(self, observation: Observation) -> None:
        self.outcomes[observation.outcome.value] += 1
        if observation.outcome is Outcome.ERROR:
            self.errors[observation.error or Outcome.ERROR.value] += 1
