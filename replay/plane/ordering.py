"""Puts the messages of one publisher back in order while what is missing is asked for.

PURE.  A message behind a gap is held back until the gap is filled or given up.
"""

from typing import Generic, TypeVar

Item = TypeVar("Item")


class Orderer(Generic[Item]):
    """Hands out items by rising sequence number, each number at most once."""

    def __init__(self, expected: int, *, most_held: int, most_held_bytes: int) -> None:
        """Begin with the number *expected*.

        When more than *most_held* items, or more than *most_held_bytes* of them, are held back,
        the gap in front of them is given up: a gap must not fill the memory.
        """
        self.expected = expected
        """The number that is to be handed out next."""
        self._most_held = most_held
        self._most_held_bytes = most_held_bytes
        self._held: dict[int, tuple[Item, int]] = {}
        self._held_bytes = 0

    @property
    def gap(self) -> tuple[int, int] | None:
        """The first and last missing number in front of what is held back; None if nothing is."""
        return (self.expected, min(self._held) - 1) if self._held else None

    def push(self, sequence: int, item: Item, size: int) -> list[Item]:
        """Take an item of *size* bytes; return what can be handed out now, in order.

        A number that was handed out or given up before comes out at once: it is late, and no
        reason to lose it.  Whoever calls has dropped duplicates.
        """
        if sequence < self.expected:
            return [item]
        if sequence > self.expected:
            self._held[sequence] = (item, size)
            self._held_bytes += size
            if len(self._held) <= self._most_held and self._held_bytes <= self._most_held_bytes:
                return []
            return self.give_up(min(self._held) - 1)
        self.expected += 1
        return [item, *self._release()]

    def give_up(self, last: int) -> list[Item]:
        """Stop waiting for the numbers up to *last*; return what can be handed out now."""
        ready = []
        for sequence in sorted(each for each in self._held if each <= last):
            ready.append(self._take(sequence))
        self.expected = max(self.expected, last + 1)
        return ready + self._release()

    def give_up_all(self) -> list[Item]:
        """Stop waiting for anything; return what was held back."""
        return self.give_up(max(self._held)) if self._held else []

    def _release(self) -> list[Item]:
        ready = []
        while self.expected in self._held:
            ready.append(self._take(self.expected))
            self.expected += 1
        return ready

    def _take(self, sequence: int) -> Item:
        item, size = self._held.pop(sequence)
        self._held_bytes -= size
        return item
