"""`replay convert`: turn a recording into a script, so that it can be played as an engine."""

from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO

import click

from replay.errors import ReplayError
from replay.player.loading import load_side
from replay.player.observation import Observation
from replay.player.to_script import NotScriptableError, script_lines


@click.command("convert")
@click.argument("source")
@click.argument("output", type=click.File("wb", lazy=False), default="-")
def convert_command(source: str, output: BinaryIO) -> None:
    """Turn the record files of a tap, or the results of a play, into a script of their answers.

    A worker with `--script` then answers each request as it was answered, at the same moments. The
    script goes to OUTPUT, or to stdout. What has no whole answer is left out and counted. Exit
    codes: 0, 1 if nothing could be turned, 2 for a source that cannot be read.
    """
    try:
        loaded = load_side(source)
    except ReplayError as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        raise click.UsageError(f"{error.filename}: {error.strerror}") from None
    for note in loaded.notes:
        click.echo(f"{source}: {note}", err=True)
    left_out: Counter[str] = Counter()
    written = 0
    for observation in loaded.side.observations:
        lines = list(_lines(observation, left_out))
        output.writelines(lines)
        written += bool(lines)
    for reason, number in left_out.most_common():
        click.echo(f"left out {number}: {reason}", err=True)
    click.echo(f"{written} request(s) written", err=True)
    raise SystemExit(0 if written else 1)


def _lines(observation: Observation, left_out: Counter[str]) -> Iterator[bytes]:
    try:
        yield from script_lines(observation)
    except NotScriptableError as error:
        left_out[str(error)] += 1
