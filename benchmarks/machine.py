"""Where a benchmark ran: without it a number means nothing to the next reader."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

#: Packages whose version may change a figure.
PACKAGES = ("replay", "trio", "protobuf", "purerpc", "grpcio", "grpclib", "h2", "hpack", "pyzmq")


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


def _memory_mb() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    for tool in ("h2load", "nghttpd"):
        if shutil.which(tool):
            said = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False)
            found[tool] = said.stdout.split()[-1].removeprefix("nghttp2/") if said.stdout else "?"
    return found


def describe() -> dict[str, object]:
    """Return the machine, the versions, the command line and the load that was there before us."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mb": _memory_mb(),
        "kernel": platform.release(),
        "versions": _versions(),
        "command": ["python", "-m", "benchmarks", *sys.orig_argv[3:]],
        "started_unix": int(time.time()),
        "load_average": list(os.getloadavg()),
    }
