"""What a file may say, where that differs from what the program uses.

PURE.  A class stands here only when the two differ; the other sections are read straight into the
classes of `replay.config.model`, so that no default is written twice.
"""

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import attrs

from replay.config.engines import CannedConfig, EngineConfig
from replay.config.model import (
    EventPlaneConfig,
    HttpConfig,
    RecordFileConfig,
    ResponseConfig,
    ShutdownConfig,
    TapCapture,
    WorkerConfig,
)
from replay.config.problems import Path
from replay.config.reader import Hook, Reader, Unfit, describe
from replay.config.yaml_source import ARGUMENT, Items, Node, Scalar, Section
from replay.taps.filter_names import FilterName, parse_filter


class Emit(StrEnum):
    """When a tap with responses sends its record.  The program knows no other way."""

    JOINED = "joined"


@attrs.frozen(kw_only=True)
class TapSection:
    """A tap of the file.  None is a key that is absent, or null as Dynamo allows it."""

    name: str
    capture: TapCapture
    topic: str | None = None
    emit: Emit | None = None
    filters: tuple[FilterName, ...] = ()
    models: tuple[str, ...] = ()
    response: ResponseConfig | None = None
    capacity: int | None = None
    capacity_bytes: int | None = None
    replay_buffer: int = 0
    record_file: RecordFileConfig | None = None


@attrs.frozen(kw_only=True)
class FileSection:
    """The top of the file."""

    schema_version: int
    taps: tuple[TapSection, ...]
    namespace: str | None = None
    worker: WorkerConfig = attrs.field(factory=WorkerConfig)
    event_plane: EventPlaneConfig = attrs.field(factory=EventPlaneConfig)
    http: HttpConfig = attrs.field(factory=HttpConfig)
    shutdown: ShutdownConfig = attrs.field(factory=ShutdownConfig)


@attrs.frozen(kw_only=True)
class OverrideSection:
    """What one port has instead of the worker's own."""

    engine: EngineConfig = attrs.field(factory=CannedConfig)


def _read_filter(reader: Reader, node: Node, path: Path) -> FilterName:
    text = reader.value(node, str, path)
    try:
        return parse_filter(text)
    except ValueError as error:
        raise reader.complain(node.place, path, str(error)) from None


def _read_overrides(reader: Reader, node: Node, path: Path) -> dict[int, EngineConfig]:
    if not isinstance(node, Section):
        text = f"must be a mapping from ports, is {describe(node)}"
        raise reader.complain(node.place, path, text)
    overrides = {}
    for key, entry in node.entries.items():
        try:
            port = reader.value(entry.key, int, (*path, key))
            override = reader.section(entry.value, OverrideSection, (*path, port))
        except Unfit:
            continue
        overrides[port] = override.engine
    return overrides


def _read_sampling_params(reader: Reader, node: Node, path: Path) -> dict[str, Any]:
    """Read a JSON object, written as text or as the YAML mapping that it also is."""
    if isinstance(node, Scalar) and node.kind in ("text", ARGUMENT):
        try:
            value = json.loads(
                node.text, object_pairs_hook=_unique, parse_constant=_refuse_constant
            )
        except (ValueError, RecursionError) as error:
            text = f"is not valid JSON: {error}"
            raise reader.complain(node.place, path, text) from None
    else:
        value = _as_json(reader, node, path)
    if not isinstance(value, dict):
        kind = "a list" if isinstance(value, list) else json.dumps(value)
        raise reader.complain(node.place, path, f"must be a JSON object, is {kind}")
    return value


def _as_json(reader: Reader, node: Node, path: Path) -> Any:
    if isinstance(node, Section):
        below = {key: (entry.value, (*path, key)) for key, entry in node.entries.items()}
        return {key: _as_json(reader, *each) for key, each in below.items()}
    if isinstance(node, Items):
        return [_as_json(reader, item, (*path, index)) for index, item in enumerate(node.nodes)]
    kinds = {"boolean": bool, "integer": int, "number": float}
    return None if node.kind == "null" else reader.value(node, kinds.get(node.kind, str), path)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse an object that says a key twice; which of them counts would be a guess."""
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"duplicate key {json.dumps(name)}")
    return dict(pairs)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


#: How a value is read whose type says more than its annotation.
HOOKS: Mapping[Any, Hook] = {
    FilterName: _read_filter,
    Mapping[int, EngineConfig]: _read_overrides,
    Mapping[str, Any]: _read_sampling_params,
}
