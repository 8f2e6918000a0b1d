"""How a worker with taps ends, seen from outside: what is published, what is told, what is left."""

import fcntl
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import trio
import zmq
from worker_process import WorkerError, WorkerProcess

from replay import mirror
from replay.config.engines import CannedConfig
from replay.config.model import (
    Config,
    DiscoveryConfig,
    EventPlaneConfig,
    RecordFileConfig,
    ShutdownConfig,
    TapCapture,
    TapConfig,
    Transport,
    WorkerConfig,
)
from replay.engines.methods import GENERATE
from replay.mirror import open_mirror
from replay.packed import TokenIds
from replay.plane.codec import decode_message
from replay.plane.discovery import TTL_SECONDS, find_publishers
from replay.plane.gap_protocol import Gap, request_frames
from replay.plane.record_file import RecordFiles
from replay.plane.sockets import open_context, receive_frames, send_frames
from replay.request import Request
from replay.rpc.client import open_channel
from replay.runtime import open_runtime
from replay.taps.envelope import ShadowEnvelope
from tests.engines.requests import generate_request
from tests.logs import capture_logs
from tests.plane.peers import eventually
from tests.taps.mirroring import (
    JOINED,
    PLAIN,
    QUICK,
    ask_worker,
    channels_of,
    consuming,
    counted,
    worker,
)

GRACE_SECONDS, DRAIN_SECONDS = 0.4, 0.8
SHUTDOWN = {"grace_seconds": GRACE_SECONDS, "drain_seconds": DRAIN_SECONDS}
STREAMS = 20
LONG = 100_000


async def stop(process: WorkerProcess, number: int = signal.SIGTERM) -> tuple[int, float]:
    """Signal the worker; return its exit code and how long it took."""
    started = time.monotonic()
    process.process.send_signal(number)
    code = await trio.to_thread.run_sync(process.process.wait)
    return code, time.monotonic() - started


async def hold_streams(
    address: str, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Keep streams open until the worker ends them."""
    begun = 0

    async def hold(channel: Any, number: int) -> None:
        nonlocal begun
        message = generate_request(request_id=f"held-{number}", max_new_tokens=LONG)
        try:
            async with channel.stream(GENERATE, message) as answers:
                await answers.receive()
                begun += 1
                if begun == STREAMS:
                    task_status.started()
                while await answers.receive() is not None:
                    pass
        except Exception as error:
            codes.append(type(error).__name__)

    codes: list[str] = []
    async with open_channel(address) as channel, trio.open_nursery() as streams:
        for number in range(STREAMS):
            streams.start_soon(hold, channel, number)
    assert codes == ["UnavailableError"] * STREAMS


@pytest.mark.timed
async def test_records_of_cut_streams_and_the_last_status_are_out_before_all_closes(
    tmp_path: Path,
) -> None:
    """A consumer that waits for the end ends by itself, and has everything."""
    flags = ("--token-ms", "5")
    with worker(tmp_path, [JOINED, PLAIN], *flags, shutdown=SHUTDOWN, event_plane=QUICK) as process:
        async with (
            consuming(tmp_path, "shadow-replay", "--until-end") as joined,
            consuming(tmp_path, "shadow-audit", "--until-end") as plain,
            trio.open_nursery() as clients,
        ):
            await ask_worker(process, 10, max_new_tokens=2)
            await clients.start(hold_streams, process.address)
            assert len(channels_of(tmp_path)) == 3
            code, took = await stop(process)
            reports = [(await each.end(None))[1] for each in (joined, plain)]
    assert code == 0
    assert GRACE_SECONDS <= took <= GRACE_SECONDS + DRAIN_SECONDS + 1
    assert channels_of(tmp_path) == []
    first, second = reports
    assert (first["complete"], first["cancelled"]) == (10, STREAMS)
    assert first["output_tokens"] > STREAMS
    for report in reports:
        assert report["records"] == 10 + STREAMS
        assert report["end_seen"] is True
        assert report["tail_loss"] == report["transport_loss"] == report["tap_drops"] == 0
        assert report["publishers"][0]["lost_at_shutdown"] == 0
    assert second["responses"] == 0


async def test_what_is_queued_for_a_reader_still_leaves_when_the_worker_ends(
    tmp_path: Path,
) -> None:
    """1,000 records of 8 kB within the linger."""
    taps = [{**JOINED, "capacity": 2000}]
    with worker(tmp_path, taps, event_plane=QUICK) as process:
        async with consuming(tmp_path, "shadow-replay", "--until-end") as consumer:
            prompt = tuple(range(70_000, 71_600))
            await ask_worker(process, 1000, prompt=prompt, max_new_tokens=2, at_once=64)
            code, _ = await stop(process)
            _, report = await consumer.end(None)
    assert code == 0
    assert report["records"] == 1000
    assert report["tail_loss"] == 0


@pytest.mark.timed
@pytest.mark.parametrize("has_streams", [False, True])
async def test_a_stopped_consumer_does_not_hold_up_the_end(
    tmp_path: Path, has_streams: bool
) -> None:
    """Its messages are lost with the linger; the worker is gone within grace, drain and a second.

    When the consumer goes on it reads what the system had taken for it, the last status among it,
    and so knows exactly what it has lost.
    """
    prompt = tuple(range(70_000, 90_000))
    taps = [{**JOINED, "capacity": 1000}]
    flags = ("--token-ms", "5")
    with worker(tmp_path, taps, *flags, shutdown=SHUTDOWN, event_plane=QUICK) as process:
        async with (
            consuming(tmp_path, "shadow-replay", "--until-end") as consumer,
            trio.open_nursery() as clients,
        ):
            await ask_worker(process, 1)
            await counted(tmp_path, "shadow-replay", 1)
            consumer.process.send_signal(signal.SIGSTOP)
            await ask_worker(process, 300, prompt=prompt, max_new_tokens=1, at_once=30)
            if has_streams:
                await clients.start(hold_streams, process.address)
            code, took = await stop(process)
            consumer.process.send_signal(signal.SIGCONT)
            _, report = await consumer.end(None)
    assert code == 0
    assert took <= (GRACE_SECONDS if has_streams else 0) + DRAIN_SECONDS + 1
    assert channels_of(tmp_path) == []
    total = 301 + (STREAMS if has_streams else 0)
    assert report["records"] + report["transport_loss"] + report["tail_loss"] == total
    assert report["tail_loss"] > 100
    assert report["tap_drops"] == 0
    assert report["end_seen"] is True


async def test_a_reader_that_asks_for_what_it_missed_and_reads_nothing_does_not_hold_up_the_end(
    tmp_path: Path,
) -> None:
    """Answers of 12 MB are waiting for it, of which the system's buffers hold a part."""
    config = Config(
        event_plane=EventPlaneConfig(discovery=DiscoveryConfig(root=str(tmp_path))),
        shutdown=ShutdownConfig(drain_seconds=0.2),
        taps=(TapConfig(name="a", capture=TapCapture.REQUEST, replay_buffer=50),),
    )
    request = Request(model="m", token_ids=range(70_000, 90_000))
    async with open_context(term_seconds=5) as context:
        with capture_logs() as events, context.socket(zmq.DEALER) as reader:
            reader.linger = 0
            reader.rcvhwm = 1
            reader.rcvbuf = 4096
            async with open_mirror(config) as taps:
                (tap,) = taps
                for _ in range(50):
                    with taps.record(request):
                        pass
                await eventually(lambda: tap.published == 50)
                told = {each["event"]: each for each in events}
                reader.connect(told["event plane"]["gaps"])
                for _ in range(3):
                    send_frames(reader, request_frames(Gap(told["tap"]["publisher_id"], 0, 49)))
                await receive_frames(reader)
    assert [each["event"] for each in events if each["log_level"] == "warning"] == []


@pytest.mark.timed
async def test_cancelling_a_runtime_is_the_same_stop_without_grace(tmp_path: Path) -> None:
    plane = EventPlaneConfig(discovery=DiscoveryConfig(root=str(tmp_path)))
    record_file = RecordFileConfig(path=str(tmp_path / "records"))
    tap = TapConfig(name="a", capture=TapCapture.REQUEST_RESPONSE, record_file=record_file)
    config = Config(
        worker=WorkerConfig(grpc_base_port=0, engine=CannedConfig(token_ms=5)),
        event_plane=plane,
        taps=(tap,),
    )
    async with trio.open_nursery() as clients:
        with trio.CancelScope() as scope:
            async with open_runtime(config) as runtime:
                await clients.start(hold_streams, runtime.addresses[0])
                assert len(channels_of(tmp_path)) == 2
                started = trio.current_time()
                scope.cancel()
                await trio.sleep_forever()
        took = trio.current_time() - started
    assert took < 1
    assert channels_of(tmp_path) == []
    found = [
        ShadowEnvelope.unpacked(decode_message(frames).payload)
        for frames in RecordFiles(tmp_path / "records")
    ]
    assert [each.response and each.response.outcome.value for each in found] == (
        ["cancelled"] * STREAMS
    )


async def test_a_record_file_that_hangs_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a disk does: here somebody else keeps the lock."""
    monkeypatch.setattr(mirror, "RECORD_CLOSE_SECONDS", 0.1)
    record_file = RecordFileConfig(path=str(tmp_path / "records"))
    config = Config(
        event_plane=EventPlaneConfig(transport=Transport.NONE),
        shutdown=ShutdownConfig(drain_seconds=0.1),
        taps=(TapConfig(name="a", capture=TapCapture.REQUEST, record_file=record_file),),
    )
    with trio.fail_after(5):
        async with open_mirror(config) as taps:
            locked = os.open(tmp_path / "records.000000", os.O_RDONLY)
            fcntl.flock(locked, fcntl.LOCK_EX)
            with taps.record(Request(model="m", token_ids=TokenIds([1]))):
                pass
            (tap,) = taps
            assert tap.queued == 1
    os.close(locked)
    assert tap.lost_at_shutdown == 1


async def test_a_worker_that_is_killed_leaves_entries_that_expire(tmp_path: Path) -> None:
    """A consumer passes over them after ten seconds, and any worker removes them then."""
    left: list[Path] = []

    async def kill_in_mid_run() -> None:
        with worker(tmp_path, [JOINED], event_plane=QUICK) as process:
            async with consuming(tmp_path, "shadow-replay") as consumer:
                await ask_worker(process, 5)
                await counted(tmp_path, "shadow-replay", 5)
                await stop(process, signal.SIGKILL)
                left.extend(channels_of(tmp_path))
                _, report = await consumer.end()
                assert report["end_seen"] is False

    with pytest.raises(WorkerError, match=f"ended with -{int(signal.SIGKILL)}"):
        await kill_in_mid_run()
    assert len(left) == 2
    folder, found = left[0].parent, ("dynamo", "shadow-replay")
    assert len(find_publishers(folder, *found)) == 1
    old = time.time() - TTL_SECONDS - 1
    for path in left:
        os.utime(path, (old, old))
    assert find_publishers(folder, *found) == frozenset()
    with worker(tmp_path, [JOINED], event_plane=QUICK):
        assert len(find_publishers(folder, *found)) == 1
        await eventually(lambda: len(channels_of(tmp_path)) == 2, seconds=10)
        assert not set(left) & set(channels_of(tmp_path))
