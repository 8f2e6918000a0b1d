"""What the last passes of a simulated engine were, and how late each was written.  PURE."""

import time
from collections import deque
from collections.abc import Iterator

import attrs

from replay.engines.scheduler import Pass


@attrs.frozen
class PassRecord:
    """One pass."""

    number: int
    due_unix_ns: int
    """When the model says that its tokens are there."""
    late_ms: float
    """Milliseconds from then until all of them had been handed to their streams."""
    duration_ms: float
    """By the model, before any speed-up."""
    prefill_tokens: int
    decode_requests: int
    tokens: int
    """Those that clients see."""


class PassLog:
    """The last *capacity* passes, numbered from 1."""

    def __init__(self, capacity: int) -> None:
        self._records: deque[PassRecord] = deque(maxlen=capacity)
        self._count = 0

    def __iter__(self) -> Iterator[PassRecord]:
        """Iterate over the passes, the oldest first."""
        return iter(self._records)

    def note(self, done: Pass, tokens: int, *, late_seconds: float) -> None:
        """Write down a pass whose last token was written just now."""
        self._count += 1
        self._records.append(
            PassRecord(
                number=self._count,
                due_unix_ns=time.time_ns() - int(late_seconds * 1e9),
                late_ms=late_seconds * 1000,
                duration_ms=done.duration_ms,
                prefill_tokens=done.prefill_tokens,
                decode_requests=done.decode_requests,
                tokens=tokens,
            )
        )

    def clear(self) -> None:
        """Forget all passes; the numbers go on."""
        self._records.clear()
