"""Public traces played to simulated workers: how fast the machine can, and what the cache found."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from benchmarks.playing.offline_cache import OfflineCache
from benchmarks.playing.runs import REALISTIC, Trace, admitted, play, targets_of, workers
from benchmarks.processes import Cores

#: Tried from the highest down, until one is kept.
SPEEDS = (1000, 700, 500, 300, 200, 150, 100, 70, 50, 30, 20, 10, 5, 2, 1)
#: The engines are that much faster than the trace is played, so that few requests overlap that did
#: not when the trace was taken, and passes still serve several.
HEADROOM = 2
BLOCK_TOKENS = 16


@attrs.frozen
class Played:
    """One run of a trace."""

    trace: str
    speed: float
    kept: bool
    late_p99_ms: float
    sleeper_p99_ms: float
    seconds: float
    faults: Sequence[str]
    """What does not agree with the trace."""


def faults_of(trace: Trace, report: dict[str, object]) -> list[str]:
    """Say what of a run's counts is not what the trace asked for."""
    run = report["run"]
    assert isinstance(run, dict)
    wanted = {
        "requests": len(trace.rows),
        "outcomes": {"complete": len(trace.rows)},
        "prompt_tokens": trace.prompt_tokens,
        "output_tokens": trace.output_tokens,
    }
    return [
        f"{trace.path.name}: {name}: {run[name]}, the trace has {value}"
        for name, value in wanted.items()
        if run[name] != value
    ]


def play_at_speeds(
    trace: Trace, *, cores: Cores, kv_tokens: int, speeds: Sequence[float] = SPEEDS
) -> Iterator[Played]:
    """Play *trace* to two workers, faster first, until a run has kept its schedule."""
    for speed in speeds:
        flags = (
            *REALISTIC,
            "--grpc-count=2",
            f"--kv-tokens={kv_tokens}",
            f"--speedup={speed * HEADROOM}",
        )
        with (
            tempfile.TemporaryDirectory(prefix="replay-benchmark-") as folder,
            workers(*flags, core=cores.server) as server,
        ):
            report = play(
                trace.path,
                Path(folder),
                f"--speed={speed}",
                *targets_of(server),
                core=cores.client,
            )
        played = Played(
            trace=trace.path.name,
            speed=speed,
            kept=report["pace"]["kept"],
            late_p99_ms=report["run"]["schedule"]["p99_ms"],
            sleeper_p99_ms=report["end"]["loop_delay_ms"]["p99"],
            seconds=report["end"]["seconds"],
            faults=faults_of(trace, report),
        )
        yield played
        if played.kept:
            return


@attrs.frozen
class Hits:
    """What the cache of one worker found, and what was computed for it."""

    kv_tokens: int
    pace: str
    measured: float
    offline: float
    faults: Sequence[str]

    @property
    def points(self) -> float:
        """How far they are apart, in percentage points."""
        return abs(self.measured - self.offline) * 100


def hit_rate(trace: Trace, *, cores: Cores, kv_tokens: int, speedup: float, pace: str) -> Hits:
    """Play *trace* to one worker, and hold what it found against the offline cache.

    *pace* is an option of `play`.
    """
    flags = (*REALISTIC, f"--kv-tokens={kv_tokens}", f"--speedup={speedup}")
    with (
        tempfile.TemporaryDirectory(prefix="replay-benchmark-") as folder,
        workers(*flags, core=cores.server) as server,
    ):
        report = play(
            trace.path,
            Path(folder),
            pace,
            f"--limit={len(trace.rows)}",
            *targets_of(server),
            core=cores.client,
        )
        order = admitted(server)
    cache = OfflineCache(kv_tokens // BLOCK_TOKENS)
    for request in order:
        cache.serve(trace.rows[int(request["request_id"].rpartition("-")[2]) - 1])
    found = sum(request["cached_tokens"] for request in order)
    told = sum(request["prompt_tokens"] for request in order)
    faults = faults_of(trace, report)
    if report["run"]["cached_tokens"] != found:
        faults.append(f"cached tokens: the player saw {report['run']['cached_tokens']} of {found}")
    return Hits(
        kv_tokens=kv_tokens,
        pace=pace,
        measured=found / told,
        offline=cache.hit_rate,
        faults=faults,
    )
