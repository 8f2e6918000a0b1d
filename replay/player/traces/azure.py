"""PURE.  Azure's LLM inference CSV: `TIMESTAMP,ContextTokens,GeneratedTokens`.

A timestamp is a date and a time with up to nine digits of a second (the files have seven); without
a zone it is UTC. Prompts are made up to their length.
"""

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

from replay.player.arrival import Arrival, LengthPrompt
from replay.player.traces.comma import Cells, read_cells
from replay.player.traces.fault import Notes, TraceError
from replay.player.traces.lines import Line
from replay.player.traces.mooncake import LONGEST_PROMPT, fixed_length
from replay.player.traces.options import ReadOptions

TIME_UNIT = "date"
COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_MOMENT = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)[ T](?P<time>\d\d:\d\d:\d\d)(?:\.(?P<part>\d{1,9}))?"
    r"(?P<zone>Z|[+-]\d\d:\d\d)?",
    re.ASCII,
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read(lines: Iterable[Line], options: ReadOptions, notes: Notes) -> Iterator[Arrival]:
    """Read the rows of a trace.  Raises TraceError with the line at fault."""
    if options.time_unit is not None:
        raise TraceError(0, "its timestamps are dates; a time unit cannot be set")
    for row in read_cells(lines, COLUMNS, notes):
        yield Arrival(
            position=row.line,
            request_id=f"azure-{row.line}",
            time_ns=_moment(row),
            prompt=LengthPrompt(
                length=row.count("ContextTokens", minimum=1, maximum=LONGEST_PROMPT), own=row.line
            ),
            parameters=fixed_length(row.count("GeneratedTokens")),
        )


def _moment(row: Cells) -> int | None:
    text = row.text("TIMESTAMP")
    if text is None:
        return None
    found = _MOMENT.fullmatch(text)
    if found is None:
        raise row.fault("TIMESTAMP: must be a date and a time such as 2023-11-16 18:15:46.6805900")
    try:
        moment = datetime.fromisoformat(
            f"{found['day']} {found['time']}{(found['zone'] or '+00:00').replace('Z', '+00:00')}"
        )
    except ValueError:
        raise row.fault("TIMESTAMP: is no day or no time of day") from None
    whole = (moment - _EPOCH) // timedelta(seconds=1)
    if whole < 0:
        raise row.fault("TIMESTAMP: lies before 1970")
    return whole * 1_000_000_000 + int((found["part"] or "").ljust(9, "0"))
