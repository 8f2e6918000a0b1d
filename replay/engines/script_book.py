"""Which scripted answer a request gets, and in what order its parts are due.  PURE.

Tried in this order: the request's id; the id without the `-{uuid}` that a gateway puts behind what
it found in a header; the fallback.  Lines of one id and index are used in the order of the file,
each as often as its `times` says.  A choice without a line of its own says what the first one says.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import attrs

from replay.engines.script_file import FALLBACK, ScriptedChoice, ScriptedError

#: An id, and behind it a UUID with or without its dashes.
_WITH_UUID = re.compile(
    r"(.+)-(?:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|[0-9a-f]{32})", re.DOTALL | re.IGNORECASE
)


@attrs.define(eq=False)
class _Line:
    choice: ScriptedChoice
    left: int | None


class ScriptBook:
    """The answers of a script, and how often each may still be used.

    All workers of a process share one: a line with `times: 1` answers one request.
    """

    def __init__(self, choices: Iterable[ScriptedChoice]) -> None:
        self._lines: dict[str, dict[int, deque[_Line]]] = {}
        self.longest_seconds = 0.0
        """How long the longest answer takes."""
        self.largest_id = -1
        """The largest token id; -1 without any."""
        for choice in choices:
            by_index = self._lines.setdefault(choice.request_id, {})
            by_index.setdefault(choice.index, deque()).append(_Line(choice, choice.times))
            self.longest_seconds = max(self.longest_seconds, choice.seconds)
            self.largest_id = max(self.largest_id, *map(_largest, choice.chunks), -1)

    def take(self, request_id: str, choices: int) -> list[ScriptedChoice] | None:
        """Return what each of *choices* choices says, and use it up; None if nothing is scripted.

        What is returned has the index of its choice.
        """
        with_uuid = _WITH_UUID.fullmatch(request_id)
        bare = with_uuid[1] if with_uuid else request_id
        for name in dict.fromkeys((request_id, bare, FALLBACK)):
            taken = self._take(name, choices)
            if taken:
                return taken
        return None

    def _take(self, name: str, choices: int) -> list[ScriptedChoice]:
        by_index = self._lines.get(name)
        first = by_index and _next(by_index.get(0))
        if not by_index or not first:
            return []
        found = [_next(by_index.get(index)) or first for index in range(choices)]
        for line in dict.fromkeys(found):
            if line.left is not None:
                line.left -= 1
        return [attrs.evolve(line.choice, index=index) for index, line in enumerate(found)]


def _next(lines: deque[_Line] | None) -> _Line | None:
    """Return the first line that may still be used; drop those that may not."""
    while lines:
        if lines[0].left != 0:
            return lines[0]
        lines.popleft()
    return None


def _largest(ids: Sequence[int]) -> int:
    return max(ids, default=-1)


@attrs.frozen(kw_only=True)
class Step:
    """One thing that a scripted answer does: a chunk, the end of a choice, or an error."""

    offset_seconds: float
    """When it is due, from the arrival of the request."""
    choice: ScriptedChoice
    start: int = 0
    """How many tokens of the choice have gone before."""
    chunk: tuple[int, ...] | None = None
    """The ids of a chunk; None for the other two."""
    error: ScriptedError | None = None


def plan_steps(choices: Sequence[ScriptedChoice]) -> list[Step]:
    """Return what an answer of *choices* does, in the order in which it is due."""
    steps = [step for choice in choices for step in _steps(choice)]
    return sorted(
        steps, key=lambda step: step.offset_seconds
    )  # what is due at once keeps its order


def _steps(choice: ScriptedChoice) -> Iterator[Step]:
    offsets = choice.offsets_ms or (0.0,) * len(choice.chunks)
    error = choice.error
    last = len(choice.chunks) if error is None else error.after_chunks
    start = 0
    for chunk, offset in zip(choice.chunks[:last], offsets, strict=False):
        yield Step(offset_seconds=offset / 1000, choice=choice, start=start, chunk=chunk)
        start += len(chunk)
    end = offsets[min(last, len(offsets) - 1)] / 1000 if offsets else 0.0
    yield Step(offset_seconds=end, choice=choice, start=start, error=error)
