"""`replay convert`: turn a recording into a script, so that it can be played as an engine."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click

from replay.cli.output_files import refuse_overwriting, write_whole
from replay.errors import ReplayError
from replay.player.loading import Loaded, load_side
from replay.player.observation import Observation
from replay.player.to_script import NotScriptableError, has_recorded_moments, script_lines
from replay.player.traces.fault import TraceError
from replay.player.traces.formats import RECORDS, RESULTS


@click.command("convert")
@click.argument("source")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, allow_dash=True),
    default="-",
    metavar="SCRIPT",
    help="Where the script is written.  [default: stdout]",
)
def convert_command(source: str, output: Path) -> None:
    """Turn the record files of a tap, or the results of a play, into a script of their answers.

    A worker with `--script` then answers each request as it was answered, at the same moments. What
    has no whole answer is left out and counted; a capture has no answers at all. Exit codes: 0, 1
    if nothing could be turned, 2 for a source that cannot be read or has no answers.
    """
    try:
        refuse_overwriting((source,), {"-o": None if str(output) == "-" else output})
        loaded = _load(source)
    except ReplayError as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        raise click.UsageError(f"{error.filename}: {error.strerror}") from None
    for note in loaded.notes:
        click.echo(f"{source}: {note}", err=True)
    left_out: Counter[str] = Counter()
    to_come = Counter(each.request_id for each in loaded.side.observations)
    written = spread = 0
    script: list[bytes] = []
    for observation in loaded.side.observations:
        to_come[observation.request_id] -= 1
        # Of an id that comes again each answer is used once, and the last one for all that follow.
        times = 1 if to_come[observation.request_id] else None
        lines = list(_lines(observation, times, left_out))
        script += lines
        written += bool(lines)
        spread += bool(lines) and not has_recorded_moments(observation)
    if script and str(output) == "-":
        with click.open_file("-", "wb") as stdout:
            stdout.writelines(script)
    elif script:
        # There are answers to users in it.
        write_whole(output, script, mode=0o600)
    _say(written, spread, left_out)
    raise SystemExit(0 if written else 1)


def _load(source: str) -> Loaded:
    loaded = load_side(source)
    if loaded.format not in (RECORDS, RESULTS):
        raise TraceError(0, f"is a {loaded.format}: it has no recorded answers", source=source)
    return loaded


def _lines(observation: Observation, times: int | None, left_out: Counter[str]) -> Iterator[bytes]:
    try:
        yield from script_lines(observation, times=times)
    except NotScriptableError as error:
        left_out[str(error)] += 1


def _say(written: int, spread: int, left_out: Counter[str]) -> None:
    for reason, number in left_out.most_common():
        click.echo(f"left out {number}: {reason}", err=True)
    if spread:
        click.echo(
            f"of {spread} no moments of single chunks are known: their tokens are spread evenly "
            "between the first and the last",
            err=True,
        )
    if not written and not left_out:
        click.echo("no record has a response: a tap records it with request_response", err=True)
    click.echo(f"{written} request(s) written", err=True)
