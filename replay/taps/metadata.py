"""PURE.  Which of a call's metadata a record may show: globs of the configuration, by name."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase


class MetadataAllowList:
    """Globs over names in lower case, such as `x-claude-code-*`.  Without any, nothing passes."""

    __slots__ = ("_globs", "_known")

    #: Names are the client's to choose, so what is remembered of them is bounded.
    MOST_KNOWN = 1024

    def __init__(self, globs: Iterable[str]) -> None:
        self._globs = tuple(glob.lower() for glob in globs)
        self._known: dict[bytes, bool] = {}

    def of(self, metadata: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Return the allowed entries of *metadata*, in order."""
        if not self._globs:
            return []
        return [entry for entry in metadata if self._allows(entry[0])]

    def _allows(self, name: bytes) -> bool:
        allowed = self._known.get(name)
        if allowed is None:
            text = name.decode("latin-1")
            allowed = any(fnmatchcase(text, glob) for glob in self._globs)
            if len(self._known) < self.MOST_KNOWN:
                self._known[name] = allowed
        return allowed
