"""What a Generate costs: our worker, a grpc.aio server and a grpclib server side by side.

Server and client (h2load, and a client of our own where requests have to differ) run on cores of
their own, the servers take turns round by round, and what is quoted is the median over the rounds.
Compare the ratios, not the microseconds: machines have fast and slow phases.
"""

import argparse
import functools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
from rich.console import Console

from benchmarks import contenders, h2load
from benchmarks.client import Sampler
from benchmarks.contenders import GRPC_AIO, GRPCLIB, NGHTTPD, WORKER, Pace
from benchmarks.measures import Bar, Measure, percentile
from benchmarks.payloads import Shape, Template, unframed
from benchmarks.processes import Cores, ServerError, ServerProcess, choose_cores, pinned
from benchmarks.results import Cell, Column, Report, Table, add_common_options, first_line, terminal
from benchmarks.rounds import (
    Contender,
    Play,
    Round,
    Streams,
    client_cpu_per_request_us,
    contest,
    cpu_per_request_us,
    foreign_share,
    play_h2load,
    play_varying,
    requests_per_second,
)
from benchmarks.wire import WireError
from replay._proto import tokenspeed_scheduler_pb2 as pb

#: 32 requests at once over 4 connections.
CLOSED_LOOP = Streams(connections=4, streams_each=8)

SHAPES = (Shape(512, 16), Shape(512, 32), Shape(2048, 32))
MAIN_SHAPE = Shape(512, 32)
#: How many times cheaper than grpc.aio our worker has to be, by shape.
CANNED_BARS = {"512/32": 25.0, "2048/32": 20.0}
PER_TOKEN_BAR = 15.0
VARYING_BAR = 15.0
PACED_BAR = 8.0

TOKEN_MS = 5.0
PACED_SHAPE = Shape(512, 128)
PACED_STREAMS = (32, 256, 2048)
#: Beyond this grpc.aio only shows again that it is saturated, slowly.
GRPC_AIO_PACED_STREAMS = 256
LATENCY_STREAMS = 1024
LATENCY_BAR = 1.10

#: A sampling seed keeps the worker from answers that were cut in advance.
SEED = 7

PARTS = ("canned", "per-token", "varying", "paced")


@attrs.frozen
class Plan:
    """How long and how often."""

    rounds: int
    seconds: float
    paced_waves: int
    """How many times each paced stream is used in a round."""


FULL = Plan(rounds=5, seconds=1.0, paced_waves=4)
QUICK = Plan(rounds=2, seconds=0.2, paced_waves=1)


class Benchmark:
    """The state of one run: the plan, the cores, the report that grows."""

    def __init__(
        self, plan: Plan, cores: Cores, report: Report, *, worker_command: str | None
    ) -> None:
        """Begin with an empty report."""
        self._plan, self._cores, self._report = plan, cores, report
        self._worker_command = worker_command
        self._say: Callable[[str], None] = lambda text: None

    def run(self, parts: Sequence[str], console: Console) -> None:
        """Run *parts* in order, showing which round is played.  Raises what servers raise."""
        with console.status("starting") as status:
            with contenders.running(
                (WORKER, GRPC_AIO, GRPCLIB),
                self._cores.server,
                Pace(),
                worker_command=self._worker_command,
            ) as servers:
                for part in parts:
                    self._say = lambda text, part=part: status.update(f"{part}: {text}")  # type: ignore[misc]
                    if part == "canned":
                        self.canned(servers)
                    elif part == "per-token":
                        self.per_token(servers)
                    elif part == "varying":
                        self.varying(servers)
            if "paced" in parts:
                self._say = lambda text: status.update(f"paced: {text}")
                with contenders.running(
                    (WORKER, GRPC_AIO),
                    self._cores.server,
                    Pace(token_ms=TOKEN_MS),
                    worker_command=self._worker_command,
                ) as servers:
                    self.paced(servers)
                    self.latency(servers[WORKER])

    def _contest(self, entrants: Sequence[Contender], play: Play) -> dict[str, list[Round]]:
        played = contest(
            entrants,
            play,
            rounds=self._plan.rounds,
            seconds=self._plan.seconds,
            say=self._say,
        )
        for entrant in entrants:
            self._report.wrong_answers += entrant.faults
            self._report.note_noise(foreign_share(played[entrant.name]).median)
        return played

    def _rows(self, played: dict[str, list[Round]], **first: Cell) -> list[dict[str, Cell]]:
        """Return a row for each server; grpc.aio is what the others are divided into."""
        base = cpu_per_request_us(played[GRPC_AIO])
        rows: list[dict[str, Cell]] = []
        for name, rounds in played.items():
            cost = cpu_per_request_us(rounds)
            rows.append(
                {
                    **first,
                    "server": name,
                    "cpu_us": cost,
                    "rate": requests_per_second(rounds),
                    "times": base.over(cost),
                    "client_us": client_cpu_per_request_us(rounds),
                    "foreign_pct": foreign_share(rounds).scaled(100),
                }
            )
        return rows

    def _cheaper(self, played: dict[str, list[Round]]) -> float:
        """Return how many times more CPU grpc.aio took than our worker."""
        theirs, ours = cpu_per_request_us(played[GRPC_AIO]), cpu_per_request_us(played[WORKER])
        return theirs.over(ours).median

    def canned(self, servers: dict[str, ServerProcess]) -> None:
        """Measure answers that wait for nothing."""
        table = Table(
            "Generate without waits, 32 streams over 4 connections, h2load", _columns("isl/osl")
        )
        play = functools.partial(play_h2load, streams=CLOSED_LOOP, cores=self._cores)
        with (
            tempfile.TemporaryDirectory(prefix="replay-benchmark-") as folder,
            contenders.static_server(SHAPES, self._cores.server, Path(folder)) as static,
        ):
            if static is None:
                self._report.limits.append(
                    "nghttpd is not installed (apt-get install nghttp2-server): no physical limit"
                )
            for shape in SHAPES:
                template = Template(shape)
                entrants = [Contender(name, server, template) for name, server in servers.items()]
                if static is not None:
                    path = contenders.static_path(shape)
                    entrants.append(
                        Contender(NGHTTPD, static, template, path=path, speaks_grpc=False)
                    )
                played = self._contest(entrants, play)
                table.rows += self._rows(played, label=str(shape))
                if str(shape) in CANNED_BARS:
                    self._report.bars.append(
                        Bar(
                            f"{shape}: CPU of grpc.aio / ours",
                            self._cheaper(played),
                            at_least=CANNED_BARS[str(shape)],
                        )
                    )
        self._report.tables.append(table)

    def per_token(self, servers: dict[str, ServerProcess]) -> None:
        """Measure answers whose tokens are sampled, so that each is encoded on its own."""
        table = Table(
            "Generate without waits, each token sampled and encoded on its own (a seed is set)",
            _columns("isl/osl"),
        )
        canned = Template(MAIN_SHAPE, seed=SEED)
        ids = sampled_ids(servers[WORKER].address, canned)
        entrants = [
            Contender(WORKER, servers[WORKER], Template(MAIN_SHAPE, seed=SEED, ids=ids)),
            Contender(GRPC_AIO, servers[GRPC_AIO], canned),
        ]
        play = functools.partial(play_h2load, streams=CLOSED_LOOP, cores=self._cores)
        played = self._contest(entrants, play)
        table.rows += self._rows(played, label=str(MAIN_SHAPE))
        self._report.tables.append(table)
        self._report.remarks.append(
            "per token: grpc.aio answers with canned ids, the worker with sampled ones, so that "
            "messages differ by a byte at most"
        )
        self._report.bars.append(
            Bar(
                f"{MAIN_SHAPE} per token: CPU of grpc.aio / ours",
                self._cheaper(played),
                at_least=PER_TOKEN_BAR,
            )
        )

    def varying(self, servers: dict[str, ServerProcess]) -> None:
        """Measure requests of which no two have the same id or timeout."""
        table = Table(
            f"Generate {MAIN_SHAPE}, every request id and grpc-timeout different, own client",
            _columns("headers"),
        )
        template = Template(MAIN_SHAPE, id_bytes=36)
        for indexed in (False, True):
            label = "HPACK table, Huffman" if indexed else "literal"
            entrants = [Contender(name, servers[name], template) for name in (WORKER, GRPC_AIO)]
            play = functools.partial(
                play_varying, streams=CLOSED_LOOP, cores=self._cores, indexed=indexed
            )
            played = self._contest(entrants, play)
            table.rows += self._rows(played, label=label)
            self._report.bars.append(
                Bar(
                    f"varying ids and timeouts, headers {label}: CPU of grpc.aio / ours",
                    self._cheaper(played),
                    at_least=VARYING_BAR,
                )
            )
        self._report.tables.append(table)

    def paced(self, servers: dict[str, ServerProcess]) -> None:
        """Measure what a token costs when each stream gets one every 5 ms."""
        table = Table(
            f"A token every {TOKEN_MS:g} ms for each stream, {PACED_SHAPE.output_tokens} tokens "
            "each, 4 connections, h2load",
            [
                Column("streams", "streams", 0),
                Column("server", "server"),
                Column("token_us", "CPU µs/token", 2, spread=True),
                Column("tokens_per_s", "tokens/s", 0),
                Column("asked_pct", "% of rate", 0),
                Column("merged_pct", "merged %", 1),
                Column("times", "grpc.aio / this", 1, spread=True),
                Column("foreign_pct", "others %", 0),
            ],
        )
        template = Template(PACED_SHAPE, may_merge=True)
        osl = PACED_SHAPE.output_tokens
        for total in PACED_STREAMS:
            names = (WORKER, GRPC_AIO) if total <= GRPC_AIO_PACED_STREAMS else (WORKER,)
            streams = Streams(connections=4, streams_each=total // 4)
            play = functools.partial(play_h2load, streams=streams, cores=self._cores)
            entrants = [Contender(name, servers[name], template) for name in names]
            played: dict[str, list[Round]] = {name: [] for name in names}
            for number in range(self._plan.rounds):
                for entrant in entrants:
                    # A saturated server needs many times as long for a wave: one tells enough.
                    waves = self._plan.paced_waves if entrant.name == WORKER else 1
                    self._say(f"{total} streams, round {number + 1}: {entrant.name}")
                    played[entrant.name].append(play(entrant, total * waves))
            costs = {
                name: cpu_per_request_us(rounds).scaled(1 / osl) for name, rounds in played.items()
            }
            for name, rounds in played.items():
                rate = requests_per_second(rounds).scaled(osl)
                times = costs[GRPC_AIO].over(costs[name]) if GRPC_AIO in costs else None
                table.rows.append(
                    {
                        "streams": total,
                        "server": name,
                        "token_us": costs[name],
                        "tokens_per_s": rate,
                        "asked_pct": rate.scaled(100 / (total * 1000 / TOKEN_MS)),
                        "merged_pct": merged_percent(rounds, osl),
                        "times": times,
                        "foreign_pct": foreign_share(rounds).scaled(100),
                    }
                )
            for entrant in entrants:
                self._report.wrong_answers += entrant.faults
                self._report.note_noise(foreign_share(played[entrant.name]).median)
            if total == GRPC_AIO_PACED_STREAMS:
                self._report.bars.append(
                    Bar(
                        f"paced, {total} streams: CPU for a token of grpc.aio / ours",
                        costs[GRPC_AIO].over(costs[WORKER]).median,
                        at_least=PACED_BAR,
                    )
                )
        self._report.tables.append(table)
        self._report.remarks.append(
            "paced: merged % are tokens whose moment was missed and that travelled with the next "
            "one; costs for a token count them like the others"
        )

    def latency(self, server: ServerProcess) -> None:
        """Measure how late many paced streams end on one core."""
        streams = Streams(connections=4, streams_each=LATENCY_STREAMS // 4)
        entrant = Contender(WORKER, server, Template(PACED_SHAPE, may_merge=True))
        ideal_s = PACED_SHAPE.output_tokens * TOKEN_MS / 1000
        table = Table(
            f"{LATENCY_STREAMS} streams of {PACED_SHAPE.output_tokens} tokens, one every "
            f"{TOKEN_MS:g} ms: {ideal_s * 1000:.0f} ms when nothing is late",
            [
                Column("round", "round", 0),
                *(Column(f"p{share}_ms", f"p{share} ms", 0) for share in (50, 90, 99)),
                Column("core_pct", "server's CPU, % of a core", 0),
                Column("merged_pct", "merged %", 1),
                Column("foreign_pct", "others %", 0),
            ],
        )
        medians = []
        for number in range(self._plan.rounds):
            self._say(f"{LATENCY_STREAMS} streams, round {number + 1}: {WORKER}")
            one = play_h2load(
                entrant,
                LATENCY_STREAMS * max(2, self._plan.paced_waves // 2),
                streams=streams,
                cores=self._cores,
                with_latencies=True,
            )
            self._report.note_noise(one.foreign_share)
            medians.append(percentile(one.latencies_s, 0.5))
            row: dict[str, Cell] = {
                f"p{share}_ms": percentile(one.latencies_s, share / 100) * 1000
                for share in (50, 90, 99)
            }
            row["round"] = number + 1
            row["core_pct"] = one.server_cpu_s / one.seconds * 100
            row["merged_pct"] = merged_percent([one], PACED_SHAPE.output_tokens)
            row["foreign_pct"] = one.foreign_share * 100
            table.rows.append(row)
        self._report.wrong_answers += entrant.faults
        self._report.tables.append(table)
        self._report.bars.append(
            Bar(
                f"paced, {LATENCY_STREAMS} streams: p50 latency / {ideal_s * 1000:.0f} ms",
                percentile(medians, 0.5) / ideal_s,
                at_most=LATENCY_BAR,
            )
        )


def _columns(first: str) -> list[Column]:
    return [
        Column("label", first),
        Column("server", "server"),
        Column("cpu_us", "CPU µs/request", 1, spread=True),
        Column("rate", "requests/s", 0),
        Column("times", "grpc.aio / this", 1, spread=True),
        Column("client_us", "client CPU µs", 1),
        Column("foreign_pct", "others %", 0),
    ]


def merged_percent(rounds: Sequence[Round], output_tokens: int) -> Measure:
    """Return the share of tokens that came late and travelled with the next one."""
    return Measure(
        tuple(one.merged_tokens / (one.requests * output_tokens) * 100 for one in rounds)
    )


def sampled_ids(address: str, template: Template) -> list[int]:
    """Ask once and return the ids of the answer, for a server whose ids cannot be foreseen."""
    with Sampler(address, template) as sampler:
        finished = sampler.ask()
    if finished.grpc_status != "0":
        raise WireError(f"a seeded request ended with grpc-status {finished.grpc_status}")
    last = pb.GenerateResponse.FromString(unframed(finished.data)[-1])
    return list(last.complete.output_ids)


def main(argv: list[str]) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks server", description=__doc__)
    add_common_options(parser)
    parser.add_argument(
        "--part", action="append", choices=PARTS, help="only this part (may be given again)"
    )
    parser.add_argument("--rounds", type=int, help="rounds of each server")
    parser.add_argument("--seconds", type=float, help="length of a round")
    parser.add_argument(
        "--worker", metavar="COMMAND", help="measure this server in place of our worker"
    )
    options = parser.parse_args(argv)
    console = terminal()
    plan = QUICK if options.quick else FULL
    plan = attrs.evolve(
        plan,
        rounds=options.rounds or plan.rounds,
        seconds=options.seconds or plan.seconds,
    )
    cores = choose_cores()
    report = Report(
        "server", first_line(__doc__), settings={**attrs.asdict(plan), **cores.as_settings()}
    )
    if cores.shared:
        report.limits.append(
            "one core only: server and client share it, so requests/s say nothing and CPU is noisy"
        )
    benchmark = Benchmark(plan, cores, report, worker_command=options.worker)
    try:
        h2load.version()
        with pinned(cores.client):
            benchmark.run(options.part or PARTS, console)
    except (h2load.H2loadError, ServerError, WireError, OSError) as error:
        console.print(f"cannot measure: {error}", style="red", highlight=False, markup=False)
        return 1
    return report.finish(console, options.json, options.html)
