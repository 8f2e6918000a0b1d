"""One, two and four workers, in one process and in several: what a second core brings.

Each worker has its port and its own h2load, so the load grows with the workers.  Nothing is pinned:
workers and clients share the cores as they do in use.  Each token is sampled and encoded on its own
(a seed is set), so that a worker takes several times the CPU of its client.
"""

import argparse
import contextlib
import os
import resource
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs

from benchmarks import h2load
from benchmarks.client import Sampler
from benchmarks.contenders import WORKER
from benchmarks.measures import Bar, Measure
from benchmarks.payloads import GENERATE_PATH, Shape, Template
from benchmarks.plots import Plot, PlotKind, ratios
from benchmarks.processes import (
    ServerError,
    ServerProcess,
    choose_cores,
    core_busy_seconds,
    python_module,
    start,
)
from benchmarks.results import Column, Report, Table, add_common_options, first_line, terminal
from benchmarks.rounds import H2LOAD_REQUEST_ID, TRIAL_REQUESTS
from benchmarks.server import SEED, sampled_ids
from benchmarks.wire import WireError

SHAPE = Shape(512, 32)
WORKERS = (1, 2, 4)
CONNECTIONS, STREAMS = 2, 8
BAR = 1.5
#: The bar is about the workers only as long as a client takes less than this of a worker's CPU.
CLIENT_SHARE = 0.25

TOGETHER, APART = "one process", "several processes"


@attrs.frozen
class Layout:
    """So many workers, and how many processes they are in."""

    workers: int
    processes: int

    def __str__(self) -> str:
        """Return how a table names it."""
        if self.workers == 1:
            return "1 worker"
        plural = "es" if self.processes > 1 else ""
        return f"{self.workers} workers, {self.processes} process{plural}"

    def command(self) -> list[str]:
        """Return the command that starts it."""
        return python_module(
            *("replay", "serve", "--host=127.0.0.1", "--grpc-base-port=0", "--log-format=json"),
            *(f"--grpc-count={self.workers}", f"--processes={self.processes}"),
        )


def layouts(most: int) -> list[Layout]:
    """Return what is measured, up to *most* workers."""
    counts = [count for count in WORKERS if count <= most]
    return [Layout(1, 1)] + [
        Layout(count, processes) for count in counts[1:] for processes in (1, count)
    ]


@attrs.frozen
class Played:
    """One round of one layout."""

    rate: float
    server_us: float
    """CPU of all processes for a request."""
    client_us: float
    foreign_share: float
    """Share of all cores that other processes had."""


class Load:
    """One h2load for each port of a layout."""

    def __init__(self, server: ServerProcess, template: Template, body: Path) -> None:
        """Ask the workers of *server* with what *template* is, which is written to *body*."""
        self._server, self._template = server, template
        self._body = body
        body.write_bytes(template.request(H2LOAD_REQUEST_ID.ljust(template.id_bytes, b"-")))
        self.faults: list[str] = []

    def check(self) -> None:
        """Ask each port once and note what is not byte for byte what was expected."""
        for address in self._server.addresses:
            with Sampler(address, self._template) as sampler:
                sampler.ask()
                self.faults += [f"{address}: {fault}" for fault in sampler.tally.faults]

    def play(self, requests: int) -> Played:
        """Send *requests* to each port at once.  Raises H2loadError."""
        addresses = self._server.addresses
        cpu, client = self._server.family_cpu_seconds(), _children_cpu()
        cores = os.sched_getaffinity(0)
        busy = sum(map(core_busy_seconds, cores))
        began = time.perf_counter()
        with ThreadPoolExecutor(len(addresses)) as clients:
            outcomes = list(clients.map(lambda each: self._ask(each, requests), addresses))
        seconds = time.perf_counter() - began
        self._judge(outcomes, requests)
        total = requests * len(addresses)
        cpu = self._server.family_cpu_seconds() - cpu
        client = _children_cpu() - client
        busy = sum(map(core_busy_seconds, cores)) - busy
        return Played(
            rate=total / seconds,
            server_us=cpu / total * 1e6,
            client_us=client / total * 1e6,
            foreign_share=max(0.0, busy - cpu - client) / seconds / len(cores),
        )

    def _ask(self, address: str, requests: int) -> h2load.Outcome:
        return h2load.run(
            h2load.Load(
                url=f"http://{address}{GENERATE_PATH}",
                body=self._body,
                requests=requests,
                connections=CONNECTIONS,
                streams=STREAMS,
                core=None,
            )
        )

    def _judge(self, outcomes: Sequence[h2load.Outcome], requests: int) -> None:
        wanted = requests * self._template.answer_bytes
        for outcome in outcomes:
            if (outcome.succeeded, outcome.data_bytes) != (requests, wanted):
                self.faults.append(
                    f"{outcome.succeeded} of {requests} requests, {outcome.data_bytes} bytes of "
                    f"{wanted}"
                )


def _children_cpu() -> float:
    """Return the CPU of the clients that have ended; the servers have not."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(argv: list[str]) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks scale", description=__doc__)
    add_common_options(parser)
    parser.add_argument("--rounds", type=int, help="rounds of each layout")
    parser.add_argument("--seconds", type=float, help="length of a round")
    parser.add_argument("--most", type=int, default=4, choices=WORKERS[1:], help="workers")
    options = parser.parse_args(argv)
    rounds = options.rounds or (3 if options.quick else 5)
    seconds = options.seconds or (0.7 if options.quick else 2.0)
    console, cores = terminal(), choose_cores()
    report = Report("scale", first_line(__doc__), settings={"rounds": rounds, "seconds": seconds})
    wanted = layouts(options.most)
    played: dict[Layout, list[Played]] = {layout: [] for layout in wanted}
    try:
        h2load.version()
        with (
            tempfile.TemporaryDirectory(prefix="replay-benchmark-") as folder,
            contextlib.ExitStack() as servers,
            console.status("starting") as status,
        ):
            loads: dict[Layout, Load] = {}
            template: Template | None = None
            for layout in wanted:
                server = servers.enter_context(start(WORKER, layout.command(), None))
                if template is None:
                    ids = sampled_ids(server.address, Template(SHAPE, seed=SEED))
                    template = Template(SHAPE, seed=SEED, ids=ids)
                loads[layout] = Load(server, template, Path(folder) / "body")
            sizes = {layout: _fill(load, layout, seconds) for layout, load in loads.items()}
            for number in range(rounds):
                shift = number % len(wanted)
                for layout in [*wanted[shift:], *wanted[:shift]]:
                    status.update(f"round {number + 1} of {rounds}: {layout}")
                    played[layout].append(loads[layout].play(sizes[layout]))
            for load in loads.values():
                load.check()
    except (h2load.H2loadError, ServerError, WireError, OSError) as error:
        console.print(f"cannot measure: {error}", style="red", highlight=False, markup=False)
        return 1
    for layout, load in loads.items():
        report.wrong_answers += [f"{layout}: {fault}" for fault in load.faults]
    _report(report, played, is_one_core=cores.shared)
    return report.finish(console, options.json, options.html)


def _fill(load: Load, layout: Layout, seconds: float) -> int:
    """Return how many requests for each port take about *seconds*, after trials that warm up."""
    load.check()
    requests = TRIAL_REQUESTS
    for share in (0.25, 1.0):
        rate = load.play(requests).rate / layout.workers
        requests = max(TRIAL_REQUESTS, int(seconds * share * rate))
    return requests


def _report(report: Report, played: dict[Layout, list[Played]], *, is_one_core: bool) -> None:
    table = Table(
        f"Generate {SHAPE}, each token sampled, {CONNECTIONS} connections of {STREAMS} streams to "
        "each worker",
        [
            Column("layout", "layout"),
            Column("rate", "requests/s", 0, spread=True),
            Column("times", "/ 1 worker", 2, spread=True),
            Column("server_us", "CPU µs/request", 1, spread=True),
            Column("client_us", "h2load µs", 1),
            Column("client_share", "h2load / worker", 2),
        ],
    )
    rates = {
        layout: Measure(tuple(one.rate for one in rounds)) for layout, rounds in played.items()
    }
    alone = rates[Layout(1, 1)]
    gains: dict[Layout, Measure] = {}
    shares: dict[Layout, float] = {}
    for layout, rounds in played.items():
        report.note_noise(Measure(tuple(one.foreign_share for one in rounds)).median)
        server = Measure(tuple(one.server_us for one in rounds))
        client = Measure(tuple(one.client_us for one in rounds))
        gains[layout], shares[layout] = rates[layout].over(alone), client.over(server).median
        table.rows.append(
            {
                "layout": str(layout),
                "rate": rates[layout],
                "times": gains[layout],
                "server_us": server,
                "client_us": client,
                "client_share": shares[layout],
            }
        )
    report.tables.append(table)
    pair = Layout(2, 2)
    if is_one_core:
        report.limits.append("one core only: a second process cannot bring anything")
    elif shares[pair] >= CLIENT_SHARE:
        report.limits.append(
            f"h2load took {shares[pair]:.0%} of a worker's CPU, more than {CLIENT_SHARE:.0%}: what "
            "a second process brings cannot be concluded"
        )
    else:
        report.bars.append(Bar(f"{pair} / 1 worker", gains[pair].median, at_least=BAR))
    report.plots += [
        ratios(
            "Requests a second, / 1 worker",
            {str(layout): gain.rounds for layout, gain in gains.items()},
            caption="Each round and the median",
        ),
        Plot(
            kind=PlotKind.LINES,
            title="Throughput against workers",
            caption="The median of the rounds",
            series={
                name: [
                    (layout.workers, rates[layout].median)
                    for layout in rates
                    if layout.workers == 1 or (layout.processes == 1) == (name == TOGETHER)
                ]
                for name in (TOGETHER, APART)
            },
            x_label="workers",
            y_label="requests/s",
        ),
    ]
