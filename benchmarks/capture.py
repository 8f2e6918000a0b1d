"""What a capture costs: the worker with `--capture` beside one that writes the same line inline.

The control builds the same line and calls `write` in the request's own task, which is the least
that a line in a file can cost; it has no lock, no thread and no promise when a disk hangs.  Every
round counts the lines; equal requests must have given equal lines in both files.
"""

import argparse
import contextlib
import functools
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks import h2load
from benchmarks.contenders import WORKER_OPTIONS
from benchmarks.measures import Bar
from benchmarks.payloads import Shape, Template
from benchmarks.processes import ServerError, choose_cores, pinned, python_module, start
from benchmarks.results import Column, Report, Table, add_common_options, first_line, terminal
from benchmarks.rounds import (
    H2LOAD_REQUEST_ID,
    Contender,
    Play,
    Round,
    Streams,
    contest,
    cpu_per_request_us,
    foreign_share,
    play_h2load,
    requests_per_second,
)
from benchmarks.wire import WireError

SHAPE = Shape(512, 32)
STREAMS = Streams(connections=4, streams_each=8)
BAR = 1.35

CAPTURED, INLINE, BARE = "--capture", "inline write", "no capture"


class CountedPlay:
    """Plays a round and holds the lines of the capture against its requests."""

    def __init__(self, play: Play, paths: Mapping[str, Path | None]) -> None:
        """Play with *play*; *paths* has the capture of each contender."""
        self._play, self._paths = play, paths
        self._line: bytes | None = None

    def __call__(self, contender: Contender, requests: int) -> Round:
        """Play a round of *requests*; the capture begins and ends empty."""
        path = self._paths[contender.name]
        if path is None:
            return self._play(contender, requests)
        _empty(path)
        one = self._play(contender, requests)
        *lines, torn = path.read_bytes().split(b"\n")
        _empty(path)
        if torn:
            contender.fault(f"{len(torn)} bytes without a newline behind the last line")
        # One request of the checks before and one of those after are in the file, not in the round.
        if len(lines) != one.requests + 2:
            contender.fault(f"{len(lines)} lines captured of {one.requests + 2} requests")
        same = {line for line in lines if H2LOAD_REQUEST_ID in line}
        if self._line is None and same:
            self._line = next(iter(same))
        if same != {self._line}:
            contender.fault("equal requests did not give equal lines in every capture")
        return one


def _empty(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(0)


def main(argv: list[str]) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks capture", description=__doc__)
    add_common_options(parser)
    parser.add_argument("--rounds", type=int, help="rounds of each server")
    parser.add_argument("--seconds", type=float, help="length of a round")
    parser.add_argument("--folder", type=Path, help="where the captures are written")
    options = parser.parse_args(argv)
    rounds = options.rounds or (3 if options.quick else 7)
    seconds = options.seconds or (0.3 if options.quick else 1.0)
    console, cores = terminal(), choose_cores()
    report = Report(
        "capture",
        first_line(__doc__),
        settings={"rounds": rounds, "seconds": seconds, **cores.as_settings()},
    )
    template = Template(SHAPE)
    try:
        h2load.version()
        with (
            pinned(cores.client),
            console.status("starting") as status,
            tempfile.TemporaryDirectory(prefix="replay-benchmark-", dir=options.folder) as folder,
            contextlib.ExitStack() as servers,
        ):
            paths: dict[str, Path | None] = {
                CAPTURED: Path(folder) / "captured.jsonl",
                INLINE: Path(folder) / "inline.jsonl",
                BARE: None,
            }
            entrants = []
            for name, path in paths.items():
                module = "benchmarks.inline_capture" if name == INLINE else "replay"
                capture = [] if path is None else ["--capture", str(path)]
                command = python_module(module, "serve", *WORKER_OPTIONS, *capture)
                server = servers.enter_context(start(name, command, cores.server))
                entrants.append(Contender(name, server, template))
            play = functools.partial(play_h2load, streams=STREAMS, cores=cores)
            counted = CountedPlay(play, paths)
            played = contest(entrants, counted, rounds=rounds, seconds=seconds, say=status.update)
    except (h2load.H2loadError, ServerError, WireError, OSError) as error:
        console.print(f"cannot measure: {error}", style="red", highlight=False, markup=False)
        return 1
    for entrant in entrants:
        report.wrong_answers += entrant.faults
    base = cpu_per_request_us(played[INLINE])
    table = Table(
        f"Generate {SHAPE}, {STREAMS.total} streams over {STREAMS.connections} connections, h2load",
        [
            Column("server", "server"),
            Column("cpu_us", "CPU µs/request", 1, spread=True),
            Column("rate", "requests/s", 0),
            Column("times", "this / inline write", 2, spread=True),
            Column("foreign_pct", "others %", 0),
        ],
    )
    for name, of_server in played.items():
        cost = cpu_per_request_us(of_server)
        report.note_noise(foreign_share(of_server).median)
        table.rows.append(
            {
                "server": name,
                "cpu_us": cost,
                "rate": requests_per_second(of_server),
                "times": cost.over(base),
                "foreign_pct": foreign_share(of_server).scaled(100),
            }
        )
    report.tables.append(table)
    ratio = cpu_per_request_us(played[CAPTURED]).over(base).median
    report.bars.append(Bar("CPU with --capture / with an inline write", ratio, at_most=BAR))
    return report.finish(console, options.json, options.html)
