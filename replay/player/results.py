"""PURE.  The file that a run leaves: JSON lines, one for the run, one for each request as it ends,
one for the end.

The first line has `schema` (`replay.results.v1`), what was played, against what and how.  The last
has `end`: a file without it is of a run that was killed, and what it has is still whole.  Token ids
and text are in it, no prompts; it is made with mode 0600 all the same.
"""

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from replay.player.observation import Choice, Observation, Outcome
from replay.player.traces.fault import Notes
from replay.player.traces.fields import Row, kind_of, read_rows
from replay.player.traces.lines import Line

SCHEMA = "replay.results.v1"
_OFFSETS = (
    "first_token_offset_ns",
    "last_token_offset_ns",
    "end_offset_ns",
    "scheduled_ns",
    "sent_ns",
)


@attrs.frozen(kw_only=True)
class RunHead:
    """What was played."""

    source: str
    target: str
    pace: str
    started_unix_ns: int
    measured_at: str = "client"
    settings: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.define
class Results:
    """A results file that was read."""

    head: RunHead
    observations: list[Observation]
    end: Mapping[str, Any] | None
    """None: the run did not come to its end."""


def write_head(head: RunHead) -> bytes:
    """Return the first line."""
    return _line({"schema": SCHEMA, **attrs.asdict(head)})


def write_end(end: Mapping[str, Any]) -> bytes:
    """Return the last line."""
    return _line({"end": dict(end)})


def write_observation(observation: Observation) -> bytes:
    """Return the line of one request.  What is not known is left out."""
    values: dict[str, Any] = {
        "request_id": observation.request_id,
        "position": observation.position,
        "outcome": observation.outcome.value,
    }
    for name in ("error", "target", "prompt_tokens", "cached_tokens", *_OFFSETS):
        if (value := getattr(observation, name)) is not None:
            values[name] = value
    if observation.schedule_delay_ns is not None:
        values["schedule_delay_ns"] = observation.schedule_delay_ns
    values["output_tokens"] = observation.output_tokens
    if observation.chunk_offsets_ns is not None:
        values["chunk_offsets_ns"] = list(observation.chunk_offsets_ns)
    if observation.filled:
        values["filled"] = list(observation.filled)
    values["choices"] = [_choice(choice) for choice in observation.choices]
    return _line(values)


def read_results(lines: Iterable[Line], notes: Notes) -> Results:
    """Read a results file.  Raises TraceError with the line at fault."""
    rows = iter(read_rows(lines, notes))
    head = _head(next(rows))
    observations: list[Observation] = []
    end: Mapping[str, Any] | None = None
    for row in rows:
        if "end" in row.values:
            end = row.mapping("end")
            break
        observations.append(_observation(row))
    if end is None:
        notes.warn("the run did not come to its end: its last line is not there")
    return Results(head=head, observations=observations, end=end)


def _line(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def _choice(choice: Choice) -> dict[str, Any]:
    values: dict[str, Any] = {"index": choice.index, "output_tokens": choice.output_tokens}
    if choice.finish_reason is not None:
        values["finish_reason"] = choice.finish_reason
    if choice.token_ids is not None:
        values["token_ids"] = list(choice.token_ids)
    if choice.text is not None:
        values["text"] = choice.text
    if choice.is_truncated:
        values["truncated"] = True
    return values


def _head(row: Row) -> RunHead:
    if row.text("schema") != SCHEMA:
        raise row.fault(f"schema: must be {SCHEMA}")
    return RunHead(
        source=row.text("source") or "",
        target=row.text("target") or "",
        pace=row.text("pace") or "",
        started_unix_ns=row.count("started_unix_ns"),
        measured_at=row.text("measured_at") or "client",
        settings=row.mapping("settings") or {},
    )


def _observation(row: Row) -> Observation:
    request_id = row.text("request_id")
    if request_id is None:
        raise row.fault("request_id: is missing")
    word = row.text("outcome")
    chunks = row.sequence("chunk_offsets_ns")
    offsets = {name: row.integer(name) for name in _OFFSETS}
    try:
        outcome = Outcome(word or "")
        chunk_offsets = None if chunks is None else array("Q", chunks)
    except ValueError:
        raise row.fault("outcome: must be one of the known words") from None
    except (TypeError, OverflowError):
        raise row.fault("chunk_offsets_ns: must hold integers only") from None
    return Observation(
        request_id=request_id,
        position=row.integer("position") or 0,
        outcome=outcome,
        choices=tuple(_choices(row)),
        prompt_tokens=row.integer("prompt_tokens"),
        cached_tokens=row.integer("cached_tokens"),
        first_token_offset_ns=offsets["first_token_offset_ns"],
        last_token_offset_ns=offsets["last_token_offset_ns"],
        end_offset_ns=offsets["end_offset_ns"],
        chunk_offsets_ns=chunk_offsets,
        scheduled_ns=offsets["scheduled_ns"],
        sent_ns=offsets["sent_ns"],
        error=row.text("error"),
        target=row.text("target"),
        filled=tuple(str(name) for name in row.sequence("filled") or ()),
    )


def _choices(row: Row) -> Iterator[Choice]:
    for number, values in enumerate(row.sequence("choices") or ()):
        if not isinstance(values, dict):
            raise row.fault(f"choices[{number}]: must be an object, is {kind_of(values)}")
        choice = Row(row.line, values)
        yield Choice(
            index=choice.count("index"),
            finish_reason=choice.text("finish_reason"),
            output_tokens=choice.count("output_tokens"),
            token_ids=choice.ids("token_ids"),
            text=choice.text("text"),
            is_truncated=bool(choice.flag("truncated")),
        )
