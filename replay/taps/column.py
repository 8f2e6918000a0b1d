"""PURE.  A growing column of numbers that takes little more memory than its numbers.

`array` alone keeps a sixteenth of its length in reserve, which for long responses is more than the
bytes that a tap says it takes.
"""

from array import array
from typing import Final, TypeAlias

Numbers: TypeAlias = "array[int]"

#: Numbers after which a block is sealed: the reserve of the open block and the head of a sealed one
#: stay near one percent of a long column.
BLOCK: Final = 2048


class Column:
    """Numbers of one type code.

    The hot path extends `open` itself and calls `seal` when it has reached `BLOCK`.
    """

    __slots__ = ("_sealed", "open")

    def __init__(self, typecode: str) -> None:
        self.open: Numbers = array(typecode)
        self._sealed: list[bytes] | None = None

    def seal(self) -> None:
        """Put the open block away in exactly its size."""
        if self._sealed is None:
            self._sealed = []
        self._sealed.append(self.open.tobytes())
        self.open = array(self.open.typecode)

    def trim(self) -> None:
        """Give the reserve back: nothing more is coming."""
        self.open = array(self.open.typecode, self.open)

    def __len__(self) -> int:
        if self._sealed is None:
            return len(self.open)
        return len(self.open) + sum(map(len, self._sealed)) // self.open.itemsize

    def numbers(self) -> Numbers:
        """Return all numbers.  Short columns are not copied, so the column ends here."""
        if self._sealed is None:
            return self.open
        whole: Numbers = array(self.open.typecode, b"".join(self._sealed))
        whole.extend(self.open)
        return whole
