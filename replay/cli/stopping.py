"""Run a runtime until signals end it.

SIGTERM and SIGINT ask for an orderly stop; the second of them ends at once; a third finds the
system's own handling again.  SIGHUP opens the capture's path anew.
"""

import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import attrs
import structlog
import trio

from replay.config import Config

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


async def run_until_stopped(open_runtime: OpenRuntime, config: Config) -> bool:
    """Serve *config* until a signal ends it; return whether the stop was an orderly one.

    Needs the main thread.  What `open_runtime` raises comes out in an exception group.
    """
    watched = _Watched()
    async with trio.open_nursery() as signals:
        await signals.start(_watch, watched, signals)
        with watched.serving:
            async with open_runtime(config) as watched.runtime:
                log.info("listening", addresses=watched.runtime.addresses)
                await watched.shutdown.wait()
        signals.cancel_scope.cancel()
    return not watched.serving.cancelled_caught


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
