"""A serving process and its clients: signals with streams in flight, files shared and killed
over."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import trio
from purerpc.grpclib.exceptions import RpcFailedError, UnavailableError
from worker_process import WorkerProcess, running_worker

from replay.engines.methods import GENERATE
from replay.rpc.client import open_channel
from replay.worker.capture_reader import TornLine, read_lines
from tests.engines.requests import generate_request

LONG = 10**6


async def generate(worker: WorkerProcess, request_id: str, tokens: int) -> str:
    """Return how an answer ended: its finish reason, or the status."""
    async with open_channel(worker.address) as channel:
        try:
            async with channel.stream(
                GENERATE, generate_request(request_id=request_id, max_new_tokens=tokens)
            ) as answers:
                async for message in answers:
                    last = message
        except RpcFailedError as error:
            return error.status.status_code.name
    return last.complete.finish_reason


def wait_for_line(path: Path, text: str) -> None:
    deadline = time.monotonic() + 10
    while text not in path.read_text():
        assert time.monotonic() < deadline, path.read_text()
        time.sleep(0.01)  # a file has no other way to say that it has grown


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_short_streams_finish_cuts_long_ones_and_exits_with_0(tmp_path, stop):
    capture = tmp_path / "capture.jsonl"
    config = tmp_path / "worker.yaml"
    config.write_text("schema_version: 1\ntaps: []\nshutdown: {grace_seconds: 1.5}\n")
    flags = ("--config", config, "--token-ms", "5", "--capture", capture)
    ends: dict[str, str] = {}

    async def clients(worker: WorkerProcess) -> None:
        async def one(name: str, tokens: int) -> None:
            ends[name] = await generate(worker, name, tokens)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, "short", 100)
            nursery.start_soon(one, "long", LONG)
            await trio.to_thread.run_sync(wait_for_line, capture, '"long"')
            await trio.to_thread.run_sync(wait_for_line, capture, '"short"')
            worker.process.send_signal(stop)

    with running_worker(*flags, log=tmp_path / "log") as worker:
        trio.run(clients, worker)
        assert worker.process.wait(10) == 0

    assert ends == {"short": "length", "long": "UNAVAILABLE"}
    events = [json.loads(line)["event"] for line in worker.log.read_text().splitlines()]
    assert events.index("listening") < events.index("stop requested") < events.index("stopping")


def test_a_second_signal_ends_at_once(tmp_path):
    capture = tmp_path / "capture.jsonl"
    config = tmp_path / "worker.yaml"
    config.write_text("schema_version: 1\ntaps: []\nshutdown: {grace_seconds: 60}\n")

    async def client(worker: WorkerProcess) -> float:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(generate, worker, "long", LONG)
            await trio.to_thread.run_sync(wait_for_line, capture, '"long"')
            worker.process.send_signal(signal.SIGTERM)
            await trio.to_thread.run_sync(wait_for_line, worker.log, "stop requested")
            worker.process.send_signal(signal.SIGTERM)
            before = time.monotonic()
            await trio.to_thread.run_sync(worker.process.wait)
            return time.monotonic() - before

    flags = ("--config", config, "--token-ms", "5", "--capture", capture)
    with (
        pytest.raises(Exception, match="ended with"),
        running_worker(*flags, log=tmp_path / "log") as worker,
    ):
        assert trio.run(client, worker) < 5


def test_the_capture_may_be_standard_output(tmp_path):
    out = tmp_path / "out"
    with out.open("wb") as standard_output:
        command = [sys.executable, "-m", "replay", "serve", "--grpc-base-port", "0"]
        process = subprocess.Popen(
            [*command, "--log-format", "json", "--capture", "/dev/stdout"],
            stdout=standard_output,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert process.stderr is not None
    with process.stderr:
        for line in process.stderr:
            event = json.loads(line)
            if event["event"] == "listening":
                break
        worker = WorkerProcess(addresses=event["addresses"], log=out, process=process)
        assert trio.run(generate, worker, "to-stdout", 2) == "length"
        assert worker.stop() == 0
    assert [json.loads(line)["request_id"] for line in out.read_bytes().splitlines()] == [
        "to-stdout"
    ]


PROMPT = list(range(20_000, 24_000))


def request_of(name: str):
    return generate_request(PROMPT, request_id=name, max_new_tokens=1)


async def send_all(worker: WorkerProcess, names: list[str], answered: list[str]) -> None:
    """Send requests of 24 kB lines, 32 at a time, until the worker is gone."""
    waiting = list(reversed(names))
    async with open_channel(worker.address) as channel, trio.open_nursery() as senders:

        async def send_some() -> None:
            while waiting:
                name = waiting.pop()
                try:
                    async with channel.stream(GENERATE, request_of(name)) as answers:
                        await answers.wait_head()
                        answered.append(name)
                        async for _ in answers:
                            pass
                except UnavailableError:
                    return

        for _ in range(32):
            senders.start_soon(send_some)


def captured(path: Path) -> tuple[list[str], int]:
    """Return the ids of all whole lines, and how many torn ones there are."""
    found, torn = [], 0
    with path.open("rb") as file:
        for line in read_lines(file):
            if isinstance(line, TornLine):
                torn += 1
            else:
                assert len(line.fields["input_ids"]) == len(PROMPT)
                found.append(line.fields["request_id"])
    return found, torn


def test_two_processes_write_whole_lines_to_one_file(tmp_path):
    capture = tmp_path / "capture.jsonl"
    answered: list[str] = []

    async def both(one: WorkerProcess, two: WorkerProcess) -> None:
        async with trio.open_nursery() as nursery:
            for each, worker in enumerate((one, two)):
                names = [f"{each}-{number}" for number in range(200)]
                nursery.start_soon(send_all, worker, names, answered)

    with (
        running_worker("--capture", capture, log=tmp_path / "one") as one,
        running_worker("--capture", capture, log=tmp_path / "two") as two,
    ):
        trio.run(both, one, two)

    found, torn = captured(capture)
    assert torn == 0
    assert sorted(found) == sorted(answered)
    assert len(found) == 400


#: By hand with 100; each costs about a second.
KILLS = int(os.environ.get("REPLAY_TEST_KILLS", "6"))


@pytest.mark.slow
def test_a_killed_worker_loses_no_line_whose_client_saw_a_frame(tmp_path):
    """And its neighbour on the same file loses none at all; a kill tears one line at the most."""
    capture = tmp_path / "capture.jsonl"
    answered: list[str] = []

    async def kill_in_the_middle(victim: WorkerProcess, other: WorkerProcess, kill: int) -> None:
        async with trio.open_nursery() as nursery:
            names = [f"victim-{kill}-{number}" for number in range(100_000)]
            nursery.start_soon(send_all, victim, names, answered)
            nursery.start_soon(
                send_all, other, [f"other-{kill}-{number}" for number in range(60)], answered
            )
            before = len(answered)
            while len(answered) < before + 20 + 7 * (kill % 10):
                await trio.lowlevel.checkpoint()
            victim.process.kill()

    with running_worker("--capture", capture, log=tmp_path / "other") as other:
        for kill in range(KILLS):
            threads = threading.active_count()
            with (
                pytest.raises(Exception, match="ended with -9"),
                running_worker("--capture", capture, log=tmp_path / f"victim{kill}") as victim,
            ):
                trio.run(kill_in_the_middle, victim, other, kill)
            assert threading.active_count() <= threads + 1

    found, torn = captured(capture)
    assert torn <= KILLS
    assert not set(answered) - set(found)
    others = [name for name in answered if name.startswith("other")]
    assert len(others) == 60 * KILLS
    assert len(found) == len(set(found))
