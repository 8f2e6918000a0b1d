"""Read a tree of nodes into classes, by the exact types of their fields.

PURE.  Nothing is converted that only looks alike: `true` is no 1, `"5"` is no 5, `no` is no text.
Every fault is noted and the reading goes on: a field that cannot be read takes its default, or a
stand-in when it has none, and its path is remembered in `failed`, so that nobody complains about
the stand-in.
"""

import difflib
import re
import types
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import attrs

from replay.config.problems import Path, Place, Problem, quoted
from replay.config.yaml_source import ARGUMENT, Items, Node, Scalar, Section
from replay.text import escape_controls

T = TypeVar("T")

#: Reads a node of a type that says more than its annotation; raises `Unfit` after a complaint.
Hook = Callable[["Reader", Node, Path], Any]

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")

#: 2^64 has 20 digits; what is longer fits no field and is not worth converting.
_MOST_DIGITS = 20

_AS_READ = {
    "integer": "an integer",
    "number": "a number",
    "boolean": "a boolean",
    "date": "a date",
}


class Unfit(Exception):  # noqa: N818 - it reports nothing, the problem is noted already
    """The node has no value of the wanted type."""


class Reader:
    """Collects `problems` and `failed` paths over any number of `section` calls."""

    def __init__(self, hooks: Mapping[Any, Hook]) -> None:
        self.problems: list[Problem] = []
        self.failed: set[Path] = set()
        self._hooks = hooks

    def complain(self, place: Place, path: Path, text: str) -> Unfit:
        """Note a fault at *path*; the caller may raise what is returned."""
        self.problems.append(Problem(place, path, text))
        self.failed.add(path)
        return Unfit()

    def section(self, node: Node, cls: type[T], path: Path) -> T:
        """Read a mapping into the attrs class *cls*.  Raises `Unfit` when it is no mapping."""
        if not isinstance(node, Section):
            hint = ": leave the key out for its defaults" if _is_null(node) else ""
            raise self.complain(node.place, path, f"must be a mapping, is {describe(node)}{hint}")
        hints = get_type_hints(cls)
        fields = {field.name: field for field in attrs.fields(cls)}  # type: ignore[arg-type]
        for key, entry in node.entries.items():
            if key not in fields:
                text = f"unknown key {quoted(key)}{_hint_at_key(key, hints, list(fields))}"
                self.problems.append(Problem(entry.key.place, (*path, key), text))
        values = {}
        for name, field in fields.items():
            below = (*path, name)
            try:
                if name in node.entries:
                    values[name] = self.value(node.entries[name].value, hints[name], below)
                elif field.default is attrs.NOTHING:
                    raise self.complain(node.place, below, "is required")
            except Unfit:
                if field.default is attrs.NOTHING:
                    values[name] = _stand_in(hints[name])
        return cls(**values)

    def value(self, node: Node, kind: Any, path: Path) -> Any:
        """Read a node as a value of the type *kind*.  Raises `Unfit` after a complaint."""
        if kind in self._hooks:
            return self._hooks[kind](self, node, path)
        if get_origin(kind) in (Union, types.UnionType):
            return self._union(node, get_args(kind), path)
        if get_origin(kind) is tuple:
            return self._items(node, get_args(kind), path)
        if attrs.has(kind):
            return self.section(node, kind, path)
        if not isinstance(node, Scalar):
            wanted = "text" if issubclass(kind, str) else _WANTED[kind]
            raise self.complain(node.place, path, f"must be {wanted}, is {describe(node)}")
        if issubclass(kind, StrEnum):
            return self._member(node, kind, path)
        return _SCALARS[kind](self, node, path)

    def _union(self, node: Node, kinds: tuple[Any, ...], path: Path) -> Any:
        if types.NoneType in kinds:
            if _is_null(node):
                return None
            kinds = tuple(kind for kind in kinds if kind is not types.NoneType)
        return (
            self.value(node, kinds[0], path) if len(kinds) == 1 else self._tagged(node, kinds, path)
        )

    def _tagged(self, node: Node, kinds: tuple[Any, ...], path: Path) -> Any:
        """Read one of several sections, chosen by its key `kind`; the first when there is none."""
        by_kind = {kind.kind: kind for kind in kinds}
        if not isinstance(node, Section) or "kind" not in node.entries:
            return self.section(node, kinds[0], path)
        chosen = self.value(node.entries["kind"].value, str, (*path, "kind"))
        if chosen not in by_kind:
            place, names = node.entries["kind"].value.place, ", ".join(by_kind)
            raise self.complain(
                place, (*path, "kind"), f"must be one of {names}, is {quoted(chosen)}"
            )
        rest = {key: entry for key, entry in node.entries.items() if key != "kind"}
        return self.section(Section(node.place, rest), by_kind[chosen], path)

    def _items(self, node: Node, kinds: tuple[Any, ...], path: Path) -> tuple[Any, ...]:
        if not isinstance(node, Items):
            hint = ": write [] for none" if _is_null(node) else ""
            raise self.complain(node.place, path, f"must be a list, is {describe(node)}{hint}")
        if kinds[-1] is not Ellipsis and len(node.nodes) != len(kinds):
            raise self.complain(
                node.place, path, f"must have {len(kinds)} values, has {len(node.nodes)}"
            )
        values = []
        for index, item in enumerate(node.nodes):
            try:
                values.append(self.value(item, kinds[0], (*path, index)))
            except Unfit:
                values.append(_stand_in(kinds[0]))
        return tuple(values)

    def _member(self, node: Scalar, kind: type[StrEnum], path: Path) -> StrEnum:
        if node.kind in ("text", ARGUMENT) and node.text in list(kind):
            return kind(node.text)
        wanted = (
            f"must be one of {', '.join(kind)}" if len(kind) > 1 else f"must be {next(iter(kind))}"
        )
        raise self.complain(node.place, path, f"{wanted}, is {describe(node)}")

    def text(self, node: Scalar, path: Path) -> str:
        """Read text; what YAML 1.1 reads as something else has to be quoted."""
        if node.kind in ("text", ARGUMENT):
            return node.text
        is_read = _AS_READ.get(node.kind)
        reading = f", which YAML reads as {is_read}: quote it" if is_read else ""
        raise self.complain(node.place, path, f"must be text, is {describe(node)}{reading}")

    def integer(self, node: Scalar, path: Path) -> int:
        """Read a decimal integer; no octals, no exponents, no underscores."""
        if node.kind in ("integer", ARGUMENT) and _INTEGER.fullmatch(node.text):
            if len(node.text) <= _MOST_DIGITS + 1:
                return int(node.text)
            raise self.complain(node.place, path, "must be an integer below 2^64")
        hint = _hint_at_form(node, _INTEGER)
        raise self.complain(node.place, path, f"must be an integer, is {describe(node)}{hint}")

    def number(self, node: Scalar, path: Path) -> float:
        """Read a finite decimal number; `1e3` is one, though YAML 1.1 takes it for text."""
        if (
            node.kind not in ("boolean", "null")
            and not node.quoted
            and _NUMBER.fullmatch(node.text)
        ):
            number = float(node.text)
            if number not in (float("inf"), float("-inf")):
                return number
        hint = _hint_at_form(node, _NUMBER)
        raise self.complain(node.place, path, f"must be a finite number, is {describe(node)}{hint}")

    def boolean(self, node: Scalar, path: Path) -> bool:
        """Read `true` or `false`; yes, no, on and off mean nothing in YAML 1.2."""
        if node.kind in ("boolean", ARGUMENT) and node.text.lower() in ("true", "false"):
            return node.text.lower() == "true"
        raise self.complain(node.place, path, f"must be true or false, is {describe(node)}")


_SCALARS: dict[Any, Callable[[Reader, Scalar, Path], Any]] = {
    str: Reader.text,
    int: Reader.integer,
    float: Reader.number,
    bool: Reader.boolean,
}
_WANTED = {int: "an integer", float: "a finite number", bool: "true or false"}


def describe(node: Node) -> str:
    """Return what a message says that *node* is: its own text, or its shape."""
    if isinstance(node, Section):
        return "a mapping"
    if isinstance(node, Items):
        return "a list"
    if _is_null(node) or node.text == "":
        return "empty"
    if node.quoted or node.kind == ARGUMENT:
        return quoted(node.text)
    return escape_controls(node.text[:60])


def _is_null(node: Node) -> bool:
    return isinstance(node, Scalar) and node.kind == "null"


def _hint_at_form(node: Scalar, wanted: re.Pattern[str]) -> str:
    """Say what keeps something that looks like a number from being one."""
    if node.quoted and wanted.fullmatch(node.text):
        return ", which is text: take the quotes away"
    if node.text.startswith("0") and wanted.fullmatch(node.text.lstrip("0") or "0"):
        return ": leave out the leading zero, which means octal in YAML 1.1"
    return ""


def _hint_at_key(key: str, hints: Mapping[str, Any], known: list[str]) -> str:
    """Say what the author of an unknown key may have meant."""
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    if near:
        return f": did you mean {quoted(near[0])}?"
    for name in known:
        if key in _fields_below(hints[name]):
            return f': did you mean "{name}.{key}"?'
    return f": known here are {', '.join(known)}"


def _fields_below(kind: Any) -> set[str]:
    sections = [each for each in (kind, *get_args(kind)) if attrs.has(each)]
    return {field.name for section in sections for field in attrs.fields(section)}


def _stand_in(kind: Any) -> Any:
    """Return some value of the type *kind*, for a field without a default that cannot be read."""
    if attrs.has(kind):
        required = [field for field in attrs.fields(kind) if field.default is attrs.NOTHING]
        hints = get_type_hints(kind)
        return kind(**{field.name: _stand_in(hints[field.name]) for field in required})
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return next(iter(kind))
    return () if get_origin(kind) is tuple else kind()
