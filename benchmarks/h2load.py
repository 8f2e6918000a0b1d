"""Debian's h2load as the client: one gRPC body for all requests, and its report read."""

import contextlib
import re
import resource
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import attrs

from benchmarks.processes import pinned

#: Longer than any run of ours.
TIMEOUT_SECONDS = 300.0

MISSING = (
    "h2load is not installed; it is the client of this benchmark.  On Debian and Ubuntu:\n"
    "    apt-get install nghttp2-client        (nghttp2-server adds nghttpd, the physical limit)"
)


class H2loadError(Exception):
    """h2load is missing, failed, or printed what is not understood."""


@attrs.frozen
class Load:
    """What h2load is asked to do."""

    url: str
    body: Path
    requests: int
    connections: int
    streams: int
    """For each connection."""
    core: int | None
    """None: any."""


@attrs.frozen
class Outcome:
    """What h2load saw."""

    requests: int
    succeeded: int
    data_bytes: int
    seconds: float
    client_cpu_s: float = 0.0
    latencies_s: tuple[float, ...] = ()
    """Of each request, only when they were asked for."""


_FINISHED = re.compile(r"finished in ([\d.]+)(us|ms|s|m|h),")
_REQUESTS = re.compile(r"requests: (\d+) total, \d+ started, \d+ done, (\d+) succeeded")
_OK = re.compile(r"status codes: (\d+) 2xx")
_DATA = re.compile(r"traffic: .*\((\d+)\) data")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse(text: str) -> Outcome:
    """Read h2load's report.  Raises H2loadError when a line is missing."""
    finished, requests = _FINISHED.search(text), _REQUESTS.search(text)
    ok, data = _OK.search(text), _DATA.search(text)
    if finished is None or requests is None or ok is None or data is None:
        raise H2loadError(f"h2load's output is not understood:\n{text}")
    return Outcome(
        requests=int(requests[1]),
        succeeded=min(int(requests[2]), int(ok[1])),
        data_bytes=int(data[1]),
        seconds=float(finished[1]) * _UNITS[finished[2]],
    )


def version() -> str:
    """Return h2load's version.  Raises H2loadError when it is not installed."""
    if shutil.which("h2load") is None:
        raise H2loadError(MISSING)
    said = subprocess.run(["h2load", "--version"], capture_output=True, text=True, check=True)
    return said.stdout.strip()


def run(
    load: Load,
    *,
    log: Path | None = None,
    meanwhile: Callable[[], object] | None = None,
    meanwhile_every_s: float = 0.05,
) -> Outcome:
    """Run h2load on its core; call *meanwhile* every so often until it ends.

    With *log*, a file that does not exist yet, the latency of each request is read.
    Raises H2loadError.
    """
    command = [
        "h2load",
        f"-c{load.connections}",
        f"-m{load.streams}",
        f"-n{load.requests}",
        f"-d{load.body}",
        "-Hte: trailers",
        "-Hcontent-type: application/grpc",
        *([f"--log-file={log}"] if log is not None else []),
        load.url,
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    with contextlib.nullcontext() if load.core is None else pinned(load.core):
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        text = None
        while text is None:
            try:
                text = process.communicate(timeout=meanwhile_every_s)[0]
            except subprocess.TimeoutExpired:
                if time.monotonic() > deadline:
                    raise H2loadError(f"h2load ran for {TIMEOUT_SECONDS:.0f} s") from None
                if meanwhile is not None:
                    meanwhile()
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    if process.returncode:
        raise H2loadError(f"h2load ended with status {process.returncode}:\n{text}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    latencies = () if log is None else read_latencies(log.read_text())
    return attrs.evolve(parse(text), client_cpu_s=spent, latencies_s=latencies)


def read_latencies(log: str) -> tuple[float, ...]:
    """Read the latencies, in seconds, of h2load's log: start µs, status, duration µs."""
    return tuple(int(line.split("\t")[2]) / 1e6 for line in log.splitlines() if line)
