"""Change one line at a time and see that the test which guards it notices.

`tests/mutations.toml` is the list.  For each entry the tree is copied, the line is changed, and two
tests run: the one that guards the line must fail, and a control, which has nothing to do with the
line, must pass (a change that breaks everything proves nothing).  Before that the unchanged copy
must pass all of them.

    python tools/mutations.py              all of the list
    python tools/mutations.py WORD ...     the entries whose name contains one of the words

Exit 1 if a mutation survives, breaks its control or no longer fits the source; 2 if the list itself
is wrong.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parent.parent
TABLE = Path("tests", "mutations.toml")

#: A mutation may make its test wait for what never comes; the test that guards it has failed then.
TEST_SECONDS = 120.0

#: What tests need, so what is copied.
COPIED = ("pyproject.toml", "replay", "proto", "tests", "tools", "examples", "benchmarks")


class TableError(Exception):
    """The list of mutations cannot be used."""


@attrs.frozen(kw_only=True)
class Mutation:
    """One changed line and the two tests that judge it."""

    name: str
    file: str
    changes: tuple[tuple[str, str], ...]
    """What is replaced by what: one pair, or two for a line that moves."""
    guard: str
    """Node id of the test that must fail."""
    control: str
    """Node id of the test that must pass."""


#: The keys of an entry.  `from` and `to` are texts, or lists of equally many texts.
KEYS = ("name", "file", "from", "to", "fails", "passes")


def read_table(text: str) -> list[Mutation]:
    """Parse the list.  Raises TableError for an entry with a missing, unknown or empty key."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TableError(str(error)) from error
    mutations = []
    for number, entry in enumerate(document.get("mutation", ()), 1):
        wrong = set(entry) ^ set(KEYS)
        if wrong:
            raise TableError(f"mutation {number}: missing or unknown: {', '.join(sorted(wrong))}")
        texts = {key: value if isinstance(value, list) else [value] for key, value in entry.items()}
        for key, values in texts.items():
            if not all(isinstance(value, str) and (value or key == "to") for value in values):
                raise TableError(f"mutation {number}: {key} must be a text")
        if len(texts["from"]) != len(texts["to"]):
            raise TableError(f"mutation {number}: from and to are not equally many")
        if any(old == new for old, new in zip(texts["from"], texts["to"], strict=True)):
            raise TableError(f"mutation {number}: from and to are the same")
        mutations.append(
            Mutation(
                name=entry["name"],
                file=entry["file"],
                changes=tuple(zip(texts["from"], texts["to"], strict=True)),
                guard=entry["fails"],
                control=entry["passes"],
            )
        )
    names = [mutation.name for mutation in mutations]
    if len(set(names)) != len(names):
        raise TableError("two mutations have one name")
    if not mutations:
        raise TableError("no mutation in the list")
    return mutations


def misfits(mutations: Sequence[Mutation], root: Path) -> list[str]:
    """Return a line for each text that is not in its file exactly once."""
    found = []
    for mutation in mutations:
        path = root / mutation.file
        text = path.read_text() if path.is_file() else ""
        for original, _ in mutation.changes:
            if (count := text.count(original)) != 1:
                found.append(
                    f"{mutation.name}: {mutation.file} has {original!r} {count} times, not once"
                )
    return found


def copy_tree(root: Path, target: Path) -> None:
    """Copy what the tests need of *root* into the empty folder *target*."""
    skipped = shutil.ignore_patterns("__pycache__", "*.pyc", "results")
    for name in COPIED:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=skipped)
        elif source.exists():
            shutil.copy2(source, target / name)


def run_tests(tree: Path, tests: Sequence[str], *, seconds: float) -> str:
    """Run *tests* on the copy and return "pass", "fail", "hang" or, if none could run, "broken"."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")
    }
    # Before any installed copy, and for the processes that the tests start too.
    environment["PYTHONPATH"] = str(tree)
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    log = tree / "pytest.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests],
            cwd=tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return "hang"
        finally:
            # Also what a failed test left behind.
            _kill_group(process)
    return {0: "pass", 1: "fail"}.get(status, "broken")


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def judge(mutation: Mutation, tree: Path, *, seconds: float) -> str:
    """Apply *mutation* to the copy, run its tests, undo it; return "caught" or what is wrong."""
    path = tree / mutation.file
    text = changed = path.read_text()
    for original, replacement in mutation.changes:
        changed = changed.replace(original, replacement)
    path.write_text(changed)
    try:
        guard = run_tests(tree, [mutation.guard], seconds=seconds)
        if guard == "pass":
            return "SURVIVED"
        if guard == "broken":
            return "BROKEN: the guard could not run"
        control = run_tests(tree, [mutation.control], seconds=seconds)
        return "caught" if control == "pass" else f"BROKEN: the control did not pass ({control})"
    finally:
        path.write_text(text)


def run(mutations: Sequence[Mutation], root: Path, *, seconds: float = TEST_SECONDS) -> int:
    """Judge every mutation on a copy of *root*, print a table, and return the exit status."""
    wrong = misfits(mutations, root)
    if wrong:
        print("\n".join(wrong))
        return 1
    with tempfile.TemporaryDirectory(prefix="replay-mutations-") as folder:
        tree = Path(folder)
        copy_tree(root, tree)
        tests = sorted({test for entry in mutations for test in (entry.guard, entry.control)})
        before = run_tests(tree, tests, seconds=seconds + 10 * len(tests))
        if before != "pass":
            print((tree / "pytest.log").read_text())
            print(f"the unchanged tree does not pass these tests ({before})")
            return 1
        width = max(len(mutation.name) for mutation in mutations)
        survivors = 0
        for mutation in mutations:
            started = time.monotonic()
            verdict = judge(mutation, tree, seconds=seconds)
            survivors += verdict != "caught"
            print(
                f"{mutation.name:{width}}  {verdict}  {time.monotonic() - started:.1f} s",
                flush=True,
            )
    print(f"{len(mutations) - survivors} of {len(mutations)} mutations caught")
    return 1 if survivors else 0


def main(words: list[str]) -> int:
    """Run the list, or the entries that *words* pick, and return the exit status."""
    try:
        mutations = read_table((ROOT / TABLE).read_text())
    except TableError as error:
        print(f"{TABLE}: {error}")
        return 2
    if words:
        mutations = [entry for entry in mutations if any(word in entry.name for word in words)]
        if not mutations:
            print("no mutation has such a name")
            return 2
    return run(mutations, ROOT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
