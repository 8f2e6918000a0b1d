"""A JSON object that ends with a long list, written piece by piece.

Written at once it would hold up the loop, and with it the tokens of every stream.
"""

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from itertools import islice
from typing import Any

import attrs
import trio
from starlette.responses import StreamingResponse

#: Entries that are written before others get a turn: about a millisecond.
BURST_ENTRIES = 128


def json_list(
    name: str, entries: Iterable[attrs.AttrsInstance], head: Mapping[str, Any] | None = None
) -> StreamingResponse:
    """Answer with *head* and, under *name*, all of *entries*; other things happen meanwhile."""
    return StreamingResponse(_pieces(name, entries, head or {}), media_type="application/json")


async def _pieces(
    name: str, entries: Iterable[attrs.AttrsInstance], head: Mapping[str, Any]
) -> AsyncIterator[str]:
    # What is written around the list is what JSON writes around an empty one.
    before, after = json.dumps({**head, name: []}).rsplit("[]", 1)
    yield before + "["
    left, separator = iter(entries), ""
    while burst := [attrs.asdict(each) for each in islice(left, BURST_ENTRIES)]:
        yield separator + json.dumps(burst)[1:-1]
        separator = ", "
        await trio.lowlevel.checkpoint()
    yield "]" + after
