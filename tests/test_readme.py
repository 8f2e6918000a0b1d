"""The README says what is so: its program runs, its keys and its flags are the real ones."""

import re
import subprocess
import sys
from pathlib import Path

from replay.cli import COMMANDS
from replay.cli.serve import FLAGS
from replay.config import load_config
from replay.worker.capture import CAPTURE_KEYS, EXTENDED_KEYS

README = (Path(__file__).resolve().parents[1] / "README.md").read_text()


def test_the_program_in_the_readme_runs_and_prints_an_address(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"a gateway may come to 127\.0\.0\.1:\d+\n", done.stdout)
    assert (tmp_path / "generate.jsonl").stat().st_mode & 0o777 == 0o600


def test_the_configuration_in_the_readme_is_a_tap_on_the_topic_that_it_reads(
    tmp_path: Path,
) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    (tmp_path / "taps.yaml").write_text(text)
    (tap,) = load_config(str(tmp_path / "taps.yaml")).taps
    assert f"--topic {tap.topic} " in README


def test_every_command_in_the_readme_is_there() -> None:
    assert set(re.findall(r"^\| `replay (\w+)", README, re.MULTILINE)) <= set(COMMANDS)


def test_the_keys_of_a_captured_line_are_listed_in_their_order() -> None:
    (listed,) = re.findall(r"- \*\*Keys\*\*.*?\n- \*\*", README, re.DOTALL)
    named = [name for name in re.findall(r"`(\w+)`", listed) if name != "--capture-extended"]
    assert named == [*CAPTURE_KEYS, *EXTENDED_KEYS]


def test_every_flag_in_the_readme_is_one_of_serve() -> None:
    flags = {flag for line in re.findall(r"replay serve (--.*)", README) for flag in line.split()}
    known = {"--config", *(flag.name for flag in FLAGS)}
    assert {flag for flag in flags if flag.startswith("--")} <= known
    assert {flag for flag in known if flag.startswith("--capture")} <= set(
        re.findall(r"--[a-z-]+", README)
    )
