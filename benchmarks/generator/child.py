"""One process of a run: `python -m benchmarks.generator.child`, started by `run.py`.

On stdin comes a line with its part, and a line with the moment of the start (CLOCK_MONOTONIC, in
nanoseconds); the end of stdin ends it, so that it does not outlive who started it.  On stdout go
lines of JSON: `ready`, progress, `done` or `error`.  The rows go into a file.
"""

import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import attrs
import trio

from benchmarks.generator.rows import pack_rows
from benchmarks.generator.sender import Sender, Share
from benchmarks.generator.spec import LoadSpec, spec_from_json
from benchmarks.generator.targets import open_target
from benchmarks.processes import core_busy_seconds
from replay.player.targets import TargetError

PROGRESS_SECONDS = 0.5
#: New objects after which the youngest are looked through for cycles: some milliseconds of garbage
#: of a long run, none of a short one.
_YOUNG_OBJECTS = 50_000


@attrs.frozen(kw_only=True)
class Part:
    """What one process does of a run."""

    spec: str
    """JSON of a `LoadSpec`."""
    share: Share
    rows: str
    """File for what came of the requests."""
    core: int | None = None


def say(kind: str, **values: Any) -> None:
    """Tell the parent."""
    print(json.dumps({"kind": kind, **values}), flush=True)


def leave_garbage_alone() -> None:
    """Keep the collector from stopping the schedule: what is there now stays, and is not looked at.

    The pauses of a full collection would be tens of milliseconds.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 1000, 1000)


async def _wait_start(stdin: trio.abc.ReceiveStream) -> float:
    """Wait for the parent's moment; return it on the loop's clock."""
    line = b""
    while not line.endswith(b"\n"):
        piece = await stdin.receive_some()
        if not piece:
            raise SystemExit(1)
        line += piece
    return trio.current_time() + (int(line) - time.monotonic_ns()) / 1e9


async def _end_with(stdin: trio.abc.ReceiveStream, sending: trio.CancelScope) -> None:
    """Cancel when the parent has gone."""
    await stdin.receive_some()
    sending.cancel()


async def _report(sender: Sender) -> None:
    while True:
        await trio.sleep(PROGRESS_SECONDS)
        say("progress", **attrs.asdict(sender.counts))


class Work:
    """How much a process works, and how much its core does for anybody."""

    def __init__(self, core: int | None) -> None:
        """Begin now."""
        self._core = core
        self._began = self._read()
        self.busy = 0.0
        """CPU of this process for each second."""
        self.core_busy = 0.0
        """CPU of its core for each second; 0 when it is on none."""

    def _read(self) -> tuple[float, float, float]:
        core = 0.0 if self._core is None else core_busy_seconds(self._core)
        return time.perf_counter(), time.process_time(), core

    def end(self) -> None:
        """End now."""
        seconds, cpu, core = (
            now - then for now, then in zip(self._read(), self._began, strict=True)
        )
        self.busy, self.core_busy = cpu / max(1e-9, seconds), core / max(1e-9, seconds)


async def run_part(part: Part, spec: LoadSpec) -> tuple[Sender, Work]:
    """Do *part* of *spec*; return its sender, and how much work that was.

    Raises TargetError, and ValueError for what cannot be sent."""
    async with trio.lowlevel.FdStream(os.dup(0)) as stdin, open_target(spec) as target:
        vocab_size = spec.vocab_size
        if vocab_size is None:
            vocab_size = (await target.describe()).vocab_size
        sender = Sender(spec, part.share, target, vocab_size=vocab_size)
        leave_garbage_alone()
        say("ready")
        started = await _wait_start(stdin)
        async with trio.open_nursery() as helpers:
            helpers.start_soon(_end_with, stdin, helpers.cancel_scope)
            helpers.start_soon(_report, sender)
            await trio.sleep_until(started)
            work = Work(part.core)
            await sender.run(started)
            work.end()
            helpers.cancel_scope.cancel()
    return sender, work


def main() -> int:
    """Read the part, and do it."""
    given = json.loads(sys.stdin.readline())
    part = Part(**{**given, "share": Share(**given["share"])})
    if part.core is not None:
        os.sched_setaffinity(0, {part.core})
    status = 0
    try:
        sender, work = trio.run(run_part, part, spec_from_json(part.spec))
        Path(part.rows).write_bytes(pack_rows(sender.rows))
        say("done", busy=work.busy, core_busy=work.core_busy, **attrs.asdict(sender.counts))
    except* (TargetError, ValueError) as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        say("error", text=str(error))
        status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
