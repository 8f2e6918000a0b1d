"""PURE.  AIPerf's JSONL: `single_turn`, `multi_turn` and `mooncake_trace` rows.  `timestamp` and
`delay` are milliseconds.

The turns of a `multi_turn` row are one session: each turn's message follows on the earlier turns
and their answers.  A `random_pool` has no order and no times, so it is not a trace.  Images, audio
and the like are not read: a turn that has them says so in `missing`.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from replay.player.arrival import Arrival, ChatPrompt, Prompt, TextPrompt
from replay.player.traces import dynamo
from replay.player.traces.fault import Notes
from replay.player.traces.fields import Row, kind_of, read_rows
from replay.player.traces.lines import Line
from replay.player.traces.options import ReadOptions

TIME_UNIT = "ms"
TYPES = ("single_turn", "multi_turn", "mooncake_trace", "random_pool")
_MEDIA = ("image", "images", "audio", "audios", "video", "videos")
_TURN_KEYS = {"type", "text", "texts", "timestamp", "delay", "role", "session_id", *_MEDIA}


def read(lines: Iterable[Line], options: ReadOptions, notes: Notes) -> Iterator[Arrival]:
    """Read the rows of a data set.  Raises TraceError with the line at fault."""
    turns: dict[str, int] = {}
    for row in read_rows(lines, notes):
        match _type_of(row):
            case "single_turn":
                yield _turn(row, row, options, notes, session=row.text("session_id"), turns=turns)
            case "multi_turn":
                yield from _conversation(row, options, notes, turns)
            case "mooncake_trace":
                yield dynamo.read_row(row, options, notes, turns)
            case "random_pool":
                raise row.fault(
                    "random_pool: a pool to draw from has no order; it cannot be replayed"
                )
            case _:
                raise row.fault(f"type: must be one of {', '.join(TYPES)}")


def _type_of(row: Row) -> str | None:
    stated = row.text("type")
    if stated is not None:
        return stated
    if "turns" in row.values:
        return "multi_turn"
    return "single_turn" if row.values.keys() & {"text", "texts", *_MEDIA} else "mooncake_trace"


def _conversation(
    row: Row, options: ReadOptions, notes: Notes, turns: dict[str, int]
) -> Iterator[Arrival]:
    notes.ignore(row.values.keys() - {"type", "session_id", "turns"})
    session = row.text("session_id") or f"line-{row.line}"
    listed = row.sequence("turns")
    if not listed:
        raise row.fault("turns: must hold at least one turn")
    for number, values in enumerate(listed):
        if not isinstance(values, dict):
            raise row.fault(f"turns[{number}]: must be an object, is {kind_of(values)}")
        yield _turn(row, Row(row.line, values), options, notes, session=session, turns=turns)


def _turn(
    row: Row,
    turn: Row,
    options: ReadOptions,
    notes: Notes,
    *,
    session: str | None,
    turns: dict[str, int],
) -> Arrival:
    notes.ignore(turn.values.keys() - _TURN_KEYS)
    unit_ns = options.unit_ns(TIME_UNIT)
    time_ns = turn.time_ns("timestamp", unit_ns)
    delay_ns = turn.time_ns("delay", unit_ns)
    number = 0
    if session is not None:
        number = turns.get(session, 0)
        turns[session] = number + 1
    think_ns = None
    if number:
        # A later turn that says nothing of time follows at once on the answer before it.
        think_ns = 0 if delay_ns is None and time_ns is None else delay_ns
    name = f"aiperf-{row.line}" if turn is row else f"aiperf-{row.line}-{number}"
    media = tuple(key for key in _MEDIA if turn.values.get(key))
    prompt = _prompt(turn, in_session=session is not None)
    return Arrival(
        position=row.line,
        request_id=name,
        time_ns=time_ns,
        prompt=prompt,
        session=session,
        turn=number,
        think_ns=think_ns,
        missing=(*media, "prompt") if prompt is None else media,
    )


def _prompt(turn: Row, *, in_session: bool) -> Prompt | None:
    parts = list(_texts(turn))
    role = turn.text("role")
    if not parts:
        return None
    if len(parts) == 1 and role in (None, "user") and not in_session:
        return TextPrompt(parts[0])
    content: Any = (
        parts[0] if len(parts) == 1 else [{"type": "text", "text": part} for part in parts]
    )
    return ChatPrompt(messages=({"role": role or "user", "content": content},), is_delta=True)


def _texts(turn: Row) -> Iterator[str]:
    if (text := turn.text("text")) is not None:
        yield text
    for number, entry in enumerate(turn.sequence("texts") or ()):
        contents = entry.get("contents") if isinstance(entry, dict) else [entry]
        if not isinstance(contents, list) or not all(isinstance(part, str) for part in contents):
            raise turn.fault(f"texts[{number}]: must be a string, or an object with contents")
        yield from contents
