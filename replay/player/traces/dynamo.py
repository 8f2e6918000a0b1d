"""PURE.  Dynamo's replay input: Mooncake's rows with sessions, under either of two sets of names.

`timestamp` or `created_time` (ms), `input_length` or `input_tokens`, `output_length` or
`output_tokens`, `hash_ids`, `session_id`, `delay` or `delay_ms` (ms after the end of the turn
before).  A turn with a time of its own and no delay starts at that time, or when the turn before
has ended, whichever is later.  AIPerf's `mooncake_trace` rows are read here too: `text_input`, or
`messages` with `tools` and `message_mode` (`history`: the messages are the whole conversation;
`delta`: they follow on the turn before).
"""

from collections.abc import Iterable, Iterator

from replay.player.arrival import Arrival, ChatPrompt, Parameters, Prompt, TextPrompt
from replay.player.traces.fault import Notes
from replay.player.traces.fields import Row, read_rows
from replay.player.traces.lines import Line
from replay.player.traces.mooncake import LONGEST_PROMPT, block_prompt, fixed_length
from replay.player.traces.options import ReadOptions

TIME_UNIT = "ms"
#: Keys that tell this format from plain Mooncake.
OWN_KEYS = {"created_time", "input_tokens", "output_tokens", "session_id", "delay", "delay_ms"}
_PAIRS = (
    ("timestamp", "created_time"),
    ("input_length", "input_tokens"),
    ("output_length", "output_tokens"),
    ("delay", "delay_ms"),
)
_KEYS = (
    {name for pair in _PAIRS for name in pair}
    | {"type", "hash_ids", "session_id", "text_input", "messages", "tools", "message_mode"}
)  # fmt: skip


def read(lines: Iterable[Line], options: ReadOptions, notes: Notes) -> Iterator[Arrival]:
    """Read the rows of a trace.  Raises TraceError with the line at fault."""
    turns: dict[str, int] = {}
    for row in read_rows(lines, notes):
        yield read_row(row, options, notes, turns)


def read_row(row: Row, options: ReadOptions, notes: Notes, turns: dict[str, int]) -> Arrival:
    """Read one row.  *turns* counts the rows of each session so far."""
    notes.ignore(row.values.keys() - _KEYS - {"extra"})
    time_key, input_key, output_key, delay_key = (_either(row, *pair) for pair in _PAIRS)
    unit_ns = options.unit_ns(TIME_UNIT)
    session = row.text("session_id")
    turn = 0
    think_ns = row.time_ns(delay_key, unit_ns)
    if session is not None:
        turn = turns.get(session, 0)
        turns[session] = turn + 1
    elif think_ns is not None:
        raise row.fault(f"{delay_key}: a delay without a session_id has nothing to follow")
    output_tokens = row.integer(output_key)
    return Arrival(
        position=row.line,
        request_id=f"trace-{row.line}",
        time_ns=row.time_ns(time_key, unit_ns),
        prompt=_prompt(row, input_key, options),
        parameters=Parameters() if output_tokens is None else fixed_length(output_tokens),
        session=session,
        turn=turn,
        think_ns=think_ns if turn else None,
        missing=("extra",) if row.values.get("extra") else (),
    )


def _either(row: Row, first: str, second: str) -> str:
    if row.values.get(first) is not None and row.values.get(second) is not None:
        raise row.fault(f"{first}, {second}: two names of one value, only one may be set")
    return first if row.values.get(second) is None else second


def _prompt(row: Row, input_key: str, options: ReadOptions) -> Prompt:
    described = [
        key for key in ("text_input", "messages", input_key) if row.values.get(key) is not None
    ]
    if len(described) > 1 and described != ["messages", input_key]:
        raise row.fault(f"{', '.join(described)}: a prompt is described in one way only")
    if (text := row.text("text_input")) is not None:
        return TextPrompt(text)
    if (messages := row.sequence("messages")) is not None:
        if not messages or not all(isinstance(message, dict) for message in messages):
            raise row.fault("messages: must hold at least one object, and nothing else")
        mode = row.text("message_mode")
        if mode not in (None, "history", "delta"):
            raise row.fault("message_mode: must be history or delta")
        tools = row.sequence("tools")
        return ChatPrompt(
            messages=tuple(messages),
            is_delta=mode == "delta",
            tools=None if tools is None else tuple(tools),
        )
    return block_prompt(
        row, row.count(input_key, minimum=1, maximum=LONGEST_PROMPT), options.block_size
    )
