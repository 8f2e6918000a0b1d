"""PURE.  How a worker's choice ended, in the words that a record uses (taps.md section 3)."""

from collections.abc import Collection
from typing import Final

from replay.taps.recorder import CANCELLED_REASON, ERROR_PREFIX

EOS: Final = "eos"


def finish_word(reason: str, matched: int | str | None, eos_token_ids: Collection[int]) -> str:
    """Return the record's word for a worker's `stop`, `length` or `abort`.

    *matched* is the token id or string that stopped the choice, if any did.  Another engine's word
    stays as it is.
    """
    if reason == "abort":
        return CANCELLED_REASON
    if reason == "stop" and isinstance(matched, int) and matched in eos_token_ids:
        return EOS
    return reason


def error_word(message: str) -> str:
    """Return the record's finish reason of a choice that failed."""
    return ERROR_PREFIX + message
