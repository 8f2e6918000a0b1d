"""The file of scripted answers: a JSON object a line, each the answer of one choice.  PURE.

    {"request_id": "r-1", "chunks": [[5, 6], [7]], "offsets_ms": [0, 12.5], "finish_reason": "stop"}

`request_id` and `chunks` have to be there; `*` is the id of the fallback.  `offsets_ms` count from
the arrival of the request, one for each chunk.  `error` ends the whole request with a status: in
the place of chunk `after_chunks`, at the time of that one if there is one; without `after_chunks`
behind all of them.  A line without `times` may be used for ever, so nothing behind it with the same
id and index would ever be reached: such lines are refused, like all that is wrong, with their line.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from replay.engines.base import FINISH_REASONS
from replay.text import escape_controls

FALLBACK = "*"

#: The names of gRPC's codes that are errors.
ERROR_CODES = (
    *("CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND"),
    *("ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION"),
    *("ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"),
    "UNAUTHENTICATED",
)

#: As many faults are told; a file that was made wrongly has them in each line.
MOST_FAULTS = 20

_UINT32_MAX = 2**32 - 1
_INT32_MAX = 2**31 - 1


@attrs.frozen(kw_only=True)
class ScriptedError:
    """A status that ends the request."""

    code: str
    """One of `ERROR_CODES`."""
    message: str = ""
    after_chunks: int


@attrs.frozen(kw_only=True)
class ScriptedChoice:
    """One line: what one choice of an answer says, and when."""

    line: int
    request_id: str
    index: int = 0
    chunks: tuple[tuple[int, ...], ...]
    offsets_ms: tuple[float, ...] | None = None
    """When each chunk is due, from the arrival of the request; None: as fast as it is read."""
    finish_reason: str = "stop"
    matched_stop: int | str | None = None
    logprobs: tuple[float, ...] | None = None
    """One for each token."""
    error: ScriptedError | None = None
    times: int | None = None
    """How many requests it may answer; None: all that come."""

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return self.offsets_ms[-1] / 1000 if self.offsets_ms else 0.0


@attrs.define
class ScriptFile:
    """What was read of a script.  One with `faults` must not be used."""

    choices: list[ScriptedChoice] = attrs.field(factory=list)
    faults: list[tuple[int, str]] = attrs.field(factory=list)
    """Line and reason; of very many only the first."""


def read_script(lines: Iterable[bytes]) -> ScriptFile:
    """Read the lines of a script.  Blank ones count, and say nothing."""
    script = ScriptFile()
    found: list[tuple[int, str]] = []
    for number, line in enumerate(lines, 1):
        text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if not text.strip():
            continue
        try:
            script.choices.append(_read_line(text, number))
        except ValueError as error:
            found.append((number, escape_controls(str(error))))
            if len(found) >= MOST_FAULTS:
                break
    if not found:
        found += list(_unreachable(script.choices))[:MOST_FAULTS]
    script.faults = found
    return script


def _unreachable(choices: Iterable[ScriptedChoice]) -> Iterator[tuple[int, str]]:
    """Yield the lines that no request could get."""
    forever: dict[tuple[str, int], int] = {}
    first: dict[str, int] = {}
    whole: set[str] = set()
    for choice in choices:
        key = choice.request_id, choice.index
        if key in forever:
            text = f"is never used: line {forever[key]} has the same request_id and index, and no "
            yield choice.line, text + "times"
        elif choice.times is None:
            forever[key] = choice.line
        first.setdefault(choice.request_id, choice.line)
        if choice.index == 0:
            whole.add(choice.request_id)
    for request_id, line in first.items():
        if request_id not in whole:
            yield line, "is never used: there is no line of index 0 with this request_id"


# ---- one line.  The texts name keys and never quote what is in a chunk or a message.


def _read_line(line: bytes, number: int) -> ScriptedChoice:
    try:
        fields = json.loads(line, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON from character {error.pos + 1}: {error.msg}") from None
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None
    except RecursionError:
        raise ValueError("is nested too deep") from None
    if not isinstance(fields, dict):
        raise ValueError(f"must be an object, is {_kind(fields)}")
    values = _values(fields, _KEYS, needed=("request_id", "chunks"))
    if "error" in values:
        values["error"] = ScriptedError(
            **{"after_chunks": len(values["chunks"]), **values["error"]}
        )
    choice = ScriptedChoice(line=number, logprobs=values.pop("output_logprobs", None), **values)
    _fit_together(choice)
    return choice


def _fit_together(choice: ScriptedChoice) -> None:
    chunks = len(choice.chunks)
    if choice.offsets_ms is not None and len(choice.offsets_ms) != chunks:
        raise ValueError(f"offsets_ms: has {len(choice.offsets_ms)} entries for {chunks} chunks")
    tokens = sum(map(len, choice.chunks))
    if choice.logprobs is not None and len(choice.logprobs) != tokens:
        raise ValueError(f"output_logprobs: has {len(choice.logprobs)} entries for {tokens} tokens")
    if choice.matched_stop is not None and choice.finish_reason != "stop":
        raise ValueError("matched_stop: needs finish_reason stop")
    if choice.error is not None and choice.error.after_chunks > chunks:
        raise ValueError(f"error.after_chunks: is {choice.error.after_chunks} of {chunks} chunks")


def _request_id(name: str, value: Any) -> str:
    if _text(name, value) == "":
        raise ValueError(f"{name}: must not be empty")
    return str(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name}: must be text, is {_kind(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name}: has half of a surrogate pair") from None
    return value


def _whole(least: int, most: int) -> Callable[[str, Any], int]:
    def read(name: str, value: Any) -> int:
        if type(value) is not int:
            raise ValueError(f"{name}: must be a whole number, is {_kind(value)}")
        if not least <= value <= most:
            raise ValueError(f"{name}: must be from {least} to {most}")
        return value

    return read


def _items(name: str, value: Any) -> Sequence[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{name}: must be a list, is {_kind(value)}")
    return value


def _chunks(name: str, value: Any) -> tuple[tuple[int, ...], ...]:
    chunks = []
    for at, chunk in enumerate(_items(name, value)):
        ids = _items(f"{name}[{at}]", chunk)
        for token in ids:
            if type(token) is not int or not 0 <= token <= _UINT32_MAX:
                raise ValueError(f"{name}[{at}]: must hold token ids, from 0 to {_UINT32_MAX}")
        chunks.append(tuple(ids))
    return tuple(chunks)


def _numbers(name: str, value: Any) -> tuple[float, ...]:
    numbers = []
    for at, number in enumerate(_items(name, value)):
        if type(number) not in (int, float) or not _is_finite(number):
            raise ValueError(f"{name}[{at}]: must be a finite number")
        numbers.append(float(number))
    return tuple(numbers)


def _is_finite(number: int | float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:
        return False


def _offsets(name: str, value: Any) -> tuple[float, ...]:
    offsets = _numbers(name, value)
    least = 0.0
    for at, offset in enumerate(offsets):
        if offset < least:
            what = "goes down" if at else "must not be below 0"
            raise ValueError(f"{name}[{at}]: {what}")
        least = offset
    return offsets


def _logprobs(name: str, value: Any) -> tuple[float, ...]:
    logprobs = _numbers(name, value)
    if any(logprob > 0 for logprob in logprobs):
        raise ValueError(f"{name}: must hold log probabilities, which are at most 0")
    return logprobs


def _finish_reason(name: str, value: Any) -> str:
    if value not in FINISH_REASONS:
        raise ValueError(f"{name}: must be one of {', '.join(FINISH_REASONS)}")
    return str(value)


def _matched_stop(name: str, value: Any) -> int | str:
    return value if isinstance(value, str) else _whole(0, _UINT32_MAX)(name, value)


def _error(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name}: must be an object, is {_kind(value)}")
    return _values(value, _ERROR_KEYS, needed=("code",), prefix=f"{name}.")


def _code(name: str, value: Any) -> str:
    if value not in ERROR_CODES:
        raise ValueError(f"{name}: must be the name of a gRPC code that is an error")
    return str(value)


_KEYS: Mapping[str, Callable[[str, Any], Any]] = {
    "request_id": _request_id,
    "index": _whole(0, _INT32_MAX),
    "chunks": _chunks,
    "offsets_ms": _offsets,
    "finish_reason": _finish_reason,
    "matched_stop": _matched_stop,
    "output_logprobs": _logprobs,
    "error": _error,
    "times": _whole(1, _INT32_MAX),
}
_ERROR_KEYS: Mapping[str, Callable[[str, Any], Any]] = {
    "code": _code,
    "message": _text,
    "after_chunks": _whole(0, _INT32_MAX),
}


def _values(
    fields: Mapping[str, Any],
    keys: Mapping[str, Callable[[str, Any], Any]],
    *,
    needed: Sequence[str],
    prefix: str = "",
) -> dict[str, Any]:
    """Read the values of an object; null is the same as leaving the key out."""
    values = {}
    for key, value in fields.items():
        if key not in keys:
            raise ValueError(f"{prefix}{key[:40]}: is not a key of a script")
        if value is not None:
            values[key] = keys[key](prefix + key, value)
    for key in needed:
        if key not in values:
            raise ValueError(f"{prefix}{key}: is missing")
    return values


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice[:40]}: is there twice")
    return fields


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _kind(value: Any) -> str:
    kinds = {bool: "a boolean", str: "text", list: "a list", dict: "an object"}
    return "null" if value is None else kinds.get(type(value), "a number")
