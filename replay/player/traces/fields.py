"""PURE.  Reads typed values out of a line of JSON, and says which line and which field is wrong.

Nothing is coerced: "12" is no number, true is not 1, 3.5 is no count, NaN is not JSON.  Null counts
as absent.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from replay.player.arrival import token_ids
from replay.player.observation import TokenIds
from replay.player.traces.fault import Notes, TraceError
from replay.player.traces.lines import Line

#: Nanoseconds of each unit that a source may count in.
UNITS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
#: 292 years: what 64 bits hold.
_MAX_TIME_NS = (1 << 63) - 1


@attrs.frozen
class Row:
    """The object of one line."""

    line: int
    values: dict[str, Any] = attrs.field(repr=False)

    def fault(self, reason: str) -> TraceError:
        """Return an error that names the line."""
        return TraceError(self.line, reason)

    def integer(self, key: str, *, minimum: int | None = 0) -> int | None:
        """Return an integer of at least *minimum*, or None."""
        value = self.values.get(key)
        if value is None:
            return None
        if type(value) is not int:
            raise self.fault(f"{key}: must be an integer, is {kind_of(value)}")
        if minimum is not None and value < minimum:
            raise self.fault(f"{key}: must be at least {minimum}, is {_short(value)}")
        return value

    def count(self, key: str, *, minimum: int = 0, maximum: int | None = None) -> int:
        """Return an integer that has to be there."""
        value = self.integer(key, minimum=minimum)
        if value is None:
            raise self.fault(f"{key}: is missing")
        if maximum is not None and value > maximum:
            raise self.fault(f"{key}: must be at most {maximum}, is {_short(value)}")
        return value

    def number(self, key: str) -> float | None:
        """Return a finite number, or None."""
        value = self.values.get(key)
        if value is None:
            return None
        if type(value) is int or (type(value) is float and math.isfinite(value)):
            return value
        raise self.fault(f"{key}: must be a finite number, is {kind_of(value)}")

    def text(self, key: str) -> str | None:
        """Return a string, or None."""
        value = self.values.get(key)
        if value is None or isinstance(value, str):
            return value
        raise self.fault(f"{key}: must be a string, is {kind_of(value)}")

    def flag(self, key: str) -> bool | None:
        """Return a bool, or None."""
        value = self.values.get(key)
        if value is None or isinstance(value, bool):
            return value
        raise self.fault(f"{key}: must be true or false, is {kind_of(value)}")

    def sequence(self, key: str) -> list[Any] | None:
        """Return a list, or None."""
        value = self.values.get(key)
        if value is None or isinstance(value, list):
            return value
        raise self.fault(f"{key}: must be a list, is {kind_of(value)}")

    def mapping(self, key: str) -> dict[str, Any] | None:
        """Return an object, or None."""
        value = self.values.get(key)
        if value is None or isinstance(value, dict):
            return value
        raise self.fault(f"{key}: must be an object, is {kind_of(value)}")

    def ids(self, key: str) -> TokenIds | None:
        """Return a list of token ids, or None."""
        value = self.sequence(key)
        return None if value is None else self.as_ids(key, value)

    def as_ids(self, key: str, value: Any) -> TokenIds:
        """Return *value*, which was found at *key*, as token ids."""
        if not isinstance(value, list):
            raise self.fault(f"{key}: must be a list of token ids, is {kind_of(value)}")
        try:
            return token_ids(value)
        except (TypeError, OverflowError):
            raise self.fault(f"{key}: must hold integers from 0 to 2^32 - 1 only") from None

    def time_ns(self, key: str, unit_ns: int, *, minimum: int | None = 0) -> int | None:
        """Return a moment or a span that the source counts in units of *unit_ns*, in nanoseconds.

        An integer is exact; a fraction is rounded to the nanosecond.
        """
        value = self.number(key)
        if value is None:
            return None
        nanoseconds = value * unit_ns if isinstance(value, int) else round(value * unit_ns)
        if minimum is not None and nanoseconds < minimum:
            raise self.fault(f"{key}: must be at least {minimum}, is {_short(value)}")
        if abs(nanoseconds) > _MAX_TIME_NS:
            raise self.fault(f"{key}: is beyond 292 years")
        return nanoseconds


def read_rows(lines: Iterable[Line], notes: Notes, *, skip_broken: bool = False) -> Iterator[Row]:
    """Read each line as one JSON object.

    A last line that no newline ended and that does not parse was torn off: it is noted and passed
    over.  With *skip_broken* so is any other line that does not parse: writers that are killed
    leave such lines behind.  Raises TraceError for every other line that is not one JSON object.
    """
    for line in lines:
        try:
            values = _decode(line)
        except TraceError:
            if line.is_whole and not skip_broken:
                raise
            notes.torn_lines.append(line.number)
            continue
        yield Row(line.number, values)


def _decode(line: Line) -> dict[str, Any]:
    try:
        value = json.loads(line.data.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise TraceError(line.number, f"is not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        reason = f"is not JSON: {error.msg[0].lower()}{error.msg[1:]} at column {error.colno}"
        if line.data.rstrip().endswith(b","):
            reason += "; the line ends with a comma, but each line has to be an object of its own"
        raise TraceError(line.number, reason) from None
    except RecursionError:
        raise TraceError(line.number, "is nested too deeply") from None
    except ValueError as error:
        # Our own words, or an integer of more digits than Python reads.
        known = isinstance(error, _ConstantError)
        raise TraceError(
            line.number, str(error) if known else "holds a number that is too long"
        ) from None
    if not isinstance(value, dict):
        raise TraceError(line.number, f"must be an object, is {kind_of(value)}")
    return value


class _ConstantError(ValueError):
    """NaN or an infinity where JSON has none."""


def _refuse_constant(name: str) -> float:
    raise _ConstantError(f"is not JSON: {name} is not a number that JSON knows")


def _short(value: float) -> str:
    text = str(value) if abs(value) < 1e18 else f"about {float(value):.3g}"
    return text[:32]


def kind_of(value: object) -> str:
    """Return what *value* is, in words for a person."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case str():
            return "a string"
        case int():
            return "an integer"
        case float():
            return "a fraction" if math.isfinite(value) else "not finite"
        case Mapping():
            return "an object"
        case _:
            return "a list"
