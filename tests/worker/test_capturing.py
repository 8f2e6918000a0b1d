"""Capturing: what is in the file, and when."""

import json
import os
import threading
from pathlib import Path

import pytest
import trio
from purerpc.grpclib.exceptions import (
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    UnavailableError,
)

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.config.engines import CannedConfig
from replay.engines.methods import GENERATE
from replay.errors import CaptureOpenError
from replay.runtime import open_runtime
from tests.engines.requests import generate_request
from tests.worker.running import config_of, running, until


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_bytes().decode().split("\n")[:-1]]


async def test_the_line_is_in_the_file_when_the_headers_come(tmp_path):
    path = tmp_path / "capture.jsonl"
    config = config_of(capture=str(path), engine=CannedConfig(gen_ms=60_000))
    async with (
        running(config) as worker,
        worker.channel.stream(GENERATE, generate_request([1, 2])) as answers,
    ):
        with trio.fail_after(2):
            await answers.wait_head()
        seen = lines(path)

    assert [(each["request_id"], each["input_ids"]) for each in seen] == [("r", [1, 2])]


async def test_a_request_is_captured_as_it_came_and_also_when_it_is_refused(tmp_path):
    path = tmp_path / "capture.jsonl"
    config = config_of(capture=str(path), default_sampling_params={"max_new_tokens": 3})
    async with running(config) as worker:
        await worker.generate(generate_request())
        with pytest.raises(InvalidArgumentError):
            await worker.generate(generate_request(request_id="bad", top_p=7.0))

    first, second = lines(path)
    assert first["max_new_tokens"] is None
    assert (second["request_id"], second["top_p"]) == ("bad", 7.0)


async def test_what_cannot_be_decoded_or_comes_while_draining_is_not_captured(tmp_path):
    path = tmp_path / "capture.jsonl"

    class Garbage:
        def SerializeToString(self) -> bytes:  # noqa: N802  # the name is protobuf's
            return b"\xff\xff\xff"

    async with running(config_of(capture=str(path))) as worker:
        with pytest.raises(InternalError, match="cannot be decoded"):
            await worker.generate(Garbage())  # type: ignore[arg-type]
        worker.runtime.workers[0].server.refuse_new_calls()
        with pytest.raises(UnavailableError):
            await worker.generate(generate_request())

    assert path.read_bytes() == b""


@pytest.mark.parametrize("stream", [True, False])
async def test_answers_are_the_same_with_and_without_capture(tmp_path, stream):
    async def answers(**options: str) -> list[bytes]:
        async with running(config_of(**options)) as worker:
            messages = [
                *await worker.generate(generate_request(stream=stream)),
                *await worker.generate(generate_request(stream=stream, n=2, sampling_seed=4)),
            ]
            return [message.SerializeToString() for message in messages]

    assert await answers() == await answers(capture=str(tmp_path / "capture.jsonl"))


async def test_extended_lines_have_rank_arrival_and_allowed_metadata(tmp_path):
    path = tmp_path / "capture.jsonl"
    config = config_of(capture=str(path), capture_extended=True, metadata_allow=("x-trace-*",))
    request = generate_request()
    request.data_parallel_rank = 0
    async with running(config) as worker:
        await worker.generate(
            request, metadata=[(b"x-trace-id", b"7"), (b"authorization", b"secret")]
        )

    (line,) = lines(path)
    assert list(line)[32:] == ["data_parallel_rank", "arrival_unix_ns", "metadata"]
    assert line["data_parallel_rank"] == 0
    assert line["metadata"] == {"x-trace-id": "7"}
    assert line["arrival_unix_ns"] > 1_700_000_000 * 10**9


async def test_a_full_disk_fails_the_request_and_not_the_worker():
    async with running(config_of(capture="/dev/full")) as worker:
        for _ in range(2):
            with pytest.raises(InternalError, match="could not be captured"):
                await worker.generate(generate_request())
        assert (await worker.call("HealthCheck", pb.HealthCheckRequest())).healthy
        assert worker.runtime.capture is not None
        assert worker.runtime.capture.statistics().failed == 2


@pytest.mark.parametrize("kind", ["folder", "fifo", "missing folder"])
async def test_a_path_that_cannot_be_opened_raises_and_nothing_listens(tmp_path, kind):
    path = {
        "folder": tmp_path,
        "fifo": tmp_path / "fifo",
        "missing folder": tmp_path / "no" / "file",
    }[kind]
    if kind == "fifo":
        os.mkfifo(path)
    config = config_of(capture=str(path))

    with pytest.raises(CaptureOpenError, match=r"^cannot open capture file "), trio.fail_after(5):
        async with open_runtime(config):
            raise AssertionError("it runs")


async def test_a_reader_that_stopped_delays_only_those_who_wait_for_their_line(tmp_path):
    """Deadlines, Aborts, another worker and the stop work while the pipe is full."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        async with (
            running(config_of(capture=str(fifo), grace_seconds=0.1)) as stuck,
            running(config_of(engine=CannedConfig(token_ms=5))) as other,
            trio.open_nursery() as clients,
        ):
            big = generate_request(range(40_000))

            async def one_of_many(number: int) -> None:
                with pytest.raises((DeadlineExceededError, UnavailableError)):
                    await stuck.generate(big, timeout=0.5 if number % 2 else None)

            # A pipe holds 64 kB: the first line fills it and every request waits.
            for number in range(4):
                clients.start_soon(one_of_many, number)
            await until(lambda: stuck.runtime.capture.statistics().waiting >= 1)

            with trio.fail_after(5):
                await other.generate(generate_request(max_new_tokens=20))
            await until(lambda: stuck.runtime.capture.statistics().abandoned >= 2)
            assert (await stuck.call("HealthCheck", pb.HealthCheckRequest())).healthy

            # Leaving the block stops the stuck worker: what waits gets UNAVAILABLE.
            stuck.runtime.workers[0].server.refuse_new_calls()
            clients.start_soon(_stop, stuck)
    finally:
        os.close(reader)


async def _stop(worker) -> None:
    with trio.fail_after(5):
        await worker.runtime.workers[0].server.stop(grace_seconds=0.1)


async def test_a_rotated_file_is_opened_again_when_asked(tmp_path):
    path = tmp_path / "capture.jsonl"
    async with running(config_of(capture=str(path))) as worker:
        await worker.generate(generate_request(request_id="old"))
        path.rename(tmp_path / "rotated")
        await worker.generate(generate_request(request_id="still old"))
        await worker.runtime.reopen_capture()
        await worker.generate(generate_request(request_id="new"))

    assert [each["request_id"] for each in lines(tmp_path / "rotated")] == ["old", "still old"]
    assert [each["request_id"] for each in lines(path)] == ["new"]
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_rotation_while_the_worker_stops_is_no_failure(tmp_path):
    """A SIGHUP may come between the end of the file and that of the process."""
    async with open_runtime(config_of(capture=str(tmp_path / "capture.jsonl"))) as runtime:
        pass
    await runtime.reopen_capture()


async def test_a_prompt_of_a_million_ids_is_captured_while_others_keep_their_pace(tmp_path):
    path = tmp_path / "capture.jsonl"
    config = config_of(capture=str(path), engine=CannedConfig(token_ms=5))
    big = generate_request(range(10**6), request_id="big", max_new_tokens=1)
    async with running(config) as worker, trio.open_nursery() as clients:
        gaps: list[float] = []
        watching = trio.Event()

        async def watch() -> None:
            request = generate_request(request_id="watched", max_new_tokens=10**5)
            async with worker.channel.stream(GENERATE, request) as answers:
                await answers.receive()
                last = answers.received_at
                watching.set()
                while True:
                    await answers.receive()
                    gaps.append(answers.received_at - last)
                    last = answers.received_at

        clients.start_soon(watch)
        await watching.wait()
        payload = big.SerializeToString()

        class Encoded:
            def SerializeToString(self) -> bytes:  # noqa: N802
                return payload

        gaps.clear()
        assert await worker.generate(Encoded())  # type: ignore[arg-type]
        clients.cancel_scope.cancel()

    assert len(lines(path)[1]["input_ids"]) == 10**6
    # Both ends live in this process, so the bound is wider than what the server alone may cost.
    assert max(gaps) < 0.25
    assert threading.active_count() < 50
