"""Run a runtime until signals end it, and say how it ended.

SIGTERM and SIGINT ask for an orderly stop; the second of them ends at once; a third finds the
system's own handling again.  SIGHUP opens the capture's path anew.
"""

import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import attrs
import click
import structlog
import trio

from replay.cli.supervised import SupervisorLine
from replay.config import Config
from replay.errors import BindError, ConfigError, FileOpenError

log = structlog.get_logger()


class StartedRuntime(Protocol):
    """What a command needs of a runtime that listens."""

    @property
    def addresses(self) -> list[str]:
        """Where it listens, IPv6 addresses in brackets."""
        ...

    async def reopen_capture(self) -> None:
        """Open the capture's path again; what goes wrong is logged there."""
        ...


OpenRuntime = Callable[[Config], AbstractAsyncContextManager[StartedRuntime]]


@attrs.define
class _Watched:
    """What signals act on."""

    shutdown: trio.Event = attrs.field(factory=trio.Event)
    serving: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    runtime: StartedRuntime | None = None


def run(open_runtime: OpenRuntime, config: Config, *, line: SupervisorLine | None = None) -> int:
    """Serve *config* until a signal ends it, and return the exit code of the command.

    With *line* this is one of several processes: their supervisor says where they listen, and its
    end is an orderly stop as well.

    0: an orderly stop; 1: a failure at run time, or a stop that was not orderly; 2: nothing could
    start because of the configuration or the capture.
    """
    # A reader that left (of a pipe for the capture, or for the log) is an error, not the end.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    code = 0
    try:
        code = 0 if trio.run(run_until_stopped, open_runtime, config, line) else 1
    except* (ConfigError, FileOpenError) as group:
        _say(group)
        code = 2
    except* BindError as group:
        _say(group)
        code = code or 1
    except* Exception as group:
        log.critical("failed", exc_info=group)
        code = code or 1
    return code


def _say(group: BaseExceptionGroup[BaseException]) -> None:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            _say(error)
        else:
            click.echo(error, err=True)


async def run_until_stopped(
    open_runtime: OpenRuntime, config: Config, line: SupervisorLine | None = None
) -> bool:
    """Serve *config* until a signal ends it; return whether the stop was an orderly one.

    Needs the main thread.  What `open_runtime` raises comes out in an exception group.
    """
    watched = _Watched()
    async with trio.open_nursery() as signals:
        await signals.start(_watch, watched, signals)
        with watched.serving:
            async with open_runtime(config) as watched.runtime:
                if line is None:
                    log.info("listening", addresses=watched.runtime.addresses)
                else:
                    line.tell(watched.runtime.addresses)
                    signals.start_soon(_stop_without, line, watched)
                await watched.shutdown.wait()
        signals.cancel_scope.cancel()
    return not watched.serving.cancelled_caught


async def _stop_without(line: SupervisorLine, watched: _Watched) -> None:
    await line.wait_gone()
    if not watched.shutdown.is_set():
        log.warning("stop requested", signal="the supervisor has gone")
        watched.shutdown.set()


async def _watch(
    watched: _Watched, signals: trio.Nursery, *, task_status: trio.TaskStatus[None]
) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as received:
        task_status.started()
        async for number in received:
            name = signal.Signals(number).name
            if number == signal.SIGHUP:
                if watched.runtime is not None:
                    # In a task of its own: a path that hangs must not hold up the next signal.
                    signals.start_soon(watched.runtime.reopen_capture)
            elif not watched.shutdown.is_set():
                log.info("stop requested", signal=name)
                watched.shutdown.set()
            else:
                log.warning("stopping at once", signal=name)
                watched.serving.cancel()
                return
