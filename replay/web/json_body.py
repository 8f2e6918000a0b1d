"""The JSON body of a request, read strictly into a value class.  PURE."""

import json
import re
import sys
import types
from collections.abc import Iterator
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import attrs

from replay.config.problems import quoted

T = TypeVar("T")

#: JSON can say it, UTF-8 cannot.
_SURROGATE = re.compile("[\ud800-\udfff]")

_NAMES = {int: "an integer", float: "a number", str: "text", bool: "true or false"}


class BodyError(Exception):
    """The body cannot be used: `problems` has one line for each fault.

    `status` is HTTP's for it: 400 for what is no JSON object, 422 for its values.
    """

    def __init__(self, status: int, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.status = status
        self.problems = problems


def read_body(body: bytes, cls: type[T]) -> T:
    """Read a JSON object into the attrs class *cls*; a missing key has the field's default.

    Raises BodyError for what is no JSON object, for unknown and doubled keys, for values of another
    type, and for what `cls.faults` finds.
    """
    try:
        value = json.loads(body, object_pairs_hook=_once_each, parse_constant=_no_constant)
    except RecursionError:
        raise BodyError(400, "the body is nested too deeply") from None
    except ValueError:  # of the text and of its encoding
        raise BodyError(400, "the body is not JSON") from None
    if not isinstance(value, dict):
        raise BodyError(400, "the body must be a JSON object")
    problems = list(_problems(value, cls))
    if problems:
        raise BodyError(422, *problems)
    kinds = get_type_hints(cls)
    read = cls(**{key: _as(kinds[key], each) for key, each in value.items()})
    problems = [f"{fault.path[0]}: {fault.text}" for fault in read.faults()]  # type: ignore[attr-defined]
    if problems:
        raise BodyError(422, *problems)
    return read


def _problems(value: dict[str, Any], cls: type[Any]) -> Iterator[str]:
    fields = {field.name: field for field in attrs.fields(cls)}
    kinds = get_type_hints(cls)
    for key, each in value.items():
        if key not in fields:
            yield f"{quoted(key)}: unknown key; known here are {', '.join(fields)}"
        elif not _fits(kinds[key], each):
            wanted = " or ".join(_names(kinds[key]))
            yield f"{key}: must be {wanted}"
        elif isinstance(each, str) and _SURROGATE.search(each):
            yield f"{key}: has half of a surrogate pair"
    for name, field in fields.items():
        if field.default is attrs.NOTHING and name not in value:
            yield f"{name}: is required"


def _kinds(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _names(kind: Any) -> list[str]:
    return [_NAMES.get(each, "null") for each in _kinds(kind)]


def _fits(kind: Any, value: Any) -> bool:
    return type(_as(kind, value)) in _kinds(kind)


def _as(kind: Any, value: Any) -> Any:
    """Return *value* as a *kind*, if it is one: to JSON 2 and 2.0 are the same."""
    kinds = _kinds(kind)
    if type(value) is int and float in kinds and abs(value) <= sys.float_info.max:
        return float(value)
    if type(value) is float and int in kinds and value.is_integer():
        return int(value)
    return value


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise BodyError(400, "a key is there twice")
    return value


def _no_constant(name: str) -> float:
    raise BodyError(400, f"{name} is not JSON")
