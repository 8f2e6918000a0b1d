"""The README says what is so: its program runs, its keys and its flags are the real ones."""

import re
import subprocess
import sys
from pathlib import Path

from replay.cli.serve import FLAGS
from replay.worker.capture import CAPTURE_KEYS, EXTENDED_KEYS

README = (Path(__file__).resolve().parents[1] / "README.md").read_text()


def test_the_program_in_the_readme_runs_and_prints_an_address(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    assert re.match(r"a gateway may come to 127\.0\.0\.1:\d+\n", done.stdout)
    assert (tmp_path / "generate.jsonl").stat().st_mode & 0o777 == 0o600


def test_the_keys_of_a_captured_line_are_listed_in_their_order() -> None:
    (listed,) = re.findall(r"- \*\*Keys\*\*.*?\n- \*\*", README, re.DOTALL)
    named = [name for name in re.findall(r"`(\w+)`", listed) if name != "--capture-extended"]
    assert named == [*CAPTURE_KEYS, *EXTENDED_KEYS]


def test_every_flag_in_the_readme_is_one_of_serve() -> None:
    (section,) = re.findall(r"replay serve (--.*)", README)
    known = {flag.name for flag in FLAGS}
    assert set(re.findall(r"--[a-z-]+", section)) <= known
    assert "--capture-extended" in known
