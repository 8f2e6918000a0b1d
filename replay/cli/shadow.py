"""`replay shadow`: send what a live tap sees to a candidate, and compare while it goes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import click
import trio

from replay.cli.comparison_options import (
    COMPARISON_OPTIONS,
    ComparisonOptions,
    read_comparison_options,
)
from replay.cli.play import STOPPED, watch_signals
from replay.cli.progress_view import show
from replay.cli.target_options import (
    PROGRESS_OPTION,
    SENDING_OPTIONS,
    TARGET_OPTIONS,
    Option,
    TargetOptions,
    read_target_options,
    with_options,
)
from replay.cli.topic_options import (
    FOLLOWING_OPTIONS,
    PUBLISHER_OPTIONS,
    read_curve,
    read_endpoints,
)
from replay.config import Config, DiscoveryKind, TapConfig, Transport, load_config
from replay.consumer.consume import Source
from replay.errors import ConfigError, ReplayError
from replay.log import configure_logging
from replay.plane.discovery import discovery_folder
from replay.player.compare import compare
from replay.player.live_topic import LiveTopic
from replay.player.outgoing import Fill
from replay.player.play import Player, PlaySettings, RunEnd
from replay.player.shadow import KEEP, ShadowTally
from replay.player.wording import UNKNOWN, count, milliseconds


@attrs.frozen(kw_only=True)
class ShadowOptions:
    """Everything that the command was asked for."""

    source: Source
    tap: str
    target: TargetOptions
    settings: PlaySettings
    comparison: ComparisonOptions
    delay_seconds: float
    limit: int | None
    keep: int
    until_end: bool
    progress: str


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    own: tuple[Option, ...] = (
        click.option("--config", "file", required=True, metavar="FILE", help="The taps' own file."),
        click.option("--tap", "name", metavar="NAME", help="Which tap, if there are several."),
        click.option(
            "--candidate",
            required=True,
            metavar="URL",
            help="grpc://HOST:PORT of a worker, or http(s)://HOST:PORT/v1 of an OpenAI endpoint.",
        ),
        *PUBLISHER_OPTIONS,
        *FOLLOWING_OPTIONS,
        click.option("--limit", type=click.IntRange(1), metavar="N", help="At most N requests."),
        click.option(
            "--keep",
            type=click.IntRange(1),
            default=KEEP,
            show_default=True,
            metavar="N",
            help="The report at the end is made of the latest N requests.",
        ),
    )
    options = (*own, *SENDING_OPTIONS, *TARGET_OPTIONS, *COMPARISON_OPTIONS, PROGRESS_OPTION)
    return with_options(command, options)


@click.command("shadow")
@_with_options
def shadow_command(**values: Any) -> None:
    """Send each request that a live tap records to a candidate, and compare the answers.

    A joined record comes when its request has ended, so the candidate lags by as much. SIGINT or
    SIGTERM ends it with the whole report. Exit codes: 0 ended, 1 the candidate cannot be used, 2
    wrong usage, 3 a rule of --fail-on holds, 130 stopped by a signal with no rule that holds.
    """
    try:
        options = _read_options(values)
    except ConfigError as error:
        raise click.UsageError("\n".join(error.problems)) from None
    except ReplayError as error:
        raise click.UsageError(str(error)) from None
    configure_logging("warning")
    ended: list[tuple[ShadowTally, LiveTopic, RunEnd]] = []
    try:
        trio.run(partial(_shadow, options, lambda *each: ended.append(each)))
    except* ReplayError as group:
        click.echo(f"error: {_first_of(group)}", err=True)
    if not ended:
        raise SystemExit(1)
    raise SystemExit(_conclude(options, *ended[0]))


def _read_options(values: dict[str, Any]) -> ShadowOptions:
    config = load_config(values["file"])
    tap = _choose_tap(config, values["name"])
    source = Source(
        topic=tap.topic,
        namespace=config.namespace,
        discovery=_discovery(config, values["connect"]),
        endpoints=read_endpoints("--connect", values["connect"]),
        curve=read_curve(values["curve_secret_key"], values["curve_server_key"]),
    )
    return ShadowOptions(
        source=source,
        tap=tap.name,
        target=read_target_options(values["candidate"], values),
        settings=PlaySettings(
            cancels=values["cancel"] == "original",
            fill=Fill(values["fill"]),
            drain_seconds=values["drain_seconds"],
        ),
        comparison=read_comparison_options(values, (values["file"],)),
        delay_seconds=values["delay"],
        limit=values["limit"],
        keep=values["keep"],
        until_end=values["until_end"],
        progress=values["progress"],
    )


def _choose_tap(config: Config, name: str | None) -> TapConfig:
    """Return the tap to follow.  Raises ConfigError for none, and for a choice that is not made."""
    found = [tap for tap in config.taps if name in (None, tap.name)]
    names = ", ".join(tap.name for tap in config.taps) or "none"
    if not found:
        raise ConfigError([f"no tap to shadow; the configuration has: {names}"])
    if len(found) > 1:
        raise ConfigError([f"which tap? --tap names one of: {names}"])
    return found[0]


def _discovery(config: Config, endpoints: tuple[str, ...]) -> Any:
    """Return where publishers are found, None if only *endpoints* are read."""
    plane = config.event_plane
    if plane.transport is Transport.NONE:
        raise ConfigError(["the taps write files only (event_plane.transport is none): use play"])
    if plane.discovery.kind is DiscoveryKind.NONE:
        if not endpoints:
            raise ConfigError(["the taps are in no discovery: name publishers with --connect"])
        return None
    return discovery_folder(plane.discovery.root)


async def _shadow(
    options: ShadowOptions,
    on_end: Callable[[ShadowTally, LiveTopic, RunEnd], None],
) -> None:
    """Follow the tap until a signal, the limit, or the end of the publishers."""
    tally = ShadowTally(keep=options.keep)
    live = LiveTopic(
        options.source,
        delay_seconds=options.delay_seconds,
        limit=options.limit,
        until_end=options.until_end,
        on_request=lambda arrival: tally.expect(arrival.position, arrival.recorded),
    )
    async with options.target.open() as target:
        model = await target.describe()
        click.echo(f"tap: {options.tap}, topic {live.topic}", err=True)
        click.echo(f"candidate: {options.target.address}: {model.name}", err=True)
        player = Player(
            target,
            live.feed,
            vocab_size=options.target.vocab_size or model.vocab_size,
            settings=options.settings,
            on_result=tally.note,
        )
        async with live.reading(player), trio.open_nursery() as helpers:
            stop, quit_now = trio.Event(), trio.Event()
            await helpers.start(watch_signals, stop, quit_now)
            show(options.progress, ShadowView(player, tally, live), helpers)
            end = await player.run(stop=stop, quit_now=quit_now)
            helpers.cancel_scope.cancel()
        on_end(tally, live, end)


@attrs.frozen
class ShadowView:
    """What is shown of a shadow while it goes."""

    player: Player
    tally: ShadowTally
    live: LiveTopic

    def numbers(self) -> dict[str, str]:
        """Return what is shown, by its name."""
        tally, progress = self.tally, self.player.progress
        report = self.live.report()
        shift_ms = tally.ttft_shift_ms
        return {
            "records": count(report["records"]),
            "lost on the way": count(report["tap_gaps"]),
            "in flight": count(progress.in_flight),
            "compared": count(tally.pairs),
            "tokens differ": count(tally.tokens_differ),
            "outcomes differ": count(tally.outcomes_differ),
            "first token, latest": UNKNOWN
            if shift_ms is None
            else milliseconds(shift_ms, signed=True),
            "errors": count(progress.outcomes["error"]),
        }


def _conclude(
    options: ShadowOptions,
    tally: ShadowTally,
    live: LiveTopic,
    end: RunEnd,
) -> int:
    """Compare what was kept, write the reports, and return the exit code."""
    report = live.report()
    baseline, candidate = tally.sides(f"tap {options.tap}", options.target.address)
    comparison = compare(baseline, candidate, settings=options.comparison.settings)
    code = options.comparison.conclude(comparison)
    for note in live.notes.summary():
        click.echo(f"note: {note}", err=True)
    click.echo(
        f"records: {report['records']}, lost before they came: {report['tap_gaps']}, "
        f"compared: {tally.pairs}, without an answer in the record: {tally.without_answer}, "
        f"not sent: {tally.not_sent}, dropped here: {live.dropped}",
        err=True,
    )
    click.echo(f"ended: {end.reason}", err=True)
    if code == 0 and end.reason == "stopped":
        return STOPPED
    return code


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first
