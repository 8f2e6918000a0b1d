"""What an idle stream and an idle connection cost: memory, and CPU while nothing happens.

Each layout gets a fresh server.  All calls are open at once, wait, and are answered; every answer
is compared whole.
"""

import argparse
import resource
import time

import attrs

from benchmarks import contenders
from benchmarks.client import HeldCalls
from benchmarks.contenders import GRPC_AIO, WORKER, Pace
from benchmarks.measures import Measure
from benchmarks.payloads import Shape, Template
from benchmarks.processes import Cores, ServerError, choose_cores, pinned, start
from benchmarks.results import Column, Report, Table, add_common_options, first_line, terminal
from benchmarks.wire import WireError

SHAPE = Shape(512, 4)

#: Descriptors beyond the connections: standard streams, listeners, epoll and the like.
SPARE_DESCRIPTORS = 200


@attrs.frozen
class Layout:
    """How many connections are open, with how many calls each."""

    name: str
    connections: int
    streams_each: int

    @property
    def units(self) -> int:
        """What costs are divided by: the calls, or the connections when there are no calls."""
        return self.connections * (self.streams_each or 1)


def layouts(count: int) -> tuple[Layout, ...]:
    """Return what is measured, *count* calls or connections each."""
    return (
        Layout(f"{count} streams, 1 connection", 1, count),
        Layout(f"{count} connections, 1 stream each", count, 1),
        Layout(f"{count} connections, no streams", count, 0),
    )


@attrs.frozen
class Timing:
    """Moments of one measurement, in seconds after the calls were opened."""

    settle_s: float
    idle_s: float

    @property
    def gen_ms(self) -> float:
        """How long the server holds back its answers: until the idle time is over, and a bit."""
        return (self.settle_s + self.idle_s + 1.0) * 1000


@attrs.frozen
class Cost:
    """What one layout took on one server, for each unit of the layout."""

    rss_kib: float
    idle_cpu_us_per_s: float
    whole_cpu_us: float
    """From opening to the last answer."""
    kept_rss_kib: float
    """Memory that is still there when all connections are closed again."""
    served: int
    faults: list[str]


def measure(
    name: str, layout: Layout, timing: Timing, cores: Cores, worker_command: str | None
) -> Cost:
    """Start a server, hold *layout* open on it, and let it answer.

    Raises ServerError, WireError, OSError.
    """
    command = contenders.command(name, Pace(gen_ms=timing.gen_ms), worker_command=worker_command)
    template = Template(SHAPE)
    with start(name, command, cores.server) as server:
        # What a server allocates once belongs to no stream.
        with HeldCalls(server.address, template, connections=4, streams=8) as warm_up:
            warm_up.open()
            warm_up.finish()
        time.sleep(timing.settle_s)
        descriptors, before = server.descriptors(), server.rss_bytes()
        cpu = server.cpu_seconds()
        opened = time.monotonic()
        with HeldCalls(
            server.address,
            template,
            connections=layout.connections,
            streams=layout.streams_each,
        ) as held:
            held.open()
            held.idle(timing.settle_s)
            idle_cpu, idle_from = server.cpu_seconds(), time.monotonic()
            held.idle(timing.idle_s)
            idle_share = (server.cpu_seconds() - idle_cpu) / (time.monotonic() - idle_from)
            faults = list(warm_up.tally.faults)
            if held.tally.asked:
                faults.append(
                    f"answers came {time.monotonic() - opened:.1f} s after the first call, while "
                    "the server was to be idle"
                )
            during = server.rss_bytes()
            held.finish()
            whole_cpu = server.cpu_seconds() - cpu
        held_descriptors = server.descriptors()
        deadline = time.monotonic() + timing.settle_s * 10
        while held_descriptors > descriptors and time.monotonic() < deadline:
            time.sleep(timing.settle_s / 10)
            held_descriptors = server.descriptors()
        if held_descriptors > descriptors:
            faults.append(f"{held_descriptors - descriptors} descriptors are still open at the end")
        faults += held.tally.faults
        return Cost(
            rss_kib=(during - before) / 1024 / layout.units,
            idle_cpu_us_per_s=idle_share * 1e6 / layout.units,
            whole_cpu_us=whole_cpu * 1e6 / layout.units,
            kept_rss_kib=(server.rss_bytes() - before) / 1024 / layout.units,
            served=held.tally.right,
            faults=[f"{name}, {layout.name}: {fault}" for fault in faults],
        )


def allow_descriptors(count: int) -> None:
    """Raise the limit of open files, of this process and its children, when it is too low.

    Raises OSError when the machine does not allow so many.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + SPARE_DESCRIPTORS
    if soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise OSError(f"{wanted} open files are needed, this machine allows {hard}: see ulimit -Hn")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main(argv: list[str]) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks connections", description=__doc__)
    add_common_options(parser)
    parser.add_argument("--count", type=int, help="streams, and connections (usually 1000)")
    parser.add_argument("--rounds", type=int, help="fresh servers for each layout")
    parser.add_argument(
        "--worker", metavar="COMMAND", help="measure this server in place of our worker"
    )
    options = parser.parse_args(argv)
    rounds = options.rounds or (1 if options.quick else 3)
    count = options.count or (300 if options.quick else 1000)
    timing = Timing(settle_s=0.3, idle_s=0.7) if options.quick else Timing(settle_s=1.0, idle_s=2.0)
    console, cores = terminal(), choose_cores()
    report = Report(
        "connections",
        first_line(__doc__),
        settings={"rounds": rounds, "count": count, **attrs.asdict(timing)},
    )
    table = Table(
        "What stays open and waits, for each stream (each connection in the last layout)",
        [
            Column("layout", "layout"),
            Column("server", "server"),
            Column("rss_kib", "RSS KiB", 1, spread=True),
            Column("times", "grpc.aio / this", 1),
            Column("idle_us", "idle µs/s", 2, spread=True),
            Column("whole_us", "life µs", 1, spread=True),
            Column("kept_kib", "kept KiB", 1),
            Column("served", "right"),
        ],
    )
    report.tables.append(table)
    report.remarks.append(
        "idle: CPU a second while nothing happens; life: CPU from opening to the last answer; "
        "kept: memory that closing everything did not give back (allocators keep freed pages)"
    )
    try:
        allow_descriptors(count)
        with pinned(cores.client), console.status("starting") as status:
            for layout in layouts(count):
                costs: dict[str, list[Cost]] = {WORKER: [], GRPC_AIO: []}
                for number in range(rounds):
                    for name, of_server in costs.items():
                        status.update(f"{layout.name}, round {number + 1} of {rounds}: {name}")
                        of_server.append(measure(name, layout, timing, cores, options.worker))
                theirs = Measure(tuple(cost.rss_kib for cost in costs[GRPC_AIO]))
                for name, of_server in costs.items():
                    rss = Measure(tuple(cost.rss_kib for cost in of_server))
                    report.wrong_answers += [fault for cost in of_server for fault in cost.faults]
                    calls = layout.connections * layout.streams_each
                    right = min(cost.served for cost in of_server)
                    if right != calls:
                        report.wrong_answers.append(f"{name}, {layout.name}: {right} of {calls}")
                    table.rows.append(
                        {
                            "layout": layout.name,
                            "server": name,
                            "rss_kib": rss,
                            "times": theirs.over(rss),
                            "idle_us": Measure(tuple(cost.idle_cpu_us_per_s for cost in of_server)),
                            "whole_us": Measure(tuple(cost.whole_cpu_us for cost in of_server)),
                            "kept_kib": Measure(tuple(cost.kept_rss_kib for cost in of_server)),
                            "served": f"{right}/{calls}" if calls else "-",
                        }
                    )
    except (ServerError, WireError, OSError) as error:
        console.print(f"cannot measure: {error}", style="red", highlight=False, markup=False)
        return 1
    return report.finish(console, options.json, options.html)
