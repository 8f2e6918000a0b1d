"""The content hash of KV blocks.  PURE.

A block's hash covers its own token ids and everything before it, by way of its parent's hash: equal
hashes mean equal prefixes.  Hashes are signed 64-bit numbers, as the wire has them, and the same in
every process, so that the events of a fleet can be compared.
"""

import sys
from array import array
from hashlib import blake2b

assert array("I").itemsize == 4, "a token id has 32 bits"


def hash_blocks(
    ids: "array[int]", block_size: int, first: int, last: int, parent: int | None
) -> list[int]:
    """Return the hashes of the blocks *first* up to *last* (excluded) of *ids*.

    *ids* has type code "I" and the sequence's first token in front; *parent* is the hash of the
    block before *first*, None if there is none.
    """
    chunk = ids[first * block_size : last * block_size]
    if sys.byteorder == "big":
        chunk.byteswap()
    data = chunk.tobytes()
    step = 4 * block_size
    chain = b"" if parent is None else parent.to_bytes(8, "little", signed=True)
    hashes = []
    for start in range(0, len(data), step):
        chain = blake2b(chain + data[start : start + step], digest_size=8).digest()
        hashes.append(int.from_bytes(chain, "little", signed=True))
    return hashes
