"""Rounds of load on servers that take turns, so that a slow phase of the machine hits all of them.

A round measures the server's CPU time, checks that every answer was the expected one, and notes how
much of the server's core somebody else used meanwhile.
"""

import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Self

import attrs

from benchmarks import h2load
from benchmarks.client import Sampler, VaryingCalls
from benchmarks.measures import Measure
from benchmarks.payloads import GENERATE_PATH, Template
from benchmarks.processes import Cores, ServerProcess, core_busy_seconds

#: Requests of a trial run, which tells how many fill a round.
TRIAL_REQUESTS = 64

#: How the id begins that all requests of h2load have.
H2LOAD_REQUEST_ID = b"h2load"


@attrs.define
class Contender:
    """A server, and what it is asked in a contest."""

    name: str
    server: ServerProcess
    template: Template
    path: str = GENERATE_PATH
    speaks_grpc: bool = True
    """False for a server of static files: its bytes are counted, not read."""
    faults: list[str] = attrs.field(factory=list)
    """What was wrong with its answers; empty is right."""

    @property
    def url(self) -> str:
        """Where h2load asks."""
        return f"http://{self.server.address}{self.path}"

    def fault(self, what: str) -> None:
        """Note a wrong answer."""
        self.faults.append(f"{self.name}, {self.template.shape}: {what}")


@attrs.frozen
class Streams:
    """How many requests are open at once, and on how many connections."""

    connections: int
    streams_each: int

    @property
    def total(self) -> int:
        """All requests that are open at once."""
        return self.connections * self.streams_each


@attrs.frozen
class Round:
    """What one round of one server took."""

    requests: int
    seconds: float
    server_cpu_s: float
    client_cpu_s: float
    foreign_share: float
    """Share of the server's core that other processes had."""
    merged_tokens: float = 0.0
    """About how many tokens travelled with the one before, as their moment had been missed."""
    latencies_s: tuple[float, ...] = ()


#: Plays a round of so many requests.
Play = Callable[[Contender, int], Round]


class Meter:
    """CPU of a server and of its core over a stretch of time."""

    def __init__(self, server: ServerProcess, core: int) -> None:
        """Begin now."""
        self._server, self._core = server, core
        self._busy = core_busy_seconds(core)
        self._cpu = server.cpu_seconds()
        self._clock = time.perf_counter()

    def read(self) -> tuple[float, float]:
        """Return the server's CPU seconds so far and the share of its core that others had."""
        cpu = self._server.cpu_seconds() - self._cpu
        seconds = time.perf_counter() - self._clock
        busy = core_busy_seconds(self._core) - self._busy
        return cpu, max(0.0, busy - cpu) / seconds


class Watch:
    """A `Meter` over a block: `cpu_s` and `foreign_share` are there when it has ended."""

    def __init__(self, server: ServerProcess, core: int) -> None:
        """Watch *server*, which is on *core*."""
        self._server, self._core = server, core
        self.cpu_s = self.foreign_share = 0.0

    def __enter__(self) -> Self:
        """Begin."""
        self._meter = Meter(self._server, self._core)
        return self

    def __exit__(self, *exc_info: object) -> None:
        """End."""
        self.cpu_s, self.foreign_share = self._meter.read()


def check_answers(contender: Contender, count: int = 3) -> None:
    """Ask *count* times and note what is not byte for byte what was expected."""
    if not contender.speaks_grpc:
        return
    with Sampler(contender.server.address, contender.template) as sampler:
        for _ in range(count):
            sampler.ask()
        for fault in sampler.tally.faults:
            contender.fault(fault)


def play_h2load(
    contender: Contender,
    requests: int,
    *,
    streams: Streams,
    cores: Cores,
    with_latencies: bool = False,
) -> Round:
    """Play a round with h2load, all of whose requests are the same.

    h2load counts any `:status 200`.  So the number of DATA bytes has to be right to the byte, and
    another connection samples whole answers and their `grpc-status` before, meanwhile and after.
    """
    check_answers(contender, 1)
    with tempfile.TemporaryDirectory(prefix="replay-benchmark-") as folder:
        body = Path(folder) / "body"
        id_bytes = contender.template.id_bytes
        body.write_bytes(contender.template.request(H2LOAD_REQUEST_ID.ljust(id_bytes, b"-")))
        load = h2load.Load(
            url=contender.url,
            body=body,
            requests=requests,
            connections=min(streams.connections, requests),
            streams=streams.streams_each,
            core=cores.client,
        )
        log = Path(folder) / "log" if with_latencies else None
        sampled = 0
        if contender.speaks_grpc:
            with Sampler(contender.server.address, contender.template) as sampler:
                meter = Meter(contender.server, cores.server)
                outcome = h2load.run(load, log=log, meanwhile=sampler.ask)
                server_cpu_s, foreign = meter.read()
                sampled = sampler.tally.asked
                for fault in sampler.tally.faults:
                    contender.fault(fault)
        else:
            meter = Meter(contender.server, cores.server)
            outcome = h2load.run(load, log=log)
            server_cpu_s, foreign = meter.read()
    check_answers(contender, 1)
    if outcome.succeeded != requests:
        contender.fault(f"{requests - outcome.succeeded} of {requests} requests failed")
    template = contender.template
    most, least = requests * template.answer_bytes, requests * template.least_answer_bytes
    if not least <= outcome.data_bytes <= most:
        contender.fault(f"{outcome.data_bytes} bytes of answers instead of {most}")
    return Round(
        requests=requests + sampled,
        seconds=outcome.seconds,
        server_cpu_s=server_cpu_s,
        client_cpu_s=outcome.client_cpu_s,
        foreign_share=foreign,
        merged_tokens=(most - outcome.data_bytes) / (template.bytes_saved_by_a_merge or 1),
        latencies_s=outcome.latencies_s,
    )


def play_varying(
    contender: Contender, requests: int, *, streams: Streams, cores: Cores, indexed: bool
) -> Round:
    """Play a round with requests whose ids and timeouts differ; every answer is compared whole."""
    with VaryingCalls(
        contender.server.address,
        contender.template,
        requests,
        connections=streams.connections,
        streams=streams.streams_each,
        indexed=indexed,
    ) as calls:
        own_cpu = time.process_time()
        meter = Meter(contender.server, cores.server)
        tally = calls.run()
        server_cpu_s, foreign = meter.read()
        client_cpu_s = time.process_time() - own_cpu
    if tally.wrong:
        contender.fault(f"{tally.wrong} of {requests} answers wrong; {'; '.join(tally.faults)}")
    return Round(
        requests=requests,
        seconds=tally.seconds,
        server_cpu_s=server_cpu_s,
        client_cpu_s=client_cpu_s,
        foreign_share=foreign,
    )


def fill_round(contender: Contender, play: Play, seconds: float) -> int:
    """Return how many requests take about *seconds*, after two trials that also warm up."""
    requests = TRIAL_REQUESTS
    for share in (0.25, 1.0):
        trial = play(contender, requests)
        per_second = trial.requests / trial.seconds
        requests = max(TRIAL_REQUESTS, int(seconds * share * per_second))
    return requests


def contest(
    contenders: Sequence[Contender],
    play: Play,
    *,
    rounds: int,
    seconds: float,
    say: Callable[[str], None],
) -> dict[str, list[Round]]:
    """Let *contenders* take turns for *rounds* rounds of about *seconds*; return them by name.

    Each round begins with another one, so that none always follows the same.
    """
    for contender in contenders:
        check_answers(contender)
    sizes = {one.name: fill_round(one, play, seconds) for one in contenders}
    played: dict[str, list[Round]] = {one.name: [] for one in contenders}
    for number in range(rounds):
        shift = number % len(contenders)
        for one in [*contenders[shift:], *contenders[:shift]]:
            say(f"round {number + 1} of {rounds}: {one.name}")
            played[one.name].append(play(one, sizes[one.name]))
    return played


def cpu_per_request_us(rounds: Iterable[Round]) -> Measure:
    """Return the server's CPU for a request in microseconds."""
    return Measure(tuple(one.server_cpu_s / one.requests * 1e6 for one in rounds))


def client_cpu_per_request_us(rounds: Iterable[Round]) -> Measure:
    """Return the client's CPU for a request in microseconds."""
    return Measure(tuple(one.client_cpu_s / one.requests * 1e6 for one in rounds))


def requests_per_second(rounds: Iterable[Round]) -> Measure:
    """Return the rate of finished requests."""
    return Measure(tuple(one.requests / one.seconds for one in rounds))


def foreign_share(rounds: Iterable[Round]) -> Measure:
    """Return the share of the server's core that other processes had."""
    return Measure(tuple(one.foreign_share for one in rounds))
