"""`play` and `compare` as a person runs them, against a worker in a process of its own."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from replay.cli import main
from replay.player.results import read_results
from replay.player.traces.fault import Notes
from replay.player.traces.lines import split_lines


@contextmanager
def worker(*flags: str, config: Path | None = None) -> Iterator[str]:
    """Run a worker on a free port, and return its address; it is stopped in order."""
    with workers(*flags, config=config) as targets:
        yield targets[0]


@contextmanager
def workers(*flags: str, config: Path | None = None) -> Iterator[list[str]]:
    """Run a process of workers on free ports, and return their addresses."""
    arguments = ["serve", "--grpc-base-port", "0", "--log-format", "json", *flags]
    if config is not None:
        arguments += ["--config", str(config)]
    process = subprocess.Popen(
        [sys.executable, "-m", "replay", *arguments], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        addresses = None
        for line in process.stderr:
            event = json.loads(line)
            if event["event"] == "listening":
                addresses = event["addresses"]
                break
        assert addresses is not None
        # Nobody reads on in this thread, and a full pipe would stop the worker.
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield [f"grpc://{address}" for address in addresses]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        process.stderr.close()


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


def trace(path: Path, rows: int, *, gap_ms: float = 2, output_length: int = 4, **more: Any) -> Path:
    with path.open("w") as file:
        for at in range(rows):
            row = {
                "timestamp": at * gap_ms,
                "input_length": 64,
                "output_length": output_length,
                "hash_ids": [at],
            }
            file.write(json.dumps(row | more) + "\n")
    return path


def taps(folder: Path) -> Path:
    config = folder / "taps.yaml"
    config.write_text(
        "schema_version: 1\n"
        "event_plane: {transport: none}\n"
        "taps:\n"
        "  - name: shadow\n"
        "    capture: request_response\n"
        "    response: {chunk_timing: true}\n"
        f"    record_file: {{path: {folder / 'taps.records'}}}\n"
    )
    return config


@pytest.mark.timed
def test_a_recording_is_played_and_compared_from_end_to_end(tmp_path: Path) -> None:
    """What a tap recorded differs in nothing when it is played again, and in what was changed."""
    source = trace(tmp_path / "trace.jsonl", 80)
    records, again = tmp_path / "taps.records", tmp_path / "again.jsonl"
    control, other = tmp_path / "control.jsonl", tmp_path / "other.jsonl"
    with worker("--seed", "5", "--gen-ms", "5", "--token-ms", "1", config=taps(tmp_path)) as target:
        assert run("play", source, "--target", target).exit_code == 0
    with worker("--seed", "5", "--gen-ms", "5", "--token-ms", "1") as target:
        for results in (again, control):
            played = run("play", records, "--target", target, "--results", results)
            assert played.exit_code == 0, played.output
    with worker("--seed", "6", "--gen-ms", "25", "--token-ms", "1") as target:
        assert run("play", records, "--target", target, "--results", other).exit_code == 0

    # Times are for a quiet machine to judge; the answers are the same on any.
    same = run(
        "compare", records, again, "--fail-on", "tokens > 0%", "--json", tmp_path / "same.json"
    )
    assert same.exit_code == 0, same.output
    report = json.loads((tmp_path / "same.json").read_text())
    judged = {each["kind"]: each["judged"] for each in report["answers"]}
    assert judged == {
        "tokens": 80,
        "lengths": 80,
        "finish_reasons": 80,
        "outcomes": 80,
        "prompts": 0,
    }

    pages = [tmp_path / f"report.{form}" for form in ("json", "csv", "html")]
    files = [part for page in pages for part in (f"--{page.suffix[1:]}", page)]
    rules = ["--fail-on", "tokens > 99%", "--fail-on", "ttft.shift > +10ms", "--fail-on", "missing"]
    changed = run("compare", again, other, "--control", control, *rules, *files)
    assert changed.exit_code == 3
    assert "failed: tokens > 99%: is 100.00%" in changed.output
    assert "failed: ttft.shift > +10ms" in changed.output
    assert "failed: missing" not in changed.output
    report = json.loads(pages[0].read_text())
    # Whether a time is flagged depends on the noise of the machine; that it is looked at does not.
    assert {each["metric"] for each in report["differences"]} >= {"ttft", "e2e"}
    assert all(row["first_difference"] == 0 for row in report["differing"])
    assert len(pages[1].read_text().splitlines()) == 81
    assert "<h2>Worst requests</h2>" in pages[2].read_text()


def test_a_run_leaves_its_settings_its_results_and_its_end(tmp_path: Path) -> None:
    source, results = trace(tmp_path / "trace.jsonl", 20), tmp_path / "results.jsonl"
    summary = tmp_path / "summary.json"
    with worker() as target:
        options = ("--speed", "2", "--limit", "10", "--slo", "ttft=5s", "--json", summary)
        played = run("play", source, "--target", target, "--results", results, *options)
        assert played.exit_code == 0, played.output
        again = run("play", source, "--target", target, "--results", results)
    assert again.exit_code == 2
    assert "is there already" in again.output
    assert results.stat().st_mode & 0o777 == 0o600
    found = read_results(split_lines([results.read_bytes()]), Notes())
    assert (found.head.target, found.head.pace) == (target, "original times, speed 2")
    assert found.head.settings["limit"] == 10
    assert len(found.observations) == 10
    assert found.end is not None
    assert (found.end["reason"], found.end["sent"]) == ("done", 10)
    report = json.loads(summary.read_text())
    assert report["goodput"]["share"] == 1.0
    assert report["run"]["schedule"]["kept"] is True


def test_several_targets_take_turns_and_the_report_names_each(tmp_path: Path) -> None:
    source, results = trace(tmp_path / "trace.jsonl", 21), tmp_path / "results.jsonl"
    summary = tmp_path / "summary.json"
    with workers("--grpc-count", "2") as targets:
        options = [part for target in targets for part in ("--target", target)]
        played = run("play", source, *options, "--json", summary, "--results", results)
    assert played.exit_code == 0, played.output
    report = json.loads(summary.read_text())
    found = {each["name"]: each for each in report["run"]["targets"]}
    assert {name: each["requests"] for name, each in found.items()} == dict(
        zip(targets, (11, 10), strict=True)
    )
    assert sum(each["output_tokens"] for each in found.values()) == 21 * 4
    assert all(target in played.output for target in targets)
    read = read_results(split_lines([results.read_bytes()]), Notes())
    assert read.head.target == ", ".join(targets)
    assert {each.target for each in read.observations} == set(targets)


def test_a_run_says_whether_it_kept_its_pace(tmp_path: Path) -> None:
    """A prompt of four million tokens takes longer to make than its moment allows.

    The first 64 requests are made before the run begins.
    """
    source, summary = tmp_path / "trace.jsonl", tmp_path / "summary.json"
    sizes = [8] * 65 + [4 << 20] * 2
    rows = [{"timestamp": 0, "input_length": size, "output_length": 0} for size in sizes]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with worker() as target:
        played = run("play", source, "--target", target, "--json", summary)
    assert "pace: original times, speed 1: NOT kept, " in played.output
    assert json.loads(summary.read_text())["pace"] == {
        "text": "original times, speed 1",
        "kept": False,
    }


def test_an_interrupted_run_ends_with_a_whole_report(tmp_path: Path) -> None:
    source, results = trace(tmp_path / "trace.jsonl", 500, gap_ms=20), tmp_path / "results.jsonl"
    with worker("--token-ms", "5") as target:
        arguments = ["play", str(source), "--target", target, "--results", str(results)]
        process = subprocess.Popen(
            [sys.executable, "-m", "replay", *arguments, "--progress", "none"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            while not results.exists() or results.read_bytes().count(b"\n") < 10:
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "ended: stopped" in errors
    assert "Time to first token" in output
    found = read_results(split_lines([results.read_bytes()]), Notes())
    assert found.end is not None
    assert found.end["reason"] == "stopped"
    assert len(found.observations) == 500
    assert sum(found.end["outcomes"].values()) == 500


@pytest.mark.parametrize(
    ("option", "reported"), [("--results", "ended: stopped"), ("--json", "Time to first token")]
)
def test_a_full_disk_costs_a_run_its_file_and_not_its_report(
    tmp_path: Path, option: str, reported: str
) -> None:
    """Without results a run is stopped at once, maybe before anything has come back."""
    source = trace(tmp_path / "trace.jsonl", 10)
    with worker() as target:
        played = run("play", source, "--target", target, option, "/dev/full")
    assert played.exit_code == 1
    assert "/dev/full: No space left on device" in played.output
    assert reported in played.output


def test_a_run_of_nothing_says_so(tmp_path: Path) -> None:
    source = trace(tmp_path / "trace.jsonl", 10)
    with worker() as target:
        played = run("play", source, "--target", target, "--start", "100")
    assert played.exit_code == 1
    assert "no request was sent" in played.output


def test_a_closed_loop_and_rates_play_what_has_no_times(tmp_path: Path) -> None:
    source = tmp_path / "capture.jsonl"
    with worker("--capture", str(source)) as target:
        run("play", trace(tmp_path / "trace.jsonl", 5), "--target", target)
    with worker() as target:
        refused = run("play", source, "--target", target)
        assert refused.exit_code == 2
        assert "has no times: give a --rate or a --concurrency" in refused.output
        for pace in (("--concurrency", "2"), ("--rate", "500"), ("--rate", "500", "--poisson")):
            played = run("play", source, "--target", target, *pace)
            assert played.exit_code == 0, played.output


def test_a_fault_of_the_source_in_the_middle_is_told_with_its_line(tmp_path: Path) -> None:
    source = trace(tmp_path / "trace.jsonl", 1_500, gap_ms=0.1)
    with source.open("a") as file:
        file.write('{"timestamp": "12"}\n')
    with worker() as target:
        played = run("play", source, "--target", target)
    assert played.exit_code == 1
    assert "trace.jsonl:1501: timestamp: must be a finite number" in played.output


def test_a_request_that_lacks_something_is_refused_unless_it_may_be_filled(tmp_path: Path) -> None:
    source = tmp_path / "script.jsonl"
    source.write_text('{"request_id": "a", "chunks": [[1, 2]], "finish_reason": "length"}\n')
    with worker() as target:
        refused = run("play", source, "--target", target, "--rate", "10")
        assert refused.exit_code == 1
        assert "refused 1 request(s): lacks prompt" in refused.output
        assert "--fill synthetic makes up what is lacking" in refused.output
        filled = run("play", source, "--target", target, "--rate", "10", "--fill", "synthetic")
        assert filled.exit_code == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--speed", "2", "--rate", "5"), "requests have one pace"),
        (("--concurrency", "2", "--rate", "5"), "requests have one pace"),
        (("--poisson",), "--poisson needs --rate"),
        (("--speed", "0"), "speed: must be a finite number above 0"),
        (("--rate", "nan"), "rate: must be a finite number above 0"),
        (("--start", "5", "--end", "5"), "end: must lie after the start"),
        (("--slo", "speed=5"), "objective"),
        (("--target", "grpc://127.0.0.1:1"), "grpc://127.0.0.1:1: is named twice"),
        (("--target", "http://127.0.0.1:1/v1"), "have to be of one kind"),
        (("--target", "tcp://127.0.0.1:1"), "a target is grpc://"),
        (("--target", "grpc://nowhere"), "grpc://nowhere: not an address"),
        (("--target", "https://a:b@c/v1"), "takes no user, query or fragment"),
        (("--target", "http://:80/v1"), "must be http://host or https://host"),
        (("--ca-file", __file__), "grpc://127.0.0.1:1 has no TLS"),
        (("--key-file", __file__), "--key-file is the key of a --cert-file"),
    ],
)
def test_wrong_usage_is_refused_before_anything_is_sent(
    tmp_path: Path, options: tuple[str, ...], reason: str
) -> None:
    source = trace(tmp_path / "trace.jsonl", 1)
    played = run("play", source, "--target", "grpc://127.0.0.1:1", *options)
    assert played.exit_code == 2
    assert reason in played.output


def test_a_source_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    played = run("play", tmp_path / "absent", "--target", "grpc://127.0.0.1:1")
    assert played.exit_code == 2
    assert "No such file" in played.output
    (tmp_path / "dump.pkl").write_bytes(b"\x80\x04.")
    played = run("play", tmp_path / "dump.pkl", "--target", "grpc://127.0.0.1:1")
    assert played.exit_code == 2
    assert "is a Python pickle" in played.output


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("grpc://127.0.0.1:1", "127.0.0.1:1: UNAVAILABLE"),
        ("http://127.0.0.1:1/v1", "no connection"),
    ],
)
def test_a_target_that_cannot_be_used_is_one_line(tmp_path: Path, target: str, reason: str) -> None:
    played = run("play", trace(tmp_path / "trace.jsonl", 1), "--target", target)
    assert played.exit_code == 1
    assert reason in played.output
    assert "Traceback" not in played.output


# ---- compare


def test_a_gateways_rendering_is_held_against_reference_ids(tmp_path: Path) -> None:
    capture, references = tmp_path / "capture.jsonl", tmp_path / "references.jsonl"
    keys = {"original_text": "", "max_new_tokens": 1, "sampling_seed": None}
    rows = [("a", [1, 2]), ("b-3f2504e0-4f89-11d3-9a0c-0305e82c3301", [1, 9]), ("c-p0", [5])]
    capture.write_text(
        "".join(
            json.dumps({"request_id": name, "input_ids": ids} | keys) + "\n" for name, ids in rows
        )
    )
    wanted = [("a", [1, 2]), ("b", [1, 2]), ("c", [5]), ("d", [7])]
    references.write_text(
        "".join(json.dumps({"id": name, "prompt_token_ids": ids}) + "\n" for name, ids in wanted)
    )
    report_file = tmp_path / "report.json"
    compared = run("compare", references, capture, "--json", report_file, "--fail-on", "prompts")
    assert compared.exit_code == 3
    report = json.loads(report_file.read_text())
    prompts = next(each for each in report["answers"] if each["kind"] == "prompts")
    assert (prompts["judged"], prompts["differing"]) == (3, 1)
    assert report["missing"] == {"count": 1, "ids": ["d"]}
    [differing] = report["differing"]
    assert (differing["request_id"], differing["prompt_first_difference"]) == ("b", 1)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--fail-on", "speed > 5"), "speed is not known"),
        (("--threshold", "ttft=fast"), "threshold 'ttft=fast'"),
        (("--slo", "ttft=fast"), "objective"),
        (("--control", "absent"), "No such file"),
    ],
)
def test_wrong_usage_of_compare_is_refused(
    tmp_path: Path, options: tuple[str, ...], reason: str
) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"id":"a","prompt_token_ids":[1]}\n')
    compared = run("compare", source, source, *options)
    assert compared.exit_code == 2
    assert reason in compared.output


def test_a_trace_tells_nothing_to_compare(tmp_path: Path) -> None:
    source = trace(tmp_path / "trace.jsonl", 3)
    compared = run("compare", source, source)
    assert compared.exit_code == 2
    assert "it tells of requests, not of their answers" in compared.output


def test_a_report_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"id":"a","prompt_token_ids":[1]}\n')
    compared = run("compare", source, source, "--html", tmp_path / "absent" / "report.html")
    assert compared.exit_code == 2
    assert "cannot write" in compared.output
