"""The keys whose part of the program is not there yet.

They are refused by name, never ignored.  Who builds a part takes its line out; the last one takes
this file out.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from replay.config.describe import as_plain
from replay.config.model import Config
from replay.config.problems import Fault, Path, quoted

#: Key → the values that are refused; an empty tuple refuses every value but the default.  `*`
#: stands for any key of a mapping.
UNBUILT: Mapping[str, tuple[str, ...]] = {
    "http.admin": (),
    "http.token_file": (),
}


def unbuilt_faults(config: Config) -> Iterator[Fault]:
    """Yield each key of `UNBUILT` that *config* uses."""
    plain, defaults = as_plain(config), as_plain(Config())
    for pattern, refused in UNBUILT.items():
        for path, value in _matches(plain, pattern.split(".")):
            if value in refused if refused else [(path, value)] != [*_matches(defaults, path)]:
                named = f"{quoted(value)} " if refused else ""
                yield Fault(path, f"{named}is not built yet")


def _matches(plain: Any, pattern: Sequence[str | int]) -> Iterator[tuple[Path, Any]]:
    """Yield the path and the value of every key that *pattern* names."""
    if not pattern:
        yield (), plain
        return
    for key in plain if pattern[0] == "*" else pattern[:1]:
        for path, value in _matches(plain[key], pattern[1:]):
            yield (key, *path), value
