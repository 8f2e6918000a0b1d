"""PURE.  Reads comma-separated tables with a header:

columns by name, one row a line, the line named in every error.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal, InvalidOperation

import attrs

from replay.player.traces.fault import Notes, TraceError
from replay.player.traces.lines import Line


@attrs.frozen
class Cells:
    """The cells of one line, by column."""

    line: int
    cells: dict[str, str] = attrs.field(repr=False)

    def fault(self, reason: str) -> TraceError:
        """Return an error that names the line."""
        return TraceError(self.line, reason)

    def text(self, column: str) -> str | None:
        """Return a cell, or None if it is empty or its column is not there."""
        return self.cells.get(column, "").strip() or None

    def count(self, column: str, *, minimum: int = 0, maximum: int | None = None) -> int:
        """Return a whole number that has to be there; `18.0` is one."""
        value = self._decimal(column)
        if value is None:
            raise self.fault(f"{column}: is missing")
        if value != value.to_integral_value():
            raise self.fault(f"{column}: must be a whole number")
        if value < minimum:
            raise self.fault(f"{column}: must be at least {minimum}")
        if maximum is not None and value > maximum:
            raise self.fault(f"{column}: must be at most {maximum}")
        return int(value)

    def time_ns(self, column: str, unit_ns: int) -> int | None:
        """Return a moment or a span in nanoseconds, or None; exact to the nanosecond."""
        value = self._decimal(column)
        if value is None:
            return None
        if value < 0:
            raise self.fault(f"{column}: must be at least 0")
        nanoseconds = value * unit_ns
        if nanoseconds >= 1 << 63:
            raise self.fault(f"{column}: is beyond 292 years")
        return round(nanoseconds)

    def _decimal(self, column: str) -> Decimal | None:
        text = self.text(column)
        if text is None:
            return None
        try:
            value = Decimal(text)
        except InvalidOperation:
            raise self.fault(f"{column}: must be a number") from None
        if not value.is_finite():
            raise self.fault(f"{column}: must be a finite number")
        if abs(value) >= 1 << 63:
            raise self.fault(f"{column}: is too large")
        return value


def read_header(line: bytes) -> list[str]:
    """Return the names of the columns in *line*; a comma at its end names none."""
    try:
        names = next(csv.reader([line.decode()], strict=True), [])
    except (csv.Error, UnicodeDecodeError):
        return []
    names = [name.strip() for name in names]
    if names and not names[-1]:
        names.pop()
    return names


def read_cells(lines: Iterable[Line], required: Sequence[str], notes: Notes) -> Iterator[Cells]:
    """Read a table whose header has to name the columns *required*, in any order.

    A last line that no newline ended and that has too few cells was torn off: it is noted and
    passed over.  One with all its cells is taken, and the doubt about its last number is noted.
    Raises TraceError for every other line that does not have as many cells as the header.
    """
    names: list[str] | None = None
    width = 0
    for line in lines:
        if names is None:
            names = read_header(line.data)
            if lacking := [name for name in required if name not in names]:
                raise TraceError(line.number, f"the header lacks the column {', '.join(lacking)}")
            if len(set(names)) < len(names):
                raise TraceError(line.number, "the header names a column twice")
            # A comma at the end of the header stands at the end of every row too.
            width = len(names) + line.data.rstrip().endswith(b",")
            continue
        try:
            cells = next(csv.reader([line.data.decode()], strict=True))
        except UnicodeDecodeError as error:
            raise TraceError(line.number, f"is not UTF-8 at byte {error.start}") from None
        except csv.Error:
            if not line.is_whole:
                notes.torn_lines.append(line.number)
                continue
            raise TraceError(line.number, "is not a row of comma-separated values") from None
        if len(cells) != width:
            if not line.is_whole and len(cells) < width:
                notes.torn_lines.append(line.number)
                continue
            trailing = " (a comma at its end)" if cells and not cells[-1].strip() else ""
            raise TraceError(
                line.number, f"has {len(cells)} cells, the header has {width}{trailing}"
            )
        if not line.is_whole:
            notes.warn(
                f"line {line.number}, the last, has no newline: its last number may be cut short"
            )
        yield Cells(line.number, dict(zip(names, cells, strict=False)))
