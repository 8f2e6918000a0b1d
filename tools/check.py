"""The checks of a change, in one place for `make`, CI and a hurried author.

`python tools/check.py` runs all that `make test` promises; names of steps run only those, in the
order of `STEPS`.  Each step is timed; a step that fails does not stop the others, so that one run
shows every complaint.  Exit 1 if one failed.
"""

import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable

#: Branch coverage of `replay/` below this fails.
COVERAGE_PERCENT = 90

#: What is formatted, linted and typed besides the package.
SOURCES = ("replay", "tests", "tools", "examples", "benchmarks", "proto")


class StepError(Exception):
    """A check did not pass.  The text says what, when the output above does not."""


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    """Run *command* with its output shown; raise StepError if it fails."""
    status = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL).returncode
    if status:
        raise StepError(f"{' '.join(map(str, command))}: exit {status}")


def module(name: str, *arguments: str) -> None:
    """Run `python -m name` of this environment."""
    run(PYTHON, "-m", name, *arguments)


def present() -> list[str]:
    """Return the source folders that hold Python."""
    return [name for name in SOURCES if any((ROOT / name).rglob("*.py"))]


def check_format() -> None:
    module("ruff", "format", "--check", "--quiet", *present())


def check_lint() -> None:
    module("ruff", "check", "--quiet", *present())


def check_types() -> None:
    module("mypy")


def check_proto() -> None:
    run(PYTHON, "proto/generate.py", "--check")


def check_docstrings() -> None:
    module("interrogate", "--quiet", "replay")


def check_wheel() -> None:
    """Build the wheel, install it where nothing of this tree is, and let it answer requests."""
    with tempfile.TemporaryDirectory(prefix="replay-wheel-") as folder:
        outside = Path(folder)
        module("pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, str(ROOT))
        (wheel,) = outside.glob("replay-*.whl")
        names = set(zipfile.ZipFile(wheel).namelist())
        lacks = {"replay/py.typed", "replay/web/openapi.yaml"} - names
        if lacks or not any(name.endswith("/LICENSE") for name in names):
            raise StepError(f"the wheel lacks {', '.join(sorted(lacks)) or 'the licence'}")
        strangers = {name.split("/")[0] for name in names if not name.startswith("replay")}
        if strangers:
            raise StepError(f"the wheel would install {', '.join(sorted(strangers))}")
        venv.create(outside / "venv", with_pip=True)
        python = outside / "venv" / "bin" / "python"
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
        run(outside / "venv" / "bin" / "replay", "--version", cwd=outside)
        shutil.copytree(ROOT / "examples", outside / "examples")
        run(python, "examples/demo.py", "--no-gateway", cwd=outside)


def check_mutations() -> None:
    run(PYTHON, "tools/mutations.py")


def check_tests() -> None:
    """Run what does not judge times, on all cores and with coverage, since most tests wait."""
    for old in (*ROOT.glob(".coverage"), *ROOT.glob(".coverage.*")):
        old.unlink()
    pytest = ("coverage", "run", "-m", "pytest", "-m", "not timed")
    spread = ("--numprocesses", "auto", "--maxprocesses", "4", "--dist", "worksteal")
    run_tests(*pytest, *spread, alone=pytest)


def check_timed() -> None:
    """Run what judges times: one after the other, without coverage, with nothing beside it."""
    pytest = ("pytest", "-m", "timed")
    run_tests(*pytest, alone=pytest)


def run_tests(*pytest: str, alone: tuple[str, ...]) -> None:
    """Run tests, and those that failed once more, as *alone* says.

    Real processes and sockets on a shared machine: what fails beside a busy neighbour is tried once
    more by itself, and only that; a fault fails again.
    """
    try:
        module(*pytest)
    except StepError:
        print("== the tests that failed, once more")
        module(*alone, "--last-failed", "--last-failed-no-failures", "none")


def check_coverage() -> None:
    module("coverage", "combine", "--quiet")
    print("branch coverage of replay/, percent:", flush=True)
    try:
        module("coverage", "report", "--format=total", f"--fail-under={COVERAGE_PERCENT}")
    except StepError:
        module("coverage", "report")
        raise


STEPS: dict[str, Callable[[], None]] = {
    "format": check_format,
    "lint": check_lint,
    "types": check_types,
    "proto": check_proto,
    "docstrings": check_docstrings,
    "wheel": check_wheel,
    "mutations": check_mutations,
    "tests": check_tests,
    "coverage": check_coverage,
    "timed": check_timed,
}

#: What runs when no step is named.  The two take a minute together and tell little about a change.
USUAL = tuple(name for name in STEPS if name not in ("wheel", "mutations"))


def main(arguments: list[str]) -> int:
    """Run the named steps and return the exit status."""
    unknown = set(arguments) - set(STEPS)
    if unknown:
        print(f"unknown step {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
        return 2
    wanted = arguments or USUAL
    failed = []
    for name in STEPS:
        if name not in wanted:
            continue
        started = time.monotonic()
        print(f"== {name}", flush=True)
        try:
            STEPS[name]()
        except StepError as error:
            failed.append(name)
            print(error, flush=True)
        print(f"== {name}: {time.monotonic() - started:.1f} s", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
