"""The mutation runner on small trees of its own, and the project's list against its sources."""

from pathlib import Path
from typing import Any

import pytest

from tools import mutations
from tools.mutations import Mutation, TableError

ROOT = Path(__file__).resolve().parents[2]

ENTRY = """
[[mutation]]
name = "sum"
file = "replay/numbers.py"
from = "a + b"
to = "a - b"
fails = "tests/test_numbers.py::test_sum"
passes = "tests/test_numbers.py::test_product"
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with two functions and a test for each."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # half of each run, unused here
    (tmp_path / "replay").mkdir()
    (tmp_path / "replay" / "__init__.py").touch()
    (tmp_path / "replay" / "numbers.py").write_text(
        "def add(a, b):\n    return a + b\n\n\ndef multiply(a, b):\n    return a * b\n"
    )
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_numbers.py").write_text(
        "import replay.numbers\n\n\n"
        "def test_sum():\n    assert replay.numbers.add(2, 3) == 5\n\n\n"
        "def test_product():\n    assert replay.numbers.multiply(2, 3) == 6\n\n\n"
        "def test_that_asks_nothing():\n    replay.numbers.add(2, 3)\n"
    )
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\ntestpaths = ["tests"]\n')
    return tmp_path


def mutation(old: str = "a + b", new: str = "a - b", **changes: Any) -> Mutation:
    """Return the entry of the small tree, with *changes*."""
    fields = {
        "name": "sum",
        "file": "replay/numbers.py",
        "changes": ((old, new),),
        "guard": "tests/test_numbers.py::test_sum",
        "control": "tests/test_numbers.py::test_product",
    }
    return Mutation(**{**fields, **changes})


def test_an_entry_of_the_list_is_read_whole() -> None:
    assert mutations.read_table(ENTRY) == [mutation()]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no mutation"),
        ("[[mutation", "Expected"),
        (ENTRY.replace('to = "a - b"', ""), "missing or unknown: to"),
        (ENTRY + 'note = "x"\n', "missing or unknown: note"),
        (ENTRY.replace("a - b", "a + b"), "the same"),
        (ENTRY.replace('"a + b"', '""'), "from must be a text"),
        (ENTRY.replace('"a + b"', "5"), "from must be a text"),
        (ENTRY.replace('"a + b"', '["a + b", "a"]'), "equally many"),
        (ENTRY + ENTRY, "one name"),
    ],
)
def test_a_list_that_is_wrong_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(TableError, match=complaint):
        mutations.read_table(text)


def test_a_mutation_that_its_test_notices_is_caught_and_undone(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (tree / "replay" / "numbers.py").read_text()
    assert mutations.run([mutation()], tree) == 0
    assert "sum  caught" in capsys.readouterr().out
    assert (tree / "replay" / "numbers.py").read_text() == before


def test_a_line_that_moves_is_two_changes_of_one_mutation(tree: Path) -> None:
    moves = ENTRY.replace('"a + b"', '["a + b", "a * b"]').replace('"a - b"', '["a * b", "a + b"]')
    (moved,) = mutations.read_table(moves)
    assert moved.changes == (("a + b", "a * b"), ("a * b", "a + b"))
    assert mutations.misfits([moved], tree) == []


def test_a_mutation_that_no_test_notices_survives(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weak = mutation(guard="tests/test_numbers.py::test_that_asks_nothing")
    assert mutations.run([weak, mutation(name="other")], tree) == 1
    out = capsys.readouterr().out
    assert "sum    SURVIVED" in out
    assert "other  caught" in out


def test_a_mutation_that_breaks_its_control_too_proves_nothing(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    everything = mutation("def add(a, b):", "def plus(a, b):")
    same = mutation(control="tests/test_numbers.py::test_sum")
    syntax = mutation(name="syntax", new="a +")
    assert mutations.run([everything], tree) == 0
    assert mutations.run([same], tree) == 1
    assert mutations.run([syntax], tree) == 1
    out = capsys.readouterr().out
    assert "control did not pass (fail)" in out
    assert "guard could not run" in out


def test_a_mutation_that_makes_its_test_wait_forever_is_caught(tree: Path) -> None:
    endless = mutation(new="add(a, b) if __import__('time').sleep(60) else 5")
    assert mutations.judge(endless, tree, seconds=2) == "caught"


@pytest.mark.parametrize(
    "changes",
    [{"old": "a ** b"}, {"old": "(a, b)"}, {"file": "replay/missing.py"}],
    ids=["gone", "twice", "no file"],
)
def test_a_mutation_that_no_longer_fits_the_source_is_an_error(
    tree: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, str]
) -> None:
    assert mutations.run([mutation(**changes)], tree) == 1
    assert "not once" in capsys.readouterr().out


def test_a_tree_that_fails_unchanged_is_not_judged(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / "replay" / "numbers.py").write_text("def add(a, b):\n    return a + b + 1\n")
    assert mutations.run([mutation()], tree) == 1
    assert "unchanged tree" in capsys.readouterr().out


def test_every_mutation_of_this_project_fits_its_source_and_names_tests_that_exist() -> None:
    table = mutations.read_table((ROOT / mutations.TABLE).read_text())
    assert mutations.misfits(table, ROOT) == []
    for entry in table:
        for test in (entry.guard, entry.control):
            path, _, function = test.partition("::")
            assert f"def {function.split('[')[0]}(" in (ROOT / path).read_text(), test
