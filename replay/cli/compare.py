"""`replay compare`: say what differs between two runs of the same requests."""

from collections.abc import Callable
from typing import Any

import click

from replay.cli.comparison_options import COMPARISON_OPTIONS, read_comparison_options
from replay.cli.target_options import with_options
from replay.errors import ReplayError
from replay.player.compare import compare
from replay.player.loading import load_side


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    control = click.option(
        "--control", metavar="FILE", help="A second run of the baseline: its noise."
    )
    return with_options(command, (control, *COMPARISON_OPTIONS))


@click.command("compare")
@click.argument("baseline")
@click.argument("candidate")
@_with_options
def compare_command(baseline: str, candidate: str, control: str | None, **values: Any) -> None:
    """Compare two runs of the same requests: results of `play`, record files of taps, captures.

    Requests are joined by their ids. Captures are compared by their prompts; one of the two may be
    a JSONL file of reference ids. Exit codes: 0, 2 for wrong usage or a file that cannot be read,
    3 for a rule of --fail-on that holds.
    """
    try:
        options = read_comparison_options(values, (baseline, candidate, control))
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
        settings=options.settings,
    )
    raise SystemExit(options.conclude(comparison))
