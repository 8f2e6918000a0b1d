"""PURE.  What the operator may say about a source that the source does not say itself."""

import attrs

from replay.player.traces.fields import UNITS


@attrs.frozen(kw_only=True)
class ReadOptions:
    """How to read a source."""

    block_size: int = 512
    """Tokens of the block that one of the trace's `hash_ids` names."""
    time_unit: str | None = None
    """One of `UNITS`; None: the format's own."""

    def unit_ns(self, own: str) -> int:
        """Return the nanoseconds of one unit of time, where the format counts in *own*."""
        return UNITS[self.time_unit or own]
