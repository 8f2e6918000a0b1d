"""A storm of cancels: what a request costs that its client takes back, and what it leaves behind.

Requests come at a steady rate and are taken back in the middle of their answer.  The control sends
the same requests at the same rate and asks only for as many tokens as the others get, so that each
server is held against itself; grpc.aio is the peer.
"""

import argparse
import contextlib
import os
import tempfile
from pathlib import Path

import attrs

from benchmarks.contenders import GRPC_AIO, WORKER, Pace, command
from benchmarks.generator.arrivals import Arrivals
from benchmarks.generator.run import LoadError, run_load
from benchmarks.generator.spec import LoadSpec
from benchmarks.generator.summary import Summary, summarise
from benchmarks.generator.workload import Workload
from benchmarks.measures import Measure
from benchmarks.payloads import PROMPT_VOCABULARY, Shape, Template
from benchmarks.plots import ratios
from benchmarks.processes import (
    Cores,
    ServerError,
    ServerProcess,
    choose_cores,
    pinned,
    start,
)
from benchmarks.results import Column, Report, Table, add_common_options, first_line, terminal
from benchmarks.rounds import Contender, Watch, check_answers
from benchmarks.vitals import observed_worker
from benchmarks.wire import WireError

TOKEN_MS = 5.0
PROMPT_TOKENS = 512
#: An answer would take 10 s; it is taken back after a tenth of a second, when 20 tokens are out.
STORM_TOKENS, CANCEL_SECONDS = 2000, 0.1
WHOLE_TOKENS = round(CANCEL_SECONDS * 1000 / TOKEN_MS)

STORM, WHOLE = "taken back", "answered"


@attrs.frozen
class Plan:
    """How much and how often."""

    rounds: int
    seconds: float
    rate: float


FULL = Plan(rounds=5, seconds=6.0, rate=300.0)
QUICK = Plan(rounds=2, seconds=1.0, rate=300.0)


@attrs.frozen
class Played:
    """One round of one server."""

    summary: Summary
    cpu_us: float
    """Of the server, for each request."""
    foreign_share: float


def play(server: ServerProcess, kind: str, plan: Plan, cores: Cores) -> Played:
    """Play a round.  Raises LoadError."""
    workload = Workload(isl=str(PROMPT_TOKENS), osl=str(WHOLE_TOKENS))
    if kind == STORM:
        workload = Workload(
            isl=str(PROMPT_TOKENS),
            osl=str(STORM_TOKENS),
            cancel_share=1.0,
            cancel_delay_s=CANCEL_SECONDS,
        )
    spec = LoadSpec(
        target=f"grpc://{server.address}",
        workload=workload,
        arrivals=Arrivals(rate=plan.rate),
        seconds=plan.seconds,
        vocab_size=PROMPT_VOCABULARY,
        run=f"cancel-{os.urandom(4).hex()}",
    )
    watch = Watch(server, cores.server)
    summary = summarise(run_load(spec, watch=watch))
    return Played(summary, watch.cpu_s / summary.sent * 1e6, watch.foreign_share)


def main(argv: list[str]) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks cancel", description=__doc__)
    add_common_options(parser)
    parser.add_argument("--rounds", type=int, help="rounds of each")
    parser.add_argument("--seconds", type=float, help="length of a round")
    parser.add_argument("--rate", type=float, help="requests a second")
    options = parser.parse_args(argv)
    plan = QUICK if options.quick else FULL
    plan = attrs.evolve(
        plan,
        rounds=options.rounds or plan.rounds,
        seconds=options.seconds or plan.seconds,
        rate=options.rate or plan.rate,
    )
    console, cores = terminal(), choose_cores()
    report = Report(
        "cancel",
        first_line(__doc__),
        settings={**attrs.asdict(plan), "token_ms": TOKEN_MS, "cancel_after_s": CANCEL_SECONDS},
    )
    played: dict[tuple[str, str], list[Played]] = {}
    try:
        with (
            tempfile.TemporaryDirectory(prefix="replay-benchmark-") as folder,
            contextlib.ExitStack() as servers,
            console.status("starting") as status,
        ):
            pace = Pace(token_ms=TOKEN_MS)
            worker = servers.enter_context(
                observed_worker(Path(folder), cores.server, *pace.options())
            )
            peer = servers.enter_context(start(GRPC_AIO, command(GRPC_AIO, pace), cores.server))
            entrants = {WORKER: worker.server, GRPC_AIO: peer}
            for server in entrants.values():
                for kind in (STORM, WHOLE):  # what a server allocates once belongs to no round
                    play(server, kind, attrs.evolve(plan, seconds=0.3), cores)
            before = worker.settled(worker.vitals())
            for number in range(plan.rounds):
                for kind in (STORM, WHOLE):
                    for name, server in entrants.items():
                        status.update(f"round {number + 1} of {plan.rounds}: {name}, {kind}")
                        one = play(server, kind, plan, cores)
                        played.setdefault((name, kind), []).append(one)
            after = worker.settled(before)
            contender = Contender(WORKER, worker.server, Template(Shape(16, 4), may_merge=True))
            with pinned(cores.client):
                check_answers(contender)
    except (LoadError, ServerError, WireError, OSError) as error:
        console.print(f"cannot measure: {error}", style="red", highlight=False, markup=False)
        return 1
    report.wrong_answers += contender.faults
    _fill(report, played)
    held = Table(
        "The worker before and after the storms",
        [
            Column("when", "when"),
            Column("tasks", "tasks", 0),
            Column("descriptors", "descriptors", 0),
            Column("rss_mb", "RSS MB", 1),
        ],
    )
    for when, vitals in (("before", before), ("after", after)):
        held.rows.append({"when": when, **attrs.asdict(vitals), "rss_mb": vitals.rss_bytes / 1e6})
    report.tables.append(held)
    if after.tasks > before.tasks or after.descriptors > before.descriptors:
        report.wrong_answers.append(
            f"{after.tasks - before.tasks} tasks and {after.descriptors - before.descriptors} "
            "descriptors are left of requests that were taken back"
        )
    return report.finish(console, options.json, options.html)


def _fill(report: Report, played: dict[tuple[str, str], list[Played]]) -> None:
    table = Table(
        f"{PROMPT_TOKENS} prompt tokens, a token every {TOKEN_MS:g} ms; taken back after "
        f"{CANCEL_SECONDS:g} s, or {WHOLE_TOKENS} tokens and an end",
        [
            Column("server", "server"),
            Column("kind", "requests are"),
            Column("cpu_us", "CPU µs/request", 1, spread=True),
            Column("times", "/ answered", 2, spread=True),
            Column("peer", "grpc.aio / this", 2, spread=True),
            Column("tokens", "tokens/request", 1),
            Column("statuses", "ended as"),
        ],
    )
    costs = {key: Measure(tuple(one.cpu_us for one in rounds)) for key, rounds in played.items()}
    shown: dict[str, Measure] = {}
    for (name, kind), rounds in played.items():
        report.note_noise(Measure(tuple(one.foreign_share for one in rounds)).median)
        cost = costs[name, kind]
        statuses = dict.fromkeys(status for one in rounds for status in one.summary.statuses)
        tokens = Measure(
            tuple(one.summary.token_rate * one.summary.seconds / one.summary.sent for one in rounds)
        )
        table.rows.append(
            {
                "server": name,
                "kind": kind,
                "cpu_us": cost,
                "times": cost.over(costs[name, WHOLE]),
                "peer": costs[GRPC_AIO, kind].over(cost),
                "tokens": tokens,
                "statuses": ", ".join(statuses),
            }
        )
        wanted = "cancelled" if kind == STORM else "complete"
        if wrong := [status for status in statuses if status != wanted]:
            report.wrong_answers.append(f"{name}, {kind}: requests ended as {', '.join(wrong)}")
        if kind == STORM:
            shown[f"{name}: / answered"] = cost.over(costs[name, WHOLE])
    shown[f"{GRPC_AIO} / ours, {STORM}"] = costs[GRPC_AIO, STORM].over(costs[WORKER, STORM])
    report.tables.append(table)
    report.plots.append(
        ratios(
            "CPU ratios",
            {name: measure.rounds for name, measure in shown.items()},
            caption="Of a request that is taken back; each round and the median",
        )
    )
