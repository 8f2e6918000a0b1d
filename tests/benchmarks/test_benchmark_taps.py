"""The benchmarks of the taps: the bare work is the same work, and no loss goes unnoticed."""

import json

import attrs
import pytest
import trio

from benchmarks import stalled, taps
from benchmarks.contenders import WORKER_OPTIONS
from benchmarks.payloads import Shape, canned_ids, request
from benchmarks.processes import choose_cores, python_module, start
from benchmarks.tap_setup import TAPS, account_fault, write_config
from benchmarks.tap_work import records
from replay.config.model import TapCapture, TapConfig
from replay.engines.base import Generation, Model
from replay.taps.taps import Taps

SHAPE = Shape(300, 16)


async def our_records(data, *, arrival_unix_ns, offset_ns):
    """Return the records of a worker's taps for the request *data*."""
    now = 0
    made = Taps(
        [
            TapConfig(
                name=tap["name"], capture=TapCapture(tap["capture"]), filters=tuple(tap["filters"])
            )
            for tap in TAPS
        ],
        clock_ns=lambda: now,
    )
    message = request(SHAPE, "").FromString(data)
    generation = Generation(
        message=message,
        request_id=message.request_id,
        prompt_tokens=SHAPE.prompt_tokens,
        choices=1,
        max_new_tokens=SHAPE.output_tokens,
        arrival=0.0,
    )
    recording = await made.record_generate(
        generation, Model(name="mock-model"), arrival_unix_ns=arrival_unix_ns
    )
    with recording:
        now = offset_ns
        recording.observe_whole(canned_ids(SHAPE.output_tokens), "length")
        recording.end()
    found = []
    for tap in made:
        record = tap.take()
        found.append(
            tap.packer.pack(
                seq=record.seq,
                request_id=record.mirrored.request_id,
                origin=record.mirrored.origin,
                arrival_unix_ns=record.mirrored.arrival_unix_ns,
                packed_request=record.mirrored.packed,
                response=record.response,
            )
        )
    return found


async def test_the_bare_work_makes_the_same_records_byte_for_byte():
    data = request(SHAPE, "r-1").SerializeToString()
    moments = {"arrival_unix_ns": 1_764_500_000_000_000_000, "offset_ns": 1_234_567}
    assert list(records(data, 0, **moments)) == await our_records(data, **moments)


@pytest.mark.parametrize(
    ("account", "may_lose", "fault"),
    [
        ((10, 0, 0, 0), False, None),
        ((7, 1, 1, 1), True, None),
        ((7, 1, 1, 1), False, "records were lost"),
        ((7, 1, 1, 0), True, "of 10"),
        ((11, 0, 0, 0), True, "of 10"),
        ((10, 0, 0, None), True, "not known"),
    ],
)
def test_an_account_adds_up_or_is_a_fault(account, may_lose, fault):
    keys = ("records", "tap_drops", "transport_loss", "tail_loss")
    found = account_fault(dict(zip(keys, account, strict=True)), 10, may_lose=may_lose)
    assert found is None if fault is None else fault in found


async def test_a_short_run_finds_numbers_and_no_wrong_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(taps, "RECOVERY_SECONDS", 0.5)
    path = tmp_path / "results.json"
    options = ["--rounds=1", "--requests=64", f"--json={path}"]
    status = await trio.to_thread.run_sync(taps.main, options)
    report = json.loads(path.read_text())
    assert (status, report["wrong_answers"]) == (0, [])
    assert [type(bar["value"]) for bar in report["bars"]] == [float, float]


async def test_a_round_with_a_stopped_reader_is_accounted_for(tmp_path):
    cores = choose_cores()
    config = write_config(tmp_path, TAPS)
    command = python_module("replay", "serve", *WORKER_OPTIONS, f"--config={config}")
    plan = stalled.Plan(rounds=1, seconds=0.5, rate=100.0)

    def run():
        with start("stopped", command, cores.server) as server:
            return stalled.play(stalled.STOPPED, server, tmp_path, plan, cores)

    played = await trio.to_thread.run_sync(run)
    assert played.summary.complete == 50
    assert stalled.faults(stalled.STOPPED, played) == []
    wrong = {**played.reports[stalled.OTHER_TOPIC], "records": 49, "transport_loss": 1}
    lossy = attrs.evolve(played, reports={**played.reports, stalled.OTHER_TOPIC: wrong})
    assert "records were lost" in stalled.faults(stalled.STOPPED, lossy)[0]
