"""Capture and answer: the line first, then the headers, then the engine; nothing else changes."""

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from purerpc.grpclib.exceptions import InternalError, InvalidArgumentError, ResourceExhaustedError

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.config.engines import CannedConfig
from replay.config.model import LimitsConfig
from replay.engines.methods import GENERATE
from replay.errors import CaptureOpenError
from replay.runtime import open_runtime
from tests.engines.requests import generate_request
from tests.worker.running import config_of, running, until


class FullPipe:
    """A FIFO with a reader that stopped and no room left."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self.reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        writer = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        self.filled = 0
        try:
            while True:
                self.filled += os.write(writer, b"\n" * 4096)
        except BlockingIOError:
            pass
        finally:
            os.close(writer)

    def make_room(self) -> bytes:
        """Read what filled it, and not what is written from now on."""
        return os.read(self.reader, self.filled)

    def read(self) -> bytes:
        """Read what has been written since."""
        return os.read(self.reader, 65536)


@pytest.fixture
def full_pipe(tmp_path: Path) -> Iterator[FullPipe]:
    pipe = FullPipe(tmp_path / "fifo")
    yield pipe
    os.close(pipe.reader)


def ids(path: Path) -> list[str]:
    """Return the ids of the captured requests, in order."""
    return [json.loads(line)["request_id"] for line in path.read_text().splitlines()]


async def test_no_header_leaves_before_the_line_is_in_the_file(full_pipe: FullPipe) -> None:
    async with (
        running(config_of(capture=str(full_pipe.path))) as worker,
        worker.channel.stream(GENERATE, generate_request()) as answers,
    ):
        with trio.move_on_after(0.3) as waited:
            await answers.wait_head()
        assert waited.cancelled_caught
        assert full_pipe.make_room().strip() == b""
        with trio.fail_after(5):
            await answers.wait_head()
        assert json.loads(full_pipe.read())["request_id"] == "r"
        assert len([each async for each in answers]) == 9


async def test_a_stalled_capture_holds_up_only_who_waits_for_it(full_pipe: FullPipe) -> None:
    config = config_of(capture=str(full_pipe.path), engine=CannedConfig(token_ms=1))
    async with running(config) as stalled, running(config_of()) as other:
        with pytest.raises(Exception, match="deadline"):
            await stalled.generate(generate_request(), timeout=0.2)
        await until(lambda: not stalled.in_flight)
        assert (await stalled.call("HealthCheck", pb.HealthCheckRequest())).healthy
        assert len(await other.generate(generate_request())) == 9


async def test_the_line_is_on_disk_between_the_headers_and_the_first_message(
    tmp_path: Path,
) -> None:
    capture = tmp_path / "capture.jsonl"
    config = config_of(capture=str(capture), engine=CannedConfig(gen_ms=200))
    async with (
        running(config) as worker,
        worker.channel.stream(GENERATE, generate_request()) as answers,
    ):
        await answers.wait_head()
        on_disk, at = ids(capture), trio.current_time()
        await answers.receive()
        assert answers.received_at - at > 0.1
    assert on_disk == ["r"]


REQUESTS: list[dict[str, Any]] = [
    {},
    {"stream": False},
    {"max_new_tokens": 0},
    {"n": 3, "sampling_seed": 7},
    {"stream": False, "n": 2, "sampling_seed": 2**64 - 1},
    {"stop_token_ids": [103], "max_new_tokens": 50},
    {"sampling_seed": 1, "logprobs": {"return_logprob": True, "top_logprobs_num": 2}},
]


@pytest.mark.parametrize("request_", REQUESTS, ids=[str(number) for number in range(len(REQUESTS))])
async def test_answers_are_the_same_bytes_with_and_without_a_capture(
    tmp_path: Path, request_: dict[str, Any]
) -> None:
    answers = []
    for capture in (None, str(tmp_path / "capture.jsonl")):
        async with running(config_of(capture=capture)) as worker:
            messages = await worker.generate(generate_request(**request_))
            answers.append([each.SerializeToString(deterministic=True) for each in messages])
    assert answers[0] == answers[1]
    assert ids(tmp_path / "capture.jsonl") == ["r"]


async def test_what_is_refused_is_captured_and_what_is_too_large_is_not(tmp_path: Path) -> None:
    capture = tmp_path / "capture.jsonl"
    config = config_of(capture=str(capture), limits=LimitsConfig(message_bytes=1000))
    async with running(config) as worker:
        with pytest.raises(ResourceExhaustedError):
            await worker.generate(generate_request([7] * 2000, request_id="too large"))
        with pytest.raises(InvalidArgumentError):
            await worker.generate(generate_request(request_id="refused", temperature=-1))
        await worker.generate(generate_request(request_id="answered"))
    assert ids(capture) == ["refused", "answered"]


@pytest.mark.parametrize("kind", ["missing folder", "folder", "fifo without a reader"])
async def test_a_capture_that_cannot_be_opened_raises_and_nothing_listens(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "capture"
    if kind == "missing folder":
        path = path / "capture"
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with trio.fail_after(5), pytest.raises(CaptureOpenError, match="cannot open capture file"):
        async with open_runtime(config_of(capture=str(path), grpc_base_port=port)):
            pytest.fail("a runtime that cannot capture has opened")
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)) != 0


async def test_a_line_that_cannot_be_written_fails_its_request_and_no_other_part() -> None:
    async with running(config_of(capture="/dev/full")) as worker:
        for _ in range(2):
            with pytest.raises(InternalError, match="could not be captured"):
                await worker.generate(generate_request())
        assert (await worker.call("HealthCheck", pb.HealthCheckRequest())).healthy
