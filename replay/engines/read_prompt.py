"""From the ids of a prompt to its blocks, however long it is."""

from array import array
from collections.abc import Sequence

import trio

from replay.engines.block_hash import hash_blocks

#: Prompt tokens that are hashed before others get a turn: about a millisecond.
BURST_PROMPT_TOKENS = 16_384


async def read_prompt(ids: Sequence[int], block_size: int | None) -> "tuple[array[int], list[int]]":
    """Return the ids as an array, and the hashes of the full blocks of *block_size*.

    With None there are no hashes.
    """
    prompt = array("I")
    hashes: list[int] = []
    step = BURST_PROMPT_TOKENS
    if block_size is not None:
        step = max(1, step // block_size) * block_size
    for start in range(0, len(ids), step):
        if start:
            await trio.lowlevel.checkpoint()
        piece = array("I", ids[start : start + step])
        prompt += piece
        if block_size is not None:
            hashes += hash_blocks(piece, block_size, hashes[-1] if hashes else None)
    return prompt, hashes
