"""Rules of the `event_plane` section and of the `taps`.

PURE.  "Rule 7" and the like are numbered as in docs/compatibility.md.
"""

import re
from collections.abc import Iterator, Sequence
from os.path import normpath

from replay.config.address import is_wildcard, parse_bind
from replay.config.bounds import above, at_least, not_empty, whole
from replay.config.model import (
    Config,
    DiscoveryKind,
    EventPlaneConfig,
    TapCapture,
    TapConfig,
    Transport,
)
from replay.config.problems import Fault, Path, quoted
from replay.config.worker_rules import LAST_PORT, host_faults
from replay.taps.filter_names import conflicts

#: The topic of the status publisher.
STATUS_TOPIC = "replay-status"

_PLANE = ("event_plane",)
_TOKEN = re.compile(r"[A-Za-z0-9_-]+")


def event_plane_faults(plane: EventPlaneConfig, taps: Sequence[TapConfig]) -> Iterator[Fault]:
    """Yield what is wrong in the `event_plane` section, given the taps that use it."""
    bind, advertise = (*_PLANE, "bind"), (*_PLANE, "advertise")
    try:
        address = parse_bind(plane.bind)
    except ValueError as error:
        yield Fault(bind, f"{error}, is {quoted(plane.bind)}")
    else:
        last = (address.port or 0) + len(taps) - 1
        if last > LAST_PORT:
            yield Fault(
                bind, f"the last tap would bind port {last}, past {LAST_PORT}", (("taps",),)
            )
        if taps and is_wildcard(address.host) and plane.advertise is None:
            text = "binds every address, so event_plane.advertise must say which one consumers use"
            yield Fault(bind, text, (advertise, ("taps",)))
    if plane.advertise is not None:
        yield from host_faults(advertise, plane.advertise)
        if is_wildcard(plane.advertise):
            text = f"must be an address that consumers can reach, is {quoted(plane.advertise)}"
            yield Fault(advertise, text)
    root = (*_PLANE, "discovery", "root")
    yield from not_empty(root, plane.discovery.root)
    if plane.discovery.kind is DiscoveryKind.NONE and plane.discovery.root is not None:
        yield Fault(root, "has no use with discovery.kind none", ((*_PLANE, "discovery", "kind"),))
    yield from at_least((*_PLANE, "heartbeat_seconds"), plane.heartbeat_seconds, 0)
    if plane.curve is not None:
        for name in ("secret_key_file", "allowed_keys_dir"):
            yield from not_empty((*_PLANE, "curve", name), getattr(plane.curve, name))


def taps_faults(config: Config) -> Iterator[Fault]:
    """Yield what is wrong in each tap, and between taps (rules 5 to 12)."""
    for index, tap in enumerate(config.taps):
        yield from _tap_faults(("taps", index), tap, config.event_plane)
    yield from _repeats(config.taps)
    yield from _record_file_faults(config)


def _tap_faults(path: Path, tap: TapConfig, plane: EventPlaneConfig) -> Iterator[Fault]:
    for name, value in (("name", tap.name), ("topic", tap.topic)):
        # A topic that comes from the name needs no complaint of its own.
        is_derived = name == "topic" and value == f"shadow-requests-{tap.name}"
        if not is_derived and not _TOKEN.fullmatch(value):
            yield Fault((*path, name), f"must match [A-Za-z0-9_-]+, is {quoted(value)}")
    if tap.topic == STATUS_TOPIC:
        yield Fault((*path, "topic"), f"{STATUS_TOPIC} is the topic of the status records")
    capture = ((*path, "capture"),)
    if (tap.capture is TapCapture.REQUEST) != (tap.response is None):
        if tap.response is not None:
            yield Fault((*path, "response"), "needs capture: request_response", capture)
        else:
            yield Fault((*path, "response"), "is required by capture: request_response", capture)
    yield from _response_faults((*path, "response"), tap)
    for index, text in conflicts(tap.filters):
        others = tuple((*path, "filters", each) for each in range(len(tap.filters)))
        yield Fault((*path, "filters", index), text, others)
    for index, model in enumerate(tap.models):
        yield from not_empty((*path, "models", index), model)
    yield from whole((*path, "capacity"), tap.capacity, 1)
    yield from whole((*path, "capacity_bytes"), tap.capacity_bytes, 1, 2**63 - 1)
    yield from whole((*path, "replay_buffer"), tap.replay_buffer, 0)
    if plane.transport is Transport.NONE:
        transport = ((*_PLANE, "transport"),)
        if tap.record_file is None:
            text = "is required when event_plane.transport is none: nothing else is written"
            yield Fault((*path, "record_file"), text, transport)
        if tap.replay_buffer:
            text = "has no use when event_plane.transport is none: nobody can ask"
            yield Fault((*path, "replay_buffer"), text, transport)


def _response_faults(path: Path, tap: TapConfig) -> Iterator[Fault]:
    if tap.response is None:
        return
    if tap.response.max_tokens == 0:
        yield Fault(
            (*path, "max_tokens"), "must be at least 1, is 0: tokens: false records no tokens"
        )
    else:
        yield from whole((*path, "max_tokens"), tap.response.max_tokens, 1)
    yield from whole((*path, "max_bytes_in_flight"), tap.response.max_bytes_in_flight, 1, 2**63 - 1)


def _repeats(taps: Sequence[TapConfig]) -> Iterator[Fault]:
    names: dict[str, int] = {}
    topics: dict[str, int] = {}
    for index, tap in enumerate(taps):
        path = ("taps", index)
        twin = names.setdefault(tap.name, index)
        if twin != index:
            text = f"must differ from $.taps[{twin}].name: both are {quoted(tap.name)}"
            yield Fault((*path, "name"), text, (("taps", twin, "name"),))
        other = topics.setdefault(tap.topic, index)
        is_derived = tap.topic == f"shadow-requests-{tap.name}"
        if other != index and not (is_derived and other == twin):
            text = f"must differ from $.taps[{other}].topic: both are {quoted(tap.topic)}"
            # A topic may come from the name, so the rule is moot without the names.
            involved = [("taps", other, "topic"), ("taps", other, "name"), (*path, "name")]
            yield Fault((*path, "topic"), text, tuple(involved))


def _record_file_faults(config: Config) -> Iterator[Fault]:
    taken: dict[str, str] = {}
    if config.worker.capture is not None:
        taken[normpath(config.worker.capture)] = "$.worker.capture"
    for index, tap in enumerate(config.taps):
        if tap.record_file is None:
            continue
        path = ("taps", index, "record_file")
        yield from not_empty((*path, "path"), tap.record_file.path)
        yield from whole((*path, "rotate_bytes"), tap.record_file.rotate_bytes, 1, 2**63 - 1)
        yield from above((*path, "rotate_seconds"), tap.record_file.rotate_seconds, 0)
        # "records" and "./records" would be one rotation with the records of two taps in it.
        other = taken.setdefault(
            normpath(tap.record_file.path), f"$.taps[{index}].record_file.path"
        )
        if other != f"$.taps[{index}].record_file.path":
            yield Fault((*path, "path"), f"must differ from {other}")
