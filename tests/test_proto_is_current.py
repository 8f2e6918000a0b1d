"""The generated modules are those of the .proto files, and the check sees it when they are not."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def generate(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the generator of the tree at *root*."""
    return subprocess.run(
        [sys.executable, str(root / "proto" / "generate.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Copy what the generator reads and writes."""
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    shutil.copytree(ROOT / "replay" / "_proto", tmp_path / "replay" / "_proto")
    return tmp_path


def test_what_is_checked_in_is_current() -> None:
    done = generate(ROOT, "--check")
    assert (done.returncode, done.stdout) == (0, "")


def test_a_generated_module_that_was_edited_is_named(tree: Path) -> None:
    module = tree / "replay" / "_proto" / "common_pb2.pyi"
    module.write_text(module.read_text() + "\n")
    done = generate(tree, "--check")
    assert done.returncode == 1
    assert done.stdout.split()[-1:] == ["common_pb2.pyi"]


def test_a_definition_that_was_changed_is_seen_until_it_is_generated(tree: Path) -> None:
    definition = tree / "proto" / "tokenspeed_scheduler.proto"
    definition.write_text(definition.read_text().replace("reason = 2;", "cause = 2;"))
    done = generate(tree, "--check")
    assert done.returncode == 1
    assert "tokenspeed_scheduler_pb2.py" in done.stdout
    assert generate(tree).returncode == 0
    assert generate(tree, "--check").returncode == 0


@pytest.mark.parametrize("lost", ["health_pb2.py", "pool.py", "__init__.py"])
def test_a_generated_file_that_is_missing_is_named(tree: Path, lost: str) -> None:
    (tree / "replay" / "_proto" / lost).unlink()
    done = generate(tree, "--check")
    assert done.returncode == 1
    assert lost in done.stdout


def test_a_file_that_nothing_generates_is_named(tree: Path) -> None:
    (tree / "replay" / "_proto" / "left_pb2.py").write_text("")
    done = generate(tree, "--check")
    assert done.returncode == 1
    assert "left_pb2.py" in done.stdout
