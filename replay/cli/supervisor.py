"""`serve --processes N`: start the processes, pass signals on, and end when one of them ends.

The supervisor serves nothing itself.  Each process is a `serve` of its own with its share of the
configuration, in a process group of its own: a Ctrl-C reaches the supervisor alone, which passes it
on, so that no process takes one signal for two.
"""

import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence

import attrs
import structlog
import trio

from replay.cli.supervised import read_addresses
from replay.config import Config, describe
from replay.config.split import split_config

log = structlog.get_logger()

#: How much longer than its own bounds a process may take to end before it is killed.
KILL_SECONDS = 5.0

#: What a process ends with when its configuration or its capture cannot be used.
_UNUSABLE = 2


@attrs.define(eq=False)
class _Process:
    """One process, and the supervisor's end of the line to it."""

    number: int
    process: trio.Process
    line: trio.SocketStream
    addresses: list[str] | None = None
    """None until it listens."""

    @property
    def is_running(self) -> bool:
        return self.process.returncode is None


class Supervisor:
    """The processes of one `serve`."""

    def __init__(self, config: Config, options: Sequence[str]) -> None:
        """Serve *config* in as many processes as it says; each gets *options* as they are."""
        self._config = config
        self._options = options
        self._processes: list[_Process] = []
        self._is_stopping = False
        self._failure = 0
        self._patience = trio.CancelScope()

    async def run(self) -> int:
        """Run until a signal or the end of a process, and return the exit code.

        0 when all have stopped in order; 2 when one could not start because of the configuration
        or the capture; else 1.
        """
        async with trio.open_nursery() as signals:
            await signals.start(self._pass_signals_on)
            try:
                with self._patience:
                    async with trio.open_nursery() as watched:
                        await self._start_all()
                        for process in self._processes:
                            watched.start_soon(self._watch, process)
                if self._patience.cancelled_caught:
                    log.warning("a process has not ended in time and is killed")
            finally:
                # Nothing is left of them, whatever ended this.
                for process in self._processes:
                    if process.is_running:
                        process.process.kill()
            for process in self._processes:
                await process.process.wait()
            signals.cancel_scope.cancel()
        if self._failure:
            return self._failure
        return 0 if all(each.process.returncode == 0 for each in self._processes) else 1

    async def _start_all(self) -> None:
        for number, share in enumerate(split_config(self._config)):
            if self._is_stopping:
                return
            process = await self._start(number, share)
            self._processes.append(process)
            if self._is_stopping:  # since it was begun, so the signal has missed it
                process.process.terminate()

    async def _start(self, number: int, config: Config) -> _Process:
        """Start a process with its configuration in memory, which only it can read."""
        ours, theirs = socket.socketpair()
        memory = os.memfd_create("configuration")
        try:
            os.write(memory, "\n".join(describe(config)).encode())
            command = [
                *(sys.executable, "-m", "replay", "serve"),
                *("--config", f"/dev/fd/{memory}"),
                *("--supervised", str(number), str(theirs.fileno())),
                *self._options,
            ]
            process = await trio.lowlevel.open_process(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=(memory, theirs.fileno()),
                process_group=0,
            )
        finally:
            os.close(memory)
            theirs.close()
        return _Process(number, process, trio.SocketStream(trio.socket.from_stdlib_socket(ours)))

    async def _watch(self, process: _Process) -> None:
        """Wait until *process* listens, and until it ends."""
        process.addresses = await read_addresses(process.line)
        told = [each.addresses for each in self._processes if each.addresses is not None]
        if len(told) == len(self._processes) and not self._is_stopping:
            log.info("listening", addresses=[name for names in told for name in names])
        code = await process.process.wait()
        await process.line.aclose()
        if not self._is_stopping:
            log.error("a process has ended", process=process.number, code=code)
            unusable = code == _UNUSABLE and process.addresses is None
            self._failure = _UNUSABLE if unusable else 1
            self._stop(signal.SIGTERM)

    def _stop(self, number: int) -> None:
        """Have all processes stop in order, and no longer wait for them than they should take."""
        self._is_stopping = True
        self._send(number)
        shutdown = self._config.shutdown
        bound = shutdown.grace_seconds + shutdown.drain_seconds + KILL_SECONDS
        if self._patience.deadline == math.inf:
            self._patience.deadline = trio.current_time() + bound

    def _send(self, number: int, to: Callable[[_Process], bool] = lambda each: True) -> None:
        for process in self._processes:
            if process.is_running and to(process):
                process.process.send_signal(number)

    async def _pass_signals_on(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Pass on what arrives; after a second request to stop the third ends the supervisor."""
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as received:
            task_status.started()
            async for number in received:
                if number == signal.SIGHUP:
                    # Before it listens, a process has nothing open and may die of it.
                    self._send(number, lambda each: each.addresses is not None)
                elif not self._is_stopping:
                    log.info("stop requested", signal=signal.Signals(number).name)
                    self._stop(number)
                else:
                    log.warning("stopping at once", signal=signal.Signals(number).name)
                    self._send(number)
                    return
