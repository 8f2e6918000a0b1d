"""Load for a gRPC worker or an OpenAI endpoint, in open and closed loops.

A closed loop (--concurrency) sends the next request when one has ended; an open loop (--rate) sends
at times that were fixed before, whatever the answers do, and shows how late each request left
beside a process that only sleeps.  A run in which the client was the limit is called client-bound,
wherever one of its latencies is shown.
"""

import argparse
import contextlib
import os
import shlex
from collections.abc import Iterator

import attrs
from rich.console import Console

from benchmarks.contenders import WORKER, WORKER_OPTIONS
from benchmarks.generator.arrivals import Arrivals, Pace
from benchmarks.generator.lengths import FORMS, read_lengths
from benchmarks.generator.run import LoadError, run_load
from benchmarks.generator.sender import UNFINISHED
from benchmarks.generator.spec import LoadSpec, settings_of
from benchmarks.generator.summary import Summary, summarise
from benchmarks.generator.tables import (
    endings_table,
    goodput_table,
    latency_table,
    load_plots,
    schedule_bars,
    schedule_table,
    sweep_plots,
    throughput_table,
)
from benchmarks.generator.targets import API_KEY, is_openai
from benchmarks.generator.workload import Prompts, Workload
from benchmarks.measures import Measure
from benchmarks.processes import (
    ServerError,
    ServerProcess,
    choose_cores,
    python_module,
    start,
)
from benchmarks.results import Report, add_common_options, first_line, terminal
from benchmarks.rounds import Watch
from replay.player.goodput import ObjectiveError, read_objectives

SECONDS, QUICK_SECONDS = 10.0, 3.0
WARM_UP_SECONDS, QUICK_WARM_UP_SECONDS = 2.0, 1.0
#: How fast a worker of our own answers: about as an engine does.
WORKER_PACE = "--gen-ms 20 --token-ms 5"
#: What is sent when nothing is said: far below what a core can answer.
DEFAULT_RATE = 200.0


@attrs.frozen
class Point:
    """One load of a sweep."""

    name: str
    load: float
    spec: LoadSpec


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks load",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add_common_options(parser)
    add(
        "--target",
        metavar="URL",
        help="grpc://HOST:PORT or http://HOST:PORT/v1 (with the key in "
        f"{API_KEY}); without it a worker is started for the run",
    )
    add(
        "--worker-options",
        default=WORKER_PACE,
        metavar="TEXT",
        help=f"flags of that worker (usually {WORKER_PACE!r})",
    )
    loop = parser.add_argument_group("the loop; lists are a sweep, such as 1,8,64")
    loop.add_argument("--concurrency", type=_numbers, metavar="N[,N…]", help="closed loop")
    loop.add_argument("--rate", type=_numbers, metavar="R[,R…]", help="open loop, requests/s")
    loop.add_argument("--arrivals", type=Pace, choices=list(Pace), default=Pace.CONSTANT)
    loop.add_argument("--shape", type=float, default=0.25, help="of gamma: below 1 bursts")
    loop.add_argument("--seconds", type=float, help="how long to send, warm-up included")
    loop.add_argument("--requests", type=int, metavar="N", help="at most so many")
    loop.add_argument("--warm-up", type=float, metavar="S", help="left out of the numbers")
    loop.add_argument("--rounds", type=int, default=1, help="of each load, taking turns")
    loop.add_argument("--processes", type=int, default=1, help="that share the load")
    loop.add_argument("--connections", type=int, default=1, help="of each process (gRPC)")
    loop.add_argument("--drain", type=float, default=10.0, metavar="S", help="for the last answers")
    what = parser.add_argument_group("the requests")
    what.add_argument("--isl", default="512", metavar="LENGTHS", help=f"prompt: {FORMS}")
    what.add_argument("--osl", default="32", metavar="LENGTHS", help="answer, likewise")
    what.add_argument(
        "--prompts",
        type=Prompts,
        choices=list(Prompts),
        help="ids for gRPC, else text; isl counts words then",
    )
    what.add_argument("--prefix-tokens", type=int, default=0, metavar="N", help="shared beginning")
    what.add_argument("--prefixes", type=int, default=1, metavar="N", help="different beginnings")
    what.add_argument("--cancel-rate", type=float, default=0.0, metavar="SHARE", help="0 to 1")
    what.add_argument("--cancel-delay", type=float, default=0.0, metavar="S", help="after sending")
    what.add_argument("--deadline", type=float, metavar="S", help="of each request")
    what.add_argument("--no-stream", action="store_true", help="answers in one piece")
    what.add_argument("--model", help="of an OpenAI endpoint; else its first")
    what.add_argument("--seed", type=int, default=0)
    add("--goodput", metavar="TEXT", help="objectives such as ttft=200ms,tpot=50ms,e2e=5s")
    return parser


def _points(options: argparse.Namespace) -> list[Point]:
    """Return the loads of the sweep; the target is filled in later."""
    prompts = options.prompts
    if prompts is None:
        prompts = Prompts.TEXT if is_openai(options.target or "") else Prompts.IDS
    workload = Workload(
        isl=options.isl,
        osl=options.osl,
        prompts=prompts,
        prefix_tokens=options.prefix_tokens,
        prefixes=options.prefixes,
        cancel_share=options.cancel_rate,
        cancel_delay_s=options.cancel_delay,
        stream=not options.no_stream,
        seed=options.seed,
    )
    seconds, warm_up = options.seconds, options.warm_up
    if seconds is None and options.requests is None:
        seconds = QUICK_SECONDS if options.quick else SECONDS
    if warm_up is None:
        usual = QUICK_WARM_UP_SECONDS if options.quick else WARM_UP_SECONDS
        warm_up = 0.0 if seconds is None else min(usual, seconds / 4)
    spec = LoadSpec(
        target=options.target or "",
        workload=workload,
        seconds=seconds,
        requests=options.requests,
        warm_up_s=warm_up,
        deadline_s=options.deadline,
        drain_s=options.drain,
        processes=options.processes,
        connections=options.connections,
        model=options.model,
    )
    points = [
        Point(f"{load:g} at once", load, attrs.evolve(spec, concurrency=int(load)))
        for load in options.concurrency or ()
    ]
    rates = options.rate or ([] if points else [DEFAULT_RATE])
    for rate in rates:
        arrivals = Arrivals(
            rate=rate, pace=options.arrivals, shape=options.shape, seed=options.seed
        )
        points.append(Point(f"{rate:g}/s", rate, attrs.evolve(spec, arrivals=arrivals)))
    return points


def _problems(options: argparse.Namespace, points: list[Point]) -> list[str]:
    """Return what is wrong with the options, each as a line."""
    found = [problem for point in points for problem in point.spec.problems()]
    if options.concurrency and options.rate:
        found.append("give one of --concurrency and --rate")
    if options.rounds < 1:
        found.append("--rounds must be at least 1")
    for name in ("isl", "osl"):
        try:
            read_lengths(getattr(options, name))
        except ValueError as error:
            found.append(f"--{name} {error}")
    target = options.target
    if target is not None and not target.startswith(("grpc://", "http://", "https://")):
        found.append(f"--target must begin with grpc://, http:// or https://, is {target!r}")
    if target is not None and not is_openai(target) and options.prompts not in (None, Prompts.IDS):
        found.append("a gRPC worker takes --prompts ids only")
    return list(dict.fromkeys(found))


@contextlib.contextmanager
def _target(options: argparse.Namespace) -> Iterator[tuple[str, ServerProcess | None]]:
    """Give what to send to; a worker of our own runs until the block ends."""
    if options.target is not None:
        yield options.target, None
        return
    flags = shlex.split(options.worker_options)
    command = python_module("replay", "serve", *WORKER_OPTIONS, *flags)
    with start(WORKER, command, choose_cores().server) as server:
        yield f"grpc://{server.address}", server


def _play(
    points: list[Point],
    target: str,
    server: ServerProcess | None,
    options: argparse.Namespace,
    report: Report,
    console: Console,
) -> dict[str, list[Summary]]:
    """Play the rounds; the loads take turns.  Raises LoadError."""
    objectives = read_objectives(options.goodput or "")
    played: dict[str, list[Summary]] = {point.name: [] for point in points}
    foreign = []
    with console.status("starting") as status:
        for number in range(options.rounds):
            for point in points:
                run = f"load-{os.urandom(4).hex()}"
                spec = attrs.evolve(point.spec, target=target, run=run)
                head = f"{point.name}, round {number + 1} of {options.rounds}"
                watch = None if server is None else Watch(server, choose_cores().server)
                found = run_load(
                    spec,
                    watch=watch,
                    on_progress=lambda counts, head=head: status.update(  # type: ignore[misc]
                        f"{head}: {counts.sent:,} sent, {counts.ended:,} ended, "
                        f"{counts.failed:,} failed"
                    ),
                )
                if watch is not None:
                    foreign.append(watch.foreign_share)
                played[point.name].append(summarise(found, objectives=objectives))
    if foreign:
        report.note_noise(Measure(tuple(foreign)).median)
    return played


def _fill(
    report: Report,
    points: list[Point],
    played: dict[str, list[Summary]],
    options: argparse.Namespace,
) -> None:
    """Write down what was played."""
    report.tables += [throughput_table(played), latency_table(played)]
    if (schedule := schedule_table(played)) is not None:
        report.tables.append(schedule)
    if options.goodput:
        report.tables.append(goodput_table(played, read_objectives(options.goodput)))
    report.tables.append(endings_table(played))
    report.bars += schedule_bars(played)
    report.plots += load_plots(played)
    if len(points) > 1:
        load = "requests at once" if options.concurrency else "requests/s asked"
        report.plots += sweep_plots({each.load: played[each.name] for each in points}, load)
    for name, rounds in played.items():
        if bound := [one for one in rounds if one.is_client_bound]:
            report.limits.append(
                f"{name}, client-bound in {len(bound)} of {len(rounds)} rounds: "
                f"{'; '.join(bound[0].bounds)}"
            )
        if unfinished := sum(one.statuses.get(UNFINISHED, 0) for one in rounds):
            report.remarks.append(
                f"{name}: {unfinished} answers had not ended {options.drain:g} s after the last "
                "request was sent"
            )
        if short := sum(one.short for one in rounds):
            text = f"{name}: {short} complete answers have another length than was asked for"
            if options.target is None:
                report.wrong_answers.append(text)
            else:
                report.remarks.append(text)
    if is_openai(options.target or ""):
        report.limits.append(
            "an event of an OpenAI stream counts as a token event; how many tokens it holds is "
            "known only of the whole answer"
        )


def main(argv: list[str]) -> int:
    """Run the load; return the exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    points = _points(options)
    problems = _problems(options, points)
    try:
        read_objectives(options.goodput or "")
    except ObjectiveError as error:
        problems.append(f"--goodput: {error}")
    if problems:
        parser.error("; ".join(problems))
    console = terminal()
    settings = settings_of(attrs.evolve(points[0].spec, arrivals=None, concurrency=None))
    settings["loads"] = [point.name for point in points]
    report = Report("load", first_line(__doc__), settings={**settings, "rounds": options.rounds})
    report.settings["target"] = options.target or f"own worker {options.worker_options}".strip()
    if not options.concurrency:
        report.settings["arrivals"] = options.arrivals.value
    try:
        with _target(options) as (target, server):
            played = _play(points, target, server, options, report, console)
    except (LoadError, ServerError, OSError) as error:
        console.print(f"cannot measure: {error}", style="red", highlight=False, markup=False)
        return 1
    _fill(report, points, played, options)
    return report.finish(console, options.json, options.html)
