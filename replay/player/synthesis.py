"""PURE.  Makes the token ids of a prompt of which a trace tells only its length, or its length and
the ids of its blocks.

Rules.  The same number gives the same tokens, in every run and process.  Blocks of different
numbers differ within their first `head` tokens (five for a vocabulary of 32,768), and already in
the first one if the numbers are less than the vocabulary apart: so two rows share exactly the
blocks whose ids they share.  A block that a row cuts short is the beginning of the whole one.  The
low ids, where models keep their special tokens, are not used.

The tail of a block is a slice of one random table rather than fresh random numbers: a prompt of
128,000 tokens then costs well under a millisecond, and the loop that makes it also keeps the
schedule.
"""

import random
from array import array

from replay.player.arrival import BlockPrompt, LengthPrompt
from replay.player.observation import TokenIds

_TABLE_LENGTH = 1 << 16
_SLICE = 512
_MASK = (1 << 64) - 1
#: Sets the numbers of what belongs to one request apart from the ids of shared blocks.
_OWN = 1 << 63
#: Fewer ids than this could not tell blocks apart within a few tokens.
SMALLEST_VOCABULARY = 32


class Synthesizer:
    """Makes prompts out of ids below *vocab_size*.  The same *seed* gives the same prompts."""

    def __init__(self, vocab_size: int, *, seed: int = 0) -> None:
        if vocab_size < SMALLEST_VOCABULARY:
            raise ValueError(f"a vocabulary of {vocab_size} ids is too small to make prompts of")
        self._first_id = min(256, vocab_size // 4)
        self._radix = vocab_size - self._first_id
        chosen = random.Random(seed).choices(
            range(self._first_id, vocab_size), k=_TABLE_LENGTH + _SLICE
        )
        self._table = array("I", chosen)
        self._seed = seed
        self.head = 1
        """Tokens within which blocks of different numbers differ."""
        while self._radix**self.head <= _MASK:
            self.head += 1

    def ids(self, prompt: BlockPrompt | LengthPrompt) -> TokenIds:
        """Return the tokens of *prompt*, `prompt.length` of them."""
        if isinstance(prompt, LengthPrompt):
            return self._stretch(prompt.own | _OWN, prompt.length)
        made: TokenIds = array("I")
        for number in prompt.hash_ids:
            made.extend(self._stretch(number, min(prompt.block_size, prompt.length - len(made))))
        if len(made) < prompt.length:
            made.extend(self._stretch(prompt.own | _OWN, prompt.length - len(made)))
        return made

    def _stretch(self, number: int, length: int) -> TokenIds:
        """Return the first *length* tokens of the block called *number*."""
        number &= _MASK
        made: TokenIds = array("I")
        rest = number
        for _ in range(self.head):
            rest, digit = divmod(rest, self._radix)
            made.append(self._first_id + digit)
        piece = 0
        while len(made) < length:
            start = _scatter(number ^ self._seed, piece) % _TABLE_LENGTH
            made.extend(self._table[start : start + _SLICE])
            piece += 1
        del made[length:]
        return made


def _scatter(number: int, piece: int) -> int:
    """Spread neighbouring numbers over 64 bits (the finishing steps of splitmix64)."""
    value = (number + (piece + 1) * 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
