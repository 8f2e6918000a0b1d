"""`replay consume` as a process that a test reads and signals."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio


class Command:
    """A running `replay consume`."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.output = ""

    @property
    def _stdout(self) -> trio.abc.ReceiveStream:
        assert self.process.stdout is not None
        return self.process.stdout

    async def until(self, text: str, *, times: int = 1) -> None:
        """Read the output until *text* is in it, so many times."""
        with trio.fail_after(20):
            while self.output.count(text) < times:
                data = await self._stdout.receive_some()
                assert data, f"ended without {text!r}: {self.output}"
                self.output += data.decode()

    async def end(self, number: int | None = signal.SIGTERM) -> tuple[int, dict[str, Any]]:
        """Signal it, read what is left, and return the exit code and the final JSON."""
        if number is not None:
            self.process.send_signal(number)
        with trio.fail_after(20):
            async for data in self._stdout:
                self.output += data.decode()
            code = await self.process.wait()
        report: dict[str, Any] = json.loads(self.output[self.output.index("\n{\n") :])
        return code, report

    @property
    def lines(self) -> list[str]:
        """The lines before the final JSON."""
        return self.output[: self.output.index("\n{\n")].splitlines()


@asynccontextmanager
async def running(
    *arguments: str, stderr: int | None = None, stdout: int = subprocess.PIPE
) -> AsyncIterator[Command]:
    """Run `replay consume` with *arguments*, and kill what is left of it."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "replay", "consume", *arguments],
        stdout=stdout,
        stderr=stderr,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield Command(process)
    finally:
        if process.returncode is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    await stream.aclose()
