"""What a cache holds, told again from the beginning.  PURE."""

from collections.abc import Iterator, Mapping

from replay.engines.kv_events import BlocksStored

#: What is held by hash: the event that stored it, and its place there.
KvContent = Mapping[int, tuple[BlocksStored, int]]


def stored_again(content: KvContent) -> Iterator[BlocksStored]:
    """Yield an event for each block of *content*, parents first.

    A parent that is not held any more keeps its name and needs no order.
    """
    done: set[int] = set()
    for each in content:
        line = []
        current: int | None = each
        while current is not None and current in content and current not in done:
            done.add(current)
            block = _one_block(*content[current])
            line.append(block)
            current = block.parent
        yield from reversed(line)


def _one_block(event: BlocksStored, place: int) -> BlocksStored:
    size = event.block_size
    return BlocksStored(
        parent=event.hashes[place - 1] if place else event.parent,
        hashes=event.hashes[place : place + 1],
        token_ids=event.token_ids[place * size : (place + 1) * size],
        block_size=size,
    )
