"""The sums over all records of a topic.

PURE.
"""

import attrs

from replay.consumer.summary import RecordSummary
from replay.taps.response import Outcome


@attrs.define
class Totals:
    """What the records hold, summed up."""

    records: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    responses: int = 0
    outcomes: dict[str, int] = attrs.field(
        factory=lambda: {outcome.value: 0 for outcome in Outcome}
    )
    undecodable: int = 0
    """Messages and records that could not be read (rule 68)."""
    unsupported: int = 0
    """Records of a newer kind."""
    first_arrival_unix_ns: int | None = None
    last_arrival_unix_ns: int | None = None

    def add(self, record: RecordSummary) -> None:
        """Count one record."""
        self.records += 1
        self.prompt_tokens += record.prompt_tokens
        if record.outcome is not None:
            self.responses += 1
            self.output_tokens += record.output_tokens
            self.outcomes[record.outcome] += 1
        arrival = record.arrival_unix_ns
        if self.first_arrival_unix_ns is None or arrival < self.first_arrival_unix_ns:
            self.first_arrival_unix_ns = arrival
        if self.last_arrival_unix_ns is None or arrival > self.last_arrival_unix_ns:
            self.last_arrival_unix_ns = arrival

    @property
    def arrival_span_ms(self) -> int:
        """Whole milliseconds between the earliest and the latest arrival."""
        if self.first_arrival_unix_ns is None or self.last_arrival_unix_ns is None:
            return 0
        return (self.last_arrival_unix_ns - self.first_arrival_unix_ns) // 1_000_000
