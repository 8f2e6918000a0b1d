"""Which paced streams are due, on a grid of passes.

PURE: the time is an argument.  One wake-up serves every stream of a pass, so a stream begins at the
first pass at or after its due time (up to 5 ms late) and keeps its place on the grid for good:
due times are multiples of the period, so nothing drifts, and jitter of a wake-up neither skips nor
doubles a token.  A pass that comes late hands out what was missed.

Streams with the same place share one bucket, which moves from pass to pass as a whole: a pass costs
nothing for each stream here.
"""

import math
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

#: A stream begins at most this much after its due time.
MAX_LATENESS_SECONDS = 0.005

#: Passes closer than this would cost more in wake-ups than they show: they carry several tokens.
MIN_PERIOD_SECONDS = 0.001

#: Share of a period by which floating-point time may miss a multiple of it.
_ROUNDING = 1e-6


class PacedStream:
    """Base of what a grid holds."""

    __slots__ = ("bucket",)

    def __init__(self) -> None:
        #: Where the stream is; None outside a grid.  Only the grid touches it.
        self.bucket: dict[Any, None] | None = None


Stream = TypeVar("Stream", bound=PacedStream)


class PassGrid(Generic[Stream]):
    """Streams by the pass at which they are next due.

    *token_seconds* (above 0) lie between two tokens of a stream; *origin* is any moment.
    """

    def __init__(self, token_seconds: float, origin: float) -> None:
        self._origin = origin
        self._tokens_per_pass = max(1, math.ceil(MIN_PERIOD_SECONDS / token_seconds))
        self._passes_per_token = max(1, math.ceil(token_seconds / MAX_LATENESS_SECONDS))
        self._period = token_seconds * self._tokens_per_pass / self._passes_per_token
        self._buckets: dict[int, dict[Stream, None]] = {}
        self._passes: list[int] = []  # a heap of the keys of _buckets

    def enter(self, stream: Stream, due: float) -> None:
        """Take *stream* in, its first token not before *due*."""
        number = math.ceil((due - self._origin) / self._period - _ROUNDING)
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = {}
            heappush(self._passes, number)
        bucket[stream] = None
        stream.bucket = bucket

    def leave(self, stream: Stream) -> None:
        """Let *stream* go, if it is here."""
        if stream.bucket is not None:
            del stream.bucket[stream]
            stream.bucket = None

    def next_pass(self) -> float:
        """Return when the next pass is due, infinity while there is none."""
        while self._passes and not self._buckets[self._passes[0]]:
            del self._buckets[heappop(self._passes)]  # all of its streams have left
        return self._origin + self._passes[0] * self._period if self._passes else math.inf

    def take_due(self, now: float) -> Iterator[tuple[list[Stream], int]]:
        """Yield the streams that are due at *now*, with the number of tokens for each.

        Streams may enter and leave meanwhile.
        """
        current = math.floor((now - self._origin) / self._period + _ROUNDING)
        while self._passes and self._passes[0] <= current:
            number = heappop(self._passes)
            bucket = self._buckets.pop(number)
            if bucket:
                times = 1 + (current - number) // self._passes_per_token
                self._move(bucket, number + times * self._passes_per_token)
                yield list(bucket), times * self._tokens_per_pass

    def _move(self, bucket: dict[Stream, None], number: int) -> None:
        there = self._buckets.get(number)
        if there is None:
            self._buckets[number] = bucket
            heappush(self._passes, number)
        else:
            for stream in bucket:
                there[stream] = None
                stream.bucket = there
