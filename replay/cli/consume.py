"""`replay consume`: read the records of one topic, and say what came and what did not.

Lines go to stdout: `subscribed`, `joined` for each publisher, the progress when there was some,
with `--print` each record, and in the end the report as indented JSON.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import click
import trio
from rich.console import Console
from rich.live import Live
from rich.text import Text

from replay.cli.topic_options import read_curve, read_endpoints
from replay.consumer.consume import Consumer, Listener, Source
from replay.consumer.ledger import PublisherLedger
from replay.consumer.record_json import record_line
from replay.consumer.report import progress_line
from replay.consumer.summary import RecordSummary
from replay.errors import ConfigError, JournalWriteError, ReplayError
from replay.log import configure_logging
from replay.plane.codec import Message
from replay.plane.discovery import discovery_folder
from replay.plane.record_writer import RecordFileWriter
from replay.plane.sockets import open_context

#: How long what is still to be written, or to be let go of, may hold up the end.
CLOSE_SECONDS = 2.0


@attrs.frozen(kw_only=True)
class Options:
    """What the command was asked for."""

    source: Source
    report_interval_seconds: float
    summary_path: Path | None
    record: Path | None
    prints_records: bool
    until_end: bool


@click.command()
@click.option("--topic", required=True, metavar="TOPIC", help="The topic of the tap.")
@click.option("--namespace", default="dynamo", show_default=True, metavar="NAME")
@click.option(
    "--discovery",
    metavar="FOLDER",
    help="Root of the file discovery.  [default: $DYN_FILE_KV, else Dynamo's default]",
)
@click.option("--connect", multiple=True, metavar="tcp://…", help="A publisher of the topic.")
@click.option(
    "--status-connect", multiple=True, metavar="tcp://…", help="The status publisher beside it."
)
@click.option("--summary-path", type=click.Path(path_type=Path), metavar="FILE")
@click.option(
    "--report-interval",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
)
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the messages to a record file; FILE.000000 and so on if FILE holds something.",
)
@click.option("--print", "prints_records", is_flag=True, help="Print each record as JSON.")
@click.option("--fill/--no-fill", default=True, help="Ask for missing messages.  [default: fill]")
@click.option("--from-start", is_flag=True, help="Miss messages from before joining too.")
@click.option("--until-end", is_flag=True, help="End when the publishers have ended.")
@click.option("--curve-secret-key", metavar="FILE", help="Certificate with our secret key.")
@click.option("--curve-server-key", metavar="FILE", help="The publishers' public certificate.")
@click.pass_context
def consume(
    context: click.Context,
    /,
    topic: str,
    namespace: str,
    discovery: str | None,
    connect: tuple[str, ...],
    status_connect: tuple[str, ...],
    summary_path: Path | None,
    report_interval: float,
    record: Path | None,
    prints_records: bool,
    fill: bool,
    from_start: bool,
    until_end: bool,
    curve_secret_key: str | None,
    curve_server_key: str | None,
) -> None:
    """Read one topic of shadow taps, ours or Dynamo's, and report what came.

    SIGINT or SIGTERM ends it with the report.  Exit codes: 0 ended, 1 a file could not be written,
    2 wrong usage.
    """
    try:
        _check_files(summary_path, record)
        # Whoever names the publishers does without discovery, unless asked for as well.
        uses_discovery = discovery is not None or not connect
        source = Source(
            topic=topic,
            namespace=namespace,
            discovery=discovery_folder(discovery) if uses_discovery else None,
            endpoints=read_endpoints("--connect", connect),
            status_endpoints=read_endpoints("--status-connect", status_connect),
            curve=read_curve(curve_secret_key, curve_server_key),
            fills_gaps=fill,
            from_start=from_start,
        )
    except ConfigError as error:
        click.echo(str(error), err=True)
        context.exit(2)
    configure_logging("warning")
    options = Options(
        source=source,
        report_interval_seconds=report_interval,
        summary_path=summary_path,
        record=record,
        prints_records=prints_records,
        until_end=until_end,
    )
    context.exit(trio.run(_consume, options))


def _check_files(summary: Path | None, record: Path | None) -> None:
    """Raise ConfigError for a summary that could not be written, or only over the record file."""
    if summary is None:
        return
    if not summary.parent.is_dir():
        raise ConfigError([f"--summary-path: {summary.parent} is no folder"])
    if summary.is_dir():
        raise ConfigError([f"--summary-path: {summary} is a folder"])
    if record is not None and record.resolve() in map(Path.resolve, (summary, _temporary(summary))):
        raise ConfigError([f"--summary-path: {summary} would be written over --record {record}"])


async def _consume(options: Options) -> int:
    """Consume until a signal, and return the exit code."""
    record_file = None
    if options.record is not None:
        try:
            record_file = RecordFileWriter.open(options.record, is_numbered=False)
        except OSError as error:
            click.echo(f"--record: {options.record}: {error.strerror}", err=True)
            return 2
    screen = _Screen(prints_records=options.prints_records)
    consumer = Consumer(options.source, screen, record_file=record_file)
    code = 0
    try:
        async with open_context(term_seconds=CLOSE_SECONDS) as context:
            with screen:
                async with trio.open_nursery() as running:
                    with _stopped_by_signals(running.cancel_scope):
                        screen.say(
                            f"subscribed namespace={options.source.namespace}"
                            f" topic={options.source.topic}"
                        )
                        running.start_soon(_report_regularly, options, consumer, screen, running)
                        await consumer.run(context)
    except* JournalWriteError as group:
        code = _record_failed(_first_of(group))
    except* _StdoutError as group:
        code = _stdout_failed(_first_of(group))
    with trio.move_on_after(CLOSE_SECONDS):
        code = await _finish(consumer, record_file) or code
    report = consumer.report()
    if not _write_summary(options.summary_path, report):
        code = 1
    return _print_report(report) or code


async def _finish(consumer: Consumer, record_file: RecordFileWriter | None) -> int:
    code = 0
    try:
        await consumer.finish()
    except JournalWriteError as error:
        code = _record_failed(error)
    except _StdoutError as error:
        code = _stdout_failed(error)
    if record_file is not None:
        await record_file.aclose()
    return code


def _record_failed(error: BaseException) -> int:
    click.echo(f"--record: {error}", err=True)
    return 1


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first


@contextmanager
def _stopped_by_signals(scope: trio.CancelScope) -> Iterator[None]:
    """Have the first signal cancel *scope*; a second one finds the system's own handling.

    Not trio's receiver: a line that nobody takes holds the loop up, and a signal that waits for the
    loop as well could never end us.
    """
    loop = trio.lowlevel.current_trio_token()

    def stop(number: int, frame: object) -> None:
        for each in handlers:
            signal.signal(each, signal.SIG_DFL)
        loop.run_sync_soon(scope.cancel)

    handlers = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) is stop:
                signal.signal(number, handler)


async def _report_regularly(
    options: Options, consumer: Consumer, screen: "_Screen", running: trio.Nursery
) -> None:
    before, before_at = consumer.report(), trio.current_time()
    while True:
        await trio.sleep(options.report_interval_seconds)
        report, now = consumer.report(), trio.current_time()
        has_grown = report["records"] > before["records"]
        screen.progress(progress_line(before, report, now - before_at), has_grown=has_grown)
        if has_grown:
            await trio.to_thread.run_sync(_write_summary, options.summary_path, report)
        before, before_at = report, now
        if options.until_end and consumer.has_ended:
            running.cancel_scope.cancel()


def _write_summary(path: Path | None, report: dict[str, Any]) -> bool:
    """Write the summary, whole or not at all.  Returns False, and says why, if that failed."""
    if path is None:
        return True
    temporary = _temporary(path)
    try:
        temporary.write_text(json.dumps(report, indent=2) + "\n")
        temporary.replace(path)
    except OSError as error:
        click.echo(f"--summary-path: {path}: {error.strerror}", err=True)
        with suppress(OSError):
            temporary.unlink()  # half of it may be there
        return False
    return True


def _temporary(path: Path) -> Path:
    """Return where a summary is written before it takes its place."""
    temporary = path.with_suffix(".tmp")
    return path.with_name(f"{path.name}.tmp") if temporary == path else temporary


def _print_report(report: dict[str, Any]) -> int:
    """Print the report, and return the exit code."""
    if report["records"] and report["tail_loss"] is None:
        reason = "no status record came" if report["end_seen"] is None else "more is on its way"
        click.echo(f"the loss after the last message is not known: {reason}", err=True)
    try:
        _print(json.dumps(report, indent=2))
    except _StdoutError as error:
        return _stdout_failed(error)
    return 0


class _StdoutError(ReplayError):
    """A line could not be printed.  The cause says why."""


def _print(line: str) -> None:
    try:
        print(line, flush=True)
    except OSError as error:
        raise _StdoutError(f"stdout: {error.strerror}") from error


def _stdout_failed(error: BaseException) -> int:
    """Print nothing more, and return the exit code: whoever read our lines may leave."""
    # What Python still wants to write at its end goes nowhere, without a traceback.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error.__cause__, BrokenPipeError):
        return 0
    click.echo(str(error), err=True)
    return 1


class _Screen(Listener):
    """Lines on stdout; on a terminal the progress is one line that changes."""

    def __init__(self, *, prints_records: bool) -> None:
        self._prints_records = prints_records
        self._live: Live | None = None
        if sys.stdout.isatty() and not prints_records:
            self._live = Live(console=Console(), auto_refresh=False)

    def __enter__(self) -> "_Screen":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, line: str) -> None:
        """Print a line that stays."""
        if self._live is None:
            _print(line)
        else:
            self._live.console.print(Text(line))

    def progress(self, line: str, *, has_grown: bool) -> None:
        """Show the progress; in a file only what is news."""
        if self._live is not None:
            self._live.update(Text(line), refresh=True)
        elif has_grown:
            _print(line)

    def joined(self, ledger: PublisherLedger) -> None:
        """Say that a publisher is joined."""
        self.say(f"joined publisher={ledger.publisher_id:x} sequence={ledger.joined_at}")

    def record(self, summary: RecordSummary, message: Message) -> None:
        """Print the record if that was asked for."""
        if not self._prints_records:
            return
        try:
            line = record_line(message)
        except (ValueError, RecursionError) as error:
            self.unreadable(f"no line for it: {type(error).__name__}")
        else:
            _print(line)

    def unreadable(self, reason: str) -> None:
        """Say so, without any content."""
        click.echo(f"undecodable record: {reason}", err=True)
