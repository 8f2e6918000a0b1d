"""What a proxy costs: `serve --engine upstream` before a worker, with and without taps.

The same requests go to a worker directly, through a proxy, and through a proxy that mirrors them
with the two taps of Dynamo's demonstration.  CPU is that of the process that is asked alone: the
worker behind the proxies is another one, on the client's core.  Times to first token are of one
request at a time for one token, so that nothing waits for anything but the proxy.
"""

import argparse
import contextlib
import functools
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import h2load
from benchmarks.client import PATIENCE_SECONDS, RECEIVE_BYTES, connect, numbered_id
from benchmarks.contenders import WORKER_OPTIONS, Pace
from benchmarks.measures import Measure, percentile
from benchmarks.payloads import GENERATE_PATH, Shape, Template
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
    Contender,
    Round,
    Streams,
    contest,
    cpu_per_request_us,
    foreign_share,
    play_h2load,
    requests_per_second,
)
from benchmarks.tap_setup import TAPS, write_config
from benchmarks.wire import Calls, WireError, call_headers, literal_block

SHAPE = Shape(512, 32)
FIRST_TOKEN_SHAPE = Shape(512, 1)
STREAMS = Streams(connections=4, streams_each=8)

DIRECT, PROXY, TAPPED = "direct", "proxy", "proxy with taps"

#: All tokens at once, and a token every ten milliseconds as an engine makes them.
PACES = (Pace(), Pace(token_ms=10))


def time_to_first_data(address: str, template: Template, count: int) -> list[float]:
    """Ask *count* times, one after the other; return the seconds until each first message.

    Raises WireError, OSError.
    """
    block = literal_block(call_headers(GENERATE_PATH, address))
    calls, seconds = Calls(), []
    with connect(address) as connection:
        connection.settimeout(PATIENCE_SECONDS)
        for number in range(count):
            request_id = numbered_id(template, number)
            calls.call(block, template.request(request_id))
            data = calls.take()
            sent, first = time.perf_counter(), None
            connection.sendall(data)
            while True:
                received = connection.recv(RECEIVE_BYTES)
                if not received:
                    raise WireError("the server closed the connection")
                finished = calls.receive(received)
                if first is None and (finished or calls.data_seen()):
                    first = time.perf_counter() - sent
                if answer := calls.take():
                    connection.sendall(answer)
                if finished:
                    break
            if not template.accepts(request_id, finished[0].data):
                raise WireError("a wrong answer")
            assert first is not None
            seconds.append(first)
    return seconds


def latencies(
    contenders: Sequence[Contender], *, rounds: int, count: int
) -> dict[str, list[list[float]]]:
    """Let *contenders* take turns; return the times of each round by name."""
    template = Template(FIRST_TOKEN_SHAPE)
    found: dict[str, list[list[float]]] = {one.name: [] for one in contenders}
    for one in contenders:
        time_to_first_data(one.server.address, template, count // 4)  # warm up
    for _ in range(rounds):
        for one in contenders:
            times = time_to_first_data(one.server.address, template, count)
            found[one.name].append(times)
    return found


def latency_table(found: Mapping[str, list[list[float]]], count: int) -> Table:
    """Return what the proxies add to the time to first token."""
    table = Table(
        f"Time to first token of Generate {FIRST_TOKEN_SHAPE}, {count} a round, one at a time",
        [
            Column("server", "server"),
            Column("p50_us", "p50 µs", 0, spread=True),
            Column("p99_us", "p99 µs", 0, spread=True),
            Column("added_p50_us", "added p50 µs", 0),
            Column("added_p99_us", "added p99 µs", 0),
        ],
    )
    for name, of_rounds in found.items():
        row: dict[str, str | Measure | None] = {"server": name}
        for share, label in ((0.5, "p50"), (0.99, "p99")):
            mine = Measure(tuple(percentile(times, share) * 1e6 for times in of_rounds))
            base = [percentile(times, share) * 1e6 for times in found[DIRECT]]
            added = (one - other for one, other in zip(mine.rounds, base, strict=True))
            row[f"{label}_us"] = mine
            row[f"added_{label}_us"] = None if name == DIRECT else Measure(tuple(added))
        table.rows.append(row)
    return table


def cpu_table(played: Mapping[str, list[Round]], pace: Pace, report: Report) -> Table:
    """Return what a request costs each server."""
    how = f"a token every {pace.token_ms:g} ms" if pace.token_ms else "all tokens at once"
    table = Table(
        f"CPU of Generate {SHAPE}, {how}, {STREAMS.total} streams over {STREAMS.connections} "
        "connections, h2load",
        [
            Column("server", "server"),
            Column("cpu_us", "CPU µs/request", 1, spread=True),
            Column("per_token_us", "µs/token", 1),
            Column("times", "this / direct", 2, spread=True),
            Column("rate", "requests/s", 0),
            Column("foreign_pct", "others %", 0),
        ],
    )
    base = cpu_per_request_us(played[DIRECT])
    for name, of_server in played.items():
        cost = cpu_per_request_us(of_server)
        report.note_noise(foreign_share(of_server).median)
        table.rows.append(
            {
                "server": name,
                "cpu_us": cost,
                "per_token_us": cost.scaled(1 / SHAPE.output_tokens),
                "times": cost.over(base),
                "rate": requests_per_second(of_server),
                "foreign_pct": foreign_share(of_server).scaled(100),
            }
        )
    return table


@contextlib.contextmanager
def _contenders(pace: Pace, cores: Cores, folder: Path) -> Iterator[list[Contender]]:
    """Run the worker, the proxies, and the worker behind them."""
    worker = python_module("replay", "serve", *WORKER_OPTIONS, *pace.options())
    with contextlib.ExitStack() as servers:
        direct = servers.enter_context(start(DIRECT, worker, cores.server))
        below = servers.enter_context(start("behind the proxies", worker, cores.client))
        engine = ["--engine", "upstream", "--upstream", f"grpc://{below.address}"]
        config = write_config(folder, TAPS)
        running: dict[str, ServerProcess] = {DIRECT: direct}
        for name, options in ((PROXY, []), (TAPPED, ["--config", str(config)])):
            command = python_module("replay", "serve", *options, *WORKER_OPTIONS, *engine)
            running[name] = servers.enter_context(start(name, command, cores.server))
        template = Template(SHAPE, may_merge=bool(pace.token_ms))
        yield [Contender(name, server, template) for name, server in running.items()]


def main(argv: list[str]) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks upstream", description=__doc__)
    add_common_options(parser)
    parser.add_argument("--rounds", type=int, help="rounds of each server")
    parser.add_argument("--seconds", type=float, help="length of a round")
    options = parser.parse_args(argv)
    rounds = options.rounds or (2 if options.quick else 7)
    seconds = options.seconds or (0.3 if options.quick else 1.0)
    count = 100 if options.quick else 400
    console, cores = terminal(), choose_cores()
    report = Report(
        "upstream",
        first_line(__doc__),
        settings={"rounds": rounds, "seconds": seconds, **cores.as_settings()},
    )
    play = functools.partial(play_h2load, streams=STREAMS, cores=cores)
    try:
        h2load.version()
        for pace in PACES:
            with (
                pinned(cores.client),
                console.status("starting") as status,
                tempfile.TemporaryDirectory(prefix="replay-benchmark-") as folder,
                _contenders(pace, cores, Path(folder)) as entrants,
            ):
                if pace == PACES[0]:
                    status.update("one request at a time")
                    found = latencies(entrants, rounds=rounds, count=count)
                    report.tables.append(latency_table(found, count))
                played = contest(entrants, play, rounds=rounds, seconds=seconds, say=status.update)
                report.tables.append(cpu_table(played, pace, report))
                for entrant in entrants:
                    report.wrong_answers += entrant.faults
    except (h2load.H2loadError, ServerError, WireError, OSError) as error:
        console.print(f"cannot measure: {error}", style="red", highlight=False, markup=False)
        return 1
    return report.finish(console, options.json, options.html)
