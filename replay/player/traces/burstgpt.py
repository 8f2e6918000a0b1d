"""PURE.  BurstGPT's CSV: `Timestamp` (s from day 1), `Request tokens`, `Response tokens`, `Model`,
`Log Type`, and in newer files `Session ID` and `Elapsed time` (s, the whole answer).

A prompt is made up to its length.  `Response tokens` of 0 is a failed request: it is played as one
that asks for no token, and its recorded outcome is `error`.  A later turn of a session starts at
its own time, or when the turn before has ended, whichever is later.
"""

from collections.abc import Iterable, Iterator

from replay.player.arrival import Arrival, LengthPrompt
from replay.player.observation import Choice, Observation, Outcome
from replay.player.traces.comma import read_cells
from replay.player.traces.fault import Notes
from replay.player.traces.lines import Line
from replay.player.traces.mooncake import LONGEST_PROMPT, fixed_length
from replay.player.traces.options import ReadOptions

TIME_UNIT = "s"
COLUMNS = ("Timestamp", "Request tokens", "Response tokens")


def read(lines: Iterable[Line], options: ReadOptions, notes: Notes) -> Iterator[Arrival]:
    """Read the rows of a trace.  Raises TraceError with the line at fault."""
    unit_ns = options.unit_ns(TIME_UNIT)
    turns: dict[str, int] = {}
    for row in read_cells(lines, COLUMNS, notes):
        request_id = f"burstgpt-{row.line}"
        output_tokens = row.count("Response tokens")
        session = row.text("Session ID")
        turn = 0
        if session is not None:
            turn = turns.get(session, 0)
            turns[session] = turn + 1
        yield Arrival(
            position=row.line,
            request_id=request_id,
            time_ns=row.time_ns("Timestamp", unit_ns),
            prompt=LengthPrompt(
                length=row.count("Request tokens", minimum=1, maximum=LONGEST_PROMPT), own=row.line
            ),
            parameters=fixed_length(output_tokens),
            model=row.text("Model"),
            session=session,
            turn=turn,
            recorded=Observation(
                request_id=request_id,
                position=row.line,
                outcome=Outcome.COMPLETE if output_tokens else Outcome.ERROR,
                choices=(Choice(output_tokens=output_tokens),) if output_tokens else (),
                end_offset_ns=row.time_ns("Elapsed time", unit_ns),
            ),
        )
