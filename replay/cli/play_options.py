"""What `replay play` can be asked for, and the values that its options stand for."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import click

from replay.cli.output_files import refuse_overwriting
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
from replay.consumer.consume import Source as TopicSource
from replay.errors import ConfigError
from replay.plane.discovery import discovery_folder
from replay.player.arrival import Arrival
from replay.player.goodput import read_objectives
from replay.player.outgoing import Fill
from replay.player.play import PlaySettings
from replay.player.schedule import Planned, Window, constant, original, poisson, unpaced
from replay.player.sessions import OnFailure
from replay.player.traces.fields import UNITS
from replay.player.traces.options import ReadOptions


@attrs.frozen(kw_only=True)
class Pace:
    """When requests leave."""

    speed: float = 1.0
    rate: float | None = None
    is_poisson: bool = False
    concurrency: int | None = None
    max_gap_seconds: float | None = None
    seed: int = 0

    @property
    def max_gap_ns(self) -> int | None:
        """The longest pause in nanoseconds."""
        return None if self.max_gap_seconds is None else round(self.max_gap_seconds * 1e9)

    @property
    def text(self) -> str:
        """What it is, for a report."""
        if self.concurrency is not None:
            return f"closed loop, {self.concurrency} in flight"
        if self.rate is not None:
            return f"{'poisson' if self.is_poisson else 'constant'}, {self.rate:g} a second"
        return f"original times, speed {self.speed:g}"

    @property
    def needs_no_times(self) -> bool:
        """Whether a source without times can be played."""
        return self.rate is not None or self.concurrency is not None

    def plan(self, arrivals: Iterator[Arrival]) -> Iterator[Planned]:
        """Return when each request is due."""
        if self.concurrency is not None:
            return unpaced(arrivals)
        if self.rate is not None and self.is_poisson:
            return poisson(arrivals, rate=self.rate, seed=self.seed)
        if self.rate is not None:
            return constant(arrivals, rate=self.rate)
        return original(arrivals, speed=self.speed, max_gap_ns=self.max_gap_ns)


@attrs.frozen(kw_only=True)
class PlayOptions:
    """Everything that the command was asked for."""

    source: str
    """A path, or the name of a topic."""
    topic: TopicSource | None
    """Where requests come from live.  None: from a file."""
    delay_seconds: float
    until_end: bool
    targets: tuple[TargetOptions, ...]
    """More than one take turns."""
    pace: Pace
    window: Window
    read: ReadOptions
    reorder: int
    settings: PlaySettings
    results: Path | None
    json_file: Path | None
    objectives: dict[str, float]
    progress: str

    @property
    def target_name(self) -> str:
        """Where requests go, for a report."""
        return ", ".join(target.address for target in self.targets)

    @property
    def pace_text(self) -> str:
        """When requests leave, for a report."""
        if self.topic is None:
            return self.pace.text
        if self.delay_seconds:
            return f"live, {self.delay_seconds:g} s after each arrival"
        return "live, as records come"

    def as_values(self) -> dict[str, Any]:
        """Return the settings that a results file keeps; no key, no environment."""
        return {
            "speed": self.pace.speed,
            "rate": self.pace.rate,
            "poisson": self.pace.is_poisson,
            "concurrency": self.pace.concurrency,
            "max_gap_seconds": self.pace.max_gap_seconds,
            "seed": self.pace.seed,
            "start_ns": self.window.start_ns,
            "end_ns": self.window.end_ns,
            "limit": self.window.limit,
            "failed_turn": self.settings.on_failure.value,
            "cancel": "original" if self.settings.cancels else "never",
            "fill": self.settings.fill.value,
            "block_size": self.read.block_size,
            "time_unit": self.read.time_unit,
        }


def with_play_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options, the first of the help first."""
    seconds = click.FloatRange(0)
    options: list[Option] = [
        click.option(
            "--target",
            "targets",
            required=True,
            multiple=True,
            metavar="URL",
            help="grpc(s)://HOST:PORT of a worker, or http(s)://HOST:PORT/v1 of an OpenAI "
            "endpoint. Given several times they take turns; a session stays where it began.",
        ),
        click.option(
            "--topic", metavar="TOPIC", help="A live topic of a tap, ours or Dynamo's, no SOURCE."
        ),
        click.option("--namespace", default="dynamo", show_default=True, metavar="NAME"),
        click.option(
            "--discovery",
            metavar="FOLDER",
            help="Root of the file discovery.  [default: $DYN_FILE_KV, else Dynamo's default]",
        ),
        *PUBLISHER_OPTIONS,
        *FOLLOWING_OPTIONS,
        click.option(
            "--speed",
            type=float,
            default=1.0,
            show_default=True,
            metavar="F",
            help="How many times as fast as recorded.",
        ),
        click.option("--rate", type=float, metavar="R", help="Evenly, R requests a second."),
        click.option(
            "--poisson", is_flag=True, help="With --rate: at random, R a second on average."
        ),
        click.option(
            "--concurrency",
            type=click.IntRange(1),
            metavar="N",
            help="Closed loop: N requests in flight.",
        ),
        click.option(
            "--start",
            type=seconds,
            default=0.0,
            metavar="SECONDS",
            help="Leave out what is before, by the source's time.",
        ),
        click.option("--end", type=seconds, metavar="SECONDS", help="Leave out what is later."),
        click.option("--limit", type=click.IntRange(1), metavar="N", help="At most N requests."),
        click.option(
            "--max-gap",
            type=seconds,
            metavar="SECONDS",
            help="Longest pause, in wall time, after --speed.",
        ),
        click.option(
            "--failed-turn",
            type=click.Choice([each.value for each in OnFailure]),
            default="end",
            show_default=True,
            help="What a failed turn does to its session.",
        ),
        click.option(
            "--max-seconds", type=seconds, metavar="SECONDS", help="Send nothing after this long."
        ),
        click.option(
            "--time-unit",
            type=click.Choice([*UNITS]),
            help="Of the source's times, if not its format's own.",
        ),
        click.option(
            "--block-size",
            type=click.IntRange(1),
            default=512,
            show_default=True,
            metavar="N",
            help="Tokens of a block that hash_ids name.",
        ),
        click.option(
            "--reorder",
            type=click.IntRange(0),
            default=0,
            show_default=True,
            metavar="N",
            help="Put rows in order that are up to N rows late.",
        ),
        click.option(
            "--seed",
            type=int,
            default=0,
            show_default=True,
            metavar="N",
            help="Of made-up prompts and of --poisson.",
        ),
        click.option(
            "--results",
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            help="Write what came of each request, for `compare`.",
        ),
        click.option("--overwrite", is_flag=True, help="Write over results that are there."),
        click.option(
            "--json",
            "json_file",
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            help="Write the summary as JSON.",
        ),
        click.option(
            "--slo",
            metavar="LIST",
            default="",
            help="Objectives for the goodput: ttft=200ms,tpot=50ms.",
        ),
        *SENDING_OPTIONS,
        *TARGET_OPTIONS,
        PROGRESS_OPTION,
    ]
    return with_options(command, options)


def read_play_options(source: str | None, values: dict[str, Any]) -> PlayOptions:
    """Turn the command line into values.

    Raises UsageError for what does not go together, and ConfigError.
    """
    if (source is None) == (values["topic"] is None):
        raise click.UsageError("give a SOURCE, or a --topic of a live tap")
    _refuse_what_is_for_the_other(values)
    chosen = [name for name in ("rate", "concurrency") if values[name] is not None]
    if values["speed"] != 1.0:
        chosen.append("speed")
    if len(chosen) > 1:
        raise click.UsageError(f"--{chosen[0]} and --{chosen[1]}: requests have one pace")
    if values["poisson"] and values["rate"] is None:
        raise click.UsageError("--poisson needs --rate")
    results: Path | None = values["results"]
    if results is not None and results.is_file() and not values["overwrite"]:
        raise click.UsageError(f"{results} is there already: name another, or --overwrite")
    refuse_overwriting((source,), {"--results": results, "--json": values["json_file"]})
    pace = Pace(
        speed=values["speed"],
        rate=values["rate"],
        is_poisson=values["poisson"],
        concurrency=values["concurrency"],
        max_gap_seconds=values["max_gap"],
        seed=values["seed"],
    )
    # Wrong numbers are told now, not when the first request is planned.
    list(pace.plan(iter(())))
    return PlayOptions(
        source=source if source is not None else f"topic {values['topic']}",
        topic=None if source is not None else _topic_source(values),
        delay_seconds=values["delay"],
        until_end=values["until_end"],
        targets=_read_targets(values),
        pace=pace,
        window=Window(
            start_ns=round(values["start"] * 1e9),
            end_ns=None if values["end"] is None else round(values["end"] * 1e9),
            limit=values["limit"],
        ),
        read=ReadOptions(block_size=values["block_size"], time_unit=values["time_unit"]),
        reorder=values["reorder"],
        settings=PlaySettings(
            concurrency=pace.concurrency,
            speed=pace.speed,
            max_gap_ns=pace.max_gap_ns,
            on_failure=OnFailure(values["failed_turn"]),
            cancels=values["cancel"] == "original",
            fill=Fill(values["fill"]),
            max_seconds=values["max_seconds"],
            drain_seconds=values["drain_seconds"],
            seed=values["seed"],
        ),
        results=results,
        json_file=values["json_file"],
        objectives=read_objectives(values["slo"]),
        progress=values["progress"],
    )


def _refuse_what_is_for_the_other(values: dict[str, Any]) -> None:
    """Raise UsageError for options of files with a topic, and the other way round."""
    if values["topic"] is None:
        kind, names = "without a --topic", ["discovery", "connect", "delay", "until_end"]
        names += ["curve_secret_key", "curve_server_key"]
    else:
        kind, names = "a live topic has its own times", ["rate", "concurrency", "start", "end"]
        names += ["max_gap", "time_unit", "reorder"]
        if values["speed"] != 1.0:
            names.append("speed")
    given = [f"--{name.replace('_', '-')}" for name in names if values[name]]
    if given:
        raise click.UsageError(f"{', '.join(given)}: {kind}")


def _topic_source(values: dict[str, Any]) -> TopicSource:
    """Return where the topic is.  Raises ConfigError."""
    # Whoever names the publishers does without discovery, unless asked for as well.
    uses_discovery = values["discovery"] is not None or not values["connect"]
    return TopicSource(
        topic=values["topic"],
        namespace=values["namespace"],
        discovery=discovery_folder(values["discovery"]) if uses_discovery else None,
        endpoints=read_endpoints("--connect", values["connect"]),
        curve=read_curve(values["curve_secret_key"], values["curve_server_key"]),
    )


def _read_targets(values: dict[str, Any]) -> tuple[TargetOptions, ...]:
    """Return the targets.  Raises a ConfigError with what is wrong with any of them."""
    addresses: tuple[str, ...] = values["targets"]
    problems = [
        f"{address}: is named twice" for address, times in Counter(addresses).items() if times > 1
    ]
    targets = []
    for address in dict.fromkeys(addresses):
        try:
            targets.append(read_target_options(address, values))
        except ConfigError as error:
            problems += [each for each in error.problems if each not in problems]
    if len({address.partition("://")[0].rstrip("s") for address in addresses}) > 1:
        problems.append("--target: several have to be of one kind, all grpc or all http")
    if problems:
        raise ConfigError(problems)
    return tuple(targets)
