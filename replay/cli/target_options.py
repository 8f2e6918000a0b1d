"""What commands that send requests can be asked for: where to, and what to do on the way."""

import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import attrs
import click

from replay.errors import ConfigError
from replay.player.grpc_target import open_grpc_target
from replay.player.http1 import HttpClient
from replay.player.openai_target import open_openai_target
from replay.player.outgoing import Fill
from replay.player.several_targets import open_several_targets
from replay.player.targets import Target
from replay.rpc.listeners import split_host_port
from replay.rpc.tls import client_context

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
        help="Certificates to trust, of a grpcs:// or https:// target.  [default: the system's]",
    ),
    click.option(
        "--cert-file",
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        help="Our certificate, for a target that asks for one.",
    ),
    click.option(
        "--key-file",
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        help="Its key, if it is not in the same file.",
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
    tls: ssl.SSLContext | None
    timeout: float | None

    def open(self) -> AbstractAsyncContextManager[Target]:
        """Open the target."""
        if self.address.startswith(_GRPC):
            return open_grpc_target(self.address, tls=self.tls, timeout=self.timeout)
        return open_openai_target(
            self.address,
            model=self.model,
            vocab_size=self.vocab_size,
            api_key=os.environ.get(self.api_key_env),
            tls=self.tls,
            timeout=self.timeout,
        )


_GRPC = ("grpc://", "grpcs://")
_TLS = ("grpcs://", "https://")


def read_target_options(address: str, values: Mapping[str, Any]) -> TargetOptions:
    """Return the target that the command line names.

    Raises a ConfigError that tells everything that is wrong with it.
    """
    problems = [] if (problem := _problem_of(address)) is None else [problem]
    tls = None
    files = {name: values[name] for name in ("ca_file", "cert_file", "key_file") if values[name]}
    if values["key_file"] and not values["cert_file"]:
        problems.append("--key-file is the key of a --cert-file")
    elif files and not address.startswith(_TLS):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in files)
        problems.append(f"{flags}: {address} has no TLS; grpcs:// and https:// have")
    elif address.startswith(_TLS):
        try:
            tls = client_context(values["ca_file"], values["cert_file"], values["key_file"])
        except ConfigError as error:
            problems += error.problems
        else:
            # A server that could speak HTTP/2 as well must not choose it here.
            tls.set_alpn_protocols(["h2" if address.startswith(_GRPC) else "http/1.1"])
    if problems:
        raise ConfigError(problems)
    return TargetOptions(
        address=address,
        model=values["model"],
        vocab_size=values["vocab_size"],
        api_key_env=values["api_key_env"],
        tls=tls,
        timeout=values["request_timeout"],
    )


def open_targets(targets: Sequence[TargetOptions]) -> AbstractAsyncContextManager[Target]:
    """Open one target, or several that take turns.  Raises TargetError."""
    if len(targets) == 1:
        return targets[0].open()
    return open_several_targets({each.address: each.open() for each in targets})


def _problem_of(address: str) -> str | None:
    """Say what is wrong with *address*, if anything is."""
    try:
        if address.startswith(_GRPC):
            split_host_port(address.partition("://")[2])
        elif address.startswith(("http://", "https://")):
            HttpClient(address)
        else:
            return f"{address}: a target is grpc://…, grpcs://…, or http(s)://…/v1"
    except ValueError as error:
        return f"{address.partition('?')[0]}: {error}"
    return None
