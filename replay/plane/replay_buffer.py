"""The last messages of a publisher, kept so that a reader who missed some can ask for them.

PURE.
"""

from collections.abc import Iterator

from replay.plane.codec import Frames


class ReplayBuffer:
    """The messages of the last *capacity* sequence numbers of one publisher."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a replay buffer holds at least 1 message, not {capacity}")
        self._slots: list[tuple[int, Frames] | None] = [None] * capacity
        self._next = 0

    def append(self, sequence: int, frames: Frames) -> None:
        """Keep a message.  Sequence numbers rise; one that was never published is passed over."""
        self._slots[sequence % len(self._slots)] = (sequence, frames)
        self._next = sequence + 1

    def between(self, first: int, last: int) -> Iterator[Frames]:
        """Yield what is left of the messages from *first* to *last*, both included, in order."""
        oldest = max(first, self._next - len(self._slots), 0)
        for sequence in range(oldest, min(last + 1, self._next)):
            slot = self._slots[sequence % len(self._slots)]
            if slot is not None and slot[0] == sequence:
                yield slot[1]
