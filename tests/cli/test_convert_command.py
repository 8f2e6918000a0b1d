"""`convert` as a person runs it."""

import json
from array import array
from pathlib import Path

import pytest

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.config.engines import CannedConfig
from replay.config.model import (
    Config,
    EventPlaneConfig,
    RecordFileConfig,
    ResponseConfig,
    TapCapture,
    TapConfig,
    Transport,
    WorkerConfig,
)
from replay.engines.script_file import read_script
from replay.player.observation import Choice, Observation, Outcome
from replay.player.results import RunHead, write_end, write_head, write_observation
from replay.worker.capture import capture_line
from tests.cli.test_play_command import run
from tests.engines.requests import generate_request
from tests.worker.running import config_of, running


def results(path: Path, *observations: Observation) -> Path:
    head = RunHead(source="s", target="t", pace="original", started_unix_ns=1)
    lines = [write_head(head), *map(write_observation, observations), write_end({"seconds": 1})]
    path.write_bytes(b"".join(lines))
    return path


def answered(name: str, *, is_truncated: bool = False) -> Observation:
    choice = Choice(
        finish_reason="stop",
        output_tokens=2,
        token_ids=array("I", (5, 6)),
        is_truncated=is_truncated,
    )
    return Observation(
        request_id=name,
        outcome=Outcome.COMPLETE,
        choices=(choice,),
        first_token_offset_ns=1_000_000,
        last_token_offset_ns=3_000_000,
        end_offset_ns=3_000_000,
        sent_ns=0,
    )


def test_answers_become_a_script_and_what_has_none_is_counted(tmp_path: Path) -> None:
    source = results(tmp_path / "r.jsonl", answered("a"), answered("b", is_truncated=True))
    converted = run("convert", source, "-o", tmp_path / "script.jsonl")
    assert converted.exit_code == 0, converted.output
    [line] = (tmp_path / "script.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "request_id": "a",
        "chunks": [[5], [6]],
        "offsets_ms": [1.0, 3.0],
        "finish_reason": "stop",
    }
    assert "left out 1: only the first tokens were recorded" in converted.output
    assert "of 1 no moments of single chunks are known" in converted.output
    assert "1 request(s) written" in converted.output


def test_nothing_to_turn_is_exit_code_1_and_nothing_to_read_is_2(tmp_path: Path) -> None:
    source = results(tmp_path / "r.jsonl")
    assert run("convert", source).exit_code == 1
    assert run("convert", tmp_path / "absent").exit_code == 2
    (tmp_path / "trace.jsonl").write_text('{"timestamp":0,"input_length":1,"output_length":1}\n')
    refused = run("convert", tmp_path / "trace.jsonl")
    assert refused.exit_code == 2
    assert "not of their answers" in refused.output


def test_a_source_without_answers_is_refused(tmp_path: Path) -> None:
    capture = tmp_path / "capture.jsonl"
    capture.write_bytes(capture_line(generate_request()))
    refused = run("convert", capture)
    assert refused.exit_code == 2
    assert "is a capture: it has no recorded answers" in refused.output
    script = tmp_path / "script.jsonl"
    script.write_text('{"request_id":"r","chunks":[[1]]}\n')
    assert "is a script: it has no recorded answers" in run("convert", script).output


def test_an_id_that_comes_again_is_answered_in_turn(tmp_path: Path) -> None:
    source = results(tmp_path / "r.jsonl", answered("a"), answered("b"), answered("a"))
    converted = run("convert", source, "-o", tmp_path / "script.jsonl")
    assert converted.exit_code == 0, converted.output
    lines = (tmp_path / "script.jsonl").read_bytes().splitlines()
    assert [(line["request_id"], line.get("times")) for line in map(json.loads, lines)] == [
        ("a", 1),
        ("b", None),
        ("a", None),
    ]
    assert read_script(lines).faults == []


async def test_what_a_tap_recorded_plays_back_as_it_came(tmp_path: Path) -> None:
    """A worker's answers are recorded, converted, and answered by another worker's script."""
    joined = TapConfig(
        name="joined",
        capture=TapCapture.REQUEST_RESPONSE,
        response=ResponseConfig(chunk_timing=True),
        record_file=RecordFileConfig(path=str(tmp_path / "records")),
    )
    plain = TapConfig(
        name="plain",
        capture=TapCapture.REQUEST,
        record_file=RecordFileConfig(path=str(tmp_path / "requests")),
    )
    recording = Config(
        worker=WorkerConfig(grpc_base_port=0, engine=CannedConfig(gen_ms=20, token_ms=30)),
        event_plane=EventPlaneConfig(transport=Transport.NONE),
        taps=(joined, plain),
    )
    one = generate_request(request_id="one", max_new_tokens=4)
    two = generate_request(request_id="two", max_new_tokens=3, n=2, sampling_seed=5)
    async with running(recording) as worker:
        recorded = [await worker.generate(message) for message in (one, two)]

    script = tmp_path / "script.jsonl"
    converted = run("convert", tmp_path / "records", "-o", script)
    assert converted.exit_code == 0, converted.output
    assert "of 1 no moments of single chunks are known" in converted.output
    lines = [json.loads(line) for line in script.read_text().splitlines()]
    assert [offset - lines[0]["offsets_ms"][0] for offset in lines[0]["offsets_ms"]] == (
        pytest.approx([0, 30, 60, 90], abs=25)
    )
    assert [line.get("index") for line in lines] == [None, 0, 1]

    async with running(config_of(script=str(script), script_strict=True)) as worker:
        played = [await worker.generate(message) for message in (one, two)]
    for before, after in zip(recorded, played, strict=True):
        assert sorted(ends(before)) == sorted(ends(after))

    no_answers = run("convert", tmp_path / "requests")
    assert no_answers.exit_code == 1
    assert "no record has a response" in no_answers.output


def ends(messages: list[pb.GenerateResponse]) -> list[tuple[int, str, list[int]]]:
    completes = [each.complete for each in messages if each.HasField("complete")]
    return [(each.index, each.finish_reason, list(each.output_ids)) for each in completes]
