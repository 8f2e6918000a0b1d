"""PURE.  Finds which request of one run is which of another, by their ids.

A gateway changes ids on the way: the prompts of an array arrive as `{id}-p{i}`, under
prefill-decode and for an `x-request-id` header a `-{uuid}` is put behind.  Taking these suffixes
off everywhere would make one request out of many (the prompts of one array; ids that are themselves
`chatcmpl-{uuid}`), so each step joins only what the step before left over, and never guesses:

1. Equal ids.  Where an id comes several times (a retry), the k-th is the k-th. 2. Ids that are
equal without `-{uuid}`, if each side has one request of that name and of that place in an array. 3.
An id without `-p{i}` and the places 0 .. m-1 of an array of that name, if the id comes m times: the
k-th is p{k}.

What is left is missing; where a step could not tell which of several is meant, the name is reported
as ambiguous.
"""

import re
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

import attrs

_UUID = re.compile(
    r"-(?:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32})(?=$|-p\d+$)",
    re.I,
)
_PLACE = re.compile(r"-p(0|[1-9]\d{0,6})$")

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


@attrs.frozen
class Name:
    """What is left of an id without its suffixes, and its place in an array of prompts."""

    base: str
    place: int | None


def name_of(request_id: str) -> Name:
    """Take the suffixes off *request_id*, in either order.

    An id that is nothing but a suffix is left as it is.
    """
    base = _UUID.sub("", request_id) or request_id
    found = _PLACE.search(base)
    if found is None or not base[: found.start()]:
        return Name(base, None)
    rest = base[: found.start()]
    return Name(_UUID.sub("", rest) or rest, int(found[1]))


@attrs.define
class Joined(Generic[Item]):
    """The requests of two runs, side by side."""

    pairs: list[tuple[Item, Item]] = attrs.field(factory=list)
    only_left: list[Item] = attrs.field(factory=list)
    only_right: list[Item] = attrs.field(factory=list)
    ambiguous: list[str] = attrs.field(factory=list)
    """Names under which more requests were left than could be told apart."""


def join(
    left: Iterable[Item], right: Iterable[Item], request_id: Callable[[Item], str]
) -> Joined[Item]:
    """Join two runs.  Pairs of equal ids come first, in the order of *right*."""
    joined: Joined[Item] = Joined()
    waiting = _grouped(left, request_id)
    later: list[Item] = []
    for item in right:
        queue = waiting.get(request_id(item))
        if queue:
            joined.pairs.append((queue.popleft(), item))
        else:
            later.append(item)
    joined.only_left = [item for queue in waiting.values() for item in queue]
    joined.only_right = later

    def name(item: Item) -> Name:
        return name_of(request_id(item))

    _join_names(joined, name)
    _join_places(joined, name)
    return joined


def _join_names(joined: Joined[Item], name: Callable[[Item], Name]) -> None:
    """Join what bears a name that one request on each side bears."""
    left, right = _grouped(joined.only_left, name), _grouped(joined.only_right, name)
    for key in left.keys() & right.keys():
        if len(left[key]) == len(right[key]) == 1:
            joined.pairs.append((left.pop(key)[0], right.pop(key)[0]))
        else:
            joined.ambiguous.append(key.base)
    _keep(joined, left, right)


def _join_places(joined: Joined[Item], name: Callable[[Item], Name]) -> None:
    """Join the k-th request of a bare name with place k of the array of that name."""
    left, right = _grouped(joined.only_left, name), _grouped(joined.only_right, name)
    for bare, placed, swapped in ((left, right, False), (right, left, True)):
        places: dict[str, list[Name]] = {}
        for key in placed:
            if key.place is not None:
                places.setdefault(key.base, []).append(key)
        for key in [key for key in bare if key.place is None and key.base in places]:
            wanted = [Name(key.base, place) for place in range(len(bare[key]))]
            found = places[key.base]
            if set(found) != set(wanted) or any(len(placed[each]) > 1 for each in found):
                joined.ambiguous.append(key.base)
                continue
            for plain, each in zip(bare.pop(key), wanted, strict=True):
                other = placed.pop(each)[0]
                joined.pairs.append((other, plain) if swapped else (plain, other))
    _keep(joined, left, right)


def _grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, deque[Item]]:
    groups: dict[Key, deque[Item]] = {}
    for item in items:
        groups.setdefault(key(item), deque()).append(item)
    return groups


def _keep(
    joined: Joined[Item], left: dict[Name, deque[Item]], right: dict[Name, deque[Item]]
) -> None:
    joined.only_left = [item for group in left.values() for item in group]
    joined.only_right = [item for group in right.values() for item in group]
