"""Read a YAML file strictly into a tree that remembers where each value was written.

A key may stand only once in a mapping.  A merge key (`<<`) takes over what the mapping does not
say itself, from one mapping or from a list of them, of which the first wins.  Aliases are followed
up to a number of nodes, so that aliases of aliases cannot fill the memory.  Scalars keep their
text: what it means is decided by who reads it, because YAML 1.1 turns `no` into false and `010`
into 8.

Faults in the syntax end the reading; duplicate keys and foreign tags are collected beside the tree.
"""

from collections.abc import Mapping
from pathlib import Path as FilePath

import attrs
import yaml

from replay.config.problems import Path, Place, Problem, quoted

#: A configuration is written by hand.  What is larger is the wrong file.
MAX_BYTES = 4 * 2**20

#: A thousand taps with every key set are some 30,000 nodes.
MAX_NODES = 100_000

#: The deepest key of the schema lies at level 7.
MAX_DEPTH = 32

#: Kinds of scalars that have no YAML tag: a value of a flag or of the environment, which means
#: whatever its reader reads out of it, and what no key can use.
ARGUMENT = "argument"
FOREIGN = "value of a kind that is not supported"

_MERGE = "tag:yaml.org,2002:merge"
_KINDS = {
    "tag:yaml.org,2002:str": "text",
    "tag:yaml.org,2002:int": "integer",
    "tag:yaml.org,2002:float": "number",
    "tag:yaml.org,2002:bool": "boolean",
    "tag:yaml.org,2002:null": "null",
    "tag:yaml.org,2002:timestamp": "date",
    _MERGE: "text",
    "tag:yaml.org,2002:value": "text",
}
_COLLECTIONS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


@attrs.frozen
class Scalar:
    """A single value as it was written."""

    place: Place
    text: str
    kind: str
    """`text`, `integer`, `number`, `boolean`, `null` or `date` as YAML 1.1 reads the text; or
    `ARGUMENT`, or `FOREIGN`."""
    quoted: bool = False


@attrs.frozen
class Items:
    """A list."""

    place: Place
    nodes: tuple["Node", ...]


@attrs.frozen
class Entry:
    """A key of a mapping and what stands behind it."""

    key: Scalar
    value: "Node"


@attrs.frozen
class Section:
    """A mapping, merges applied.  Keys are found by their text."""

    place: Place
    entries: Mapping[str, Entry]


Node = Scalar | Items | Section


@attrs.frozen
class Document:
    """What a file says, and what is wrong with how it says it."""

    file: str
    """The name that the operator gave."""
    root: Node | None
    """None when the file cannot be read at all; `problems` then says why."""
    problems: tuple[Problem, ...] = ()


def read_file(file: str) -> Document:
    """Read *file*.  Raises OSError when the system cannot."""
    with FilePath(file).open("rb") as source:
        data = source.read(MAX_BYTES + 1)
    return parse(data, file)


def parse(data: bytes, file: str) -> Document:
    """Read the bytes of a YAML file; *file* names it in messages."""
    try:
        if len(data) > MAX_BYTES:
            raise _UnreadableError(1, f"is longer than {MAX_BYTES // 2**20} MiB")
        root = _compose(_decode(data))
        converter = _Converter()
        node = converter.convert(root, ())
    except _UnreadableError as error:
        return Document(file, None, (Problem(error.line, (), error.text),))
    return Document(file, node, tuple(converter.problems))


def place_of(root: Node, path: Path) -> Place:
    """Return where *path* was written, or the innermost thing around it that was."""
    node = root
    for part in path:
        if isinstance(node, Section) and (entry := node.entries.get(str(part))):
            node = entry.value
        elif isinstance(node, Items) and isinstance(part, int) and part < len(node.nodes):
            node = node.nodes[part]
        else:
            break
    return node.place


class _UnreadableError(Exception):
    """The file is no YAML that can be used.  It stays inside this module."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line
        self.text = text


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _UnreadableError(line, "is not UTF-8 text") from None


class _Loader(yaml.SafeLoader):
    """PyYAML's composer with a bound on what it builds."""

    depth = 0
    nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose one node.  The composer calls itself, so depth costs stack."""
        self.depth += 1
        self.nodes += 1
        if self.depth > MAX_DEPTH or self.nodes > MAX_NODES:
            line: int = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call]
            if self.depth > MAX_DEPTH:
                raise _UnreadableError(line, f"is nested more than {MAX_DEPTH} levels deep")
            raise _UnreadableError(line, f"has more than {MAX_NODES} values")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _compose(text: str) -> yaml.Node:
    try:
        root = _Loader(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _UnreadableError(mark.line + 1 if mark else 1, _syntax_fault(error)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        fault = f"has a control character, U+{ord(text[error.position]):04X}"
        raise _UnreadableError(line, fault) from None
    if root is None:
        raise _UnreadableError(1, "is empty: schema_version and taps are required")
    return root


def _syntax_fault(error: yaml.MarkedYAMLError) -> str:
    if "'\\t'" in (error.problem or ""):
        return "is not valid YAML: a tab cannot indent, use spaces"
    parts = [part for part in (error.context, error.problem) if part]
    return f"is not valid YAML: {', '.join(parts)}"


class _Converter:
    """PyYAML's nodes into ours.  An alias becomes a copy of what it names."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._left = MAX_NODES
        self._open: set[int] = set()
        self._complained: set[tuple[int, str]] = set()

    def convert(self, node: yaml.Node, path: Path) -> Node:
        line = node.start_mark.line + 1
        self._left -= 1
        if self._left < 0:
            raise _UnreadableError(line, f"grows to more than {MAX_NODES} values by its aliases")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if node.tag not in _COLLECTIONS:
            self._complain(node, path, f"has the tag {node.tag}, which is not supported")
        if id(node) in self._open:
            raise _UnreadableError(line, "contains itself by an alias")
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return Items(
                    line,
                    tuple(
                        self.convert(item, (*path, index)) for index, item in enumerate(node.value)
                    ),
                )
            assert isinstance(node, yaml.MappingNode)
            return self._section(node, path)
        finally:
            self._open.discard(id(node))

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Scalar:
        kind = _KINDS.get(node.tag, FOREIGN)
        if kind is FOREIGN:
            self._complain(node, path, f"has the tag {node.tag}, which is not supported")
        return Scalar(node.start_mark.line + 1, node.value, kind, quoted=bool(node.style))

    def _section(self, node: yaml.MappingNode, path: Path) -> Section:
        entries: dict[str, Entry] = {}
        merge: Entry | None = None
        merged: tuple[Section, ...] = ()
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._complain(key_node, path, "has a key that is not text")
                continue
            key = self._scalar(key_node, path)
            below = (*path, key.text)
            entry = Entry(key, self.convert(value_node, below))
            is_merge = key_node.tag == _MERGE
            first = merge if is_merge else entries.get(key.text)
            if first is not None:
                lines = f"lines {first.key.place} and {key.place}"
                self._complain(key_node, below, f"duplicate key {quoted(key.text)}: {lines}")
            elif not is_merge:
                entries[key.text] = entry
            elif (sources := _mappings(entry.value)) is not None:
                merge, merged = entry, sources
            else:
                self._complain(key_node, below, "must name a mapping, or a list of mappings")
        for source in merged:
            for text, entry in source.entries.items():
                entries.setdefault(text, entry)
        return Section(node.start_mark.line + 1, entries)

    def _complain(self, node: yaml.Node, path: Path, text: str) -> None:
        """Note a fault of *node*, once however many aliases lead to it."""
        if (id(node), text) not in self._complained:
            self._complained.add((id(node), text))
            self.problems.append(Problem(node.start_mark.line + 1, path, text))


def _mappings(value: Node) -> tuple[Section, ...] | None:
    """Return what a merge key names, or None when some of it is no mapping."""
    nodes = value.nodes if isinstance(value, Items) else (value,)
    sections = tuple(node for node in nodes if isinstance(node, Section))
    return sections if len(sections) == len(nodes) else None
