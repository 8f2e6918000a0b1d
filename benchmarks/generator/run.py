"""Runs the processes of a load: starts them together, tells how far they are, collects the rows."""

import contextlib
import json
import os
import queue
import subprocess
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from benchmarks.generator.child import Part
from benchmarks.generator.rows import Answered, unpack_rows
from benchmarks.generator.sender import Counts, Share
from benchmarks.generator.spec import LoadSpec, spec_to_json
from benchmarks.processes import python_module

#: How long the processes may take until they are ready: they import, connect and pack.
START_SECONDS = 30.0
#: From the last `ready` to the first request.
LEAD_SECONDS = 0.2
#: How long after the time that a run may take its processes are given up.
OVERTIME_SECONDS = 30.0

#: Called with what all processes have done so far.
OnProgress = Callable[[Counts], None]


class LoadError(Exception):
    """The load could not be run: the target is not there, or a process has died."""


@attrs.frozen(kw_only=True)
class LoadRun:
    """What came of a run."""

    spec: LoadSpec
    answered: tuple[Answered, ...]
    """Every request that was sent, by number."""
    planned: int | None
    """How many an open loop had to send."""
    control_ns: Sequence[int] = ()
    """How late the sleeper beside an open loop woke, for each time of the schedule."""
    busy: tuple[float, ...] = ()
    """CPU of each process for a second of the run."""
    core_busy: tuple[float, ...] = ()
    """CPU of each process's core for a second of the run, whoever used it."""
    cores: tuple[int, ...] = ()


def client_cores(count: int) -> list[int]:
    """Return a core for each of *count* processes: from the last one down, the first not used.

    The first is where servers under measurement are (`choose_cores`); a machine of one core has no
    choice.
    """
    allowed = sorted(os.sched_getaffinity(0))
    free = allowed[1:] or allowed
    return [free[-1 - number % len(free)] for number in range(count)]


class _Process:
    """A process of the run, and what it says."""

    def __init__(self, module: str, part: Part, said: "queue.Queue[tuple[_Process, Any]]") -> None:
        self.rows = Path(part.rows)
        self.core = part.core
        self.counts = Counts()
        self.busy = self.core_busy = 0.0
        self._process = subprocess.Popen(
            python_module(f"benchmarks.generator.{module}"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._said = said
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        self.tell(json.dumps(attrs.asdict(part)))

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.put((self, json.loads(line)))
        self._said.put((self, {"kind": "gone"}))

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors += self._process.stderr

    def tell(self, line: str) -> None:
        """Write a line to it; one that has gone is found out by its silence."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def last_words(self) -> str:
        """Return what it said on stderr."""
        self._process.wait()
        self._readers[1].join()
        return "".join(self._errors[-5:]).strip() or "it said nothing"

    def end(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


class _Crew:
    """All processes of a run."""

    def __init__(self, spec: LoadSpec, folder: Path) -> None:
        self._said: queue.Queue[tuple[_Process, Any]] = queue.Queue()
        self.senders: list[_Process] = []
        self.control: _Process | None = None
        cores = client_cores(spec.processes)
        text = spec_to_json(spec)
        for index, core in enumerate(cores):
            share, rows = Share(index, spec.processes), str(folder / f"rows-{index}")
            part = Part(spec=text, share=share, rows=rows, core=core)
            self.senders.append(_Process("child", part, self._said))
        if spec.is_open:
            part = Part(spec=text, share=Share(), rows=str(folder / "control"), core=cores[0])
            self.control = _Process("control", part, self._said)

    @property
    def _all(self) -> list[_Process]:
        return [*self.senders, *([] if self.control is None else [self.control])]

    def wait(self, kind: str, deadline: float, on_progress: OnProgress) -> None:
        """Wait until all have said *kind*.  Raises LoadError."""
        waiting = set(self._all)
        while waiting:
            try:
                process, said = self._said.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise LoadError("the load generator's processes do not come to an end") from None
            if said["kind"] == "error":
                raise LoadError(said["text"])
            if said["kind"] == "gone":
                if process in waiting:
                    raise LoadError(f"a process of the load has died: {process.last_words()}")
                continue
            if "sent" in said:
                process.counts = Counts(said["sent"], said["ended"], said["failed"])
                process.busy = said.get("busy", 0.0)
                process.core_busy = said.get("core_busy", 0.0)
                on_progress(self._total())
            if said["kind"] == kind:
                waiting.discard(process)

    def _total(self) -> Counts:
        total = Counts()
        for each in self.senders:
            total.sent += each.counts.sent
            total.ended += each.counts.ended
            total.failed += each.counts.failed
        return total

    def begin(self) -> None:
        """Tell all the moment of the start."""
        moment = time.monotonic_ns() + round(LEAD_SECONDS * 1e9)
        for process in self._all:
            process.tell(str(moment))

    def end(self) -> None:
        """End all."""
        for process in self._all:
            process.end()


def run_load(
    spec: LoadSpec,
    *,
    on_progress: OnProgress = lambda counts: None,
    watch: contextlib.AbstractContextManager[object] | None = None,
) -> LoadRun:
    """Run *spec* in processes of its own, and return what came of it.

    *watch* is entered when they are ready, and left when they are done.  Raises LoadError.
    """
    with tempfile.TemporaryDirectory(prefix="replay-benchmark-") as folder:
        crew = _Crew(spec, Path(folder))
        try:
            crew.wait("ready", time.monotonic() + START_SECONDS, on_progress)
            with watch or contextlib.nullcontext():
                crew.begin()
                crew.wait("done", time.monotonic() + _longest_seconds(spec), on_progress)
            answered = [row for each in crew.senders for row in _rows(each)]
            control = array("q")
            if crew.control is not None:
                control.frombytes(crew.control.rows.read_bytes())
        finally:
            crew.end()
    answered.sort(key=lambda each: each.observation.position)
    return LoadRun(
        spec=spec,
        answered=tuple(answered),
        planned=len(spec.due_ns()) if spec.is_open else None,
        control_ns=control,
        busy=tuple(each.busy for each in crew.senders),
        core_busy=tuple(each.core_busy for each in crew.senders),
        cores=tuple(each.core for each in crew.senders if each.core is not None),
    )


def _rows(process: _Process) -> Iterator[Answered]:
    return unpack_rows(process.rows.read_bytes())


def _longest_seconds(spec: LoadSpec) -> float:
    """Return how long a run may take at most; a closed loop of so many requests as it takes."""
    if spec.is_open:
        due_ns = spec.due_ns()
        seconds = due_ns[-1] / 1e9 if due_ns else 0.0
    elif spec.seconds is None:
        return threading.TIMEOUT_MAX / 2
    else:
        seconds = spec.seconds
    return seconds + spec.drain_s + OVERTIME_SECONDS
