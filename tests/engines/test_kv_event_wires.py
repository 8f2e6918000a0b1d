from array import array
from typing import Any

import msgpack
import pytest

from replay.config.engines import KvEventsWire
from replay.engines.kv_event_wires import (
    encode_events,
    end_frames,
    message_frames,
    read_request,
    reply_frames,
)
from replay.engines.kv_events import BlocksRemoved, BlocksStored, CacheCleared

EVENTS = [
    BlocksRemoved([7, -1]),
    BlocksStored(-2, [5, -3], array("I", [1, 2, 3, 2**32 - 1]), 2),
    BlocksStored(None, [9], array("I", [0, 0]), 2),
    CacheCleared(),
]


def decoded(wire: KvEventsWire) -> Any:
    return msgpack.unpackb(encode_events(EVENTS, 1.5, wire))


def test_vllms_layout_has_unsigned_hashes_and_says_where_a_block_lies() -> None:
    seconds, events, rank = decoded(KvEventsWire.VLLM)
    assert (seconds, rank) == (1.5, 0)
    assert events == [
        {"type": "BlockRemoved", "block_hashes": [7, 2**64 - 1], "medium": "GPU", "group_idx": 0},
        {
            "type": "BlockStored",
            "block_hashes": [5, 2**64 - 3],
            "parent_block_hash": 2**64 - 2,
            "token_ids": [1, 2, 3, 2**32 - 1],
            "block_size": 2,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        },
        {
            "type": "BlockStored",
            "block_hashes": [9],
            "parent_block_hash": None,
            "token_ids": [0, 0],
            "block_size": 2,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        },
        {"type": "AllBlocksCleared"},
    ]


def test_sglangs_layout_has_signed_hashes_and_a_removal_for_each_block() -> None:
    seconds, events, rank = decoded(KvEventsWire.SGLANG)
    assert (seconds, rank) == (1.5, None)
    assert events == [
        {"type": "BlockRemoved", "block_hashes": [7]},
        {"type": "BlockRemoved", "block_hashes": [-1]},
        {
            "type": "BlockStored",
            "block_hashes": [5, -3],
            "parent_block_hash": -2,
            "token_ids": [1, 2, 3, 2**32 - 1],
            "block_size": 2,
            "lora_id": None,
        },
        {
            "type": "BlockStored",
            "block_hashes": [9],
            "parent_block_hash": None,
            "token_ids": [0, 0],
            "block_size": 2,
            "lora_id": None,
        },
        {"type": "AllBlocksCleared"},
    ]


@pytest.mark.parametrize("wire", list(KvEventsWire))
def test_the_type_of_an_event_comes_first(wire: KvEventsWire) -> None:
    _, events, _ = decoded(wire)
    assert {next(iter(event)) for event in events} == {"type"}


def test_a_message_has_its_number_in_eight_bytes_big_endian() -> None:
    assert message_frames(b"t", 258, b"p") == [b"t", b"\0\0\0\0\0\0\1\2", b"p"]


def test_a_reply_repeats_the_routing_and_then_the_message() -> None:
    message = message_frames(b"t", 1, b"p")
    routing = [b"id", b""]
    assert reply_frames(routing, message, KvEventsWire.VLLM) == [*routing, *message]
    assert reply_frames(routing, message, KvEventsWire.SGLANG) == [*routing, *message[1:]]


def test_a_replay_ends_with_a_number_of_ones() -> None:
    end = b"\xff" * 8
    assert end_frames([b"id", b""], KvEventsWire.VLLM) == [b"id", b"", b"", end, b""]
    assert end_frames([b"id", b""], KvEventsWire.SGLANG) == [b"id", b"", end, b""]


@pytest.mark.parametrize(
    ("frames", "request_read"),
    [
        ([b"id", b"", b"\0" * 7 + b"\5"], ([b"id", b""], 5)),
        ([b"id", b"\0" * 8], ([b"id"], 0)),
        ([b"id", b"", b"\0" * 7], None),
        ([b"id", b""], None),
        ([b"\0" * 8], None),
    ],
)
def test_a_request_is_a_number_behind_its_routing(
    frames: list[bytes], request_read: object
) -> None:
    assert read_request(frames) == request_read
