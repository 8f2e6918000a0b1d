"""`replay compare`: say what differs between two runs of the same requests."""

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import click
from rich.console import Console

from replay.errors import ReplayError
from replay.player.compare import DEFAULT_THRESHOLDS, CompareSettings, Comparison, compare
from replay.player.fail_on import Rule, broken, read_rule
from replay.player.goodput import read_objectives
from replay.player.loading import load_side
from replay.player.numbers import numbers_of
from replay.player.report import report_of
from replay.player.report_csv import csv_lines
from replay.player.report_html import html_page
from replay.player.report_terminal import comparison_tables
from replay.player.thresholds import read_threshold

#: Exit code of a comparison that breaks a rule of `--fail-on`.
BROKEN_RULE = 3


@click.command("compare")
@click.argument("baseline")
@click.argument("candidate")
@click.option("--control", metavar="FILE", help="A second run of the baseline: its noise.")
@click.option("--slo", metavar="LIST", default="", help="Objectives: ttft=200ms,tpot=50ms,e2e=5s.")
@click.option(
    "--threshold",
    "thresholds",
    multiple=True,
    metavar="METRIC=TIME[,SHARE]",
    help="What is too small to matter: ttft=3ms,3%. May be given for each metric.",
)
@click.option(
    "--warm-up",
    metavar="N",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Leave the first N requests out of the latencies.",
)
@click.option(
    "--fail-on",
    "rules",
    multiple=True,
    metavar="RULE",
    help="Exit with 3 if it holds: 'flagged', 'ttft.p99 > +10%', 'goodput < 95%'.",
)
@click.option("--json", "json_file", metavar="FILE", help="Write the whole report as JSON.")
@click.option("--csv", "csv_file", metavar="FILE", help="Write a line for each request.")
@click.option("--html", "html_file", metavar="FILE", help="Write a page to look at, offline.")
@click.option("--quiet", is_flag=True, help="Print no tables.")
def compare_command(
    baseline: str,
    candidate: str,
    control: str | None,
    slo: str,
    thresholds: tuple[str, ...],
    warm_up: int,
    rules: tuple[str, ...],
    json_file: str | None,
    csv_file: str | None,
    html_file: str | None,
    quiet: bool,
) -> None:
    """Compare two runs of the same requests: results of `play`, record files of taps, captures.

    Requests are joined by their ids. Captures are compared by their prompts; one of the two may be
    a JSONL file of reference ids. Exit codes: 0, 2 for wrong usage or a file that cannot be read,
    3 for a rule of --fail-on that holds.
    """
    try:
        checked = [read_rule(rule) for rule in rules]
        settings = CompareSettings(
            warm_up=warm_up,
            objectives=read_objectives(slo),
            thresholds={**DEFAULT_THRESHOLDS, **dict(map(read_threshold, thresholds))},
        )
        loaded = [load_side(path) for path in (baseline, candidate, control) if path is not None]
    except ReplayError as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        raise click.UsageError(f"{error.filename}: {error.strerror}") from None
    for each in loaded:
        for note in each.notes:
            click.echo(f"{each.side.name}: {note}", err=True)
    comparison = compare(
        loaded[0].side,
        loaded[1].side,
        control=loaded[2].side if control is not None else None,
        settings=settings,
    )
    write_reports(comparison, json_file=json_file, csv_file=csv_file, html_file=html_file)
    if not quiet:
        show(comparison)
    raise SystemExit(judge(comparison, checked))


def judge(comparison: Comparison, rules: list[Rule]) -> int:
    """Return the exit code that *rules* give, and say which of them are broken."""
    found = broken(rules, numbers_of(comparison))
    for each in found:
        click.echo(f"failed: {each}", err=True)
    return BROKEN_RULE if found else 0


def show(comparison: Comparison) -> None:
    """Print the tables of *comparison*."""
    console = Console()
    if not console.is_terminal:
        # A table that is folded for a width that nobody has reads badly in a log.
        console = Console(width=160)
    console.print(comparison_tables(report_of(comparison)))


def write_reports(
    comparison: Comparison, *, json_file: str | None, csv_file: str | None, html_file: str | None
) -> None:
    """Write the files that were asked for.  Raises UsageError for one that cannot be written."""
    report = report_of(comparison)
    forms: list[tuple[str | None, Callable[[], Iterable[str]]]] = [
        (json_file, lambda: [json.dumps(report, indent=2, allow_nan=False), "\n"]),
        (csv_file, lambda: csv_lines(comparison.rows)),
        (html_file, lambda: [html_page(comparison, report)]),
    ]
    for path, pieces in forms:
        if path is not None:
            _write(path, pieces())


def _write(path: str, pieces: Iterable[str]) -> None:
    """Write a file whole or not at all: a page that is looked at is never half of one."""
    target = Path(path)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        if target.exists() and not target.is_file():
            draft = target  # a device or a pipe
        with draft.open("w", encoding="utf-8", newline="") as file:
            file.writelines(pieces)
        if draft != target:
            draft.replace(target)
    except OSError as error:
        raise click.UsageError(f"cannot write {path}: {error.strerror}") from None
