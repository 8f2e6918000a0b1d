"""A run of which a quarter was taken back: recorded by a tap, played again, held against itself."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from replay.plane.codec import MessageEncoder
from replay.plane.record_file import HEADER, pack_record
from tests.cli.test_play_command import run, taps, worker
from tests.plane.records import record

COUNT = 60
CANCELLED = {f"request-{number}" for number in range(0, COUNT, 4)}
#: Half a second of answer, of which clients that leave see a tenth.
TOKENS = 100
WORKER = ("--token-ms", "5", "--seed", "3")


def wished(path: Path) -> Path:
    """Write records of requests of which every fourth was taken back after 60 ms."""
    encoder = MessageEncoder("topic", 7)
    with path.open("wb") as file:
        file.write(HEADER)
        for number in range(COUNT):
            is_cancelled = f"request-{number}" in CANCELLED
            request = {
                "model": "mock-model",
                "token_ids": [1, 2, 300 + number],
                "stop_conditions": {"max_tokens": TOKENS, "ignore_eos": True},
                "extra_args": {"tokenspeed": {"stream": True}},
            }
            response = {
                "outcome": "cancelled" if is_cancelled else "complete",
                "choices": [{"index": 0, "output_tokens": 9}],
                "output_tokens": 9,
                "end_offset_ns": 60_000_000,
            }
            payload = record(number, request=request, response=response)
            file.write(pack_record(encoder.encode(number, number, payload)))
    return path


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_that_was_taken_back_in_part_replays_with_the_same_outcomes(tmp_path: Path) -> None:
    source, records = wished(tmp_path / "wished.records"), tmp_path / "taps.records"
    results, report_file = tmp_path / "results.jsonl", tmp_path / "report.json"
    with worker(*WORKER, config=taps(tmp_path)) as target:
        assert run("play", source, "--target", target).exit_code == 0
    with worker(*WORKER) as target:
        played = run("play", records, "--target", target, "--results", results)
        assert played.exit_code == 0, played.output
        never = tmp_path / "never.jsonl"
        options = ("--cancel", "never", "--results", never)
        assert run("play", records, "--target", target, *options).exit_code == 0

    rules = [part for name in ("outcomes", "tokens", "lengths", "missing", "extra")
             for part in ("--fail-on", name)]  # fmt: skip
    compared = run("compare", records, results, *rules, "--json", report_file)
    assert compared.exit_code == 0, compared.output
    report = json.loads(report_file.read_text())
    for side in report["sides"].values():
        assert side["outcomes"] == {"cancelled": COUNT // 4, "complete": COUNT - COUNT // 4}
    judged = {each["kind"]: (each["judged"], each["differing"]) for each in report["answers"]}
    assert judged["outcomes"] == (COUNT, 0)
    # What a cancelled answer had is held against the other one as far as both go.
    assert judged["tokens"] == (COUNT, 0)
    outcomes = Counter(row.get("outcome") for row in rows_of(never))
    assert outcomes["complete"] == COUNT
    found = rows_of(results)
    assert {row["request_id"] for row in found if row.get("outcome") == "cancelled"} == CANCELLED
