"""The content hash of KV blocks.  PURE.

A block's hash covers its own token ids and everything before it, by way of its parent's hash: equal
hashes mean equal prefixes.  Hashes are signed 64-bit numbers, as the wire has them, and the same in
every process, so that the events of a fleet can be compared.
"""

import sys
from array import array
from hashlib import blake2b

assert array("I").itemsize == 4, "a token id has 32 bits"


def hash_blocks(ids: "array[int]", block_size: int, parent: int | None) -> list[int]:
    """Return the hashes of the blocks that *ids* (type code "I") fills; a rest is left out.

    *parent* is the hash of the block before them, None at the start of a sequence.
    """
    if sys.byteorder == "big":
        ids = ids[:]
        ids.byteswap()
    data = ids.tobytes()
    step = 4 * block_size
    chain = b"" if parent is None else parent.to_bytes(8, "little", signed=True)
    hashes = []
    for end in range(step, len(data) + 1, step):
        chain = blake2b(chain + data[end - step : end], digest_size=8).digest()
        hashes.append(int.from_bytes(chain, "little", signed=True))
    return hashes
