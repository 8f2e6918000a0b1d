"""`replay check` and what the command line refuses before anything starts."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from replay.cli import COMMANDS, main
from replay.config import Config, load_config


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*args: str) -> tuple[int, str, str]:
    """Run the command line; return its exit code, stdout and stderr."""
    result = CliRunner().invoke(main, args)
    return result.exit_code, result.stdout, result.stderr


def test_check_prints_the_effective_configuration(folder: Path) -> None:
    Path("taps.yaml").write_text("schema_version: 1\ntaps: []\nworker: {model: m}\n")
    code, out, err = run("check", "--config", "taps.yaml")
    assert (code, err) == (0, "")
    assert "  model: m\n" in out
    assert "  grpc_base_port: 50051\n" in out
    Path("effective.yaml").write_text(out)
    assert load_config("effective.yaml") == load_config("taps.yaml")


def test_check_prints_all_problems_and_exits_with_2(folder: Path) -> None:
    Path("taps.yaml").write_text(
        "schema_version: 1\ntaps: []\nworker: {grpc_count: x}\nnamspace: a\nnamespace: b\n"
        "namespace: c\n"
    )
    code, out, err = run("check", "--config", "taps.yaml")
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "taps.yaml:3: $.worker.grpc_count: must be an integer, is x",
        'taps.yaml:4: $.namspace: unknown key "namspace": did you mean "namespace"?',
        'taps.yaml:6: $.namespace: duplicate key "namespace": lines 5 and 6',
    ]


def test_check_warns_and_still_succeeds(folder: Path) -> None:
    Path("taps.yaml").write_text(
        "schema_version: 1\ntaps: []\nworker: {grpc_count: 0, capture: x}\n"
    )
    code, _, err = run("check", "--config", "taps.yaml")
    assert code == 0
    assert err == "warning: worker.capture: nothing will be captured, because grpc_count is 0\n"


def test_a_file_that_is_missing_is_one_clear_line(folder: Path) -> None:
    assert run("check", "--config", "none.yaml") == (
        2,
        "",
        "none.yaml: cannot be read: No such file or directory\n",
    )


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["check"], "Missing option '--config'"),
        (["check", "--nonsense"], "No such option"),
        (["serve", "--nonsense"], "No such option"),
        (["serve", "--grpc-count"], "requires an argument"),
        (["serve", "--log-level", "loud"], "'loud' is not one of"),
        (["nonsense"], "No such command"),
    ],
)
def test_wrong_usage_exits_with_2(args: list[str], words: str) -> None:
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert words in err


def test_all_wrong_flags_are_told_at_once_and_nothing_starts(folder: Path) -> None:
    Path("taps.yaml").write_text("schema_version: 1\ntaps: []\nworker: {engine: {seed: x}}\n")
    code, out, err = run(
        *("serve", "--config", "taps.yaml", "--grpc-count", "many", "--token-ms", "-1"),
        *("--capture", "capture.jsonl", "--default-sampling-params", "{", "--host", "a b"),
    )
    assert (code, out) == (2, "")
    lines = err.splitlines()
    assert lines[0] == "taps.yaml:3: $.worker.engine.seed: must be an integer, is x"
    assert '--grpc-count: must be an integer, is "many"' in lines
    assert "--token-ms: must be at least 0, is -1" in lines
    assert '--host: must be a host: an address or a name, is "a b"' in lines
    assert any(line.startswith("--default-sampling-params: is not valid JSON") for line in lines)
    assert not Path("capture.jsonl").exists()


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help(command: str) -> None:
    code, out, _ = run(command, "--help")
    assert code == 0
    assert "Usage:" in out


def test_the_help_of_serve_tells_the_defaults() -> None:
    _, out, _ = run("serve", "--help")
    assert str(Config().worker.grpc_base_port) in out


def test_another_system_is_refused(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    Path("taps.yaml").write_text("schema_version: 1\ntaps: []\n")
    monkeypatch.setattr("sys.platform", "darwin")
    code, _, err = run("check", "--config", "taps.yaml")
    assert code == 2
    assert "replay runs on Linux only, this is darwin" in err


def test_the_version_needs_none_of_the_service() -> None:
    """A quick `--version` is the first thing that anybody runs."""
    program = (
        "import sys, replay.cli\n"
        "try: replay.cli.main(['--version'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert not {'trio', 'google.protobuf', 'yaml', 'replay.config'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, timeout=60, capture_output=True, text=True
    )
    assert done.stdout.startswith("replay, version ")


def test_check_reads_the_script_and_warns_of_what_is_odd_about_it(folder: Path) -> None:
    Path("taps.yaml").write_text(
        "schema_version: 1\ntaps: []\nworker: {script: s.jsonl}\nshutdown: {grace_seconds: 1}\n"
    )
    Path("s.jsonl").write_text('{"request_id": "r", "chunks": [[40000]], "offsets_ms": [1500.5]}\n')
    code, _, err = run("check", "--config", "taps.yaml")
    assert code == 0
    assert err.splitlines() == [
        "warning: shutdown.grace_seconds: 1 s are less than the longest answer of worker.script "
        "takes, 1.5005 s: a stop cuts it short",
        "warning: worker.vocab_size: 32768 is advertised, and worker.script has the token id 40000",
    ]
    Path("s.jsonl").write_text("\n{}\n")
    assert run("check", "--config", "taps.yaml") == (2, "", "s.jsonl:2: request_id: is missing\n")
