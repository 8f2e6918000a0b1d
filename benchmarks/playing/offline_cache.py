"""PURE.  What a prefix cache would have found, computed from a trace and the order of admission.

It shares nothing with the simulated engine but the rule.  A content is a full block of tokens
together with all that stands before it.  A request finds the longest prefix of its prompt whose
blocks are there, never the block with the prompt's last token, which has to be computed to give the
next one.  Then its own full blocks, of prompt and answer, are there.

"An LRU of that size" is this: requests are served one after the other; each needs a block for every
`block_size` tokens of its prompt and its answer (but the last token, whose KV nobody computes), and
a last one that is not full; those that it found it keeps; for the others the contents go that were
used longest ago, and of one request the last block before the first.  Requests that overlap hold
their blocks and find less of each other: by so much an engine under load may differ from it.
"""

from collections import OrderedDict
from collections.abc import Sequence

import attrs

_Content = tuple[object, ...]


@attrs.frozen
class TraceRow:
    """One request of a Mooncake trace."""

    prompt_tokens: int
    output_tokens: int
    hash_ids: Sequence[int]


@attrs.define
class OfflineCache:
    """A cache of *capacity* blocks; None: of any number."""

    capacity: int | None = None
    block_size: int = 16
    trace_block_size: int = 512
    prompt_tokens: int = 0
    cached_tokens: int = 0
    _served: int = 0
    _contents: OrderedDict[int, None] = attrs.field(factory=OrderedDict)
    """The one that was used longest ago first."""
    _numbers: dict[_Content, int] = attrs.field(factory=dict)

    @property
    def hit_rate(self) -> float:
        """The share of prompt tokens that were found."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def serve(self, row: TraceRow) -> int:
        """Serve a request, and return how many of its prompt tokens were found."""
        contents = self._contents_of(row)
        useful = (row.prompt_tokens - 1) // self.block_size
        found = 0
        while found < useful and contents[found] in self._contents:
            found += 1
        for content in contents[:found]:
            del self._contents[content]
        needed = -(-(row.prompt_tokens + max(0, row.output_tokens - 1)) // self.block_size)
        if self.capacity is not None:
            while len(self._contents) + needed > self.capacity:
                self._contents.popitem(last=False)
        for content in reversed(contents):
            self._contents.pop(content, None)
            self._contents[content] = None
        self._served += 1
        self.prompt_tokens += row.prompt_tokens
        self.cached_tokens += found * self.block_size
        return found * self.block_size

    def _contents_of(self, row: TraceRow) -> list[int]:
        """Return a number for each full block: equal for equal content and equal beginnings."""
        whole = row.prompt_tokens // self.block_size
        total = (row.prompt_tokens + max(0, row.output_tokens - 1)) // self.block_size
        numbers: list[int] = []
        before = -1
        for block in range(total):
            place = block * self.block_size // self.trace_block_size
            # What no id names, and what was generated, is of this request alone.
            is_shared = block < whole and place < len(row.hash_ids)
            name = row.hash_ids[place] if is_shared else f"own {self._served}"
            before = self._numbers.setdefault((before, name, block), len(self._numbers))
            numbers.append(before)
        return numbers
