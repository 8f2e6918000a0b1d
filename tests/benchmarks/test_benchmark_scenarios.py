"""The scenarios on real servers, as short as they go: what they find, and what they call wrong."""

import json
import shutil
import subprocess
import sys

import attrs
import pytest

from benchmarks import all as everything
from benchmarks import cancel, demo, scale, soak
from benchmarks.__main__ import scenarios
from benchmarks.processes import ServerError, choose_cores, start
from benchmarks.tap_setup import TAPS, consuming, write_config
from benchmarks.vitals import Vitals, observed_worker, slope_per_minute
from replay.config import load_config

CORES = choose_cores()


def kept(path):
    return json.loads(path.read_text())


def bars(report):
    return {bar["what"]: bar["value"] for bar in report["bars"]}


@pytest.mark.parametrize(
    ("samples", "slope"),
    [
        ([(0, 5.0), (60, 6.0), (120, 7.0)], 1.0),
        ([(0, 5.0), (30, 5.0)], 0.0),
        ([(0, 9.0), (60, 6.0)], -3.0),
        ([(7, 5.0), (7, 6.0)], 0.0),
    ],
)
def test_a_slope_is_what_is_added_in_a_minute(samples, slope):
    assert slope_per_minute(samples) == pytest.approx(slope)


def test_one_sample_has_no_slope():
    assert slope_per_minute([(0, 1.0)]) != slope_per_minute([(0, 1.0)])


def test_a_worker_tells_what_it_holds_and_that_ended_calls_hold_nothing(tmp_path):
    with observed_worker(tmp_path, CORES.server, "--gen-ms=60000") as worker:
        start = worker.settled(worker.vitals())
        assert start.tasks > 3
        assert start.rss_bytes > 10_000_000
        client = subprocess.run(
            [sys.executable, "-c", HOLDING.format(address=worker.server.address)],
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert client.returncode == 0, client.stderr
        held = worker.settled(start)
        assert held.tasks <= start.tasks
        assert held.descriptors <= start.descriptors


HOLDING = """
from benchmarks.client import HeldCalls
from benchmarks.payloads import Shape, Template
with HeldCalls("{address}", Template(Shape(8, 4)), connections=2, streams=3) as held:
    held.open()
"""


def test_a_worker_that_has_died_is_told(tmp_path):
    with observed_worker(tmp_path, CORES.server) as worker:
        worker.server.stop()
        with pytest.raises((ServerError, ProcessLookupError)):
            worker.vitals()


def test_the_tap_configuration_is_one_and_its_consumer_joins(tmp_path):
    config = write_config(tmp_path, TAPS)
    assert [tap.name for tap in load_config(str(config)).taps] == ["shadow-replay", "shadow-audit"]
    with (
        observed_worker(tmp_path, CORES.server, f"--config={config}"),
        consuming(tmp_path, "shadow-audit", CORES.client) as consumer,
    ):
        assert consumer.end()["records"] == 0


@pytest.mark.slow
def test_a_storm_of_cancels_is_counted_and_leaves_nothing_behind(tmp_path):
    pytest.importorskip("grpc")
    path = tmp_path / "r.json"
    assert cancel.main(["--rounds=1", "--seconds=1", "--rate=60", f"--json={path}"]) == 0
    report = kept(path)
    rows = {(row["server"], row["kind"]): row for row in report["tables"][0]["rows"]}
    assert {key: row["statuses"] for key, row in rows.items()} == {
        ("replay", "taken back"): "cancelled",
        ("replay", "answered"): "complete",
        ("grpc.aio", "taken back"): "cancelled",
        ("grpc.aio", "answered"): "complete",
    }
    before, after = report["tables"][1]["rows"]
    assert after["tasks"] <= before["tasks"]
    assert after["descriptors"] <= before["descriptors"]
    assert report["plots"][0]["kind"] == "ratios"


@pytest.mark.slow
def test_a_soak_says_what_is_left_and_that_it_was_too_short(tmp_path):
    path = tmp_path / "r.json"
    assert soak.main(["--seconds=4", "--rate=40", f"--json={path}"]) == 0
    report = kept(path)
    assert bars(report).keys() == {"tasks left at the end", "descriptors left at the end"}
    assert max(bars(report).values()) <= 0
    assert "too short" in report["cannot_conclude"][0]
    assert len(report["plots"][0]["series"]["RSS"]) > 4


def test_layouts_are_one_worker_and_each_number_together_and_apart():
    assert [str(layout) for layout in scale.layouts(4)] == [
        "1 worker",
        "2 workers, 1 process",
        "2 workers, 2 processes",
        "4 workers, 1 process",
        "4 workers, 4 processes",
    ]
    assert len(scale.layouts(2)) == 3


def test_the_cpu_of_a_supervisor_is_that_of_its_processes_too():
    with start("pair", scale.Layout(2, 2).command(), None) as server:
        assert len(server.addresses) == 2
        alone, family = server.cpu_seconds(), server.family_cpu_seconds()
        assert family > 2 * alone


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed")
def test_workers_are_loaded_each_on_its_port(tmp_path):
    path = tmp_path / "r.json"
    assert scale.main(["--rounds=2", "--seconds=0.2", "--most=2", f"--json={path}"]) == 0
    report = kept(path)
    assert [row["layout"] for row in report["tables"][0]["rows"]] == [
        str(layout) for layout in scale.layouts(2)
    ]
    assert report["plots"][1]["series"].keys() == {"one process", "several processes"}


def test_all_runs_every_benchmark_but_itself():
    names = everything.names()
    assert names[:4] == ["server", "connections", "load", "scale"]
    assert {*names, "all"} == set(scenarios())


@pytest.mark.slow
def test_all_collects_the_reports_and_tells_what_failed(tmp_path, monkeypatch, capfd):
    files = [f"--{kind}={tmp_path / kind}" for kind in ("json", "html")]
    monkeypatch.setenv("PATH", "")  # there is no h2load then
    assert everything.main(["--quick", "--only", "load", "scale", *files]) == 1
    found = kept(tmp_path / "json")
    assert found["failed"] == ["scale"]
    assert [report["scenario"] for report in found["reports"]] == ["load"]
    assert 'id="load"' in (tmp_path / "html").read_text()
    assert "scale failed" in capfd.readouterr().out


@pytest.mark.slow
def test_the_runs_of_the_demonstration_agree_with_what_was_sent(tmp_path):
    path = tmp_path / "r.json"
    assert demo.main([f"--json={path}"]) == 0
    rows = {(row["run"], row["tap"]): row for row in kept(path)["tables"][0]["rows"]}
    assert len(rows) == 6
    assert {row["records"] for row in rows.values()} == {200}
    for run in ("streamed", "one piece"):
        row = rows[run, demo.JOINED]
        assert (row["complete"], row["prompt_tokens"], row["output_tokens"]) == (200, 102400, 6400)
    assert 25 <= rows["taken back", demo.JOINED]["cancelled"] <= 75


def test_what_the_demonstration_calls_wrong():
    whole, cancelled = demo.RUNS[0], demo.RUNS[2]

    def faults(run, request=None, **joined):
        both = {"records": 200, "prompt_tokens": 102400, "tap_gaps": 0, "transport_gaps": 0}
        ends = {"complete": 200, "cancelled": 0, "incomplete": 0, "error": 0}
        consumed = {
            "kv-history-tracker": both | (request or {}),
            demo.JOINED: both | ends | joined,
        }
        return demo.disagreements(run, demo.Played(consumed, None))

    assert faults(whole) == []
    assert faults(cancelled, complete=150, cancelled=50) == []
    assert "gaps" in faults(whole, {"tap_gaps": 1})[0]
    assert "prompt tokens" in faults(whole, {"prompt_tokens": 1})[0]
    assert faults(whole, {"records": 199})
    assert "ended as" in faults(whole, complete=199, error=1)[0]
    assert "ended as" in faults(whole, complete=199)[0]
    assert "0 records are cancelled" in faults(cancelled)[0]
    assert "50 records are cancelled" in faults(whole, complete=150, cancelled=50)[0]


def test_a_driver_that_is_not_there_is_told(capsys):
    with pytest.raises(SystemExit) as ended:
        demo.main(["--aiperf", "/no/such/program"])
    assert ended.value.code == 2
    assert "there is no program /no/such/program" in capsys.readouterr().err


def test_what_a_soak_calls_wrong(tmp_path):
    vitals = Vitals(rss_bytes=1, descriptors=5, tasks=9)
    watched = soak.Watched(worker=None, sent=10)
    watched.statuses.update({"complete": 8, "cancelled": 2})

    def faults(*, after=vitals, captured=10, consumed=10):
        report = soak.Report("soak", machine={})
        soak._check(report, watched, vitals, after, captured=captured, consumed=consumed)
        return report.wrong_answers, [bar.what for bar in report.bars if not bar.kept]

    assert faults() == ([], [])
    assert faults(captured=9, consumed=9) == ([], [])
    assert faults(captured=7, consumed=7)[0] == ["7 lines captured of 10 requests"]
    assert faults(consumed=9)[0] == ["9 records were read of 10 requests"]
    assert faults(after=attrs.evolve(vitals, tasks=10))[1] == ["tasks left at the end"]
    watched.statuses["UNAVAILABLE"] = 1
    assert faults()[0] == ["requests ended as UNAVAILABLE"]
