"""PURE.  A comparison as a table for spreadsheets and scripts:

one line for each request that both runs have.
"""

import csv
import io
from collections.abc import Iterable, Iterator
from itertools import chain

from replay.player.answers import Tokens
from replay.player.compare import Row
from replay.player.latency import METRICS, latency_ms

COLUMNS = (
    "request_id",
    "position",
    "tokens",
    "choice",
    "first_difference",
    "prompts",
    "prompt_first_difference",
    *(
        f"{side}_{name}"
        for name in ("outcome", "finish_reason", "output_tokens")
        for side in ("baseline", "candidate")
    ),
    *(f"{side}_{metric}_ms" for metric in METRICS for side in ("baseline", "candidate")),
    "candidate_schedule_delay_ms",
    "candidate_cached_tokens",
)


def csv_lines(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the header and a line for each of *rows*.  What is not known is an empty cell."""
    for cells in chain([list[object](COLUMNS)], map(_cells, rows)):
        line = io.StringIO()
        csv.writer(line).writerow(cells)
        yield line.getvalue()


def _cells(row: Row) -> list[object]:
    sides = (row.baseline, row.candidate)
    delay = row.candidate.schedule_delay_ns
    return [
        row.request_id,
        row.baseline.position,
        row.answer.tokens.value,
        row.answer.choice,
        row.answer.first_index if row.answer.tokens is Tokens.DIFFER else None,
        row.prompt.prompts.value,
        row.prompt.first_index,
        *(side.outcome.value for side in sides),
        *("+".join(choice.finish or "" for choice in side.choices) for side in sides),
        *(side.output_tokens for side in sides),
        *(_rounded(latency_ms(side, metric)) for metric in METRICS for side in sides),
        None if delay is None else _rounded(delay / 1e6),
        row.candidate.cached_tokens,
    ]


def _rounded(value: float | None) -> float | None:
    """Keep the nanosecond, not the noise of the division."""
    return None if value is None else round(value, 6)
