"""`play --topic`: requests of a live tap, ours or Dynamo's, as they come."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trio

from replay.config.engines import CannedConfig
from replay.config.model import Config, ShutdownConfig, WorkerConfig
from replay.plane.sockets import open_context
from replay.player.results import read_results
from replay.player.traces.fault import Notes
from replay.player.traces.lines import split_lines
from replay.runtime import open_runtime
from tests.cli.test_play_command import run, trace, worker
from tests.plane.peers import XPub
from tests.plane.records import record

DYNAMO = Path(__file__).parents[1] / "data" / "dynamo"


def taps(folder: Path, *, capture: str) -> Path:
    config = folder / "taps.yaml"
    config.write_text(
        "schema_version: 1\n"
        f"event_plane: {{discovery: {{kind: file, root: {folder / 'discovery'}}}}}\n"
        f"taps: [{{name: live, capture: {capture}}}]\n"
    )
    return config


def test_a_live_tap_is_played_as_its_requests_come(tmp_path: Path) -> None:
    config, source = taps(tmp_path, capture="request"), trace(tmp_path / "trace.jsonl", 1_000)
    captured, summary = tmp_path / "captured.jsonl", tmp_path / "summary.json"
    with worker("--capture", str(captured)) as target, worker(config=config) as primary:
        player = subprocess.Popen(
            [sys.executable, "-m", "replay", "play", str(source), "--target", primary],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            topic = ("--topic", "shadow-requests-live", "--discovery", tmp_path / "discovery")
            played = run("play", *topic, "--target", target, "--limit", "20", "--json", summary)
        finally:
            player.terminate()
            player.wait(20)
    assert played.exit_code == 0, played.output
    assert "pace: live, as records come" in played.output
    report = json.loads(summary.read_text())
    assert report["run"]["outcomes"] == {"complete": 20}
    assert report["topic"]["records"] >= 20
    assert report["topic"]["tap_gaps"] == report["topic"]["dropped_here"] == 0
    lines = [json.loads(line) for line in captured.read_text().splitlines()]
    assert {line["request_id"][:9] for line in lines} == {"mooncake-"}
    assert {len(line["input_ids"]) for line in lines} == {64}


async def test_records_of_dynamos_tap_are_played_live(tmp_path: Path) -> None:
    """Their requests are those that a real Dynamo serialised; one has an image, and is refused."""
    names = ("rr_1", "kv_2", "kv_5")
    requests = [
        msgpack.unpackb((DYNAMO / f"request_{name}.msgpack").read_bytes()) for name in names
    ]
    captured, results = tmp_path / "captured.jsonl", tmp_path / "results.jsonl"
    setup = WorkerConfig(grpc_base_port=0, engine=CannedConfig(), capture=str(captured))
    config = Config(worker=setup, shutdown=ShutdownConfig(grace_seconds=0))
    async with (
        open_runtime(config) as runtime,
        open_context(term_seconds=5) as context,
    ):
        with XPub(context) as publisher:
            arguments = ["--topic", "shadow", "--connect", publisher.endpoint, "--limit", "3"]
            arguments += ["--target", f"grpc://{runtime.addresses[0]}", "--results", str(results)]
            arguments += ["--progress", "none"]
            command = [sys.executable, "-m", "replay", "play", *arguments]
            with trio.fail_after(30):
                async with trio.open_nursery() as running:
                    running.start_soon(_run, command)
                    await publisher.next_subscription()
                    for sequence, request in enumerate(requests):
                        publisher.send(sequence, record(sequence, request=request, response=...))
    read = read_results(split_lines([results.read_bytes()]), Notes())
    found = {each.request_id: each for each in read.observations}
    assert {name: each.outcome.value for name, each in found.items()} == {
        "request-0": "complete",
        "request-1": "not_sent",
        "request-2": "complete",
    }
    assert found["request-1"].error == "lacks multi_modal_data"
    lines = {
        line["request_id"]: line for line in map(json.loads, captured.read_text().splitlines())
    }
    assert lines["request-0"]["input_ids"] == requests[0]["token_ids"]
    assert lines["request-2"]["ignore_eos"] is True
    assert read.head.source == "topic shadow"


async def _run(command: list[str]) -> None:
    await trio.run_process(command, capture_stdout=True, capture_stderr=True)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "give a SOURCE, or a --topic of a live tap"),
        (("x.jsonl", "--topic", "t"), "give a SOURCE, or a --topic of a live tap"),
        (("--topic", "t", "--rate", "5"), "--rate: a live topic has its own times"),
        (("--topic", "t", "--speed", "2"), "--speed: a live topic has its own times"),
        (("--topic", "t", "--connect", "host"), "--connect: must look like tcp://host:port"),
        (("--topic", "t", "--curve-secret-key", "x"), "go together"),
        (("x.jsonl", "--until-end"), "--until-end: without a --topic"),
    ],
)
def test_what_does_not_go_with_a_topic_is_refused(arguments: tuple[Any, ...], reason: str) -> None:
    played = run("play", *arguments, "--target", "grpc://127.0.0.1:1")
    assert played.exit_code == 2
    assert reason in played.output
