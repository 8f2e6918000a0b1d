"""What a reader costs that has been stopped: latency, CPU and memory under an open loop.

One of two taps has a reader under SIGSTOP for the whole of a round; the workers take turns with one
whose readers read.  When it goes on, every record that it did not get has to be accounted for
within two heartbeats; with a replay buffer, or a queue with room for all, nothing is missing.
"""

import argparse
import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from benchmarks.contenders import WORKER_OPTIONS
from benchmarks.generator.arrivals import Arrivals
from benchmarks.generator.run import LoadError, run_load
from benchmarks.generator.spec import LoadSpec
from benchmarks.generator.summary import Summary, summarise
from benchmarks.generator.workload import Workload
from benchmarks.measures import Bar, Measure
from benchmarks.payloads import PROMPT_VOCABULARY
from benchmarks.plots import ratios
from benchmarks.processes import (
    Cores,
    ServerError,
    ServerProcess,
    choose_cores,
    pinned,
    python_module,
    start,
)
from benchmarks.results import Column, Report, Table, add_common_options, first_line, terminal
from benchmarks.rounds import Watch
from benchmarks.tap_setup import LOSSES, TAPS, account_fault, consuming, write_config

PROMPT_TOKENS, OUTPUT_TOKENS = 2048, 16
ROUNDS, QUICK_ROUNDS = 5, 1
SECONDS, QUICK_SECONDS = 20.0, 2.0
RATE = 200.0

STOPPED_TOPIC, OTHER_TOPIC = (tap["topic"] for tap in TAPS)
#: Far below what a round sends, so that a stopped reader loses some; the system's buffers hold
#: some megabytes beside it.
CAPACITY = 256
#: More than a round sends.
ROOM_FOR_ALL = 1 << 16

READ, STOPPED, FILLED, ROOMY = "reads", "stopped", "stopped, replay buffer", "stopped, room for all"
#: What the stopped tap is configured with.
WORKERS: Mapping[str, Mapping[str, Any]] = {
    READ: {"capacity": CAPACITY},
    STOPPED: {"capacity": CAPACITY},
    FILLED: {"capacity": CAPACITY, "replay_buffer": ROOM_FOR_ALL},
    ROOMY: {"capacity": ROOM_FOR_ALL},
}
#: Of the others a short round says little: what a replay buffer allocates once would be most of it.
QUICK_WORKERS = (READ, STOPPED)

BAR_TTFT, BAR_TTFT_MS, BAR_CPU, BAR_RSS_MB = 1.10, 0.5, 1.15, 32.0
#: Two heartbeats and what it takes until no record has come for a while.
KNOWN_SECONDS = 3.0


@attrs.frozen
class Plan:
    """How much and how often."""

    rounds: int
    seconds: float
    rate: float


@attrs.frozen
class Played:
    """One round of one worker."""

    summary: Summary
    cpu_us: float
    foreign_share: float
    grown_bytes: int
    reports: Mapping[str, Mapping[str, Any]]
    """What the readers said in the end, by topic."""


def play(name: str, server: ServerProcess, folder: Path, plan: Plan, cores: Cores) -> Played:
    """Play a round with readers of its own.  Raises LoadError, ServerError."""
    spec = LoadSpec(
        target=f"grpc://{server.address}",
        workload=Workload(isl=str(PROMPT_TOKENS), osl=str(OUTPUT_TOKENS)),
        arrivals=Arrivals(rate=plan.rate),
        seconds=plan.seconds,
        vocab_size=PROMPT_VOCABULARY,
        run=f"stalled-{os.urandom(4).hex()}",
    )
    with (
        consuming(folder, STOPPED_TOPIC, cores.client) as stopped,
        consuming(folder, OTHER_TOPIC, cores.client) as other,
    ):
        before = server.rss_bytes()
        if name != READ:
            os.kill(stopped.pid, signal.SIGSTOP)
        try:
            watch = Watch(server, cores.server)
            summary = summarise(run_load(spec, watch=watch))
            grown = server.rss_bytes() - before
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
        time.sleep(KNOWN_SECONDS)
        reports = {each.topic: each.end() for each in (stopped, other)}
    cpu_us = watch.cpu_s / summary.sent * 1e6
    return Played(summary, cpu_us, watch.foreign_share, grown, reports)


def main(argv: list[str]) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks stalled", description=__doc__)
    add_common_options(parser)
    parser.add_argument("--rounds", type=int, help="rounds of each worker")
    parser.add_argument("--seconds", type=float, help="length of a round")
    parser.add_argument("--rate", type=float, default=RATE, help="requests a second")
    options = parser.parse_args(argv)
    plan = Plan(
        rounds=options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS),
        seconds=options.seconds or (QUICK_SECONDS if options.quick else SECONDS),
        rate=options.rate,
    )
    console, cores = terminal(), choose_cores()
    report = Report(
        "stalled",
        first_line(__doc__),
        settings={**attrs.asdict(plan), "capacity": CAPACITY, **cores.as_settings()},
    )
    names = list(QUICK_WORKERS if options.quick else WORKERS)
    played: dict[str, list[Played]] = {name: [] for name in names}
    try:
        with (
            tempfile.TemporaryDirectory(prefix="replay-benchmark-") as root,
            contextlib.ExitStack() as servers,
            pinned(cores.client),
            console.status("starting") as status,
        ):
            running = {}
            for name in names:
                folder = Path(root) / name.replace(" ", "-")
                folder.mkdir()
                taps = [{**TAPS[0], **WORKERS[name]}, TAPS[1]]
                command = python_module(
                    "replay", "serve", *WORKER_OPTIONS, f"--config={write_config(folder, taps)}"
                )
                server = servers.enter_context(start(name, command, cores.server))
                running[name] = (server, folder)
                # What a worker allocates once, and the replay buffer itself, belong to no round.
                if not options.quick:
                    play(READ, server, folder, plan, cores)
            for number in range(plan.rounds):
                shift = number % len(names)
                for name in [*names[shift:], *names[:shift]]:
                    status.update(f"round {number + 1} of {plan.rounds}: {name}")
                    played[name].append(play(name, *running[name], plan, cores))
    except (LoadError, ServerError, OSError) as error:
        console.print(f"cannot measure: {error}", style="red", highlight=False, markup=False)
        return 1
    _fill(report, played)
    return report.finish(console, options.json, options.html)


def _fill(report: Report, played: Mapping[str, list[Played]]) -> None:
    table = Table(
        f"{PROMPT_TOKENS} prompt tokens, {OUTPUT_TOKENS} output tokens, an open loop; times in ms, "
        "CPU of a request",
        [
            Column("worker", "the reader"),
            Column("p50", "TTFT p50", 2, spread=True),
            Column("p99", "p99", 2),
            Column("cpu_us", "CPU µs", 1, spread=True),
            Column("grown_mb", "RSS +MB", 1),
            Column("sent", "sent", 0),
            Column("records", "records", 0),
            Column("lost", "lost", 0),
            Column("recovered", "filled", 0),
        ],
    )
    p50 = {name: _of(rounds, lambda one: _p(one, 0.5)) for name, rounds in played.items()}
    cpu = {name: _of(rounds, lambda one: one.cpu_us) for name, rounds in played.items()}
    grown = {name: _of(rounds, lambda one: one.grown_bytes) for name, rounds in played.items()}
    for name, rounds in played.items():
        report.note_noise(_of(rounds, lambda one: one.foreign_share).median)
        said = [one.reports[STOPPED_TOPIC] for one in rounds]
        table.rows.append(
            {
                "worker": name,
                "p50": p50[name],
                "p99": _of(rounds, lambda one: _p(one, 0.99)),
                "cpu_us": cpu[name],
                "grown_mb": grown[name].scaled(1e-6),
                "sent": sum(one.summary.sent for one in rounds),
                "records": sum(each["records"] for each in said),
                "lost": sum(each.get(key) or 0 for each in said for key in LOSSES),
                "recovered": sum(each["recovered"] for each in said),
            }
        )
        for one in rounds:
            report.wrong_answers += faults(name, one)
    report.tables.append(table)
    shown = {}
    for name in (name for name in (STOPPED, FILLED) if name in played):
        slower = Measure(
            tuple(
                (mine - BAR_TTFT_MS) / its
                for mine, its in zip(p50[name].rounds, p50[READ].rounds, strict=True)
            )
        )
        dearer = cpu[name].over(cpu[READ])
        report.bars += [
            Bar(f"{name}: TTFT p50 less 0.5 ms / reading", slower.median, at_most=BAR_TTFT),
            Bar(f"{name}: CPU / reading", dearer.median, at_most=BAR_CPU),
        ]
        shown[f"{name}: CPU"], shown[f"{name}: TTFT p50"] = (
            dearer.rounds,
            p50[name].over(p50[READ]).rounds,
        )
    record_mb = (3 * PROMPT_TOKENS + 1024) / 1e6
    report.bars.append(
        Bar(
            f"{STOPPED}: RSS grown MB, the worst round",
            grown[STOPPED].scaled(1e-6).high,
            at_most=CAPACITY * record_mb + BAR_RSS_MB,
        )
    )
    report.plots.append(ratios("Stopped / reading", shown, caption="Each round and the median"))


def _of(rounds: list[Played], value: Any) -> Measure:
    return Measure(tuple(value(one) for one in rounds))


def _p(one: Played, share: float) -> float:
    return one.summary.latency_ms("ttft", share)


def faults(name: str, one: Played) -> list[str]:
    """Return what is wrong with a round: an answer, or an account that does not add up."""
    found = []
    summary = one.summary
    if summary.complete != summary.sent or summary.short:
        found.append(f"{name}: requests ended as {dict(summary.statuses)}, {summary.short} short")
    for topic, said in one.reports.items():
        may_lose = name == STOPPED and topic == STOPPED_TOPIC
        if fault := account_fault(said, summary.sent, may_lose=may_lose):
            found.append(f"{name}, {topic}: {fault}")
        elif not may_lose and said["tap_gaps"] + said["transport_gaps"]:
            found.append(f"{name}, {topic}: gaps")
    return found
