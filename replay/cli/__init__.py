"""The command line.  A command is one file; what it needs is imported when it is called."""

import sys
from importlib import import_module

import click

from replay import __version__

#: Command → module and attribute of its click command.
COMMANDS = {
    "serve": "replay.cli.serve:serve",
    "check": "replay.cli.check:check",
    "consume": "replay.cli.consume:consume",
    "play": "replay.cli.play:play_command",
    "compare": "replay.cli.compare:compare_command",
    "shadow": "replay.cli.shadow:shadow_command",
    "convert": "replay.cli.convert:convert_command",
}


class _LazyGroup(click.Group):
    """A group that imports a command when it is asked for, so that `--version` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="replay")
def main() -> None:
    """Stand in for an LLM engine, mirror live traffic, replay it and compare the answers."""
    if sys.platform != "linux":
        raise click.UsageError(f"replay runs on Linux only, this is {sys.platform}")
