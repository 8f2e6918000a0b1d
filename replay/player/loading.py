"""Loads a run to compare: results of a play, records of a tap, a capture, a script, references.

These calls block, and hold a run in memory: that is what a comparison works on.
"""

from collections.abc import Iterable

import attrs

from replay.player.compare import Side
from replay.player.observation import Observation
from replay.player.references import read_references
from replay.player.results import read_results
from replay.player.traces.fault import TraceError
from replay.player.traces.formats import RECORDS, REFERENCES, RESULTS
from replay.player.traces.opening import Source, is_compare_source


@attrs.frozen(kw_only=True)
class Loaded:
    """A run, and what was noticed while it was read."""

    side: Side
    format: str
    notes: list[str]


def load_side(path: str) -> Loaded:
    """Load the run in the file at *path*.

    Raises OSError and TraceError; a source that tells nothing of what came of requests is a
    TraceError too.
    """
    with Source(path) as source:
        if not is_compare_source(source.format):
            raise TraceError(
                0, f"is {source.format}: it tells of requests, not of their answers", source=path
            )
        try:
            side = _side(source)
        except TraceError as error:
            raise (error if error.source else error.at(path)) from None
        return Loaded(side=side, format=source.format, notes=source.notes.summary())


def _side(source: Source) -> Side:
    if source.format == RESULTS:
        results = read_results(source.lines(), source.notes)
        seconds = (results.end or {}).get("seconds")
        return Side(
            name=source.name,
            observations=_as_they_were_sent(results.observations),
            measured_at=results.head.measured_at,
            seconds=seconds if isinstance(seconds, int | float) and seconds > 0 else None,
        )
    if source.format == REFERENCES:
        return Side(name=source.name, observations=[*read_references(source.lines(), source.notes)])
    recorded = (arrival.recorded for arrival in source.arrivals())
    observations = _numbered(each for each in recorded if each is not None)
    measured_at = "worker" if source.format == RECORDS else None
    return Side(name=source.name, observations=observations, measured_at=measured_at)


def _as_they_were_sent(observations: Iterable[Observation]) -> list[Observation]:
    """Put results, which stand in the order of their ends, into that of their sending."""
    never = 1 << 63
    return _numbered(
        sorted(observations, key=lambda each: never if each.sent_ns is None else each.sent_ns)
    )


def _numbered(observations: Iterable[Observation]) -> list[Observation]:
    return [attrs.evolve(each, position=place) for place, each in enumerate(observations, 1)]
