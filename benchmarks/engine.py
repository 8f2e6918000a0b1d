"""What a token of the realistic engine costs, and how many streams one core holds at its pace.

The engine is compared with a grpc.aio server that emits from a task for each stream.  Then one core
gets more and more streams, with a KV pool that grows with them, so that the model's own time for a
pass stays as it is: a number is held if tokens leave no later than the limit at p99.  How late each
pass was is what the worker itself says on its admin port, whose layers cost it some CPU too.
"""

import argparse
import functools
import json
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from benchmarks import h2load
from benchmarks.contenders import GRPC_AIO, WORKER_OPTIONS
from benchmarks.measures import Bar, percentile
from benchmarks.payloads import Shape, Template, framed, prompt_ids, request
from benchmarks.plots import Plot, PlotKind, ratios
from benchmarks.processes import (
    Cores,
    ServerError,
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
    cpu_per_request_us,
    foreign_share,
    play_h2load,
    play_varying,
    requests_per_second,
)
from benchmarks.wire import WireError

REALISTIC = "realistic"

#: About what the model takes for a pass with 256 of these streams.
TOKEN_MS = 8.0
PROMPT_TOKENS, OUTPUT_TOKENS = 128, 128
CONNECTIONS = 4
STREAMS = 256
BAR = 1 / 8

#: Shorter than a block, so that equal requests have nothing cached.
HELD_PROMPT_TOKENS = 8
HELD_STREAMS = (256, 384, 512, 640, 768, 896, 1024, 1280, 1536, 2048)
QUICK_HELD_STREAMS = (256,)
#: Of answers, which are longer there than here: a pass counts, not the requests between.
HELD_OUTPUT_TIMES = 2
KV_TOKENS_EACH = 2048
LATE_MS = 25.0


class DistinctPrompts(Template):
    """Requests whose prompts share no block, and so are computed, cached and told as KV events."""

    _made = 0

    def request(self, request_id: bytes) -> bytes:
        """Return the framed request; in the first ids of its prompt is how many came before it.

        The ids of requests begin anew in each round, so they do not tell prompts apart.
        """
        message = request(self.shape, request_id.decode())
        ids = prompt_ids(self.shape.prompt_tokens)
        ids[:2] = divmod(self._made, 30_000)
        self._made += 1
        message.tokenized.input_ids[:] = ids
        return framed(message.SerializeToString())


@attrs.frozen
class Held:
    """How one number of streams went."""

    streams: int
    late_ms: dict[float, float]
    """By share of the tokens."""
    pass_ms: float
    """The model's own time for a pass, the median."""
    core_share: float
    foreign_share: float

    @property
    def is_held(self) -> bool:
        """Whether tokens were no later than the limit."""
        return self.late_ms[0.99] <= LATE_MS


def passes(admin: str, after: int) -> list[dict[str, Any]]:
    """Return the passes with larger numbers than *after*, from the worker's admin port."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    found: list[dict[str, Any]] = []
    while True:
        last = found[-1]["number"] if found else after
        url = f"http://{admin}/admin/workers/0/passes?limit=1000&after={last}"
        with opener.open(url, timeout=10) as response:
            more = json.load(response)["passes"]
        if not more:
            return found
        found += more


def hold(streams: int, shape: Shape, cores: Cores, report: Report) -> Held:
    """Let one core serve *streams*.  Raises ServerError, H2loadError, WireError, OSError."""
    command = python_module(
        *("replay", "serve", *WORKER_OPTIONS, "--engine=realistic", "--admin", "--http-port=0"),
        *(f"--max-running={streams}", f"--kv-tokens={KV_TOKENS_EACH * streams}"),
    )
    with start(REALISTIC, command, cores.server) as server:
        entrant = Contender(REALISTIC, server, Template(shape, may_merge=True))
        load = Streams(CONNECTIONS, streams // CONNECTIONS)
        play = functools.partial(play_h2load, entrant, streams=load, cores=cores)
        play(CONNECTIONS)  # warms up
        last = passes(server.http_address, 0)[-1]["number"]
        played = play(streams)
        since = passes(server.http_address, last)
    report.wrong_answers += entrant.faults
    there = [each for each in since if each["decode_requests"] > streams // 2]
    late = [each["late_ms"] for each in there for _ in range(each["tokens"])]
    return Held(
        streams=streams,
        late_ms={share: percentile(late, share) for share in (0.5, 0.99, 1.0)},
        pass_ms=percentile([each["duration_ms"] for each in there], 0.5),
        core_share=played.server_cpu_s / played.seconds,
        foreign_share=played.foreign_share,
    )


def per_token(
    rounds: int,
    shape: Shape,
    streams: Streams,
    cores: Cores,
    report: Report,
    say: Callable[[str], None],
) -> None:
    """Measure what a token costs.  Raises what servers raise."""
    paced = python_module("benchmarks.peers.grpc_aio", f"--token-ms={TOKEN_MS:g}")
    realistic = python_module("replay", "serve", *WORKER_OPTIONS, "--engine=realistic")
    play = functools.partial(play_varying, streams=streams, cores=cores, indexed=False)
    with (
        start(REALISTIC, realistic, cores.server) as ours,
        start(GRPC_AIO, paced, cores.server) as theirs,
    ):
        template = DistinctPrompts(shape, may_merge=True)
        entrants = [Contender(REALISTIC, ours, template), Contender(GRPC_AIO, theirs, template)]
        played: dict[str, list[Round]] = {each.name: [] for each in entrants}
        for entrant in entrants:
            say(f"warming up {entrant.name}")
            play(entrant, CONNECTIONS)
        for number in range(rounds):
            for entrant in entrants if number % 2 == 0 else entrants[::-1]:
                say(f"round {number + 1} of {rounds}: {entrant.name}")
                played[entrant.name].append(play(entrant, streams.total))
        for entrant in entrants:
            report.wrong_answers += entrant.faults
    osl = shape.output_tokens
    costs = {name: cpu_per_request_us(of).scaled(1 / osl) for name, of in played.items()}
    table = Table(
        f"{streams.total} streams of {osl} tokens over {streams.connections} connections, each "
        f"with a prompt of its own of {shape.prompt_tokens}, own client",
        [
            Column("server", "server"),
            Column("token_us", "CPU µs/token", 2, spread=True),
            Column("rate", "tokens/s", 0),
            Column("times", "this / grpc.aio", 3, spread=True),
            Column("foreign_pct", "others %", 0),
        ],
    )
    for name, of_server in played.items():
        report.note_noise(foreign_share(of_server).median)
        table.rows.append(
            {
                "server": name,
                "token_us": costs[name],
                "rate": requests_per_second(of_server).scaled(osl),
                "times": costs[name].over(costs[GRPC_AIO]),
                "foreign_pct": foreign_share(of_server).scaled(100),
            }
        )
    report.tables.append(table)
    ratio = costs[REALISTIC].over(costs[GRPC_AIO])
    report.bars.append(
        Bar(
            f"{streams.total} streams: CPU for a token of the realistic engine / grpc.aio",
            ratio.median,
            at_most=BAR,
        )
    )
    report.plots.append(
        ratios(
            "CPU for a token, the realistic engine / grpc.aio",
            {REALISTIC: ratio.rounds},
            caption="Each round and the median",
        )
    )
    report.remarks.append(
        f"the engine keeps the model's pace; grpc.aio is asked for a token every {TOKEN_MS:g} ms "
        "and is as fast as it can be"
    )


def held_streams(
    ladder: Sequence[int],
    shape: Shape,
    cores: Cores,
    report: Report,
    say: Callable[[str], None],
) -> None:
    """Find how many streams one core holds.  Raises what servers raise."""
    found: list[Held] = []
    for streams in ladder:
        say(f"{streams} streams")
        one = hold(streams, shape, cores, report)
        if not one.is_held:  # once more: a neighbour may have been in the way
            one = hold(streams, shape, cores, report)
        found.append(one)
        report.note_noise(one.foreign_share)
        if not one.is_held:
            break
    table = Table(
        f"One core, streams of {shape.output_tokens} tokens: how late tokens leave against "
        "the model's own time",
        [
            Column("streams", "streams", 0),
            Column("pass_ms", "model ms/pass", 2),
            Column("p50_ms", "median ms late", 2),
            Column("p99_ms", "p99 ms late", 2),
            Column("p100_ms", "most ms late", 2),
            Column("core_pct", "server's CPU, % of a core", 0),
            Column("foreign_pct", "others %", 0),
        ],
        [
            {
                "streams": one.streams,
                "pass_ms": one.pass_ms,
                **{f"p{share * 100:.0f}_ms": late for share, late in one.late_ms.items()},
                "core_pct": one.core_share * 100,
                "foreign_pct": one.foreign_share * 100,
            }
            for one in found
        ],
    )
    report.tables.append(table)
    most = max((one.streams for one in found if one.is_held), default=0)
    report.remarks.append(
        f"one core holds {most} streams at the model's own pace "
        f"({'all that were tried' if found[-1].is_held else f'{found[-1].streams} are too many'}; "
        f"at most {LATE_MS:g} ms late at p99)"
    )
    report.bars.append(
        Bar(
            f"{found[0].streams} streams: ms late at p99, limit {LATE_MS:g}",
            found[0].late_ms[0.99],
            at_most=LATE_MS,
        )
    )
    report.plots.append(
        Plot(
            kind=PlotKind.LINES,
            title="How late tokens leave against the number of streams",
            caption="p99, against the model's own time",
            series={REALISTIC: [(one.streams, one.late_ms[0.99]) for one in found]},
            x_label="streams",
            y_label="ms late",
        )
    )


def main(argv: list[str]) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks engine", description=__doc__)
    add_common_options(parser)
    parser.add_argument("--rounds", type=int, help="rounds of each server")
    parser.add_argument("--streams", type=int, default=STREAMS, help="of which a token is measured")
    parser.add_argument("--tokens", type=int, default=OUTPUT_TOKENS, help="of an answer")
    parser.add_argument("--held", type=int, nargs="+", help="numbers of streams for one core")
    options = parser.parse_args(argv)
    rounds = options.rounds or (2 if options.quick else 9)
    ladder = options.held or (QUICK_HELD_STREAMS if options.quick else HELD_STREAMS)
    if any(streams < CONNECTIONS for streams in (options.streams, *ladder)):
        parser.error(f"there are {CONNECTIONS} connections: at least as many streams are needed")
    shape = Shape(PROMPT_TOKENS, options.tokens)
    held_shape = Shape(HELD_PROMPT_TOKENS, HELD_OUTPUT_TIMES * options.tokens)
    streams = Streams(CONNECTIONS, options.streams // CONNECTIONS)
    console, cores = terminal(), choose_cores()
    report = Report(
        "engine", first_line(__doc__), settings={"rounds": rounds, **cores.as_settings()}
    )
    if cores.shared:
        report.limits.append("one core only: client and server share it, and streams come late")
    try:
        h2load.version()
        with pinned(cores.client), console.status("starting") as status:
            per_token(rounds, shape, streams, cores, report, status.update)
            held_streams(ladder, held_shape, cores, report, status.update)
    except (h2load.H2loadError, ServerError, WireError, OSError) as error:
        console.print(f"cannot measure: {error}", style="red", highlight=False, markup=False)
        return 1
    return report.finish(console, options.json, options.html)
