"""PURE.  Puts the rows of a source on one time line, and says what is wrong with their times.

Rules.  The first arrival is at 0.  A source has times on all rows or on none: the first row
decides, except that a later turn of a session may have a delay instead.  Times may be equal, but
they may not go back; with *reorder* a row may come up to that many rows late and is put in its
place.  A step of more than a year is a change of unit or of clock.  What remains possible but
unlikely (the unit was probably another) is a warning.
"""

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice

import attrs

from replay.player.arrival import Arrival
from replay.player.traces.fault import Notes, TraceError

_SECOND_NS = 1_000_000_000
#: No trace pauses that long; a step like this is from one unit, or one clock, to another.
_LONGEST_STEP_NS = 366 * 86_400 * _SECOND_NS
#: Mean rates that are looked at as suspicious, over at least this many rows.
_ROWS_TO_JUDGE = 100
_HIGHEST_RATE = 1_000.0
_LOWEST_RATE = 1 / 60


def place(rows: Iterable[Arrival], *, reorder: int = 0) -> Iterator[Arrival]:
    """Set `offset_ns` of each row; rows without a time keep None.

    Raises TraceError with the line for a time that is missing among others that are not, that goes
    back, or that steps by more than a year.
    """
    origin_ns: int | None = None
    previous: Arrival | None = None
    for row in _in_order(_checked(rows), reorder):
        if row.time_ns is None:
            yield row
            continue
        if previous is None or previous.time_ns is None:
            origin_ns = row.time_ns
        else:
            step_ns = row.time_ns - previous.time_ns
            if step_ns < 0:
                raise TraceError(
                    row.position,
                    f"its time is {_span(-step_ns)} before that of line {previous.position}: "
                    "the source is not sorted by time",
                )
            if step_ns > _LONGEST_STEP_NS:
                raise TraceError(
                    row.position,
                    f"its time is {_span(step_ns)} after that of line {previous.position}: "
                    "two units or two clocks are mixed",
                )
        previous = row
        assert origin_ns is not None
        yield attrs.evolve(row, offset_ns=row.time_ns - origin_ns)


def follows_its_session(row: Arrival) -> bool:
    """Whether *row* starts by the end of the turn before it rather than at a time."""
    return row.turn > 0 and row.think_ns is not None


def _checked(rows: Iterable[Arrival]) -> Iterator[Arrival]:
    """Refuse a mixture of rows with and without a time."""
    first: Arrival | None = None
    for row in rows:
        if follows_its_session(row):
            # The delay is what counts; a time beside it would only disturb the order.
            yield attrs.evolve(row, time_ns=None) if row.time_ns is not None else row
            continue
        if first is None:
            first = row
        elif (row.time_ns is None) != (first.time_ns is None):
            raise TraceError(
                row.position,
                f"has no time, but line {first.position} has one"
                if row.time_ns is None
                else f"has a time, but line {first.position} has none",
            )
        yield row


def _in_order(rows: Iterator[Arrival], reorder: int) -> Iterator[Arrival]:
    """Sort rows that are up to *reorder* places late.

    Rows without a time stay behind the one before.
    """
    if reorder <= 0:
        yield from rows
        return
    waiting: list[tuple[int, int, Arrival]] = []
    last_ns = 0
    for number, row in enumerate(rows):
        if row.time_ns is not None:
            last_ns = row.time_ns
        heapq.heappush(waiting, (last_ns, number, row))
        if len(waiting) > reorder:
            yield heapq.heappop(waiting)[2]
    while waiting:
        yield heapq.heappop(waiting)[2]


@attrs.frozen(kw_only=True)
class Preview:
    """What the first rows of a source say of it."""

    rows: int
    is_whole: bool
    """Whether the source has no further row."""
    has_times: bool
    span_ns: int


def look_ahead(
    arrivals: Iterator[Arrival], notes: Notes, *, unit: str, rows: int = 1_000
) -> tuple[Preview, Iterator[Arrival]]:
    """Read up to *rows* rows to judge the source by, and return them in front of the rest.

    What is unlikely becomes a warning that names *unit*.  Raises TraceError for a source without
    any row.
    """
    head = list(islice(arrivals, rows))
    if not head:
        raise TraceError(0, "has no request")
    offsets = [row.offset_ns for row in head if row.offset_ns is not None]
    preview = Preview(
        rows=len(head),
        is_whole=len(head) < rows,
        has_times=bool(offsets),
        span_ns=offsets[-1] if offsets else 0,
    )
    if (doubt := doubt_about(len(offsets), preview.span_ns, unit)) is not None:
        notes.warn(doubt)
    return preview, _chain(head, arrivals)


def doubt_about(rows: int, span_ns: int, unit: str) -> str | None:
    """Return why *rows* arrivals within *span_ns* are unlikely, or None."""
    if rows < _ROWS_TO_JUDGE:
        return None
    what = f"the first {rows} rows arrive within {_span(span_ns)}"
    if span_ns == 0:
        return f"{what}: all at one moment"
    rate = rows * _SECOND_NS / span_ns
    if rate > _HIGHEST_RATE:
        return f"{what}, {rate:,.0f} a second: are the times really in {unit}?"
    if rate < _LOWEST_RATE:
        return f"{what}, less than one a minute: are the times really in {unit}?"
    return None


def _chain(head: list[Arrival], rest: Iterator[Arrival]) -> Iterator[Arrival]:
    head.reverse()
    while head:
        # Given away one by one: a row that was played is not held.
        yield head.pop()
    yield from rest


def _span(nanoseconds: int) -> str:
    seconds = nanoseconds / _SECOND_NS
    for unit, length in (("years", 365.25 * 86_400), ("days", 86_400.0), ("hours", 3_600.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.3f} s" if seconds >= 0.1 else f"{nanoseconds / 1e6:,.6g} ms"
