"""PURE.  The formats that a request can be read from, by name."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import attrs

from replay.player.arrival import Arrival
from replay.player.traces import aiperf, azure, burstgpt, capture, dynamo, mooncake, script
from replay.player.traces.fault import Notes
from replay.player.traces.lines import Line
from replay.player.traces.options import ReadOptions

Reader: TypeAlias = Callable[[Iterable[Line], ReadOptions, Notes], Iterator[Arrival]]


@attrs.frozen
class TextFormat:
    """A format of lines."""

    name: str
    title: str
    time_unit: str
    """What its times count in; `date` for dates, `none` where it has none."""
    read: Reader


TEXT_FORMATS = {
    form.name: form
    for form in (
        TextFormat("mooncake", "Mooncake JSONL", mooncake.TIME_UNIT, mooncake.read),
        TextFormat("dynamo", "Dynamo replay JSONL", dynamo.TIME_UNIT, dynamo.read),
        TextFormat("aiperf", "AIPerf JSONL", aiperf.TIME_UNIT, aiperf.read),
        TextFormat("burstgpt", "BurstGPT CSV", burstgpt.TIME_UNIT, burstgpt.read),
        TextFormat("azure", "Azure LLM inference CSV", azure.TIME_UNIT, azure.read),
        TextFormat("capture", "capture JSONL", capture.TIME_UNIT, capture.read),
        TextFormat("script", "script JSONL", "none", script.read),
    )
}

#: Formats that are recognised, but that are read elsewhere: records by their frames, results by
#: `compare`.
RECORDS = "records"
RESULTS = "results"
REFERENCES = "references"
