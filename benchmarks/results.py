"""What a benchmark found: tables, bars and remarks, shown on the terminal and kept as JSON.

The terminal and the file are made from the same rows, so the file holds what the table shows.
"""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.machine import describe
from benchmarks.measures import Bar, Measure
from benchmarks.page import html_page
from benchmarks.plots import Plot

#: Columns of the output when it goes into a file or a pipe.
PLAIN_WIDTH = 120

#: From here on a report says that the machine was not quiet.
NOISY_SHARE = 0.1

#: What a cell may hold.  None is shown as a dash: not measured.
Cell = str | int | float | Measure | None


@attrs.frozen
class Column:
    """A column: its key in the rows, its head, how many decimals its numbers have."""

    key: str
    head: str
    decimals: int = 1
    spread: bool = False
    """Show how far the rounds are apart behind the median."""


@attrs.define
class Table:
    """A titled table whose rows are mappings from column keys to cells."""

    title: str
    columns: Sequence[Column]
    rows: list[Mapping[str, Cell]] = attrs.field(factory=list)

    def as_json(self) -> dict[str, object]:
        """Return the table for the results file."""
        rows = [
            {
                key: cell.as_json() if isinstance(cell, Measure) else cell
                for key, cell in row.items()
            }
            for row in self.rows
        ]
        columns = [
            {"key": each.key, "head": each.head, "decimals": each.decimals, "spread": each.spread}
            for each in self.columns
        ]
        return {"title": self.title, "columns": columns, "rows": rows}

    def widest_spread(self) -> float:
        """Return how far the rounds of one number are apart at most, as a share of its median."""
        spreads = [
            cell.spread
            for row in self.rows
            for column in self.columns
            if column.spread
            and isinstance(cell := row.get(column.key), Measure)
            and math.isfinite(cell.spread)
        ]
        return max(spreads, default=0.0)


def _number(value: float, decimals: int) -> str:
    return "-" if math.isnan(value) else f"{value:,.{decimals}f}"


def _share(value: float) -> str:
    return f"{value:.0%}" if value < 2 else f"{value:.0f} times"


def _shown(cell: Cell, column: Column) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, Measure):
        text = _number(cell.median, column.decimals)
        if column.spread and len(cell.rounds) > 1 and math.isfinite(cell.spread):
            # A space that a narrow table does not break.
            percent = cell.spread * 50
            text += "\N{NO-BREAK SPACE}" + (f"±{percent:.0f}%" if percent < 1000 else "±>999%")
        return text
    return _number(cell, column.decimals)


@attrs.define
class Report:
    """All that one run of a benchmark says."""

    scenario: str
    about: str = ""
    """What it measures, in a sentence."""
    machine: dict[str, object] = attrs.field(factory=describe)
    settings: dict[str, object] = attrs.field(factory=dict)
    tables: list[Table] = attrs.field(factory=list)
    bars: list[Bar] = attrs.field(factory=list)
    plots: list[Plot] = attrs.field(factory=list)
    remarks: list[str] = attrs.field(factory=list)
    """What a reader has to know."""
    limits: list[str] = attrs.field(factory=list)
    """What cannot be concluded."""
    wrong_answers: list[str] = attrs.field(factory=list)
    foreign_share: float = 0.0
    """The largest share of the server's core, or cores, that others had meanwhile."""

    def note_noise(self, foreign_share: float) -> None:
        """Take note of the share of the server's cores that other processes had in one contest."""
        self.foreign_share = max(self.foreign_share, foreign_share)

    def cannot_conclude(self) -> list[str]:
        """Return `limits`, and what the noise of this run adds to them."""
        found = list(self.limits)
        if self.foreign_share >= NOISY_SHARE:
            found.append(
                f"other processes had up to {self.foreign_share:.0%} of the cores that were "
                "measured on: rates and latencies cannot be concluded from this run, ratios of CPU "
                "only roughly"
            )
        spread = max((table.widest_spread() for table in self.tables), default=0.0)
        if spread >= NOISY_SHARE:
            found.append(
                f"the rounds of one number lie up to {_share(spread)} of it apart: differences "
                "below its own spread cannot be concluded"
            )
        return found

    @property
    def exit_status(self) -> int:
        """1 when an answer was wrong: slowness is reported, not punished."""
        return 1 if self.wrong_answers else 0

    def as_json(self) -> dict[str, object]:
        """Return everything for the results file."""
        return {
            "scenario": self.scenario,
            "about": self.about,
            "machine": self.machine,
            "settings": self.settings,
            "tables": [table.as_json() for table in self.tables],
            "bars": [bar.as_json() for bar in self.bars],
            "plots": [attrs.asdict(plot) for plot in self.plots],
            "remarks": self.remarks,
            "cannot_conclude": self.cannot_conclude(),
            "noise": {"foreign_share": self.foreign_share},
            "wrong_answers": self.wrong_answers,
        }

    def show(self, console: Console) -> None:
        """Print the report."""
        for table in self.tables:
            shown = RichTable(title=table.title, title_justify="left", title_style="bold")
            for column in table.columns:
                texts = any(isinstance(row.get(column.key), str) for row in table.rows)
                shown.add_column(column.head, justify="left" if texts else "right", no_wrap=True)
            for row in table.rows:
                shown.add_row(*(_shown(row.get(column.key), column) for column in table.columns))
            console.print(shown)
        if self.bars:
            bars = RichTable(title="Bars", title_justify="left", title_style="bold")
            for head in ("what", "limit", "measured", ""):
                bars.add_column(head)
            for bar in self.bars:
                verdict = "[green]PASS[/green]" if bar.kept else "[red]FAIL[/red]"
                bars.add_row(bar.what, bar.limit, _number(bar.value, 2), verdict)
            console.print(bars)
        for remark in [*self.remarks, *self.cannot_conclude()]:
            console.print(f"- {remark}", highlight=False, markup=False)
        for fault in self.wrong_answers:
            console.print(f"WRONG ANSWER: {fault}", style="red", highlight=False, markup=False)

    def finish(
        self, console: Console, json_path: Path | None, html_path: Path | None = None
    ) -> int:
        """Print the report, write it to the files that are named, return the exit status."""
        self.show(console)
        kept = finite(self.as_json())
        if json_path is not None:
            write_json(json_path, kept)
        if html_path is not None:
            html_path.write_text(html_page([kept]), encoding="utf-8")
        return self.exit_status


def write_json(path: Path, value: object) -> None:
    """Write *value*, which is `finite`, to *path*."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def finite(value: Any) -> Any:
    """Replace what JSON has no number for by null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def first_line(text: str | None) -> str:
    """Return the first line of a docstring, which says what a scenario measures."""
    return (text or "").split("\n", 1)[0]


def terminal() -> Console:
    """Return the console that reports go to; without a terminal it is wide enough for a table."""
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every benchmark has."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with plots to FILE")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
