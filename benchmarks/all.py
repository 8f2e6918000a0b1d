"""Every benchmark, one after the other, and all their results in one file and one page.

Each runs as a process of its own, so that none inherits the memory of the one before.  With --quick
that takes less than five minutes.
"""

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.__main__ import scenarios
from benchmarks.page import html_page
from benchmarks.processes import python_module
from benchmarks.results import add_common_options, terminal, write_json

#: What comes first: what a request costs alone.  Then comes what it costs more with.
FIRST = ("server", "connections", "load", "scale")


def names() -> list[str]:
    """Return the benchmarks in the order in which they run."""
    known = [name for name in scenarios() if name != "all"]
    return sorted(known, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))


def main(argv: list[str]) -> int:
    """Run the benchmarks; return the exit status, 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks all", description=__doc__)
    add_common_options(parser)
    parser.add_argument("--only", nargs="+", choices=names(), metavar="NAME", help="only these")
    options = parser.parse_args(argv)
    console = terminal()
    reports: list[dict[str, Any]] = []
    failed = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="replay-benchmark-") as folder:
        for name in options.only or names():
            path = Path(folder) / f"{name}.json"
            console.rule(f"{name}, {time.monotonic() - began:.0f} s", align="left")
            if _run(name, path, quick=options.quick):
                failed.append(name)
            if path.exists():
                reports.append(_read(path, name, quick=options.quick))
    _sum_up(console, reports, failed, time.monotonic() - began)
    if options.json is not None:
        write_json(options.json, {"reports": reports, "failed": failed})
    if options.html is not None and reports:
        options.html.write_text(html_page(reports), encoding="utf-8")
    return 1 if failed else 0


def _read(path: Path, name: str, *, quick: bool) -> dict[str, Any]:
    """Return a report, with the command that makes it again alone."""
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    command = ["python", "-m", "benchmarks", name, *(["--quick"] if quick else [])]
    report["machine"]["command"] = command
    return report


def _run(name: str, path: Path, *, quick: bool) -> int:
    """Run one benchmark with its output shown; return its exit status."""
    arguments = [name, "--json", str(path), *(["--quick"] if quick else [])]
    return subprocess.run(
        python_module("benchmarks", *arguments), stdin=subprocess.DEVNULL
    ).returncode


def _sum_up(
    console: Console, reports: list[dict[str, Any]], failed: list[str], seconds: float
) -> None:
    bars = [bar for report in reports for bar in report["bars"]]
    missed = sum(not bar["kept"] for bar in bars)
    console.rule(align="left")
    console.print(f"{len(reports)} reports, {seconds:.0f} s; {missed} of {len(bars)} bars missed")
    for name in failed:
        console.print(f"{name} failed", style="red", highlight=False)
