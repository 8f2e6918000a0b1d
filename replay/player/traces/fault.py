"""PURE.  What is wrong with a trace, and what is worth saying about one that can be used.

A text here names fields, kinds and numbers, never the content of a field that could hold a prompt.
"""

import attrs

from replay.errors import ReplayError


class TraceError(ReplayError):
    """A source cannot be used.

    `line` is the line (or record) at fault, 0 for the source as a whole.
    """

    def __init__(self, line: int, reason: str, *, source: str | None = None) -> None:
        where = f"{source or 'trace'}:{line}" if line else (source or "trace")
        super().__init__(f"{where}: {reason}")
        self.line = line
        self.reason = reason
        self.source = source

    def at(self, source: str) -> "TraceError":
        """Return the same fault with the name of its source."""
        return TraceError(self.line, self.reason, source=source)


@attrs.define
class Notes:
    """What a reader noticed and went on: to be shown before a run and kept in its results."""

    warnings: list[str] = attrs.field(factory=list)
    torn_lines: list[int] = attrs.field(factory=list)
    """Lines that a writer did not finish; they were skipped."""
    torn_bytes: int = 0
    """Bytes behind the readable part of a record file."""
    undecodable: int = 0
    """Messages that are no record."""
    unsupported: int = 0
    """Records of a schema version that is not read here."""
    ignored_keys: set[str] = attrs.field(factory=set)
    """Keys that no rule here speaks of."""

    def warn(self, text: str) -> None:
        """Keep *text*, once."""
        if text not in self.warnings:
            self.warnings.append(text)

    def ignore(self, keys: set[str]) -> None:
        """Remember the names of *keys*; names that could be anything are shortened."""
        if not keys <= self.ignored_keys and len(self.ignored_keys) < 100:
            self.ignored_keys.update(key[:40] for key in keys)

    def summary(self) -> list[str]:
        """Return all of it as lines of text."""
        lines = list(self.warnings)
        if self.torn_lines:
            shown = ", ".join(str(number) for number in self.torn_lines[:10])
            more = ", …" if len(self.torn_lines) > 10 else ""
            lines.append(f"skipped {len(self.torn_lines)} torn line(s): {shown}{more}")
        if self.torn_bytes:
            lines.append(f"the last {self.torn_bytes} bytes are torn and were not read")
        if self.undecodable:
            lines.append(f"passed over {self.undecodable} message(s) that are no record")
        if self.unsupported:
            lines.append(f"passed over {self.unsupported} record(s) of another schema version")
        if self.ignored_keys:
            lines.append(f"ignored keys: {', '.join(sorted(map(ascii, self.ignored_keys)))}")
        return lines
