"""`replay play`: send recorded or described requests again, at their times."""

import gc
import json
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, TypeAlias

import attrs
import click
import trio

from replay.cli.comparison_options import print_wide
from replay.cli.output_files import write_whole
from replay.cli.play_options import PlayOptions, read_play_options, with_play_options
from replay.cli.progress_view import RunView, show
from replay.cli.target_options import open_targets
from replay.errors import ReplayError
from replay.log import configure_logging
from replay.player.compare import Side
from replay.player.feed import Feed, ReadAhead
from replay.player.live_topic import LiveTopic
from replay.player.observation import Choice, Observation
from replay.player.play import Player, RunEnd
from replay.player.report import run_report
from replay.player.report_terminal import run_tables
from replay.player.results import RunHead
from replay.player.results_file import ResultsFile
from replay.player.schedule import Planned, ScheduleError, select
from replay.player.several_targets import SeveralTargets
from replay.player.targets import Target, TargetModel
from replay.player.timeline import look_ahead, place
from replay.player.traces.fault import Notes
from replay.player.traces.opening import Source
from replay.player.wording import count, milliseconds

#: Exit code of a run that a signal ended, after its report: 128 and SIGINT, as shells have it.
STOPPED = 130


@click.command("play")
@click.argument("source", required=False)
@with_play_options
def play_command(source: str | None, **values: Any) -> None:
    """Send the requests of SOURCE to a target, and measure what comes back.

    SOURCE is known by its content: a record file, a capture, a script, or a trace of Mooncake,
    Dynamo, AIPerf, BurstGPT or Azure; plain, gz or zst. With --topic in its place requests are
    those of a live tap, as they come. Ctrl-C ends the run with a whole report, a second one at
    once. Exit codes: 0 done, 1 the target or the source failed, 2 wrong usage, 130 stopped by a
    signal.
    """
    try:
        options = read_play_options(source, values)
        if source is None:
            configure_logging("warning")
            raise SystemExit(_run(options, _following(options)))
        opened = Source(source)
    except ReplayError as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        raise click.UsageError(f"{error.filename}: {error.strerror}") from None
    with opened:
        try:
            origin = _reading(options, opened)
        except ReplayError as error:
            _say(error)
            raise SystemExit(2) from None
        raise SystemExit(_run(options, origin))


@attrs.frozen(kw_only=True)
class _Origin:
    """Where the requests of a run come from."""

    feed: Feed
    notes: Notes
    reading: Callable[[Player], AbstractAsyncContextManager[None]]
    """What has to go on while they are played."""
    fraction: Callable[[], float | None]
    report: Callable[[], dict[str, Any] | None] = lambda: None
    """What a live topic has brought, and what of it is missing."""


@attrs.define
class _Collected:
    """What a run leaves for its summary: everything but the tokens."""

    observations: list[Observation] = attrs.field(factory=list)

    def add(self, observation: Observation) -> None:
        slim = tuple(
            Choice(
                index=choice.index,
                finish_reason=choice.finish_reason,
                output_tokens=choice.output_tokens,
            )
            for choice in observation.choices
        )
        self.observations.append(attrs.evolve(observation, choices=slim))


#: The player, how its run ended, and why its results could not be written.
_Ended: TypeAlias = tuple[Player, RunEnd, ReplayError | None]


def _run(options: PlayOptions, origin: _Origin) -> int:
    """Play, print the summary, and return the exit code."""
    collected = _Collected()
    ended: list[_Ended] = []
    try:
        trio.run(_play, options, origin, collected, ended.append)
    except* ReplayError as group:
        _say(group)
    if not ended:
        return 1
    return _conclude(options, origin, *ended[0], collected)


def _say(error: BaseException) -> None:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            _say(each)
    else:
        click.echo(f"error: {error}", err=True)


def _reading(options: PlayOptions, source: Source) -> _Origin:
    """Return the requests of a file.  Raises a ReplayError for one that cannot be played so."""
    return _Origin(
        feed=ReadAhead(_plan(options, source)),
        notes=source.notes,
        reading=lambda _: nullcontext(),
        fraction=lambda: source.fraction,
    )


def _following(options: PlayOptions) -> _Origin:
    """Return the requests of a live topic."""
    assert options.topic is not None
    live = LiveTopic(
        options.topic,
        delay_seconds=options.delay_seconds,
        limit=options.window.limit,
        until_end=options.until_end,
    )
    click.echo(f"topic: {live.topic}", err=True)
    click.echo(f"pace: {options.pace_text}", err=True)
    return _Origin(
        feed=live.feed,
        notes=live.notes,
        reading=live.reading,
        fraction=lambda: None,
        report=lambda: live.report() | {"dropped_here": live.dropped},
    )


def _plan(options: PlayOptions, source: Source) -> Iterator[Planned]:
    """Read the first rows, say what the source is, and return when each request is due."""
    arrivals = place(source.arrivals(options.read), reorder=options.reorder)
    unit = options.read.time_unit or source.time_unit
    preview, arrivals = look_ahead(arrivals, source.notes, unit=unit)
    times = f"times in {unit}" if preview.has_times else "no times"
    click.echo(f"source: {source.name}: {source.format}, {times}", err=True)
    click.echo(f"pace: {options.pace_text}", err=True)
    for note in source.notes.warnings:
        click.echo(f"note: {note}", err=True)
    if not preview.has_times and not options.pace.needs_no_times:
        raise ScheduleError(f"{source.name} has no times: give a --rate or a --concurrency")
    return options.pace.plan(select(arrivals, options.window))


async def _play(
    options: PlayOptions,
    origin: _Origin,
    collected: _Collected,
    on_end: Callable[["_Ended"], None],
) -> None:
    async with open_targets(options.targets) as target:
        model = await target.describe()
        _tell_targets(options, target, model)
        async with _open_results(options) as results:

            def on_result(observation: Observation) -> None:
                collected.add(observation)
                if results is not None:
                    results.put(observation)

            player = Player(
                target,
                origin.feed,
                vocab_size=options.targets[0].vocab_size or model.vocab_size,
                settings=options.settings,
                on_result=on_result,
            )
            async with origin.reading(player), trio.open_nursery() as helpers:
                stop, quit_now = trio.Event(), trio.Event()
                await helpers.start(watch_signals, stop, quit_now)
                if results is not None:
                    helpers.start_soon(_stop_when_failed, results, stop)
                view = RunView(player=player, fraction=origin.fraction, report=origin.report)
                show(options.progress, view, helpers)
                # What is there by now stays: it need not be looked at in every collection.
                gc.freeze()
                end = await player.run(stop=stop, quit_now=quit_now)
                helpers.cancel_scope.cancel()
            if results is not None:
                results.finish(end.as_values(player.progress))
        # The results are written by now.
        on_end((player, end, None if results is None else results.fault))


def _tell_targets(options: PlayOptions, target: Target, model: TargetModel) -> None:
    models = target.models if isinstance(target, SeveralTargets) else {}
    for each in options.targets:
        name = models.get(each.address, model).name
        click.echo(f"target: {each.address}: {name}", err=True)


@asynccontextmanager
async def _open_results(options: PlayOptions) -> AsyncIterator[ResultsFile | None]:
    """Write results for as long as the block lasts, and what is left at its end."""
    if options.results is None:
        yield None
        return
    head = RunHead(
        source=options.source,
        target=options.target_name,
        pace=options.pace_text,
        started_unix_ns=time.time_ns(),
        settings=options.as_values(),
    )
    results = ResultsFile(options.results, head)
    try:
        async with trio.open_nursery() as writing:
            writing.start_soon(results.run)
            yield results
    finally:
        results.close()


async def watch_signals(
    stop: trio.Event, quit_now: trio.Event, *, task_status: trio.TaskStatus[None]
) -> None:
    """Turn the first SIGINT or SIGTERM into *stop*, the second into *quit_now*."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
        task_status.started()
        async for _ in received:
            if stop.is_set():
                quit_now.set()
            else:
                click.echo("stopping: nothing more is sent; again to end at once", err=True)
                stop.set()


async def _stop_when_failed(results: ResultsFile, stop: trio.Event) -> None:
    await results.failed.wait()
    stop.set()


def _conclude(
    options: PlayOptions,
    origin: _Origin,
    player: Player,
    end: RunEnd,
    results_fault: ReplayError | None,
    collected: _Collected,
) -> int:
    """Print the summary of a run, and return its exit code."""
    side = Side(
        name=options.source,
        observations=collected.observations,
        measured_at="client",
        seconds=end.seconds or None,
    )
    report = run_report(side, options.objectives)
    schedule = report["run"]["schedule"]
    report["pace"] = {"text": options.pace_text, "kept": schedule and schedule["kept"]}
    report["end"] = end.as_values(player.progress)
    report["topic"] = came = origin.report()
    report["settings"] = {"pace": options.pace_text, **options.as_values()}
    report["notes"] = notes = origin.notes.summary()
    has_failed = results_fault is not None or end.reason == "source"
    if options.json_file is not None:
        try:
            text = json.dumps(report, indent=2, allow_nan=False) + "\n"
            write_whole(options.json_file, [text.encode()])
        except click.UsageError as error:
            # The run is over: its report is still shown.
            click.echo(f"error: {error.message}", err=True)
            has_failed = True
    print_wide(run_tables(report))
    for note in notes:
        click.echo(f"note: {note}", err=True)
    _say_refusals(player.progress.refusals)
    if came is not None:
        click.echo(
            f"records: {came['records']}, lost before they came: {came['tap_gaps']}, "
            f"dropped here: {came['dropped_here']}",
            err=True,
        )
    if end.not_read:
        more = "" if end.is_counted else " at least"
        click.echo(f"note:{more} {end.not_read} further request(s) were not read", err=True)
    for fault in (end.fault, results_fault):
        if fault is not None:
            click.echo(f"error: {fault}", err=True)
    if not player.progress.sent and not has_failed:
        click.echo("note: no request was sent", err=True)
    if schedule is not None:
        click.echo(f"pace: {options.pace_text}: {_kept(schedule)}", err=True)
    click.echo(
        f"ended: {end.reason}; a sleeper beside the run was late by "
        f"{milliseconds(end.loop_delay_ms['p99'])} (p99)",
        err=True,
    )
    if has_failed or not player.progress.sent:
        return STOPPED if end.reason == "stopped" and not has_failed else 1
    return STOPPED if end.reason == "stopped" else 0


def _say_refusals(refusals: Counter[str]) -> None:
    """Say what was not sent and why, and what can be done about it."""
    for reason, number in refusals.most_common(5):
        click.echo(f"note: refused {number} request(s): {reason}", err=True)
    if any(reason.startswith("lacks ") for reason in refusals):
        click.echo("note: --fill synthetic makes up what is lacking, and marks it", err=True)


def _kept(schedule: dict[str, Any]) -> str:
    """Say whether the pace was kept."""
    if schedule["kept"]:
        return f"kept, 99 of 100 requests left within {milliseconds(schedule['p99_ms'])}"
    return (
        f"NOT kept, {count(schedule['late'])} request(s) left more than "
        f"{milliseconds(schedule['late_ms'])} late"
    )
