"""`replay check`: show what a configuration means, or what is wrong with it."""

import click

from replay.config import describe, find_warnings, load_config
from replay.engines.script_source import load_script, script_warnings
from replay.errors import ConfigError


@click.command()
@click.option("--config", "file", metavar="FILE", required=True, help="The configuration to check.")
def check(file: str) -> None:
    """Print the effective configuration with every default, or all problems (exit code 2)."""
    try:
        config = load_config(file)
        warnings = find_warnings(config)
        if config.worker.script is not None:
            warnings += script_warnings(config, load_script(config.worker.script))
    except ConfigError as error:
        for problem in error.problems:
            click.echo(problem, err=True)
        raise SystemExit(2) from None
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    for line in describe(config):
        click.echo(line)
