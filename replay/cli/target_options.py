"""What commands that send requests can be asked for: where to, and what to do on the way."""

import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import attrs
import click

from replay.player.grpc_target import open_grpc_target
from replay.player.openai_target import open_openai_target
from replay.player.outgoing import Fill
from replay.player.targets import Target, TargetError

#: What `click.option` returns.
Option = Callable[[Callable[..., None]], Callable[..., None]]

TARGET_OPTIONS: Sequence[Option] = (
    click.option(
        "--request-timeout",
        type=click.FloatRange(0),
        metavar="SECONDS",
        help="Longest time for an answer.",
    ),
    click.option(
        "--model", metavar="NAME", help="Of an OpenAI endpoint; else the first that it lists."
    ),
    click.option(
        "--vocab-size",
        type=click.IntRange(32),
        metavar="N",
        help="Of an OpenAI endpoint, for made-up prompts.",
    ),
    click.option(
        "--api-key-env",
        default="OPENAI_API_KEY",
        show_default=True,
        metavar="NAME",
        help="Environment variable with the key of an OpenAI endpoint.",
    ),
    click.option(
        "--ca-file",
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        help="Certificates to trust.",
    ),
)
SENDING_OPTIONS: Sequence[Option] = (
    click.option(
        "--cancel",
        type=click.Choice(["original", "never"]),
        default="original",
        show_default=True,
        help="Cancel what was cancelled, when it was.",
    ),
    click.option(
        "--fill",
        type=click.Choice([each.value for each in Fill]),
        default="refuse",
        show_default=True,
        help="What is done about what a source does not hold.",
    ),
    click.option(
        "--drain-seconds",
        type=click.FloatRange(0),
        default=5.0,
        show_default=True,
        metavar="SECONDS",
        help="How long what is in flight may go on after a stop.",
    ),
)
PROGRESS_OPTION: Option = click.option(
    "--progress",
    type=click.Choice(["auto", "live", "lines", "none"]),
    default="auto",
    show_default=True,
    help="auto: live on a terminal, lines otherwise.",
)


def with_options(command: Callable[..., None], options: Sequence[Option]) -> Callable[..., None]:
    """Add *options* to *command*, the first of them first in its help."""
    for option in reversed(options):
        command = option(command)
    return command


@attrs.frozen(kw_only=True)
class TargetOptions:
    """Where requests go."""

    address: str
    model: str | None
    vocab_size: int | None
    api_key_env: str
    ca_file: str | None
    timeout: float | None

    def open(self) -> AbstractAsyncContextManager[Target]:
        """Open the target.  Raises TargetError for an address of no known kind."""
        tls = None
        if self.ca_file is not None:
            tls = ssl.create_default_context(cafile=self.ca_file)
        scheme = self.address.partition("://")[0]
        if scheme in ("grpc", "grpcs"):
            return open_grpc_target(self.address, tls=tls, timeout=self.timeout)
        if scheme in ("http", "https"):
            return open_openai_target(
                self.address,
                model=self.model,
                vocab_size=self.vocab_size,
                api_key=os.environ.get(self.api_key_env),
                tls=tls,
                timeout=self.timeout,
            )
        raise TargetError(f"{self.address}: a target is grpc://…, grpcs://…, or http(s)://…/v1")


def read_target_options(address: str, values: Mapping[str, Any]) -> TargetOptions:
    """Return the target that the command line names."""
    return TargetOptions(
        address=address,
        model=values["model"],
        vocab_size=values["vocab_size"],
        api_key_env=values["api_key_env"],
        ca_file=values["ca_file"],
        timeout=values["request_timeout"],
    )
