"""The load generator's processes against real servers: loops, endings, and no server at all."""

import json
import os
import signal
import subprocess
import time

import attrs
import pytest
from openai_endpoint import running_endpoint

from benchmarks import load
from benchmarks.contenders import WORKER, Pace, command
from benchmarks.generator import run as runner
from benchmarks.generator.arrivals import Arrivals
from benchmarks.generator.arrivals import Pace as Arriving
from benchmarks.generator.run import LoadError, run_load
from benchmarks.generator.sender import UNFINISHED
from benchmarks.generator.spec import LoadSpec
from benchmarks.generator.summary import summarise
from benchmarks.generator.workload import Prompts, Workload
from benchmarks.processes import choose_cores, free_port, python_module, start
from replay.player.observation import Outcome

CORE = choose_cores().server


@pytest.fixture(scope="module")
def worker():
    with start(WORKER, command(WORKER, Pace()), CORE) as server:
        yield f"grpc://{server.address}"


@pytest.fixture(scope="module")
def slow_worker():
    with start(WORKER, command(WORKER, Pace(gen_ms=10_000)), CORE) as server:
        yield f"grpc://{server.address}"


def spec_of(target, **changes):
    """Return a small open loop."""
    workload = Workload(isl="32", osl="4")
    base = LoadSpec(target=target, arrivals=Arrivals(rate=100), requests=40, workload=workload)
    return attrs.evolve(base, **changes)


def outcomes(run):
    return [each.observation.outcome for each in run.answered]


@pytest.mark.parametrize("pace", list(Arriving))
def test_an_open_loop_sends_each_request_once_and_on_time(worker, pace):
    arrivals = Arrivals(rate=200, pace=pace, seed=5)
    run = run_load(spec_of(worker, arrivals=arrivals))
    seen = [each.observation for each in run.answered]
    assert outcomes(run) == [Outcome.COMPLETE] * 40
    assert [each.position for each in seen] == list(range(40))
    assert [each.scheduled_ns for each in seen] == run.spec.due_ns()
    assert all(each.schedule_delay_ns >= 0 for each in seen)
    assert len(run.control_ns) == 40
    assert not any(each.is_short for each in run.answered)
    assert all(each.output_tokens == 4 and each.prompt_tokens == 32 for each in seen)


def test_processes_share_the_schedule_of_one(worker):
    one = spec_of(worker, arrivals=Arrivals(rate=200, pace=Arriving.POISSON))
    shared = run_load(attrs.evolve(one, processes=3))
    assert [each.observation.scheduled_ns for each in shared.answered] == one.due_ns()
    assert outcomes(shared) == [Outcome.COMPLETE] * 40
    assert len(shared.busy) == len(shared.cores) == 3


def test_a_closed_loop_keeps_so_many_in_flight(worker):
    run = run_load(
        spec_of(worker, arrivals=None, concurrency=3, requests=None, seconds=0.5, processes=2)
    )
    ends = sorted(
        moment
        for each in run.answered
        for moment in (
            (each.observation.sent_ns, 1),
            (each.observation.sent_ns + each.observation.end_offset_ns, -1),
        )
    )
    in_flight, most = 0, 0
    for _, step in ends:
        in_flight += step
        most = max(most, in_flight)
    assert most <= 3
    assert len(run.answered) > 10
    assert run.planned is None


def test_a_closed_loop_ends_after_so_many_requests(worker):
    run = run_load(spec_of(worker, arrivals=None, concurrency=4, requests=30))
    assert len(run.answered) == 30


def test_a_share_of_the_requests_is_taken_back_after_the_delay(slow_worker):
    workload = Workload(isl="8", osl="4", cancel_share=1.0, cancel_delay_s=0.05)
    run = run_load(spec_of(slow_worker, workload=workload))
    assert outcomes(run) == [Outcome.CANCELLED] * 40
    assert all(each.observation.end_offset_ns >= 0.05e9 for each in run.answered)
    assert summarise(run).statuses == {"cancelled": 40}


def test_a_deadline_is_told_by_its_status(slow_worker):
    run = run_load(spec_of(slow_worker, deadline_s=0.1))
    assert summarise(run).statuses == {"DEADLINE_EXCEEDED": 40}


def test_answers_that_do_not_end_are_cut_after_the_drain(slow_worker):
    began = time.monotonic()
    run = run_load(spec_of(slow_worker, drain_s=0.2))
    assert summarise(run).statuses == {UNFINISHED: 40}
    assert time.monotonic() - began < 9


def test_a_rate_that_cannot_be_sent_ends_in_time_and_is_called_client_bound(worker):
    arrivals = Arrivals(rate=200_000)
    run = run_load(spec_of(worker, arrivals=arrivals, requests=None, seconds=0.3))
    summary = summarise(run)
    assert summary.is_client_bound
    assert summary.schedule.not_sent > 0
    assert len(run.answered) + summary.schedule.not_sent == run.planned


def test_a_target_that_is_away_is_told_with_its_name():
    with pytest.raises(LoadError, match=r"grpc://127.0.0.1:\d+: UNAVAILABLE"):
        run_load(spec_of(f"grpc://127.0.0.1:{free_port()}"))


def test_a_process_that_dies_is_told_and_the_others_are_ended(worker, monkeypatch):
    begun = []

    class Observed(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            begun.append(self)

    monkeypatch.setattr(runner.subprocess, "Popen", Observed)

    def kill_the_first(counts):
        if begun[0].poll() is None:
            begun[0].send_signal(signal.SIGKILL)

    spec = spec_of(worker, requests=None, seconds=60.0, processes=2)
    with pytest.raises(LoadError, match="has died"):
        run_load(spec, on_progress=kill_the_first)
    assert [process.poll() is None for process in begun] == [False] * 3


def test_a_process_ends_when_its_parent_has_gone(worker):
    """Its stdin is at an end then, whatever it is doing."""
    spec = runner.spec_to_json(spec_of(worker, requests=None, seconds=600.0))
    with subprocess.Popen(
        python_module("benchmarks.generator.child"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        part = {"spec": spec, "share": {"index": 0, "of": 1}, "rows": os.devnull, "core": None}
        process.stdin.write(json.dumps(part) + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["kind"] == "ready"
        process.stdin.write(f"{time.monotonic_ns()}\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["kind"] == "progress"
        process.stdin.close()
        process.wait(20)


@pytest.mark.parametrize(
    ("prompts", "path"),
    [(Prompts.TEXT, "/v1/completions"), (Prompts.CHAT, "/v1/chat/completions")],
)
def test_an_openai_endpoint_is_loaded_over_its_stream(prompts, path):
    workload = Workload(isl="12", osl="5", prompts=prompts)
    with running_endpoint() as (url, asked):
        run = run_load(spec_of(url, workload=workload, requests=20))
    assert {each_path for each_path, _ in asked} == {path}
    assert outcomes(run) == [Outcome.COMPLETE] * 20
    assert not any(each.is_short for each in run.answered)
    assert len(summarise(run).latencies["itl"]) == 80
    assert {body["model"] for _, body in asked} == {"words"}


def test_an_answer_in_one_piece_has_an_end_and_no_first_token():
    workload = Workload(isl="12", osl="5", prompts=Prompts.TEXT, stream=False)
    with running_endpoint() as (url, _):
        run = run_load(spec_of(url, workload=workload, requests=10))
    summary = summarise(run)
    assert (len(summary.latencies["ttft"]), len(summary.latencies["e2e"])) == (0, 10)


def test_the_command_writes_what_it_shows(worker, tmp_path, capsys):
    files = {name: tmp_path / f"r.{name}" for name in ("json", "html")}
    arguments = ["--target", worker, "--rate", "50,100", "--requests", "30", "--osl", "4"]
    arguments += ["--goodput", "e2e=1s", "--rounds", "2"]
    arguments += [word for name, path in files.items() for word in (f"--{name}", str(path))]
    assert load.main(arguments) == 0
    shown = capsys.readouterr().out
    kept = json.loads(files["json"].read_text())
    assert [table["title"].split(":")[0].split(",")[0] for table in kept["tables"]] == [
        "Throughput",
        "Latency of complete answers",
        "Schedule",
        "Goodput",
        "Endings",
    ]
    assert all(table["title"][:30] in shown for table in kept["tables"])
    assert len(kept["bars"]) == 4
    assert kept["settings"]["loads"] == ["50/s", "100/s"]
    assert files["html"].read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--target", "localhost:1"], "--target must begin with"),
        (["--target", "grpc://h:1", "--prompts", "text"], "takes --prompts ids only"),
        (["--rate", "5", "--concurrency", "5"], "one of --concurrency and --rate"),
        (["--isl", "none", "--goodput", "speed=1s"], "--isl must be"),
        (["--goodput", "speed=1s"], "--goodput"),
        (["--rounds", "0"], "--rounds must be at least 1"),
    ],
)
def test_wrong_usage_is_told_and_ends_with_2(arguments, told, capsys):
    with pytest.raises(SystemExit) as ended:
        load.main(arguments)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_the_command_ends_with_1_when_the_target_is_away(capsys):
    assert load.main(["--target", f"grpc://127.0.0.1:{free_port()}", "--requests", "1"]) == 1
    assert "cannot measure: grpc://127.0.0.1" in capsys.readouterr().out
