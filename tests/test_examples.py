"""The examples run and show what they say."""

import subprocess
import sys
from pathlib import Path

from replay.config import load_config

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def test_a_trio_program_mirrors_its_own_requests(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "embed_in_trio_app.py", tmp_path / "records"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n") == [
        "own-0 complete 5",
        "own-1 complete 5",
        "own-2 complete 5",
        "own-1000 cancelled 0",
        "",
    ]


def test_the_example_of_a_configuration_loads() -> None:
    config = load_config(EXAMPLES / "taps.yaml")

    assert [tap.topic for tap in config.taps] == ["shadow-replay", "shadow-audit"]
    assert config.worker.engine.kind == "canned"
