"""Which requests are in flight, by id: what `Abort` needs.  PURE.

A gateway that spreads one request over several (`n` choices, array prompts) names the children
`{rid}-n{i}` and `{rid}-p{i}`; an Abort of the parent's id means them too.  Ids are the client's and
need not be unique: everything in flight under an id counts.
"""

from typing import Generic, TypeVar

T = TypeVar("T")


class InFlight(Generic[T]):
    """A multimap from request id to what is in flight, with the children of each id."""

    def __init__(self) -> None:
        self._by_id: dict[str, list[T]] = {}
        self._children: dict[str, dict[str, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, request_id: str, entry: T) -> None:
        """Take note of a request."""
        self._count += 1
        entries = self._by_id.get(request_id)
        if entries is not None:
            entries.append(entry)
            return
        self._by_id[request_id] = [entry]
        parent = _parent(request_id)
        if parent is not None:
            self._children.setdefault(parent, {})[request_id] = None

    def remove(self, request_id: str, entry: T) -> None:
        """Forget a request that has ended."""
        self._count -= 1
        entries = self._by_id[request_id]
        entries.remove(entry)
        if entries:
            return
        del self._by_id[request_id]
        parent = _parent(request_id)
        if parent is not None:
            siblings = self._children[parent]
            del siblings[request_id]
            if not siblings:
                del self._children[parent]

    def find(self, request_id: str) -> list[T]:
        """Return what is in flight under *request_id* and under its children's ids."""
        found = list(self._by_id.get(request_id, ()))
        for child in self._children.get(request_id, ()):
            found += self._by_id[child]
        return found


def _parent(request_id: str) -> str | None:
    """Return the id that *request_id* is a child of, if it has the form of one."""
    parent, dash, suffix = request_id.rpartition("-")
    if dash and parent and suffix[:1] in ("n", "p") and suffix[1:].isdecimal():
        return parent
    return None
