"""KV events and load in the messages of the wire.  PURE."""

from collections.abc import Iterator

from replay._proto import common_pb2 as common
from replay.engines.base import Loads
from replay.engines.kv_content import KvContent, stored_again
from replay.engines.kv_event_log import KvBatch
from replay.engines.kv_events import BlocksRemoved, BlocksStored, KvEvent

#: There is one data-parallel rank.
RANK = 0

#: Blocks of a snapshot in one message: about 100 kB, and some milliseconds of work.
SNAPSHOT_BLOCKS = 1024


def batch_message(batch: KvBatch) -> common.KvEventBatch:
    """Return the message of one batch."""
    message = common.KvEventBatch(
        sequence_number=batch.sequence, timestamp=batch.unix_seconds, dp_rank=RANK
    )
    for event_id, event in enumerate(batch.events, batch.first_event_id):
        _add_event(message, event_id, event)
    return message


def _add_event(message: common.KvEventBatch, event_id: int, event: KvEvent) -> None:
    added = message.events.add(event_id=event_id)
    if isinstance(event, BlocksStored):
        _add_stored(added.stored, event)
    elif isinstance(event, BlocksRemoved):
        added.removed.block_hashes.extend(event.hashes)
    else:
        added.cleared.SetInParent()


def _add_stored(stored: common.KvBlocksStored, event: BlocksStored) -> None:
    if event.parent is not None:
        stored.parent_block_hash = event.parent
    size = event.block_size
    for place, content_hash in enumerate(event.hashes):
        stored.blocks.add(
            block_hash=content_hash,
            token_ids=event.token_ids[place * size : (place + 1) * size],
            block_size=size,
        )


def snapshot_messages(
    content: KvContent, *, through: int, unix_seconds: float
) -> Iterator[common.KvEventBatch]:
    """Yield the messages that replace all that a subscriber knows by *content*.

    Their numbers end at *through* (at least 1), the last batch that *content* covers.  The first
    message begins with a clearing; parents come before their children.
    """
    size = max(SNAPSHOT_BLOCKS, -(-len(content) // through))
    count = max(1, -(-len(content) // size))
    parts = stored_again(content, size)
    for index in range(count):
        message = common.KvEventBatch(
            sequence_number=through - count + 1 + index,
            timestamp=unix_seconds,
            dp_rank=RANK,
            snapshot=common.KvSnapshotChunk(index=index, count=count, blocks=len(content)),
        )
        if index == 0:
            message.events.add().cleared.SetInParent()
        for event in next(parts, ()):
            _add_stored(message.events.add().stored, event)
        yield message


def load_record(
    loads: Loads, *, sample: int, load_only: bool, with_telemetry: bool
) -> common.EngineLoad:
    """Return the load as a subscriber gets it; *sample* counts the records of its stream.

    *load_only* marks a message without events.  *with_telemetry* adds what no router reads.
    """
    record = common.EngineLoad(
        running_requests=loads.running,
        waiting_requests=loads.waiting,
        waiting_uncached_tokens=loads.waiting_uncached_tokens,
        token_usage=loads.token_usage,
        active_token_usage=loads.active_token_usage,
        gen_throughput=loads.throughput,
        max_running_requests=loads.max_running,
        sample=sample,
        load_only=load_only,
    )
    if with_telemetry:
        record.cache_hit_rate = loads.cache_hit_rate
        record.num_used_tokens = loads.used_tokens
        record.max_total_num_tokens = loads.max_total_tokens
        record.memory.token_capacity = loads.max_total_tokens
        record.queues.waiting = loads.waiting
    return record
