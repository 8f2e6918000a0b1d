"""The KV cache of one engine: a fixed number of blocks, shared by content.  PURE.

A block is free, or held by the sequences that refer to it, or idle: its content is kept, nobody
refers to it, and it makes room for others when there is no free block, the longest idle one first.
Two sequences that compute the same content at the same time end up with two copies; only the first
copy is news, and only the loss of the last one.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence


class Block:
    """One physical block."""

    __slots__ = ("hash", "references")

    def __init__(self) -> None:
        #: Of its content; None while the block is not full, and private to one sequence.
        self.hash: int | None = None
        self.references = 1


class KvPool:
    """*capacity* blocks."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free = capacity
        self._copies: dict[int, list[Block]] = {}
        self._idle: OrderedDict[Block, None] = OrderedDict()  # the longest idle first

    @property
    def available(self) -> int:
        """How many blocks an allocation may ask for: free ones, and idle ones that would go."""
        return self._free + len(self._idle)

    @property
    def active(self) -> int:
        """How many blocks sequences refer to: those that cannot be evicted."""
        return self.capacity - self._free - len(self._idle)

    @property
    def cached(self) -> int:
        """How many different contents the cache holds."""
        return len(self._copies)

    def __contains__(self, content_hash: int) -> bool:
        return content_hash in self._copies

    def __iter__(self) -> Iterator[int]:
        """Iterate over the hashes of the contents held."""
        return iter(self._copies)

    @property
    def free(self) -> int:
        """How many blocks have no content that anybody could find."""
        return self._free

    def copies(self, content_hash: int) -> Sequence[Block]:
        """Return the blocks with this content: none, if it is not in the cache."""
        return self._copies.get(content_hash, ())

    def match(self, hashes: Iterable[int]) -> list[Block]:
        """Return cached blocks for the longest prefix of *hashes*.  Nobody holds them by that."""
        found = []
        for content_hash in hashes:
            copies = self._copies.get(content_hash)
            if copies is None:
                break
            found.append(copies[0])
        return found

    def cached_prefix(self, hashes: Sequence[int], at_most: int) -> int:
        """Return how many of the first *at_most* of a sequence's *hashes* are cached in one go.

        A block is never without those before it: sequences hold them together, and give them up
        from their end.  So the first one that is missing is searched for, not counted up to.
        """
        last = min(len(hashes), at_most)
        return bisect_left(range(last), True, key=lambda place: hashes[place] not in self._copies)

    def room_beside(self, blocks: Sequence[Block]) -> int:
        """Return how many blocks could still be allocated once *blocks* were held."""
        return self.available - sum(not block.references for block in blocks)

    def hold(self, blocks: Iterable[Block]) -> None:
        """Refer to cached *blocks* once more."""
        for block in blocks:
            if not block.references:
                del self._idle[block]
            block.references += 1

    def allocate(self, count: int) -> tuple[list[Block], list[int]]:
        """Return *count* private blocks, and the hashes of what had to leave the cache for them.

        The caller has made sure that so many are `available`.
        """
        removed = []
        while self._free < count:
            block, _ = self._idle.popitem(last=False)
            self._free += 1
            content_hash = self._forget(block)
            if content_hash is not None:
                removed.append(content_hash)
        self._free -= count
        return [Block() for _ in range(count)], removed

    def complete(self, block: Block, content_hash: int) -> bool:
        """Let others find a private block, now that it is full; return whether it is news."""
        block.hash = content_hash
        copies = self._copies.setdefault(content_hash, [])
        copies.append(block)
        return len(copies) == 1

    def release(self, blocks: Sequence[Block]) -> None:
        """Give up one reference to each of *blocks*, which are in the order of the sequence.

        What becomes idle leaves the cache from its end: a prefix is of use without what follows.
        """
        for block in reversed(blocks):
            block.references -= 1
            if not block.references:
                if block.hash is None:
                    self._free += 1
                else:
                    self._idle[block] = None

    def clear(self) -> None:
        """Forget all content; held blocks stay held, and private."""
        self._free += len(self._idle)
        self._idle.clear()
        for copies in self._copies.values():
            for block in copies:
                block.hash = None
        self._copies.clear()

    def _forget(self, block: Block) -> int | None:
        """Take an evicted block out of the index; return its hash if it was the last copy."""
        content_hash = block.hash
        assert content_hash is not None
        copies = self._copies[content_hash]
        copies.remove(block)
        if copies:
            return None
        del self._copies[content_hash]
        return content_hash
