"""The status records of a runtime, as a consumer reads them.

PURE.  What they hold is in event-plane section 7; `replay.taps.status` writes them.
"""

from typing import Any

import attrs
import msgpack

from replay.plane.codec import MAX_U64
from replay.taps.envelope import UndecodableRecordError, UnsupportedRecordError

_SCHEMA_VERSION = 1


@attrs.frozen
class Dropped:
    """Records that a tap could not queue, by reason."""

    full: int = 0
    closed: int = 0
    bytes: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.full + self.closed + self.bytes

    def since(self, earlier: "Dropped") -> "Dropped":
        """Return what came after *earlier*."""
        return Dropped(
            self.full - earlier.full, self.closed - earlier.closed, self.bytes - earlier.bytes
        )

    def without(self, count: int) -> "Dropped":
        """Return all but the *count* latest.  Which reasons those had is not known: a guess."""
        full = min(self.full, count)
        closed = min(self.closed, count - full)
        return Dropped(self.full - full, self.closed - closed, self.bytes - (count - full - closed))


@attrs.frozen
class TapStatus:
    """What a runtime says about one of its taps."""

    tap: str
    topic: str
    publisher_id: int
    next_sequence: int
    """Messages that it has tried to publish so far."""
    dropped: Dropped
    publish_errors: int
    lost_at_shutdown: int
    published: int

    @property
    def unnumbered(self) -> int:
        """Records that could not even be packed: they have cost no sequence."""
        # While one is being published its sequence is spent, and nobody has counted it yet.
        return max(0, self.published + self.publish_errors - self.next_sequence)


@attrs.frozen
class RuntimeStatus:
    """One status record."""

    runtime_id: str
    is_final: bool
    """Whether the runtime has published its last message."""
    router: str | None
    """Endpoint of the service that fills gaps."""
    taps: tuple[TapStatus, ...]


def read_status(payload: bytes) -> RuntimeStatus:
    """Read a status record; keys that are not known are passed over.

    Raises `UndecodableRecordError`, and `UnsupportedRecordError` for another schema version.
    """
    try:
        record = msgpack.unpackb(payload)
        if record["schema_version"] != _SCHEMA_VERSION or record["kind"] != "status":
            raise UnsupportedRecordError("the schema version of the status is not known here")
        return RuntimeStatus(
            _text(record["runtime_id"]),
            bool(record["final"]),
            None if record["router"] is None else _text(record["router"]),
            tuple(_tap(tap) for tap in record["taps"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UndecodableRecordError(
            f"the status does not decode: {type(error).__name__}"
        ) from None


def _tap(tap: Any) -> TapStatus:
    dropped = tap["dropped"]
    return TapStatus(
        _text(tap["tap"]),
        _text(tap["topic"]),
        _number(tap["publisher_id"]),
        _number(tap["next_sequence"]),
        Dropped(_number(dropped["full"]), _number(dropped["closed"]), _number(dropped["bytes"])),
        _number(tap["publish_errors"]),
        _number(tap["lost_at_shutdown"]),
        _number(tap["published"]),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_U64:
        raise TypeError
    return value
