from array import array

from hypothesis import given
from hypothesis import strategies as st

from replay._proto import common_pb2 as common
from replay.engines.base import Loads
from replay.engines.kv_event_log import KvBatch
from replay.engines.kv_event_messages import (
    SNAPSHOT_BLOCKS,
    batch_message,
    load_record,
    snapshot_messages,
)
from replay.engines.kv_events import BlocksRemoved, BlocksStored, CacheCleared


def test_a_batch_says_what_was_stored_removed_and_cleared() -> None:
    events = [
        BlocksRemoved([7, -8]),
        BlocksStored(5, [-1, 2], array("I", [10, 11, 2**32 - 1, 0]), 2),
        BlocksStored(None, [3], array("I", [4, 5]), 2),
        CacheCleared(),
    ]
    message = batch_message(KvBatch(9, 40, 1.5, events))
    assert (message.sequence_number, message.timestamp, message.dp_rank) == (9, 1.5, 0)
    assert message.HasField("dp_rank")
    removed, run, root, cleared = message.events
    assert [event.event_id for event in message.events] == [40, 41, 42, 43]
    assert list(removed.removed.block_hashes) == [7, -8]
    assert run.stored.parent_block_hash == 5
    assert [(b.block_hash, list(b.token_ids), b.block_size) for b in run.stored.blocks] == [
        (-1, [10, 11], 2),
        (2, [2**32 - 1, 0], 2),
    ]
    assert not root.stored.HasField("parent_block_hash")
    assert cleared.WhichOneof("data") == "cleared"


def chain(*hashes: int, parent: int | None = None) -> BlocksStored:
    return BlocksStored(parent, hashes, array("I", hashes), 1)


def content_of(*events: BlocksStored) -> dict[int, tuple[BlocksStored, int]]:
    return {each: (event, at) for event in events for at, each in enumerate(event.hashes)}


def links(messages: list[common.KvEventBatch]) -> list[tuple[int | None, int, list[int]]]:
    """Return each block with its parent and its tokens."""
    found: list[tuple[int | None, int, list[int]]] = []
    for event in (event for message in messages for event in message.events):
        stored = event.stored
        parent = stored.parent_block_hash if stored.HasField("parent_block_hash") else None
        for block in stored.blocks:
            found.append((parent, block.block_hash, list(block.token_ids)))
            parent = block.block_hash
    return found


def test_a_snapshot_begins_with_a_clearing_and_lists_parents_first() -> None:
    content = content_of(chain(8, 9, parent=2), chain(1, 2))
    (message,) = snapshot_messages(content, through=5, unix_seconds=2.0)
    assert (message.sequence_number, message.timestamp, message.dp_rank) == (5, 2.0, 0)
    assert message.snapshot == common.KvSnapshotChunk(index=0, count=1, blocks=4)
    assert message.events[0].WhichOneof("data") == "cleared"
    assert {event.event_id for event in message.events} == {0}
    assert links([message]) == [(None, 1, [1]), (1, 2, [2]), (2, 8, [8]), (8, 9, [9])]


def test_a_block_whose_parent_is_gone_keeps_its_name() -> None:
    content = content_of(chain(8, parent=7))
    assert links([*snapshot_messages(content, through=1, unix_seconds=0.0)]) == [(7, 8, [8])]


def test_a_snapshot_of_nothing_is_a_clearing() -> None:
    (message,) = snapshot_messages({}, through=3, unix_seconds=0.0)
    assert message.sequence_number == 3
    assert len(message.events) == 1


@given(blocks=st.integers(0, 4 * SNAPSHOT_BLOCKS), through=st.integers(1, 6))
def test_the_numbers_of_a_snapshot_end_at_the_batch_that_it_covers(
    blocks: int, through: int
) -> None:
    content = content_of(chain(*range(blocks)))
    messages = [*snapshot_messages(content, through=through, unix_seconds=0.0)]
    sequence = [message.sequence_number for message in messages]
    assert sequence == list(range(through - len(messages) + 1, through + 1))
    assert sequence[0] >= 1
    assert [m.snapshot.index for m in messages] == list(range(len(messages)))
    assert {m.snapshot.count for m in messages} == {len(messages)}
    assert [link[1] for link in links(messages)] == list(range(blocks))


def test_a_load_record_has_telemetry_only_when_it_is_wanted() -> None:
    loads = Loads(
        running=2,
        waiting=3,
        waiting_uncached_tokens=0,
        used_tokens=40,
        active_tokens=40,
        max_total_tokens=100,
        max_running=8,
        throughput=5.0,
        cache_hit_rate=0.25,
    )
    bare = load_record(loads, sample=4, load_only=False, with_telemetry=False)
    assert bare == common.EngineLoad(
        running_requests=2,
        waiting_requests=3,
        waiting_uncached_tokens=0,
        token_usage=0.4,
        active_token_usage=0.4,
        gen_throughput=5.0,
        max_running_requests=8,
        sample=4,
    )
    assert bare.HasField("waiting_uncached_tokens")
    full = load_record(loads, sample=5, load_only=True, with_telemetry=True)
    assert (full.load_only, full.cache_hit_rate, full.num_used_tokens) == (True, 0.25, 40)
    assert (full.max_total_num_tokens, full.memory.token_capacity) == (100, 100)
    assert full.queues.waiting == 3
