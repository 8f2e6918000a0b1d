"""What `replay play` can be asked for, and the values that its options stand for."""

import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import attrs
import click

from replay.player.arrival import Arrival
from replay.player.goodput import read_objectives
from replay.player.grpc_target import open_grpc_target
from replay.player.openai_target import open_openai_target
from replay.player.outgoing import Fill
from replay.player.play import PlaySettings
from replay.player.schedule import Planned, Window, constant, original, poisson, unpaced
from replay.player.sessions import OnFailure
from replay.player.targets import Target, TargetError
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


@attrs.frozen(kw_only=True)
class PlayOptions:
    """Everything that the command was asked for."""

    source: str
    target: TargetOptions
    pace: Pace
    window: Window
    read: ReadOptions
    reorder: int
    settings: PlaySettings
    results: Path | None
    json_file: Path | None
    objectives: dict[str, float]
    progress: str

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
    options = [
        click.option(
            "--target",
            required=True,
            metavar="URL",
            help="grpc://HOST:PORT of a worker, or http(s)://HOST:PORT/v1 of an OpenAI endpoint.",
        ),
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
            "--max-seconds", type=seconds, metavar="SECONDS", help="Send nothing after this long."
        ),
        click.option(
            "--drain-seconds",
            type=seconds,
            default=5.0,
            show_default=True,
            metavar="SECONDS",
            help="How long what is in flight may go on after a stop.",
        ),
        click.option(
            "--request-timeout", type=seconds, metavar="SECONDS", help="Longest time for an answer."
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
        click.option(
            "--progress",
            type=click.Choice(["auto", "live", "lines", "none"]),
            default="auto",
            show_default=True,
            help="auto: live on a terminal, lines otherwise.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def read_play_options(source: str, values: dict[str, Any]) -> PlayOptions:
    """Turn the command line into values.  Raises UsageError for what does not go together."""
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
        source=source,
        target=TargetOptions(
            address=values["target"],
            model=values["model"],
            vocab_size=values["vocab_size"],
            api_key_env=values["api_key_env"],
            ca_file=values["ca_file"],
            timeout=values["request_timeout"],
        ),
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
