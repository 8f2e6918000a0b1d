"""One fault of a configuration, and how it is said.

PURE.  A line looks like `taps.yaml:12: $.taps[0].capacity: must be at least 1, is 0`, so that an
editor can jump to it; a flag or an environment variable stands under its own name.
"""

import json
import re
from collections.abc import Iterable

import attrs

from replay.errors import ConfigError
from replay.text import escape_controls

#: Where a key lies: names of keys and indices of lists, outermost first.
Path = tuple[str | int, ...]


@attrs.frozen
class Setting:
    """Something that set a key from outside the file: a flag, or an environment variable."""

    name: str
    path: Path
    """The key that it set."""


#: Who said it: a line of the file, or a setting from outside.
Place = int | Setting

#: Longer values are cut: the message is about the rule, and the place is named.
SHOWN_CHARACTERS = 60


@attrs.frozen
class Problem:
    """One fault, where it lies, and what must be instead."""

    place: Place
    path: Path
    text: str

    def line(self, file: str) -> str:
        """Return the line that the operator reads; *file* is the name under which he knows it."""
        text = escape_controls(self.text)
        if isinstance(self.place, int):
            return f"{file}:{self.place}: {format_path(self.path)}: {text}"
        rest = _without_prefix(self.path, self.place.path)
        below = f"{format_path(rest)[2:]}: " if rest else ""
        return f"{self.place.name}: {below}{text}"


@attrs.frozen
class Fault:
    """A broken rule, before it is known where the value was written."""

    path: Path
    text: str
    also: tuple[Path, ...] = ()
    """Other values that the rule looked at: if one of them could not be read, the rule is moot."""


def refusal(problems: Iterable[Problem], file: str) -> ConfigError:
    """Return the error for *problems*, each named once, in the order of the file, flags last."""
    ordered = sorted(problems, key=_order)
    return ConfigError(list(dict.fromkeys(each.line(file) for each in ordered)))


def format_path(path: Path) -> str:
    """Return `$.taps[0].capacity` for `("taps", 0, "capacity")`."""
    text = "$"
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif re.fullmatch(r"[A-Za-z0-9_-]+", part):
            text += f".{part}"
        else:
            text += f"[{quoted(part)}]"
    return text


def quoted(text: str) -> str:
    """Return *text* in double quotes, on one line and not too long."""
    cut = text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"
    return escape_controls(json.dumps(cut, ensure_ascii=False))


def _without_prefix(path: Path, known: Path) -> Path:
    """Return what *path* has beyond the part that it shares with *known*."""
    shared = 0
    while shared < min(len(path), len(known)) and path[shared] == known[shared]:
        shared += 1
    return path[shared:]


def _order(problem: Problem) -> tuple[bool, int]:
    place = problem.place
    return (False, place) if isinstance(place, int) else (True, 0)
