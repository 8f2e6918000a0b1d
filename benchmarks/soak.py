"""A long load of everything at once: does the worker grow, and does it give back what it took?

The worker captures, and mirrors to two taps of which one is read.  Requests of mixed lengths come
at a steady rate; some are taken back, connections come and go.  Memory is looked at twice a second:
its slope is that of the least squares' line through what is measured after the warm-up.
"""

import argparse
import contextlib
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

import attrs

from benchmarks.generator.arrivals import Arrivals, Pace
from benchmarks.generator.run import LoadError, run_load
from benchmarks.generator.sender import UNFINISHED
from benchmarks.generator.spec import LoadSpec
from benchmarks.generator.summary import summarise
from benchmarks.generator.workload import Workload
from benchmarks.measures import Bar, Measure
from benchmarks.plots import Plot, PlotKind
from benchmarks.processes import Cores, ServerError, choose_cores
from benchmarks.results import Column, Report, Table, add_common_options, first_line, terminal
from benchmarks.rounds import Watch
from benchmarks.tap_setup import TAPS, consuming, write_config
from benchmarks.vitals import ObservedWorker, Vitals, observed_worker, slope_per_minute

#: One load after the other, each with connections of its own, so that the client stays small.
SEGMENT_SECONDS = 10.0
#: The share of the run that warms up.
WARM_UP_SHARE = 0.25
#: A slope over less than this is noise.
LEAST_SECONDS = 120.0
#: As many points as a plot has room for.
PLOTTED = 300
#: Megabytes a minute.
SLOPE_BAR = 1.0

WORKLOAD = Workload(
    isl="lognormal:512,0.8,8192",
    osl="uniform:8-64",
    prefix_tokens=128,
    prefixes=8,
    cancel_share=0.2,
    cancel_delay_s=0.1,
)


@attrs.define
class Watched:
    """What is noted while the load runs."""

    worker: ObservedWorker
    began: float = attrs.field(factory=time.monotonic)
    rss: list[tuple[float, float]] = attrs.field(factory=list)
    """Seconds since the start, bytes."""
    foreign: list[float] = attrs.field(factory=list)
    statuses: Counter[str] = attrs.field(factory=Counter)
    sent: int = 0

    def look(self) -> None:
        """Note the memory."""
        moment = time.monotonic() - self.began
        self.rss.append((moment, float(self.worker.server.rss_bytes())))


def soak(watched: Watched, *, seconds: float, rate: float, cores: Cores) -> None:
    """Send load for *seconds*.  Raises LoadError."""
    segment = 0
    while (left := seconds - (time.monotonic() - watched.began)) > 1.0:
        spec = LoadSpec(
            target=f"grpc://{watched.worker.server.address}",
            workload=attrs.evolve(WORKLOAD, seed=segment),
            arrivals=Arrivals(rate=rate, pace=Pace.POISSON, seed=segment),
            seconds=min(SEGMENT_SECONDS, left),
            connections=1 + segment % 4,
            run=f"soak-{os.urandom(4).hex()}",
        )
        watch = Watch(watched.worker.server, cores.server)
        found = summarise(run_load(spec, watch=watch, on_progress=lambda counts: watched.look()))
        watched.statuses.update(found.statuses)
        watched.sent += found.sent
        watched.foreign.append(watch.foreign_share)
        segment += 1


def main(argv: list[str]) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks soak", description=__doc__)
    add_common_options(parser)
    parser.add_argument("--seconds", type=float, help="how long (usually 180)")
    parser.add_argument("--rate", type=float, default=150.0, help="requests a second")
    options = parser.parse_args(argv)
    seconds = options.seconds or (12.0 if options.quick else 180.0)
    console, cores = terminal(), choose_cores()
    report = Report(
        "soak",
        first_line(__doc__),
        settings={"seconds": seconds, "rate": options.rate, **attrs.asdict(WORKLOAD)},
    )
    try:
        with (
            tempfile.TemporaryDirectory(prefix="replay-benchmark-") as name,
            console.status(f"soaking for {seconds:g} s"),
            contextlib.ExitStack() as running,
        ):
            folder = Path(name)
            config = write_config(
                folder,
                TAPS,
                worker={
                    "capture": str(folder / "capture.jsonl"),
                    "engine": {"kind": "canned", "token_ms": 5.0},
                },
            )
            worker = running.enter_context(
                observed_worker(folder, cores.server, f"--config={config}")
            )
            consumer = running.enter_context(consuming(folder, TAPS[0]["topic"], cores.client))
            before = worker.settled(worker.vitals())
            watched = Watched(worker)
            soak(watched, seconds=seconds, rate=options.rate, cores=cores)
            after = worker.settled(before)
            consumed = consumer.end()
            captured = (folder / "capture.jsonl").read_bytes().count(b"\n")
    except (LoadError, ServerError, OSError) as error:
        console.print(f"cannot measure: {error}", style="red", highlight=False, markup=False)
        return 1
    report.note_noise(Measure(tuple(watched.foreign)).median)
    _fill(report, watched, before, after, seconds=seconds)
    _check(
        report,
        watched,
        before,
        after,
        captured=captured,
        consumed=int(consumed.get("records", 0)),
    )
    return report.finish(console, options.json, options.html)


def _fill(
    report: Report, watched: Watched, before: Vitals, after: Vitals, *, seconds: float
) -> None:
    warm = [(at, rss) for at, rss in watched.rss if at >= seconds * WARM_UP_SHARE]
    slope = slope_per_minute(warm) / 1e6
    table = Table(
        "The worker before and after",
        [
            Column("when", "when"),
            Column("rss_mb", "RSS MB", 1),
            Column("tasks", "tasks", 0),
            Column("descriptors", "descriptors", 0),
        ],
    )
    for when, vitals in (("before", before), ("after", after)):
        table.rows.append({"when": when, **attrs.asdict(vitals), "rss_mb": vitals.rss_bytes / 1e6})
    endings = Table(
        f"{watched.sent:,} requests",
        [Column("status", "ended"), Column("count", "requests", 0)],
    )
    for status, count in watched.statuses.most_common():
        endings.rows.append({"status": status, "count": count})
    report.tables += [table, endings]
    report.settings["slope_mb_per_minute"] = slope
    if seconds >= LEAST_SECONDS:
        report.bars.append(Bar("RSS slope, MB a minute", slope, at_most=SLOPE_BAR))
    else:
        report.limits.append(
            f"the slope of the memory, {slope:+.1f} MB a minute: {seconds:g} s are too short for "
            f"it, {LEAST_SECONDS:g} are needed"
        )
    step = max(1, len(watched.rss) // PLOTTED)
    line = [(at, rss / 1e6) for at, rss in watched.rss[::step]]
    report.plots.append(
        Plot(
            kind=PlotKind.LINES,
            title="Memory over time",
            caption=f"Resident; the first {WARM_UP_SHARE:.0%} warms up and is not in the slope",
            series={"RSS": line},
            x_label="seconds",
            y_label="MB",
        )
    )


def _check(
    report: Report,
    watched: Watched,
    before: Vitals,
    after: Vitals,
    *,
    captured: int,
    consumed: int,
) -> None:
    """Compare what must be equal: a difference is a wrong answer."""
    report.bars += [
        Bar("tasks left at the end", float(after.tasks - before.tasks), at_most=0),
        Bar(
            "descriptors left at the end", float(after.descriptors - before.descriptors), at_most=0
        ),
    ]
    unknown = set(watched.statuses) - {"complete", "cancelled"}
    if unknown - {UNFINISHED}:
        report.wrong_answers.append(f"requests ended as {', '.join(sorted(unknown))}")
    # A request that is taken back while its connection is being made never reaches the worker.
    if not watched.sent - watched.statuses["cancelled"] <= captured <= watched.sent:
        report.wrong_answers.append(f"{captured} lines captured of {watched.sent} requests")
    if consumed != captured:
        report.wrong_answers.append(f"{consumed} records were read of {captured} requests")
