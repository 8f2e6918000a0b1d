"""What two taps cost: the worker without taps, with readers, and with readers that are stopped.

The three take turns under a closed loop.  The taps are those of Dynamo's demonstration; a stopped
reader is a `replay consume` under SIGSTOP.  What reading taps add is held against bare work: the
same records from the same bytes, sent at the same rate by msgpack and pyzmq alone (`tap_work`).
A canned answer leaves in one piece, so the time to its first token is that of the whole.
"""

import argparse
import contextlib
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import zmq

from benchmarks import h2load, tap_work
from benchmarks.contenders import WORKER_OPTIONS
from benchmarks.measures import Bar, Measure, percentile
from benchmarks.payloads import Shape, Template
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
from benchmarks.rounds import (
    H2LOAD_REQUEST_ID,
    Contender,
    Round,
    Streams,
    cpu_per_request_us,
    foreign_share,
    play_h2load,
    requests_per_second,
)
from benchmarks.tap_setup import (
    LOSSES,
    TAPS,
    ConsumerProcess,
    account_fault,
    consuming,
    write_config,
)
from benchmarks.wire import WireError

SHAPE = Shape(2048, 16)
STREAMS = Streams(connections=4, streams_each=16)
ROUNDS, QUICK_ROUNDS = 7, 2
REQUESTS, QUICK_REQUESTS = 3000, 800

NONE, READ, STOPPED, BARE = "no taps", "two taps, read", "two taps, stopped", "bare work"
BAR_ADDED, BAR_STOPPED = 1.5, 1.15

#: Two heartbeats and more: a reader that goes on has taken what was waiting, and knows its loss.
RECOVERY_SECONDS = 2.5
#: `play_h2load` asks once before its requests and once after them.
CHECKS_OF_A_PLAY = 2
#: A round of the bare work that takes longer is stuck.
ROUND_SECONDS = 60.0


@attrs.frozen
class Entrant:
    """A worker and those who read its taps."""

    contender: Contender
    consumers: Sequence[ConsumerProcess] = ()

    @contextlib.contextmanager
    def stopping(self) -> Iterator[None]:
        """Stop the readers while the block lasts, and let them catch up afterwards."""
        for each in self.consumers:
            os.kill(each.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for each in self.consumers:
                os.kill(each.pid, signal.SIGCONT)
            time.sleep(RECOVERY_SECONDS)


class BareWork:
    """The process of `tap_work`, with a reader for each topic; `bare_work` starts it."""

    def __init__(self, server: ServerProcess, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Connect to *server*."""
        self._socket = context.socket(zmq.REQ)
        self._socket.linger = 0
        self._socket.rcvtimeo = round(ROUND_SECONDS * 1000)
        self._socket.connect(f"tcp://{server.address}")

    def ask(self, order: object) -> Any:
        """Give an order and wait for what it tells.  Raises ServerError."""
        self._socket.send_json(order)
        try:
            return self._socket.recv_json()
        except zmq.Again:
            raise ServerError("the bare work is stuck") from None

    def play(self, requests: int, rate: float) -> float:
        """Work at *rate* requests a second; return the CPU microseconds of each."""
        told = self.ask({"requests": requests, "rate": rate})
        return float(told["cpu_s"]) / requests * 1e6


@contextlib.contextmanager
def bare_work(folder: Path, template: Template, cores: Cores) -> Iterator[BareWork]:
    """Run the bare work on the server's core, and its readers on the client's."""
    path = folder / "request"
    path.write_bytes(template.request(H2LOAD_REQUEST_ID.ljust(template.id_bytes, b"-"))[5:])
    command = python_module("benchmarks.tap_work", str(path))
    spawn = multiprocessing.get_context("spawn")
    with zmq.Context() as context, start(BARE, command, cores.server) as server:
        work = BareWork(server, context)
        endpoints = work.ask(tap_work.ENDPOINTS)
        readers = [
            spawn.Process(target=tap_work.read, args=(topic, endpoint, cores.client), daemon=True)
            for topic, endpoint in zip(tap_work.TOPICS, endpoints, strict=True)
        ]
        try:
            for reader in readers:
                reader.start()
            work.play(1000, 1000.0)  # warms up while the readers connect
            yield work
        finally:
            for reader in readers:
                reader.kill()
                reader.join()
            work._socket.close()


@attrs.define
class Played:
    """The rounds, and the memory of each worker before and after its own."""

    rounds: dict[str, list[Round]] = attrs.field(factory=lambda: {NONE: [], READ: [], STOPPED: []})
    bare_us: list[float] = attrs.field(factory=list)
    rss: dict[str, list[int]] = attrs.field(factory=dict)
    sent: dict[str, int] = attrs.field(factory=lambda: {NONE: 0, READ: 0, STOPPED: 0})
    """Requests of all plays, those before the rounds and around each included."""


def entrants(stack: contextlib.ExitStack, folder: Path, cores: Cores) -> dict[str, Entrant]:
    """Start the workers and their readers, which end with *stack*."""
    template = Template(SHAPE)
    made = {}
    for name in (NONE, READ, STOPPED):
        options, consumers = list(WORKER_OPTIONS), []
        own = folder / name.replace(" ", "-")
        own.mkdir()
        if name != NONE:
            options.append(f"--config={write_config(own, TAPS)}")
        server = stack.enter_context(
            start(name, python_module("replay", "serve", *options), cores.server)
        )
        if name != NONE:
            consumers = [
                stack.enter_context(consuming(own, tap["topic"], cores.client)) for tap in TAPS
            ]
        made[name] = Entrant(Contender(name, server, template), consumers)
    return made


def play_rounds(
    running: Mapping[str, Entrant], work: BareWork, cores: Cores, *, rounds: int, requests: int
) -> Played:
    """Let all take turns."""
    played = Played()

    def play(name: str) -> Round:
        entrant = running[name]
        with entrant.stopping() if name == STOPPED else contextlib.nullcontext():
            one = play_h2load(
                entrant.contender, requests, streams=STREAMS, cores=cores, with_latencies=True
            )
            rss = entrant.contender.server.rss_bytes()
        played.rss.setdefault(name, []).append(rss)
        played.sent[name] += one.requests + CHECKS_OF_A_PLAY
        return one

    names = list(running)
    for name in names:
        for _ in range(2):  # the first rounds allocate what the others use
            play(name)
        del played.rss[name][0]
    for number in range(rounds):
        shift = number % len(names)
        for name in [*names[shift:], *names[:shift]]:
            played.rounds[name].append(play(name))
        read = played.rounds[READ][-1]
        played.bare_us.append(work.play(requests, read.requests / read.seconds))
    return played


def main(argv: list[str]) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks taps", description=__doc__)
    add_common_options(parser)
    parser.add_argument("--rounds", type=int, help="rounds of each worker")
    parser.add_argument("--requests", type=int, help="requests of a round")
    options = parser.parse_args(argv)
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    requests = options.requests or (QUICK_REQUESTS if options.quick else REQUESTS)
    console, cores = terminal(), choose_cores()
    report = Report(
        "taps",
        first_line(__doc__),
        settings={
            "rounds": rounds,
            "requests": requests,
            "concurrency": STREAMS.total,
            "shape": str(SHAPE),
            **cores.as_settings(),
        },
    )
    try:
        h2load.version()
        with (
            pinned(cores.client),
            console.status("measuring"),
            tempfile.TemporaryDirectory(prefix="replay-benchmark-") as folder,
            contextlib.ExitStack() as stack,
        ):
            running = entrants(stack, Path(folder), cores)
            work = stack.enter_context(bare_work(Path(folder), Template(SHAPE), cores))
            played = play_rounds(running, work, cores, rounds=rounds, requests=requests)
            time.sleep(RECOVERY_SECONDS)
            reports = {
                name: {each.topic: each.end() for each in entrant.consumers}
                for name, entrant in running.items()
            }
    except (h2load.H2loadError, ServerError, WireError, OSError) as error:
        console.print(f"cannot measure: {error}", style="red", highlight=False, markup=False)
        return 1
    for entrant in running.values():
        report.wrong_answers += entrant.contender.faults
    _fill(report, played, reports)
    return report.finish(console, options.json, options.html)


def _fill(
    report: Report, played: Played, reports: Mapping[str, Mapping[str, Mapping[str, Any]]]
) -> None:
    costs = {name: cpu_per_request_us(rounds) for name, rounds in played.rounds.items()}
    bare = Measure(tuple(played.bare_us))
    added = Measure(
        tuple(
            with_taps - without
            for with_taps, without in zip(costs[READ].rounds, costs[NONE].rounds, strict=True)
        )
    )
    table = Table(
        f"Generate {SHAPE}, {STREAMS.total} streams over {STREAMS.connections} connections, h2load",
        [
            Column("server", "worker"),
            Column("cpu_us", "CPU µs/request", 1, spread=True),
            Column("rate", "requests/s", 0, spread=True),
            Column("p50", "TTFT p50 ms", 2),
            Column("p99", "TTFT p99 ms", 2),
            Column("rss_mb", "RSS MB", 1),
            Column("grown_mb", "grown MB", 1),
            Column("foreign_pct", "others %", 0),
        ],
    )
    for name, rounds in played.rounds.items():
        report.note_noise(foreign_share(rounds).median)
        rss = played.rss[name]
        table.rows.append(
            {
                "server": name,
                "cpu_us": costs[name],
                "rate": requests_per_second(rounds),
                "p50": _latency_ms(rounds, 0.5),
                "p99": _latency_ms(rounds, 0.99),
                "rss_mb": rss[-1] / 1e6,
                "grown_mb": (max(rss) - rss[0]) / 1e6,
                "foreign_pct": foreign_share(rounds).scaled(100),
            }
        )
    report.tables.append(table)
    ratio, stopped = added.over(bare), costs[STOPPED].over(costs[READ])
    report.tables.append(
        Table(
            "What the taps add, and what the same work costs alone",
            [
                Column("what", "what"),
                Column("cpu_us", "CPU µs/request", 1, spread=True),
                Column("ratio", "/ bare work", 2, spread=True),
            ],
            [
                {"what": "two taps, read, less no taps", "cpu_us": added, "ratio": ratio},
                {"what": BARE, "cpu_us": bare, "ratio": bare.over(bare)},
            ],
        )
    )
    report.tables.append(_losses(report, reports, played.sent))
    report.bars += [
        Bar("CPU that two reading taps add / bare work", ratio.median, at_most=BAR_ADDED),
        Bar("CPU with stopped readers / with reading ones", stopped.median, at_most=BAR_STOPPED),
    ]
    report.plots.append(
        ratios(
            "CPU ratios",
            {"added / bare work": ratio.rounds, "stopped / read": stopped.rounds},
            caption="Each round and the median",
        )
    )
    report.limits.append(
        "readers and client share a core: the rate of a worker that is read is theirs too"
    )


def _latency_ms(rounds: Sequence[Round], share: float) -> Measure:
    return Measure(tuple(percentile(one.latencies_s, share) * 1e3 for one in rounds))


def _losses(
    report: Report,
    reports: Mapping[str, Mapping[str, Mapping[str, Any]]],
    sent: Mapping[str, int],
) -> Table:
    """Show what came and what did not; what is not accounted for is a wrong answer."""
    table = Table(
        "What the readers say of all rounds together",
        [
            Column("server", "worker"),
            Column("topic", "topic"),
            Column("records", "records", 0),
            Column("tap_drops", "dropped by the tap", 0),
            Column("transport_loss", "lost on the way", 0),
            Column("tail_loss", "lost at the end", 0),
        ],
    )
    for name, topics in reports.items():
        for topic, said in topics.items():
            losses = {key: said.get(key) for key in LOSSES}
            table.rows.append(
                {"server": name, "topic": topic, "records": said["records"], **losses}
            )
            if fault := account_fault(said, sent[name], may_lose=name != READ):
                report.wrong_answers.append(f"{name}, {topic}: {fault}")
    return table
