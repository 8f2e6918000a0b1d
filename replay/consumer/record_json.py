"""A record as one line of JSON.

PURE.  Every line can be read by a strict parser: what JSON has no form for gets one of its own.
"""

import base64
import json
import math
from typing import Any

import msgpack

from replay.plane.codec import Message


def record_line(message: Message) -> str:
    """Return the record that *message* carries, with the publisher's numbers in front of it.

    Bytes become `{"base64": …}`, NaN and the infinities their names as text.  Numbers are exact,
    also those beyond 2^53; text that is not UTF-8 has replacement characters in it.  Raises
    `ValueError` for what is no MessagePack, and `RecursionError` if it is nested too deeply.
    """
    envelope = message.envelope
    line = {
        "publisher_id": envelope.publisher_id,
        "sequence": envelope.sequence,
        "published_at_ms": envelope.published_at_ms,
        "record": _plain(
            msgpack.unpackb(envelope.payload, strict_map_key=False, unicode_errors="replace")
        ),
    }
    return json.dumps(line, separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        # Token ids are most of a record, and need no look at each.
        return value if all(type(each) is int for each in value) else [_plain(e) for e in value]
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, msgpack.Timestamp):
        return {"unix_ns": value.to_unix_nano()}
    return {"extension": value.code, "base64": base64.b64encode(value.data).decode()}
