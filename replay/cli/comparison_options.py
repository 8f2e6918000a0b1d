"""What commands that compare runs can be asked for, and what they do with a comparison."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
import click
from rich.console import Console, RenderableType

from replay.cli.output_files import refuse_overwriting, write_whole
from replay.cli.target_options import Option
from replay.player.compare import DEFAULT_THRESHOLDS, CompareSettings, Comparison
from replay.player.fail_on import Rule, broken, read_rule
from replay.player.goodput import read_objectives
from replay.player.numbers import numbers_of
from replay.player.report import report_of
from replay.player.report_csv import csv_lines
from replay.player.report_html import html_page
from replay.player.report_terminal import comparison_tables
from replay.player.thresholds import read_threshold

#: Exit code of a comparison that breaks a rule of `--fail-on`.
BROKEN_RULE = 3

COMPARISON_OPTIONS: Sequence[Option] = (
    click.option(
        "--slo", metavar="LIST", default="", help="Objectives: ttft=200ms,tpot=50ms,e2e=5s."
    ),
    click.option(
        "--threshold",
        "thresholds",
        multiple=True,
        metavar="METRIC=TIME[,SHARE]",
        help="What is too small to matter: ttft=3ms,3%. May be given for each metric.",
    ),
    click.option(
        "--warm-up",
        metavar="N",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="Leave the first N requests out of the latencies.",
    ),
    click.option(
        "--fail-on",
        "rules",
        multiple=True,
        metavar="RULE",
        help="Exit with 3 if it holds: 'flagged', 'ttft.p99 > +10%', 'goodput < 95%'.",
    ),
    click.option("--json", "json_file", metavar="FILE", help="Write the whole report as JSON."),
    click.option("--csv", "csv_file", metavar="FILE", help="Write a line for each request."),
    click.option("--html", "html_file", metavar="FILE", help="Write a page to look at, offline."),
    click.option("--quiet", is_flag=True, help="Print no tables."),
)


@attrs.frozen(kw_only=True)
class ComparisonOptions:
    """What counts in a comparison, and where its reports go."""

    settings: CompareSettings
    rules: Sequence[Rule]
    json_file: str | None
    csv_file: str | None
    html_file: str | None
    is_quiet: bool

    def conclude(self, comparison: Comparison) -> int:
        """Write and print the reports of *comparison*, and return the exit code.

        Raises UsageError for a report that cannot be written.
        """
        report = report_of(comparison)
        forms: list[tuple[str | None, Callable[[], Iterable[str]]]] = [
            (self.json_file, lambda: [json.dumps(report, indent=2, allow_nan=False), "\n"]),
            (self.csv_file, lambda: csv_lines(comparison.rows)),
            (self.html_file, lambda: [html_page(comparison, report)]),
        ]
        for path, pieces in forms:
            if path is not None:
                write_whole(path, (piece.encode() for piece in pieces()))
        if not self.is_quiet:
            print_wide(comparison_tables(report))
        found = broken(self.rules, numbers_of(comparison))
        for each in found:
            click.echo(f"failed: {each}", err=True)
        return BROKEN_RULE if found else 0


def read_comparison_options(
    values: Mapping[str, Any], inputs: Iterable[str | None] = ()
) -> ComparisonOptions:
    """Turn the command line into values.  Raises ReplayErrors that say what is wrong.

    None of *inputs* may be a report's file.
    """
    outputs = {f"--{form}": values[f"{form}_file"] for form in ("json", "csv", "html")}
    refuse_overwriting(inputs, outputs)
    return ComparisonOptions(
        settings=CompareSettings(
            warm_up=values["warm_up"],
            objectives=read_objectives(values["slo"]),
            thresholds={**DEFAULT_THRESHOLDS, **dict(map(read_threshold, values["thresholds"]))},
        ),
        rules=[read_rule(rule) for rule in values["rules"]],
        json_file=values["json_file"],
        csv_file=values["csv_file"],
        html_file=values["html_file"],
        is_quiet=values["quiet"],
    )


def print_wide(tables: RenderableType) -> None:
    """Print *tables*; not folded for a width that nobody has, where there is no terminal."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    console.print(tables)
