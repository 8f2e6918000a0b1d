"""What a publisher's discovery file is called, and what stands in it.

PURE.  The layout is Dynamo's, byte for byte.
"""

import json
from collections.abc import Mapping
from typing import Any

import attrs

from replay.plane.codec import MAX_U64

#: Below the root of the file discovery.
FOLDER = ("v1", "event_channels")
#: A file that is still being written; everybody ignores it.
TEMPORARY_PREFIX = ".tmp_"

_ALNUM = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_SEGMENT = _ALNUM | frozenset(b"-_")


@attrs.frozen
class Publisher:
    """A publisher as discovery shows it."""

    namespace: str
    topic: str
    publisher_id: int
    endpoint: str
    """`tcp://host:port`, an IPv6 address in brackets."""


def file_prefix(namespace: str, topic: str) -> str:
    """Return how the names of all files of a topic in a namespace begin."""
    return _quote(
        f"namespace/{_quote(namespace, _SEGMENT)}/topic/{_quote(topic, _SEGMENT)}/", _ALNUM
    )


def file_name(publisher: Publisher) -> str:
    """Return the name of a publisher's file."""
    prefix = file_prefix(publisher.namespace, publisher.topic)
    return f"{prefix}{publisher.publisher_id:x}"


def file_content(publisher: Publisher) -> bytes:
    """Return what stands in a publisher's file: JSON on one line."""
    content = {
        "type": "EventChannel",
        "scope": {"kind": "namespace", "name": publisher.namespace},
        "topic": publisher.topic,
        "instance_id": publisher.publisher_id,
        "transport": {"kind": "Zmq", "config": {"endpoint": publisher.endpoint}},
    }
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def parse_file(content: bytes) -> Publisher | None:
    """Read a file.  None for what is no publisher of a namespace on ZeroMQ over TCP."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    scope, transport = _map(value, "scope"), _map(value, "transport")
    if (_get(value, "type"), _get(scope, "kind"), _get(transport, "kind")) != (
        "EventChannel",
        "namespace",
        "Zmq",
    ):
        return None
    namespace, topic = _get(scope, "name"), _get(value, "topic")
    publisher_id = _get(value, "instance_id")
    endpoint = _get(_map(transport, "config"), "endpoint")
    if not (isinstance(namespace, str) and isinstance(topic, str) and isinstance(endpoint, str)):
        return None
    if type(publisher_id) is not int or not 0 <= publisher_id <= MAX_U64:
        return None
    # JSON can say a lone surrogate, which ZeroMQ cannot be given; no address and no host has one.
    if not (endpoint.startswith("tcp://") and endpoint.isascii()):
        return None
    return Publisher(namespace, topic, publisher_id, endpoint)


def _get(value: object, key: str) -> object:
    return value.get(key) if isinstance(value, Mapping) else None


def _map(value: object, key: str) -> Mapping[str, Any]:
    found = _get(value, key)
    return found if isinstance(found, Mapping) else {}


def _quote(text: str, kept: frozenset[int]) -> str:
    return "".join(chr(byte) if byte in kept else f"%{byte:02X}" for byte in text.encode())
