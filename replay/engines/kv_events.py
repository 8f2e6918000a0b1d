"""What a KV cache tells about its blocks.  PURE.

The order of a request's events in a pass: what its allocation evicted, then what it completed.
"""

from array import array
from collections.abc import Sequence

import attrs


@attrs.frozen
class BlocksStored:
    """A run of blocks that follow each other and were not in the cache before."""

    parent: int | None
    """Hash of the block before the first one; None at the start of a sequence."""
    hashes: Sequence[int]
    token_ids: "array[int]"
    """Of all blocks, `block_size` for each."""
    block_size: int


@attrs.frozen
class BlocksRemoved:
    """Blocks whose last copy has left the cache."""

    hashes: Sequence[int]


@attrs.frozen
class CacheCleared:
    """Everything has left the cache."""


KvEvent = BlocksStored | BlocksRemoved | CacheCleared
