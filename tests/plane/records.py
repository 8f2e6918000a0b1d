"""Records and status records as a tap and a runtime would send them, packed."""

from collections.abc import Sequence
from typing import Any

import msgpack

from replay.plane.codec import Frames, MessageEncoder


def record(number: int = 0, **changes: Any) -> bytes:
    """Return a packed joined record with three prompt tokens and two output tokens."""
    fields: dict[str, Any] = {
        "schema_version": 1,
        "tap": "shadow-replay",
        "seq": number,
        "request_id": f"request-{number}",
        "origin": "preprocessed",
        "filters": ["strip-worker-pins"],
        "arrival_unix_ns": 1_700_000_000_000_000_000 + number * 1_000_000,
        "request": {"model": "mock-model", "token_ids": [1, 300, 70_000], "annotations": []},
        "response": {
            "outcome": "complete",
            "choices": [{"index": 0, "finish_reason": "eos", "output_tokens": 2}],
            "output_tokens": 2,
            "end_offset_ns": 5_000_000,
        },
    }
    fields.update(changes)
    packed: bytes = msgpack.packb({key: each for key, each in fields.items() if each is not ...})
    return packed


def tap_status(publisher_id: int, next_sequence: int, **changes: Any) -> dict[str, Any]:
    """Return what a status record says of one tap."""
    fields: dict[str, Any] = {
        "tap": "shadow-replay",
        "topic": "shadow",
        "publisher_id": publisher_id,
        "next_seq": next_sequence,
        "next_sequence": next_sequence,
        "queued": next_sequence,
        "dropped": {"full": 0, "closed": 0, "bytes": 0},
        "published": next_sequence,
        "publish_errors": 0,
        "lost_at_shutdown": 0,
        "skipped": 0,
        "in_flight": 0,
        "outcomes": {"complete": next_sequence, "incomplete": 0, "cancelled": 0, "error": 0},
    }
    return fields | changes


def status(
    taps: Sequence[dict[str, Any]],
    *,
    final: bool = False,
    router: str | None = None,
    **changes: Any,
) -> bytes:
    """Return a packed status record."""
    fields: dict[str, Any] = {
        "schema_version": 1,
        "kind": "status",
        "runtime_id": "runtime",
        "unix_ns": 1,
        "monotonic_ns": 1,
        "final": final,
        "router": router,
        "taps": list(taps),
    }
    packed: bytes = msgpack.packb(fields | changes)
    return packed


def messages(count: int, *, topic: str = "shadow", publisher_id: int = 7) -> list[Frames]:
    """Return the frames of *count* records of one publisher, from sequence 0."""
    encoder = MessageEncoder(topic, publisher_id)
    return [encoder.encode(number, 1_700_000_000_000, record(number)) for number in range(count)]
