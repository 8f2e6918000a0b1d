"""What a cache holds, told again from the beginning.  PURE."""

from collections.abc import Iterator, Mapping

from replay.engines.kv_events import BlocksStored

#: What is held by hash: the event that stored it, and its place there.
KvContent = Mapping[int, tuple[BlocksStored, int]]


def stored_again(content: KvContent, blocks_at_once: int) -> Iterator[list[BlocksStored]]:
    """Yield events that store *content* again, parents first, with so many blocks at a time.

    A parent that is not held any more keeps its name and needs no order.
    """
    events: list[BlocksStored] = []
    room = blocks_at_once
    for event, first, last in _runs(content):
        while first < last:
            end = min(last, first + room)
            events.append(_part(event, first, end))
            room -= end - first
            first = end
            if not room:
                yield events
                events, room = [], blocks_at_once
    if events:
        yield events


def _runs(content: KvContent) -> Iterator[tuple[BlocksStored, int, int]]:
    """Yield what is held as places of events, from and up to: runs are fewer than blocks."""
    run: BlocksStored | None = None
    first = last = 0
    for event, place in _parents_first(content):
        if event is run and place == last:
            last += 1
            continue
        if run is not None:
            yield run, first, last
        run, first, last = event, place, place + 1
    if run is not None:
        yield run, first, last


def _parents_first(content: KvContent) -> Iterator[tuple[BlocksStored, int]]:
    done: set[int] = set()
    for each in content:
        line = []
        current: int | None = each
        while current is not None and current not in done and current in content:
            done.add(current)
            event, place = content[current]
            line.append((event, place))
            current = event.hashes[place - 1] if place else event.parent
        yield from reversed(line)


def _part(event: BlocksStored, first: int, last: int) -> BlocksStored:
    size = event.block_size
    return BlocksStored(
        parent=event.hashes[first - 1] if first else event.parent,
        hashes=event.hashes[first:last],
        token_ids=event.token_ids[first * size : last * size],
        block_size=size,
    )
