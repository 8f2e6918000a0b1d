import json
from typing import Any

import attrs
import pytest
import trio

from replay.web.json_list import BURST_ENTRIES, json_list


@attrs.frozen
class Entry:
    number: int
    name: str = "[]"


async def written(**arguments: Any) -> Any:
    pieces = [piece async for piece in json_list(**arguments).body_iterator]
    return json.loads("".join(map(str, pieces)))


@pytest.mark.parametrize("count", [0, 1, BURST_ENTRIES, 2 * BURST_ENTRIES + 1])
@pytest.mark.parametrize("head", [None, {"size": 1, "kind": "[]"}])
async def test_the_pieces_are_one_object(count: int, head: dict[str, Any] | None) -> None:
    entries = [Entry(number) for number in range(count)]
    expected = {**(head or {}), "entries": [attrs.asdict(each) for each in entries]}
    assert await written(name="entries", entries=entries, head=head) == expected


async def test_others_get_a_turn_between_two_bursts() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as tasks:
        tasks.start_soon(other)
        entries = (Entry(number) for number in range(5 * BURST_ENTRIES))
        await written(name="entries", entries=entries)
        tasks.cancel_scope.cancel()
    assert turns >= 4
