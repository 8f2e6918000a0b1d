"""The benchmarks' rounds on the real worker: its answers are those that the peers give."""

import functools
import json
import shutil
from pathlib import Path

import pytest

from benchmarks import capture, engine, upstream
from benchmarks.client import VaryingCalls
from benchmarks.connections import Layout, Timing, measure
from benchmarks.contenders import WORKER, Pace, command
from benchmarks.payloads import Shape, Template, unframed
from benchmarks.processes import choose_cores, start
from benchmarks.rounds import Contender, Streams, check_answers, play_h2load, play_varying
from benchmarks.server import sampled_ids
from replay._proto import tokenspeed_scheduler_pb2 as pb

CORES = choose_cores()
STREAMS = Streams(connections=2, streams_each=4)

needs_h2load = pytest.mark.skipif(
    shutil.which("h2load") is None, reason="h2load (nghttp2-client) is not installed"
)


@pytest.fixture(scope="module")
def worker():
    with start(WORKER, command(WORKER, Pace()), CORES.server) as server:
        yield server


@pytest.mark.parametrize("indexed", [False, True])
def test_the_worker_answers_as_the_peers_do(worker, indexed):
    contender = Contender(WORKER, worker, Template(Shape(512, 32), id_bytes=36))
    one = play_varying(contender, 100, streams=STREAMS, cores=CORES, indexed=indexed)
    assert contender.faults == []
    assert one.requests == 100
    assert one.server_cpu_s > 0


def test_sampled_ids_are_asked_for_once_and_then_demanded(worker):
    shape = Shape(16, 8)
    ids = sampled_ids(worker.address, Template(shape, seed=7))
    assert len(ids) == 8
    again = Contender(WORKER, worker, Template(shape, seed=7, ids=ids))
    other = Contender(WORKER, worker, Template(shape, seed=8, ids=ids))
    check_answers(again)
    check_answers(other)
    assert again.faults == []
    assert other.faults


def test_a_late_token_of_a_paced_worker_is_not_a_wrong_answer():
    template = Template(Shape(16, 20), may_merge=True)
    with (
        start(WORKER, command(WORKER, Pace(token_ms=0.2)), CORES.server) as server,
        VaryingCalls(
            server.address, template, 20, connections=1, streams=5, indexed=False
        ) as calls,
    ):
        assert calls.run().right == 20


@needs_h2load
def test_a_round_with_h2load_counts_requests_bytes_and_cpu(worker):
    contender = Contender(WORKER, worker, Template(Shape(64, 4)))
    one = play_h2load(contender, 200, streams=STREAMS, cores=CORES, with_latencies=True)
    assert contender.faults == []
    assert one.requests >= 200
    assert len(one.latencies_s) == 200
    assert one.server_cpu_s > 0
    assert one.merged_tokens == 0


@needs_h2load
def test_answers_that_are_not_the_expected_ones_are_noticed_under_h2load(worker):
    longer = Contender(WORKER, worker, Template(Shape(64, 4), ids=[100, 101, 102, 103, 104]))
    play_h2load(longer, 50, streams=STREAMS, cores=CORES)
    assert any("bytes of answers instead of" in fault for fault in longer.faults)
    assert any("wrong, grpc-status 0" in fault for fault in longer.faults)


def test_idle_streams_are_held_and_answered():
    timing = Timing(settle_s=0.2, idle_s=0.1)
    cost = measure(WORKER, Layout("twenty", 4, 5), timing, CORES, None)
    assert cost.faults == []
    assert cost.served == 20


@needs_h2load
@pytest.mark.slow
def test_the_capture_benchmark_finds_every_line(tmp_path: Path, capsys):
    results = tmp_path / "capture.json"
    options = ["--rounds=1", "--seconds=0.1", f"--folder={tmp_path}", f"--json={results}"]
    assert capture.main(options) == 0
    kept = json.loads(results.read_text())
    assert kept["wrong_answers"] == []
    assert [row["server"] for row in kept["tables"][0]["rows"]] == [
        capture.CAPTURED,
        capture.INLINE,
        capture.BARE,
    ]
    assert "CPU with --capture" in capsys.readouterr().out


@needs_h2load
def test_a_lost_line_is_noticed(worker, tmp_path: Path):
    """A capture that stays empty lacks every line."""
    path = tmp_path / "empty.jsonl"
    path.touch()
    contender = Contender(WORKER, worker, Template(Shape(8, 1)))
    play = functools.partial(play_h2load, streams=STREAMS, cores=CORES)
    capture.CountedPlay(play, {WORKER: path})(contender, 20)
    assert any("0 lines captured" in fault for fault in contender.faults)


@needs_h2load
@pytest.mark.slow
def test_the_upstream_benchmark_gets_right_answers_through_its_proxies(tmp_path: Path):
    results = tmp_path / "upstream.json"
    assert upstream.main(["--quick", "--rounds=1", "--seconds=0.1", f"--json={results}"]) == 0
    kept = json.loads(results.read_text())
    assert kept["wrong_answers"] == []
    assert [[row["server"] for row in table["rows"]] for table in kept["tables"]] == [
        [upstream.DIRECT, upstream.PROXY, upstream.TAPPED]
    ] * 3


@needs_h2load
@pytest.mark.slow
def test_the_engine_benchmark_compares_tokens_and_reads_how_late_they_are(tmp_path: Path):
    pytest.importorskip("grpc")
    results = tmp_path / "engine.json"
    options = ["--rounds=1", "--streams=8", "--tokens=4", "--held", "8", f"--json={results}"]
    assert engine.main(options) == 0
    kept = json.loads(results.read_text())
    assert kept["wrong_answers"] == []
    compared, held = (table["rows"] for table in kept["tables"])
    assert [row["server"] for row in compared] == [engine.REALISTIC, engine.GRPC_AIO]
    assert all(row["token_us"]["median"] > 0 for row in compared)
    assert [row["streams"] for row in held] == [8]
    assert held[0]["pass_ms"] > 5
    assert 0 <= held[0]["p50_ms"] <= held[0]["p99_ms"] <= held[0]["p100_ms"]


def test_prompts_of_the_engine_benchmark_share_no_block_though_their_ids_come_again():
    template = engine.DistinctPrompts(Shape(16, 1))
    prompts = [
        tuple(
            pb.GenerateRequest.FromString(
                unframed(template.request(request_id))[0]
            ).tokenized.input_ids
        )
        for request_id in [b"%016d" % number for number in (0, 1, 0, 1)]
    ]
    assert len(set(prompts)) == 4
    assert template.answer(b"0" * 16) == Template(Shape(16, 1)).answer(b"0" * 16)


def test_a_number_of_streams_that_the_connections_cannot_share_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        engine.main(["--held", "3"])
    assert ended.value.code == 2
    assert "at least as many streams are needed" in capsys.readouterr().err
