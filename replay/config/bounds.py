"""Rules about a single value, which many keys share.

PURE.  Each yields no fault or one, in the words `must be …, is …`.
"""

import math
from collections.abc import Iterator

from replay.config.model import INT_MAX
from replay.config.problems import Fault, Path, quoted


def whole(path: Path, value: int | None, least: int, most: int = INT_MAX) -> Iterator[Fault]:
    """An integer from *least* to *most*; None is fine where the type allows it."""
    if value is None:
        return
    if value < least:
        yield Fault(path, f"must be at least {least}, is {value}")
    elif value > most:
        yield Fault(path, f"must be at most {most}, is {value}")


def at_least(path: Path, value: float | None, least: float) -> Iterator[Fault]:
    """A finite number of at least *least*, which durations are with 0; None is fine."""
    if value is None:
        return
    if not math.isfinite(value):
        yield Fault(path, f"must be a finite number, is {value}")
    elif value < least:
        yield Fault(path, f"must be at least {least:g}, is {value:g}")


def above(path: Path, value: float | None, floor: float) -> Iterator[Fault]:
    """A finite number above *floor*; None is fine."""
    if value is None:
        return
    if not math.isfinite(value):
        yield Fault(path, f"must be a finite number, is {value}")
    elif value <= floor:
        yield Fault(path, f"must be above {floor:g}, is {value:g}")


def share(path: Path, value: float) -> Iterator[Fault]:
    """A number from 0 to 1."""
    if not 0 <= value <= 1:
        yield Fault(path, f"must be from 0 to 1, is {value:g}")


def not_empty(path: Path, value: str | None) -> Iterator[Fault]:
    """Text of at least one character, without a NUL, which no path and no name can have."""
    if value == "":
        yield Fault(path, "must not be empty")
    elif value is not None and "\0" in value:
        yield Fault(path, f"must not have a NUL character, is {quoted(value)}")
