"""What commands that read a live topic can be asked for."""

from collections.abc import Sequence

import click

from replay.cli.target_options import Option
from replay.config.address import check_endpoint
from replay.config.problems import quoted
from replay.errors import ConfigError
from replay.plane.curve import ClientKeys

#: How to get at the publishers of a topic.
PUBLISHER_OPTIONS: Sequence[Option] = (
    click.option(
        "--connect",
        multiple=True,
        metavar="tcp://…",
        help="A publisher of the topic, if it is not in discovery.",
    ),
    click.option("--curve-secret-key", metavar="FILE", help="Certificate with our secret key."),
    click.option("--curve-server-key", metavar="FILE", help="The publishers' public certificate."),
)
#: When what came is sent, and when a run ends.
FOLLOWING_OPTIONS: Sequence[Option] = (
    click.option(
        "--delay",
        type=click.FloatRange(0),
        default=0.0,
        show_default=True,
        metavar="SECONDS",
        help="Send each request this long after its arrival; 0: when its record comes.",
    ),
    click.option("--until-end", is_flag=True, help="End when the publishers have ended."),
)


def read_endpoints(flag: str, endpoints: Sequence[str]) -> tuple[str, ...]:
    """Return *endpoints*.  Raises a ConfigError that names those that are none."""
    problems = []
    for endpoint in endpoints:
        try:
            check_endpoint(endpoint)
        except ValueError as error:
            problems.append(f"{flag}: {error}, is {quoted(endpoint)}")
    if problems:
        raise ConfigError(problems)
    return tuple(endpoints)


def read_curve(secret_key: str | None, server_key: str | None) -> ClientKeys | None:
    """Return the keys in two files, None for no files.  Raises ConfigError."""
    if secret_key is None and server_key is None:
        return None
    if secret_key is None or server_key is None:
        raise ConfigError(["--curve-secret-key and --curve-server-key go together"])
    return ClientKeys.load(secret_key, server_key)
