"""`replay serve`: run the workers until a signal ends them.

Flags are rows of `FLAGS`: a name, the key of the configuration that it sets, and its help.  Their
text is read by the same rules as the file, so that everything wrong is told at once.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs
import click
import structlog

from replay.cli.realistic_flags import REALISTIC_FLAGS
from replay.config import (
    CannedConfig,
    Config,
    RealisticConfig,
    as_plain,
    find_warnings,
    load_config,
)
from replay.config.problems import Path, Setting
from replay.errors import ConfigError
from replay.log import LogFormat, LogLevel, configure_logging

if TYPE_CHECKING:
    from replay.cli.supervised import SupervisorLine

log = structlog.get_logger()


@attrs.frozen
class Flag:
    """A flag that sets one key of the configuration."""

    name: str
    key: str
    metavar: str
    """How its value is named in the help; empty: it takes none and means true."""
    help: str

    @property
    def parameter(self) -> str:
        """The name under which click passes the value."""
        return self.name.removeprefix("--").replace("-", "_")

    @property
    def setting(self) -> Setting:
        """Who says what the flag says."""
        return Setting(self.name, tuple(self.key.split(".")))


FLAGS = (
    Flag("--host", "worker.host", "ADDRESS", "Where the workers listen, or unix:/path."),
    Flag("--grpc-base-port", "worker.grpc_base_port", "PORT", "First port; 0 picks free ones."),
    Flag("--grpc-count", "worker.grpc_count", "N", "Number of workers, a port each."),
    Flag("--processes", "worker.processes", "N", "Processes that share the workers."),
    Flag("--model", "worker.model", "NAME", "Name of the served model."),
    Flag("--tokenizer", "worker.tokenizer", "FOLDER", "Tokenizer that gateways may fetch."),
    Flag("--engine", "worker.engine.kind", "NAME", "canned, realistic or upstream."),
    Flag("--upstream", "worker.engine.upstream", "URL", "Worker that requests are passed on to."),
    Flag("--script", "worker.script", "FILE", "Scripted answers that lie over the engine."),
    Flag("--script-strict", "worker.script_strict", "", "NOT_FOUND for what is not scripted."),
    Flag("--gen-ms", "worker.engine.gen_ms", "MS", "Wait before the first token."),
    Flag("--token-ms", "worker.engine.token_ms", "MS", "Wait between two tokens."),
    Flag("--output-tokens", "worker.engine.output_tokens", "N", "Tokens when none are asked for."),
    Flag("--vocab-size", "worker.vocab_size", "N", "Made-up token ids are below this."),
    Flag("--seed", "worker.engine.seed", "N", "Mixed into sampled tokens."),
    *(Flag(*each) for each in REALISTIC_FLAGS),
    Flag("--capture", "worker.capture", "FILE", "Append each Generate request to this file."),
    Flag("--capture-extended", "worker.capture_extended", "", "Capture rank, arrival, metadata."),
    Flag("--context-length", "worker.context_length", "N", "Longest prompt, as advertised."),
    Flag("--grpc-max-message-bytes", "worker.limits.message_bytes", "N", "Longest message."),
    Flag("--weight-version", "worker.weight_version", "TEXT", "Advertised version of the weights."),
    Flag("--http-port", "http.port", "PORT", "Serve metrics, health and status; 0 picks a port."),
    Flag("--http-host", "http.host", "ADDRESS", "Where that is served."),
    Flag("--admin", "http.admin", "", "Serve truth and faults there too; on loopback only."),
    Flag("--token-file", "http.token_file", "FILE", "Bearer token that these ask for."),
    Flag(
        "--default-sampling-params",
        "worker.default_sampling_params",
        "JSON",
        "Sampling values for what a request leaves unset, as a JSON object.",
    ),
)


def _default(path: Path) -> Any:
    """Return the default of a key; of one that only another engine has, that engine's."""
    if path[:2] == ("worker", "engine") and not hasattr(CannedConfig(), str(path[2])):
        return getattr(RealisticConfig(), str(path[2]), None)
    value: Any = as_plain(Config())
    for part in path:
        value = value[part]
    return value


def _with_flags(command: Callable[..., None]) -> Callable[..., None]:
    for flag in reversed(FLAGS):
        default = _default(flag.setting.path)
        shown = str(default).lower() if default is True else default
        note = f"  [default: {shown}]" if default not in (None, False, "") else ""
        option = click.option(
            flag.name,
            metavar=flag.metavar or None,
            is_flag=not flag.metavar,
            default=None if flag.metavar else False,
            help=flag.help + note,
        )
        command = option(command)
    return command


@click.command()
@click.option("--config", "file", metavar="FILE", help="Configuration; the flags win over it.")
@_with_flags
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
@click.option(
    "--log-format",
    type=click.Choice(["auto", "console", "json"]),
    default="auto",
    show_default=True,
    help="auto: for people on a terminal, JSON lines otherwise.",
)
@click.option("--supervised", type=int, nargs=2, hidden=True, help="Number, open descriptor.")
@click.pass_context
def serve(
    context: click.Context,
    /,
    file: str | None,
    log_level: LogLevel,
    log_format: LogFormat,
    supervised: tuple[int, int] | None,
    **values: str | bool | None,
) -> None:
    """Run gRPC workers that a gateway takes for engines.

    SIGTERM or SIGINT ends them within the grace, a second one at once.  SIGHUP opens the capture
    again.  Exit codes: 0 clean stop, 1 failure at run time, 2 wrong usage or configuration.

    With --processes each has a part of the workers; ports and signals are as with one.  When one
    ends by itself, all do.
    """
    given = [
        (flag.setting, "true" if value is True else str(value))
        for flag in FLAGS
        if (value := values[flag.parameter]) not in (None, False)
    ]
    try:
        config = load_config(file, given)
    except ConfigError as error:
        click.echo(error, err=True)
        context.exit(2)
    configure_logging(log_level, log_format)
    # Trio, the HTTP/2 connection and all that hangs on it are not needed to refuse a flag.
    if supervised is not None:
        from replay.cli.supervised import SupervisorLine

        line = SupervisorLine.inherited(*supervised)
        structlog.contextvars.bind_contextvars(process=line.number)
        context.exit(_run(config, line))
    for section, value in as_plain(config).items():
        log.info("configuration", section=section, value=value)
    for warning in find_warnings(config):
        log.warning(warning)
    if config.worker.processes == 1:
        context.exit(_run(config))
    import trio

    from replay.cli.supervisor import Supervisor

    options = ["--log-level", log_level, "--log-format", log_format]
    context.exit(trio.run(Supervisor(config, options).run))


def _run(config: Config, line: "SupervisorLine | None" = None) -> int:
    from replay.cli.garbage import collect_seldom
    from replay.cli.stopping import run
    from replay.runtime import open_runtime

    collect_seldom()
    return run(open_runtime, config, line=line)
