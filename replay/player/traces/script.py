"""PURE.  Scripts: the answers that a worker is to give, one choice a line.

A script tells the ids of requests and what their answers were, but no prompt and no time: `missing`
names the prompt.  Lines that follow each other with one id and different `index` are the choices of
one request.  The fallback line (`"request_id": "*"`) belongs to no request.
"""

from array import array
from collections.abc import Iterable, Iterator
from itertools import groupby

from replay.player.arrival import Arrival, Parameters
from replay.player.observation import Choice, Observation, Outcome, TokenIds
from replay.player.traces.fault import Notes
from replay.player.traces.fields import Row, kind_of, read_rows
from replay.player.traces.lines import Line
from replay.player.traces.options import ReadOptions

TIME_UNIT = "ms"
OWN_KEYS = {"request_id", "chunks"}


def read(lines: Iterable[Line], options: ReadOptions, notes: Notes) -> Iterator[Arrival]:
    """Read the requests that a script answers.  Raises TraceError with the line at fault."""
    unit_ns = options.unit_ns(TIME_UNIT)
    for (request_id, _), rows in groupby(
        _numbered(read_rows(lines, notes), notes), key=lambda pair: pair[0]
    ):
        group = [row for _, row in rows]
        recorded = _observation(request_id, group, unit_ns)
        yield Arrival(
            position=group[0].line,
            request_id=request_id,
            parameters=Parameters(
                max_new_tokens=max(
                    (choice.output_tokens for choice in recorded.choices), default=None
                ),
                n=len(group) if len(group) > 1 else None,
            ),
            stream=True,
            recorded=recorded,
            missing=("prompt",),
        )


def _numbered(rows: Iterable[Row], notes: Notes) -> Iterator[tuple[tuple[str, int], Row]]:
    """Put the id and the use of the id before each row:

    an index that comes again begins another use.
    """
    last: str | None = None
    use = 0
    seen: set[int] = set()
    for row in rows:
        request_id = row.text("request_id")
        if request_id is None:
            raise row.fault("request_id: is missing")
        if request_id == "*":
            notes.warn("the fallback line of the script belongs to no request; it was left out")
            continue
        index = row.integer("index") or 0
        if request_id != last or index in seen:
            use += 1
            seen = set()
        seen.add(index)
        last = request_id
        yield (request_id, use), row


def _observation(request_id: str, rows: list[Row], unit_ns: int) -> Observation:
    choices = []
    offsets: list[int] = []
    error: str | None = None
    timed = True
    for row in rows:
        ids: TokenIds = array("I")
        chunks = row.sequence("chunks") or []
        for number, chunk in enumerate(chunks):
            ids.extend(row.as_ids(f"chunks[{number}]", chunk))
        choices.append(
            Choice(
                index=row.integer("index") or 0,
                finish_reason=row.text("finish_reason"),
                output_tokens=len(ids),
                token_ids=ids,
            )
        )
        own = row.sequence("offsets_ms")
        timed = timed and own is not None
        for chunk, value in zip(chunks, own or (), strict=False):
            if type(value) not in (int, float):
                raise row.fault(f"offsets_ms: must hold numbers, holds {kind_of(value)}")
            if chunk:
                offsets.append(round(value * unit_ns))
        if (failure := row.mapping("error")) is not None:
            error = str(failure.get("code", "UNKNOWN"))[:32]
    offsets.sort()
    return Observation(
        request_id=request_id,
        position=rows[0].line,
        outcome=Outcome.ERROR if error else Outcome.COMPLETE,
        choices=tuple(sorted(choices, key=lambda choice: choice.index)),
        first_token_offset_ns=offsets[0] if timed and offsets else None,
        last_token_offset_ns=offsets[-1] if timed and offsets else None,
        end_offset_ns=offsets[-1] if timed and offsets else None,
        chunk_offsets_ns=array("Q", offsets) if timed and offsets else None,
        error=error,
    )
