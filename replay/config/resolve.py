"""From a file, flags and the environment to the configuration that the program uses.

A flag wins over the file, and the file over the environment.  Everything that is wrong is told at
once: what cannot be read, and every rule that the rest breaks.
"""

import os
from collections.abc import Iterator, Mapping, Sequence

import attrs

from replay.config.address import parse_host
from replay.config.files import missing_files
from replay.config.model import SCHEMA_VERSION, Config, TapCapture, TapConfig
from replay.config.problems import Fault, Path, Problem, Setting, quoted, refusal
from replay.config.reader import Reader, Unfit
from replay.config.rules import find_faults
from replay.config.schema import HOOKS, FileSection, TapSection
from replay.config.yaml_source import (
    ARGUMENT,
    Document,
    Entry,
    Items,
    Node,
    Scalar,
    Section,
    place_of,
    read_file,
)
from replay.errors import ConfigError

#: Dynamo's environment, and the keys that it stands in for.
ENVIRONMENT = (
    Setting("$DYN_EVENT_PLANE_HOST", ("event_plane", "advertise")),
    Setting("$DYN_FILE_KV", ("event_plane", "discovery", "root")),
)

_COMMAND_LINE = Setting("command line", ())


def load_config(
    file: str | None = None,
    flags: Sequence[tuple[Setting, str]] = (),
    *,
    environ: Mapping[str, str] = os.environ,
) -> Config:
    """Read *file* and put *flags*, each with its text, over it.

    Without a file the defaults are what the flags are put over.  Raises `ConfigError` with all
    problems, each with the line, the flag or the variable that it comes from.
    """
    document = _without_file() if file is None else _read(file)
    if document.root is None:
        raise refusal(document.problems, document.file)
    root = document.root
    for setting, text in flags:
        root = _with_setting(root, setting, setting.path, text)
    for setting in ENVIRONMENT:
        text = environ.get(setting.name.removeprefix("$"), "").strip()
        if text and _has_taps(root) and _is_unset(root, setting.path):
            root = _with_setting(root, setting, setting.path, text)
    reader = Reader(HOOKS)
    problems = list(document.problems)
    try:
        section = reader.section(root, FileSection, ())
    except Unfit:
        raise refusal([*problems, *reader.problems], document.file) from None
    config = _resolve(section)
    faults = [*_file_faults(section), *find_faults(config), *missing_files(config)]
    problems += reader.problems
    problems += [_problem(root, fault) for fault in faults if not _is_moot(fault, reader.failed)]
    if problems:
        named = [_with_tap_name(problem, config.taps) for problem in problems]
        raise refusal(named, document.file)
    return config


def _read(file: str) -> Document:
    try:
        return read_file(file)
    except OSError as error:
        raise ConfigError([f"{file}: cannot be read: {error.strerror}"]) from error


def _without_file() -> Document:
    """Return what stands for a file when there is none: no taps, all defaults."""
    version = Scalar(_COMMAND_LINE, str(SCHEMA_VERSION), ARGUMENT)
    required: dict[str, Node] = {"schema_version": version, "taps": Items(_COMMAND_LINE, ())}
    entries = {
        key: Entry(Scalar(_COMMAND_LINE, key, "text"), node) for key, node in required.items()
    }
    return Document(_COMMAND_LINE.name, Section(_COMMAND_LINE, entries))


def _with_setting(node: Node | None, setting: Setting, path: Path, text: str) -> Node:
    """Return *node* with *text* at *path*; sections that are missing are made.

    Where the file has something else than a mapping on the way it stays, to be complained about.
    """
    if not path:
        return Scalar(setting, text, ARGUMENT)
    if not isinstance(node, Section | None):
        return node
    key = str(path[0])
    entries = {} if node is None else dict(node.entries)
    below = entries[key].value if key in entries else None
    key_node = entries[key].key if key in entries else Scalar(setting, key, "text")
    entries[key] = Entry(key_node, _with_setting(below, setting, path[1:], text))
    return Section(setting if node is None else node.place, entries)


def _has_taps(root: Node) -> bool:
    taps = root.entries.get("taps") if isinstance(root, Section) else None
    return taps is not None and isinstance(taps.value, Items) and bool(taps.value.nodes)


def _is_unset(root: Node, path: Path) -> bool:
    """Say whether the file leaves *path* out or null."""
    node: Node = root
    for part in path:
        if not isinstance(node, Section) or str(part) not in node.entries:
            return True
        node = node.entries[str(part)].value
    return isinstance(node, Scalar) and node.kind == "null"


def _resolve(section: FileSection) -> Config:
    worker = attrs.evolve(
        section.worker,
        host=_bare(section.worker.host),
        metadata_allow=tuple(glob.lower() for glob in section.worker.metadata_allow),
    )
    plane, http = section.event_plane, section.http
    if plane.advertise is not None:
        plane = attrs.evolve(plane, advertise=_bare(plane.advertise))
    config = Config(
        schema_version=section.schema_version,
        worker=worker,
        event_plane=plane,
        http=attrs.evolve(http, host=_bare(http.host)),
        shutdown=section.shutdown,
        taps=tuple(_resolve_tap(tap) for tap in section.taps),
    )
    return (
        config if section.namespace is None else attrs.evolve(config, namespace=section.namespace)
    )


def _resolve_tap(tap: TapSection) -> TapConfig:
    """Return the tap without the keys that were null: there the defaults count."""
    said = {field.name: getattr(tap, field.name) for field in attrs.fields(TapSection)}
    del said["emit"]
    return TapConfig(**{name: value for name, value in said.items() if value is not None})


def _bare(host: str) -> str:
    """Return an IPv6 address without its brackets; what is no host is left to the rules."""
    try:
        return parse_host(host)
    except ValueError:
        return host


def _file_faults(section: FileSection) -> Iterator[Fault]:
    """Yield the rules about keys that the program has no field for."""
    for index, tap in enumerate(section.taps):
        if tap.emit is not None and tap.capture is TapCapture.REQUEST:
            path: Path = ("taps", index)
            text = "needs capture: request_response"
            yield Fault((*path, "emit"), text, ((*path, "capture"),))


def _is_moot(fault: Fault, failed: set[Path]) -> bool:
    """Say whether the rule looked at a value that could not be read."""
    return any(
        path[:length] in failed
        for path in (fault.path, *fault.also)
        for length in range(len(path) + 1)
    )


def _problem(root: Node, fault: Fault) -> Problem:
    return Problem(place_of(root, fault.path), fault.path, fault.text)


def _with_tap_name(problem: Problem, taps: Sequence[TapConfig]) -> Problem:
    """Name the tap: an index is hard to find in a long list."""
    match problem.path:
        case ("taps", int(index), *_) if index < len(taps) and taps[index].name:
            name = f" (tap {quoted(taps[index].name)})"
            return attrs.evolve(problem, text=problem.text + name)
    return problem
