"""Runs of `replay play` against workers, each in a process of its own, and what they report."""

import contextlib
import gzip
import json
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from benchmarks.playing.offline_cache import TraceRow
from benchmarks.processes import ServerProcess, pinned, python_module, start

#: What the issue asks of the workers that the traces are played to.
REALISTIC = ("--engine=realistic", "--context-length=131072")


class PlayError(Exception):
    """A run left no report."""


@contextlib.contextmanager
def workers(*flags: str, core: int | None) -> Iterator[ServerProcess]:
    """Run workers on *core*; they can be asked for the truth."""
    options = ("--host=127.0.0.1", "--grpc-base-port=0", "--http-port=0", "--admin", *flags)
    command = python_module("replay", "serve", *options, "--log-format=json")
    with start("replay serve", command, core) as server:
        yield server


def targets_of(server: ServerProcess) -> list[str]:
    """Return the options that name the workers of *server* as targets."""
    return [f"--target=grpc://{address}" for address in server.addresses]


@contextlib.contextmanager
def playing(
    source: Path, folder: Path, *options: str, core: int | None
) -> Iterator["subprocess.Popen[str]"]:
    """Run `play` on *core* beside the block; its report is `folder / "report.json"`."""
    command = python_module("replay", "play", str(source), "--progress=none", *options)
    command.append(f"--json={folder / 'report.json'}")
    (folder / "report.json").unlink(missing_ok=True)
    with contextlib.nullcontext() if core is None else pinned(core):
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()


def play(source: Path, folder: Path, *options: str, core: int | None) -> dict[str, Any]:
    """Run `play` to its end, and return its report.  Raises PlayError."""
    with playing(source, folder, *options, core=core) as process:
        _, said = process.communicate()
    return report_of(folder, said)


def report_of(folder: Path, said: str) -> dict[str, Any]:
    """Return the report that a run has left.  Raises PlayError with what it *said*."""
    try:
        report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    except OSError:
        raise PlayError(f"play left no report; it said:\n{said}") from None
    return report


@attrs.frozen
class Trace:
    """What a trace asks for."""

    rows: Sequence[TraceRow]
    path: Path

    @property
    def prompt_tokens(self) -> int:
        """Of all rows."""
        return sum(row.prompt_tokens for row in self.rows)

    @property
    def output_tokens(self) -> int:
        """Of all rows."""
        return sum(row.output_tokens for row in self.rows)


def _text(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


def read_mooncake(path: Path, limit: int | None = None) -> Trace:
    """Read a Mooncake trace, without the player's own reader."""
    lines = _text(path).splitlines()[:limit]
    rows = [
        TraceRow(row["input_length"], row["output_length"], row["hash_ids"])
        for row in map(json.loads, lines)
    ]
    return Trace(rows, path)


def read_azure(path: Path) -> Trace:
    """Read an Azure trace, without the player's own reader."""
    lines = _text(path).splitlines()[1:]
    cells = [line.split(",") for line in lines]
    return Trace([TraceRow(int(row[1]), int(row[2]), ()) for row in cells], path)


def admitted(server: ServerProcess) -> list[dict[str, Any]]:
    """Return the requests of a worker in the order of their admission, as the admin port has them.

    A worker admits first come, first served, so that is the order of their numbers.
    """
    found: list[dict[str, Any]] = []
    while True:
        after = found[-1]["number"] if found else 0
        url = f"http://{server.http_address}/admin/requests?after={after}&limit=1000"
        with urllib.request.urlopen(url, timeout=10) as answer:
            page = json.load(answer)["requests"]
        if not page:
            return found
        found += page
