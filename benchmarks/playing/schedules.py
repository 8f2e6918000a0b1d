"""How late the player sends, beside a process that only sleeps."""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import attrs

from benchmarks.playing.runs import playing, report_of, targets_of, workers
from benchmarks.processes import Cores, pinned, python_module


@attrs.frozen
class Late:
    """How late requests of one run left, and how late the control woke."""

    requests: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    control_p50_ms: float
    control_p99_ms: float
    complete: int
    in_flight: int
    """Streams that were open at once, as the longest answer and the rate make it."""

    @property
    def above_ms(self) -> float:
        """The 99th percentile above that of the control."""
        return self.p99_ms - self.control_p99_ms


def write_trace(path: Path, count: int, *, isl: int, osl: int) -> Path:
    """Write a trace of equal requests with prompts of their own."""
    blocks = -(-isl // 512)
    rows = (
        {
            "timestamp": 0,
            "input_length": isl,
            "output_length": osl,
            "hash_ids": list(range(at * blocks, (at + 1) * blocks)),
        }
        for at in range(count)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def play_evenly(
    *, count: int, rate: float, isl: int, osl: int, flags: tuple[str, ...], cores: Cores
) -> Late:
    """Play *count* equal requests at *rate* a second, with a control that sleeps beside them."""
    with (
        tempfile.TemporaryDirectory(prefix="replay-benchmark-") as name,
        workers(*flags, core=cores.server) as server,
    ):
        folder = Path(name)
        trace = write_trace(folder / "trace.jsonl", count, isl=isl, osl=osl)
        control = _control(rate, count / rate, core=cores.client)
        options = (f"--rate={rate}", *targets_of(server), "--drain-seconds=60")
        with playing(trace, folder, *options, core=cores.client) as process:
            # It has begun when it has told its target, so both have the same seconds.
            assert process.stderr is not None
            said = ""
            for line in process.stderr:
                said += line
                if line.startswith("target:"):
                    break
            assert control.stdin is not None
            control.stdin.close()
            said += process.stderr.read()
        slept: dict[str, float] = json.loads(_output(control))
        report = report_of(folder, said)
    schedule: dict[str, Any] = report["run"]["schedule"]
    longest_ms = report["latencies"]["e2e"]["max_ms"]
    return Late(
        requests=count,
        p50_ms=schedule["p50_ms"],
        p99_ms=schedule["p99_ms"],
        max_ms=schedule["max_ms"],
        control_p50_ms=slept["p50"],
        control_p99_ms=slept["p99"],
        complete=report["run"]["outcomes"].get("complete", 0),
        in_flight=min(count, round(longest_ms / 1e3 * rate)),
    )


def _control(rate: float, seconds: float, *, core: int) -> "subprocess.Popen[bytes]":
    """Start the sleeper; it begins when its stdin is closed."""
    command = python_module("benchmarks.playing.sleeper", str(rate), str(seconds))
    with pinned(core):
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _output(process: "subprocess.Popen[bytes]") -> bytes:
    with process:
        assert process.stdout is not None
        return process.stdout.read()
