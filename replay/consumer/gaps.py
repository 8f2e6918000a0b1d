"""Which sequence numbers have come, and so which are missing.

PURE.  Rules 64 and 65: per publisher id the missing ones are those between the lowest and the
highest number seen, whatever order they came in.  What was published before a reader joined is not
missing; a number that comes twice is counted once, so it cannot hide a hole.
"""

from bisect import bisect_right
from collections.abc import Iterator

#: Holes that are remembered.  Beyond it the oldest is closed for good: it stays counted as
#: missing, and a number of it that comes after all is taken for a duplicate.
MOST_HOLES = 65536


class SequenceRanges:
    """The numbers that were seen, as ranges without a hole."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        """Exclusive."""
        self.count = 0
        """How many different numbers were seen."""

    @property
    def first(self) -> int | None:
        """The lowest number seen; None before the first."""
        return self._starts[0] if self._starts else None

    @property
    def end(self) -> int | None:
        """One more than the highest number seen; None before the first."""
        return self._ends[-1] if self._ends else None

    @property
    def missing(self) -> int:
        """How many numbers between the lowest and the highest were not seen."""
        return self._ends[-1] - self._starts[0] - self.count if self._ends else 0

    def add(self, number: int) -> bool:
        """Note *number*.  Returns False if it was seen before."""
        starts, ends = self._starts, self._ends
        if ends and number == ends[-1]:  # the usual case
            ends[-1] += 1
            self.count += 1
            return True
        right = bisect_right(starts, number)
        if right and number < ends[right - 1]:
            return False
        joins_left = right > 0 and ends[right - 1] == number
        joins_right = right < len(starts) and starts[right] == number + 1
        if joins_left and joins_right:
            ends[right - 1] = ends.pop(right)
            del starts[right]
        elif joins_left:
            ends[right - 1] += 1
        elif joins_right:
            starts[right] = number
        else:
            starts.insert(right, number)
            ends.insert(right, number + 1)
            if len(starts) > MOST_HOLES + 1:
                del starts[1], ends[0]
        self.count += 1
        return True

    def __contains__(self, number: int) -> bool:
        right = bisect_right(self._starts, number)
        return right > 0 and number < self._ends[right - 1]

    def holes(self) -> Iterator[tuple[int, int]]:
        """Yield the first and last missing number of each hole, in order."""
        for end, start in zip(self._ends, self._starts[1:], strict=False):
            yield end, start - 1

    def missing_between(self, first: int, last: int) -> int:
        """Return how many of the numbers from *first* to *last* were not seen."""
        seen = sum(
            max(0, min(end, last + 1) - max(start, first))
            for start, end in zip(self._starts, self._ends, strict=True)
        )
        return last + 1 - first - seen
