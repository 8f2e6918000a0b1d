"""`convert` as a person runs it."""

import json
from array import array
from pathlib import Path

from replay.player.observation import Choice, Observation, Outcome
from replay.player.results import RunHead, write_end, write_head, write_observation
from tests.cli.test_play_command import run


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
    converted = run("convert", source, tmp_path / "script.jsonl")
    assert converted.exit_code == 0, converted.output
    [line] = (tmp_path / "script.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "request_id": "a",
        "chunks": [[5], [6]],
        "offsets_ms": [1.0, 3.0],
        "finish_reason": "stop",
    }
    assert "left out 1: only the first tokens were recorded" in converted.output
    assert "1 request(s) written" in converted.output


def test_nothing_to_turn_is_exit_code_1_and_nothing_to_read_is_2(tmp_path: Path) -> None:
    source = results(tmp_path / "r.jsonl")
    assert run("convert", source).exit_code == 1
    assert run("convert", tmp_path / "absent").exit_code == 2
    (tmp_path / "trace.jsonl").write_text('{"timestamp":0,"input_length":1,"output_length":1}\n')
    refused = run("convert", tmp_path / "trace.jsonl")
    assert refused.exit_code == 2
    assert "not of their answers" in refused.output
