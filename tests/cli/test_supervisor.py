"""`serve --processes N` as real processes: one address line, signals, the end of one of them."""

import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest
import trio
from purerpc.grpclib.exceptions import RpcFailedError
from test_serve_process import PATIENCE_SECONDS, connects, end, free_range, refused, serving

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.config import Config, WorkerConfig
from replay.engines.methods import GENERATE
from replay.errors import ConfigError
from replay.rpc.client import open_channel
from replay.runtime import open_runtime

TWO = ("--processes", "2", "--grpc-count", "2", "--grpc-base-port", "0")


def children(pid: int) -> list[int]:
    """Return the processes that *pid* has started and that still run."""
    # They are listed under the thread that started them.
    found = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return sorted(int(each) for text in found for each in text.split())


def wait_until_gone(pids: list[int]) -> None:
    """Wait until none of *pids* runs; a zombie that nobody has waited for does not."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while running := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < deadline, f"{running} still run"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_all_addresses_are_told_in_one_line_with_the_ports_of_one_process() -> None:
    base = free_range(3)
    flags = ("--processes", "2", "--grpc-count", "3", "--grpc-base-port", str(base))
    with serving(*flags) as (process, log):
        assert log[-1]["addresses"] == [f"127.0.0.1:{base + number}" for number in range(3)]
        assert [line["event"] for line in log].count("listening") == 1
        assert all(connects(address) for address in log[-1]["addresses"])
        assert len(children(process.pid)) == 2
        assert end(process)[0] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_all_in_order(number: int) -> None:
    with serving(*TWO) as (process, log):
        pids = children(process.pid)
        code, out, events = end(process, number)
        assert (code, out) == (0, "")
        # The supervisor's, and one of each process.
        assert events.count("stop requested") == 3
        assert not any(connects(address) for address in log[-1]["addresses"])
        wait_until_gone(pids)


def test_a_ctrl_c_reaches_the_supervisor_alone() -> None:
    """A terminal signals the whole group; a process that got it twice would stop at once."""
    with serving(*TWO) as (process, _):
        groups = {os.getpgid(pid) for pid in children(process.pid)}
        assert os.getpgid(process.pid) not in groups
        assert end(process, signal.SIGINT)[0] == 0


def test_the_configuration_is_logged_once_and_each_process_is_named() -> None:
    with serving(*TWO, "--log-level", "debug") as (process, log):
        assert [line.get("section") for line in log].count("worker") == 1
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
        stops = [json.loads(line) for line in err.splitlines()]
        assert sorted(line["process"] for line in stops if line["event"] == "stopping") == [0, 1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_end_of_one_ends_the_others_with_a_failure(number: int) -> None:
    with serving(*TWO) as (process, log):
        pids = children(process.pid)
        os.kill(pids[1], number)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 1
        said = [json.loads(line) for line in err.splitlines()]
        (ended,) = [line for line in said if line["event"] == "a process has ended"]
        assert ended["process"] == 1
        wait_until_gone(pids)
        assert not any(connects(address) for address in log[-1]["addresses"])


def test_the_processes_stop_when_their_supervisor_is_killed() -> None:
    with serving(*TWO) as (process, log):
        pids = children(process.pid)
        process.kill()
        process.wait(PATIENCE_SECONDS)
        wait_until_gone(pids)
        assert not any(connects(address) for address in log[-1]["addresses"])


async def test_a_second_signal_ends_the_grace() -> None:
    with serving(*TWO, "--gen-ms", "600000") as (process, log):
        async with trio.open_nursery() as calls:
            for address in log[-1]["addresses"]:
                await calls.start(ask_in_vain, address)
            # Two equal ones that wait together would be one.
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)
            code = await trio.to_thread.run_sync(process.wait, 4)
        assert code == 1


async def ask_in_vain(
    address: str, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    request = pb.GenerateRequest(
        request_id="r", tokenized=pb.TokenizedInput(input_ids=[1]), stream=True
    )
    async with open_channel(address) as channel, channel.stream(GENERATE, request) as answers:
        await answers.wait_head()
        task_status.started()
        with pytest.raises(RpcFailedError):
            await answers.receive()


def test_a_port_in_use_stops_the_start_of_all() -> None:
    base = free_range(2)
    with socket.create_server(("127.0.0.1", base + 1)):
        flags = ("--processes", "2", "--grpc-count", "2", "--grpc-base-port", str(base))
        code, out, err = refused(*flags)
        assert (code, out) == (1, "")
        assert f"127.0.0.1:{base + 1}" in err
        assert not connects(f"127.0.0.1:{base}")


def test_a_capture_that_cannot_be_opened_ends_with_2(tmp_path: Path) -> None:
    code, _, err = refused(*TWO, "--capture", str(tmp_path / "none" / "x"))
    assert code == 2
    assert "cannot open capture file" in err


def test_wrong_numbers_are_refused_before_anything_starts() -> None:
    code, _, err = refused("--processes", "3", "--grpc-count", "2")
    assert code == 2
    assert "--processes: must not be above grpc_count, 2: a process needs a worker" in err


async def test_the_processes_share_one_capture_and_open_it_again(tmp_path: Path) -> None:
    path = tmp_path / "capture.jsonl"
    with serving(*TWO, "--capture", str(path)) as (process, log):
        addresses = log[-1]["addresses"]
        await ask_all(addresses, 20)
        assert path.read_bytes().count(b"\n") == 40
        path.rename(tmp_path / "rotated")
        process.send_signal(signal.SIGHUP)
        deadline = trio.current_time() + PATIENCE_SECONDS
        while True:
            before = os.stat(tmp_path / "rotated").st_size
            await ask_all(addresses, 1)
            if os.stat(tmp_path / "rotated").st_size == before:
                break
            assert trio.current_time() < deadline
        assert path.read_bytes().count(b"\n") >= 2
        assert end(process)[0] == 0


async def ask_all(addresses: list[str], count: int) -> None:
    for address in addresses:
        async with open_channel(address) as channel:
            for number in range(count):
                request = pb.GenerateRequest(
                    request_id=f"r{number}", tokenized=pb.TokenizedInput(input_ids=[1, 2])
                )
                async with channel.stream(GENERATE, request) as answers:
                    async for _ in answers:
                        pass


def published(folder: Path) -> list[Path]:
    """Return the discovery files of all publishers."""
    return [each for each in (folder / "discovery").rglob("*") if each.is_file()]


def test_each_process_has_publishers_of_its_own(tmp_path: Path) -> None:
    config = tmp_path / "taps.yaml"
    config.write_text(
        "schema_version: 1\n"
        f"event_plane: {{discovery: {{root: {tmp_path / 'discovery'}}}}}\n"
        "taps: [{name: a, capture: request}]\n"
    )
    with serving(*TWO, "--config", str(config)) as (process, _):
        entries = [json.loads(each.read_text()) for each in published(tmp_path)]
        taps = [each for each in entries if "shadow-requests-a" in json.dumps(each)]
        assert len(taps) == 2
        assert taps[0] != taps[1]
        assert end(process)[0] == 0
    assert published(tmp_path) == []


async def test_an_embedding_program_gets_one_process_only() -> None:
    config = Config(worker=WorkerConfig(processes=2, grpc_count=2, grpc_base_port=0))
    with pytest.raises(ConfigError, match="a runtime is one process"):
        async with open_runtime(config):
            pass
