"""Runs of one trace against the same worker again, and against others: what is called a difference.

Each run is held against the next one, with the one after that as its control.  Arrivals are
Poisson's: those of a constant rate would all meet the engine at one moment of its own beat, and
every run at another one, which is a difference of up to a token's time between runs.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import attrs

from benchmarks.playing.runs import play, targets_of, workers
from benchmarks.playing.schedules import write_trace
from benchmarks.processes import Cores
from replay.player.compare import Comparison, compare
from replay.player.loading import load_side

REQUESTS = 200
RATE = 100.0
#: The engine whose answers are compared: 20 ms to the first token, 5 ms a token.
WORKER = ("--gen-ms=20", "--token-ms=5", "--seed=5")
SLOWER = ("--gen-ms=40", "--token-ms=5", "--seed=5")


@attrs.frozen
class Found:
    """What comparisons said."""

    comparisons: int
    flagged: int
    """Comparisons of the worker with itself in which anything was flagged."""
    what: tuple[str, ...]
    """What it was."""
    slower_flagged: bool
    """Whether 20 ms more at the first token were."""
    slower_tokens: int
    """Requests whose tokens differed then."""


@contextlib.contextmanager
def _runs(source: Path, folder: Path, *flags: str, cores: Cores) -> Iterator[Iterator[Path]]:
    """Yield the results of as many runs as are asked for, against one worker."""

    def run() -> Iterator[Path]:
        for number in count():
            results = folder / f"{flags[0]}-{number}.jsonl"
            options = (f"--rate={RATE}", "--poisson", *targets_of(server), f"--results={results}")
            play(source, folder, *options, core=cores.client)
            yield results

    with workers(*flags, core=cores.server) as server:
        yield run()


def _compared(baseline: Path, candidate: Path, control: Path) -> Comparison:
    sides = [load_side(str(path)).side for path in (baseline, candidate, control)]
    return compare(sides[0], sides[1], control=sides[2])


def compare_repeats(comparisons: int, *, cores: Cores) -> Found:
    """Compare a worker with itself *comparisons* times, and once with a slower one."""
    what: list[str] = []
    flagged = 0
    with tempfile.TemporaryDirectory(prefix="replay-benchmark-") as name:
        folder = Path(name)
        source = write_trace(folder / "trace.jsonl", REQUESTS, isl=128, osl=16)
        with _runs(source, folder, *WORKER, cores=cores) as results:
            runs = [next(results) for _ in range(comparisons + 2)]
        for place in range(comparisons):
            found = _compared(*runs[place : place + 3])
            flagged += found.is_flagged
            what += [each.kind for each in found.counts if each.is_flagged]
            what += [
                f"{each.metric} {each.statistic}"
                for each in found.latencies.differences
                if each.is_flagged
            ]
        with _runs(source, folder, *SLOWER, cores=cores) as results:
            slower = _compared(runs[0], next(results), runs[1])
    return Found(
        comparisons=comparisons,
        flagged=flagged,
        what=tuple(what),
        slower_flagged=any(
            each.is_flagged and each.metric == "ttft" for each in slower.latencies.differences
        ),
        slower_tokens=slower.counts[0].differing,
    )
