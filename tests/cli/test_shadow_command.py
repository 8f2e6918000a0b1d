"""`shadow` beside a worker with a tap: what the tap sees goes to a candidate and is compared."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from replay.cli import main
from tests.cli.test_play_command import run, trace, worker


def taps(folder: Path, *, more: str = "") -> Path:
    config = folder / "taps.yaml"
    config.write_text(
        "schema_version: 1\n"
        f"event_plane: {{discovery: {{kind: file, root: {folder / 'discovery'}}}}}\n"
        "taps:\n"
        "  - {name: shadow, capture: request_response, response: {chunk_timing: true}}\n" + more
    )
    return config


def test_a_live_tap_is_followed_to_its_end_and_compared(tmp_path: Path) -> None:
    """The candidate has another seed and needs twenty milliseconds more to the first token."""
    config, source = taps(tmp_path), trace(tmp_path / "trace.jsonl", 150, gap_ms=4)
    report_file = tmp_path / "report.json"
    with worker("--seed", "6", "--gen-ms", "25", "--token-ms", "1") as candidate:
        with worker("--seed", "5", "--gen-ms", "5", "--token-ms", "1", config=config) as primary:
            arguments = ["shadow", "--config", config, "--candidate", candidate, "--until-end"]
            arguments += ["--json", report_file, "--fail-on", "ttft.shift > +10ms"]
            shadow = subprocess.Popen(
                [sys.executable, "-m", "replay", *map(str, arguments), "--progress", "none"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            try:
                assert shadow.stderr is not None
                assert "tap: shadow" in shadow.stderr.readline()
                # A subscription takes a moment: what is sent before it is nobody's loss.
                played = 0
                while played < 3:
                    assert run("play", source, "--target", primary).exit_code == 0
                    played += 1
            except BaseException:
                shadow.kill()
                raise
        output, errors = shadow.communicate(timeout=30)
    assert shadow.returncode == 3, errors
    assert "failed: ttft.shift > +10ms" in errors
    assert "ended: done" in errors
    report = json.loads(report_file.read_text())
    tokens = report["answers"][0]
    assert tokens["judged"] == tokens["differing"] >= 300
    assert {each["metric"] for each in report["differences"] if each["flagged"]} >= {"ttft"}
    assert "differing requests" in output


def test_a_limit_ends_a_shadow(tmp_path: Path) -> None:
    config, source = taps(tmp_path), trace(tmp_path / "trace.jsonl", 1_000, gap_ms=5)
    with worker() as candidate, worker(config=config) as primary:
        player = subprocess.Popen(
            [sys.executable, "-m", "replay", "play", str(source), "--target", primary],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            options = ("--config", config, "--candidate", candidate, "--limit", "20")
            shadow = run("shadow", *options, "--fail-on", "tokens", "--fail-on", "missing")
        finally:
            player.terminate()
            player.wait(20)
    assert shadow.exit_code == 0, shadow.output
    assert "compared: 20" in shadow.output


@pytest.mark.parametrize(
    ("more", "options", "reason"),
    [
        ("  - {name: other, capture: request}\n", (), "which tap? --tap names one of"),
        ("", ("--tap", "absent"), "no tap to shadow; the configuration has: shadow"),
        ("", ("--curve-secret-key", "x"), "go together"),
        ("", ("--fail-on", "nonsense"), "nonsense is not known"),
        ("  - {}\n", (), "taps.yaml"),
    ],
)
def test_wrong_usage_is_refused(
    tmp_path: Path, more: str, options: tuple[str, ...], reason: str
) -> None:
    config = taps(tmp_path, more=more)
    shadow = run("shadow", "--config", config, "--candidate", "grpc://127.0.0.1:1", *options)
    assert shadow.exit_code == 2
    assert reason in shadow.output


def test_taps_that_write_files_only_are_played_not_shadowed(tmp_path: Path) -> None:
    config = tmp_path / "taps.yaml"
    config.write_text(
        "schema_version: 1\nevent_plane: {transport: none}\n"
        "taps: [{name: shadow, capture: request, record_file: {path: x}}]\n"
    )
    shadow = run("shadow", "--config", config, "--candidate", "grpc://127.0.0.1:1")
    assert shadow.exit_code == 2
    assert "use play" in shadow.output


def test_a_candidate_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    started = time.monotonic()
    shadow = CliRunner().invoke(
        main, ["shadow", "--config", str(taps(tmp_path)), "--candidate", "grpc://127.0.0.1:1"]
    )
    assert shadow.exit_code == 1
    assert "127.0.0.1:1: UNAVAILABLE" in shadow.output
    assert time.monotonic() - started < 10
