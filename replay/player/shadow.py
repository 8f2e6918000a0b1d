"""PURE.  A comparison that grows while a tap and its shadow run.

What came of a request is known twice: from the tap, and from the candidate that it was sent to.
Counts are kept of all pairs, latencies of the latest; for the report at the end the latest pairs
are kept whole, as many as `keep`.
"""

from collections import deque

import attrs

from replay.player.answers import Tokens, compare_answers
from replay.player.compare import Side
from replay.player.observation import Observation, Outcome

#: Requests that a report at the end is made of.
KEEP = 100_000
#: Requests that the live view takes its medians from.
_LATEST = 500


@attrs.define
class ShadowTally:
    """What is known so far."""

    keep: int = KEEP
    recorded: int = 0
    pairs: int = 0
    """Requests that the candidate has answered, or failed."""
    tokens_differ: int = 0
    outcomes_differ: int = 0
    finishes_differ: int = 0
    not_sent: int = 0
    without_answer: int = 0
    """Requests whose record has no response to compare with."""
    _waiting: dict[int, Observation] = attrs.field(factory=dict)
    _kept: deque[tuple[Observation, Observation]] = attrs.field(factory=deque)
    _changes_ms: deque[float] = attrs.field(factory=lambda: deque(maxlen=_LATEST))

    def expect(self, position: int, recorded: Observation | None) -> None:
        """Note what the tap says of the request that is sent as number *position*."""
        self.recorded += 1
        if recorded is None:
            self.without_answer += 1
        else:
            self._waiting[position] = recorded

    def note(self, observed: Observation) -> None:
        """Note what came of a request from the candidate."""
        recorded = self._waiting.pop(observed.position, None)
        if observed.outcome is Outcome.NOT_SENT:
            self.not_sent += 1
            return
        if recorded is None:
            return
        self.pairs += 1
        found = compare_answers(recorded, observed)
        self.tokens_differ += found.tokens is Tokens.DIFFER
        self.outcomes_differ += found.outcomes_differ
        self.finishes_differ += found.finishes_differ
        if recorded.ttft_ns is not None and observed.ttft_ns is not None:
            self._changes_ms.append((observed.ttft_ns - recorded.ttft_ns) / 1e6)
        self._kept.append((attrs.evolve(recorded, position=observed.position), observed))
        if len(self._kept) > self.keep:
            self._kept.popleft()

    @property
    def ttft_shift_ms(self) -> float | None:
        """Median change of the time to first token over the latest requests."""
        latest = sorted(self._changes_ms)
        return latest[(len(latest) - 1) // 2] if latest else None

    def sides(self, tap: str, candidate: str) -> tuple[Side, Side]:
        """Return what was kept, for a comparison."""
        return (
            Side(
                name=tap,
                observations=[recorded for recorded, _ in self._kept],
                measured_at="worker",
            ),
            Side(
                name=candidate,
                observations=[observed for _, observed in self._kept],
                measured_at="client",
            ),
        )
