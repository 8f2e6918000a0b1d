"""KV events in the layouts that vLLM's and SGLang's publishers put on ZMQ.  PURE.

A message is [topic, number, payload]; the number is 8 bytes, big-endian, and counts from 0.  The
payload is MessagePack: [unix seconds, events, rank], an event being a map with its `type` in front.
vLLM has unsigned hashes and says where a block lies; SGLang has signed hashes, a removal for each
block and no rank, and clears its cache as it starts.

A replay request ends with the first number that is wanted, 8 bytes, behind its routing frames.
Each answer repeats these; then vLLM has the topic, and both have number and payload.  The number of
the last answer is eight 0xff.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgpack

from replay.config.engines import KvEventsWire
from replay.engines.kv_events import BlocksRemoved, BlocksStored, KvEvent

END = b"\xff" * 8

#: There is one data-parallel rank.
_RANK = 0


def encode_events(events: Sequence[KvEvent], unix_seconds: float, wire: KvEventsWire) -> bytes:
    """Return the payload of a batch."""
    if wire is KvEventsWire.VLLM:
        batch = [unix_seconds, [_vllm_event(event) for event in events], _RANK]
    else:
        batch = [unix_seconds, [each for event in events for each in _sglang_events(event)], None]
    return bytes(msgpack.packb(batch))


def message_frames(topic: bytes, number: int, payload: bytes) -> list[bytes]:
    """Return the frames of a message."""
    return [topic, number.to_bytes(8, "big"), payload]


def reply_frames(
    routing: Sequence[bytes], message: Sequence[bytes], wire: KvEventsWire
) -> list[bytes]:
    """Return the frames that repeat *message* for who asked."""
    return [*routing, *(message if wire is KvEventsWire.VLLM else message[1:])]


def end_frames(routing: Sequence[bytes], wire: KvEventsWire) -> list[bytes]:
    """Return the frames that end a replay."""
    return reply_frames(routing, [b"", END, b""], wire)


def read_request(frames: Sequence[bytes]) -> tuple[Sequence[bytes], int] | None:
    """Return the routing frames of a replay request and the number it asks for.

    None for what is no request.
    """
    *routing, start = frames
    if len(start) != 8 or not routing:
        return None
    return routing, int.from_bytes(start, "big")


def _vllm_event(event: KvEvent) -> dict[str, Any]:
    if isinstance(event, BlocksStored):
        return {
            "type": "BlockStored",
            "block_hashes": [_unsigned(each) for each in event.hashes],
            "parent_block_hash": None if event.parent is None else _unsigned(event.parent),
            "token_ids": event.token_ids.tolist(),
            "block_size": event.block_size,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }
    if isinstance(event, BlocksRemoved):
        return {
            "type": "BlockRemoved",
            "block_hashes": [_unsigned(each) for each in event.hashes],
            "medium": "GPU",
            "group_idx": 0,
        }
    return {"type": "AllBlocksCleared"}


def _sglang_events(event: KvEvent) -> Iterator[dict[str, Any]]:
    if isinstance(event, BlocksStored):
        yield {
            "type": "BlockStored",
            "block_hashes": list(event.hashes),
            "parent_block_hash": event.parent,
            "token_ids": event.token_ids.tolist(),
            "block_size": event.block_size,
            "lora_id": None,
        }
    elif isinstance(event, BlocksRemoved):
        for each in event.hashes:
            yield {"type": "BlockRemoved", "block_hashes": [each]}
    else:
        yield {"type": "AllBlocksCleared"}


def _unsigned(content_hash: int) -> int:
    return content_hash & 0xFFFF_FFFF_FFFF_FFFF
