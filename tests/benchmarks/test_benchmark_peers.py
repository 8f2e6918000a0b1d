"""The peers answer what is expected of every server, and a wrong answer is noticed."""

import sys
import time

import pytest

from benchmarks.__main__ import main, scenarios
from benchmarks.client import HeldCalls, Sampler, VaryingCalls
from benchmarks.contenders import GRPC_AIO, GRPCLIB, Pace, command
from benchmarks.payloads import Shape, Template
from benchmarks.processes import ServerError, choose_cores, pinned, python_module, start

CORE = choose_cores().server


@pytest.fixture(params=[GRPC_AIO, GRPCLIB])
def peer(request):
    pytest.importorskip("grpc" if request.param == GRPC_AIO else "grpclib")
    with start(request.param, command(request.param, Pace()), CORE) as server:
        yield server


@pytest.mark.parametrize("indexed", [False, True])
def test_a_peer_answers_byte_for_byte(peer, indexed):
    template = Template(Shape(64, 5), id_bytes=36)
    with Sampler(peer.address, template) as sampler:
        for _ in range(3):
            sampler.ask()
    assert (sampler.tally.asked, sampler.tally.wrong) == (3, 0)
    with VaryingCalls(
        peer.address, template, 50, connections=2, streams=4, indexed=indexed
    ) as calls:
        tally = calls.run()
    assert (tally.asked, tally.wrong, tally.faults) == (50, 0, [])


def test_an_answer_that_differs_in_one_id_is_wrong(peer):
    template = Template(Shape(64, 3), ids=[100, 101, 103])
    with Sampler(peer.address, template) as sampler:
        sampler.ask()
    assert sampler.tally.wrong == 1
    assert "wrong, grpc-status 0" in sampler.tally.faults[0]


def test_calls_are_held_open_and_then_answered():
    with (
        start(GRPC_AIO, command(GRPC_AIO, Pace(gen_ms=400, token_ms=1)), CORE) as server,
        HeldCalls(server.address, Template(Shape(8, 4)), connections=3, streams=5) as held,
    ):
        held.open()
        held.idle(0.05)
        assert held.tally.asked == 0
        held.finish()
        assert (held.tally.right, held.tally.wrong) == (15, 0)


def test_the_cpu_time_of_another_process_is_read_exactly():
    work = 'import sys,time\nprint(\'{"event": "listening", "addresses": ["h:1"]}\', file=sys.stderr, flush=True)\nwhile True: pass'  # noqa: E501
    with start("busy", [sys.executable, "-c", work], CORE) as server:
        before, began = server.cpu_seconds(), time.monotonic()
        while (used := server.cpu_seconds() - before) < 0.05:
            assert time.monotonic() - began < 20
        assert used < time.monotonic() - began + 0.01
        assert server.rss_bytes() > 1_000_000


def test_a_server_that_dies_at_once_is_reported_with_its_last_words():
    dying = [sys.executable, "-c", "raise SystemExit('no such luck')"]
    with pytest.raises(ServerError, match="no such luck"), start("dying", dying, CORE):
        pass


def test_a_process_is_started_on_the_core_that_was_asked_for(tmp_path):
    import os

    with pinned(CORE):
        assert os.sched_getaffinity(0) == {CORE}
    assert python_module("x", "y") == [sys.executable, "-m", "x", "y"]


def test_benchmarks_are_listed_with_what_they_measure(capsys):
    assert main([]) == 0
    listed = capsys.readouterr().out
    for name, summary in scenarios().items():
        assert summary
        assert f"  {name}" in listed
    assert {"server", "connections"} <= scenarios().keys()
    assert main(["nothing"]) == 2
    assert "'nothing'" in capsys.readouterr().err
