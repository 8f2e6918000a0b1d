"""`replay consume` as users run it: a process, its lines, its files, its end."""

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest
import trio
from zmq.auth import create_certificates

from replay.cli.consume import _write_summary
from replay.plane.curve import ServerKeys
from replay.plane.record_file import RecordFiles
from replay.plane.sinks import PlaneSink
from replay.plane.sockets import bind_pub, open_context
from replay.plane.zap import bind_zap, serve_zap
from tests.consumer.commands import running
from tests.consumer.publishing import TOPIC, open_publishing
from tests.plane.peers import eventually
from tests.plane.records import record


def arguments(root: Path, *more: str) -> list[str]:
    return ["--topic", TOPIC, "--discovery", str(root), "--report-interval", "0.1", *more]


def folder_of(root: Path) -> Path:
    return root / "v1" / "event_channels"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_it_says_joined_counts_and_ends_with_the_report(
    tmp_path: Path, number: signal.Signals
) -> None:
    summary = tmp_path / "summary.json"
    async with (
        open_publishing(folder_of(tmp_path)) as tap,
        running(*arguments(tmp_path, "--summary-path", str(summary))) as command,
    ):
        await command.until("joined ")
        await tap.offer(100)
        await command.until("records=100 ")
        await eventually(summary.exists)
        assert json.loads(summary.read_text())["records"] == 100
        code, report = await command.end(number)
    assert code == 0
    assert command.lines[0] == "subscribed namespace=dynamo topic=shadow"
    assert command.lines[1] == f"joined publisher={tap.publisher_id:x} sequence=0"
    # Lines come only when records grew.
    assert all(line.startswith("records=") for line in command.lines[2:])
    assert len(set(command.lines)) == len(command.lines)
    assert (report["records"], report["prompt_tokens"], report["output_tokens"]) == (100, 300, 200)
    assert list(report)[:3] == ["records", "prompt_tokens", "output_tokens"]
    assert report["end_seen"] is False
    assert json.loads(summary.read_text()) == report
    assert sorted(os.listdir(tmp_path)) == ["summary.json", "v1"]


async def test_it_ends_with_its_publishers_when_asked_to(tmp_path: Path) -> None:
    async with running(*arguments(tmp_path, "--until-end")) as command:
        async with open_publishing(folder_of(tmp_path)) as tap:
            await command.until("joined ")
            await tap.offer(500)
        code, report = await command.end(None)
    assert code == 0
    assert (report["records"], report["tail_loss"], report["end_seen"]) == (500, 0, True)


async def test_printed_records_are_json_lines_and_recorded_ones_can_be_read_again(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out.rec"
    flags = ("--print", "--record", str(out))
    async with (
        open_publishing(folder_of(tmp_path)) as tap,
        running(*arguments(tmp_path, *flags)) as command,
    ):
        await command.until("joined ")
        await tap.offer(5, request={"token_ids": [5], "note": "\x1b[31m\u2028"})
        await command.until('"request-4"')
        _, report = await command.end()
    printed = [json.loads(line) for line in command.lines if line.startswith('{"')]
    assert [each["sequence"] for each in printed] == list(range(5))
    assert printed[0]["record"]["request"] == {"token_ids": [5], "note": "\x1b[31m\u2028"}
    assert "\x1b" not in command.output
    assert report["records"] == 5
    assert len(list(RecordFiles(out))) == 5
    assert out.stat().st_mode & 0o777 == 0o600


async def test_an_undecodable_record_is_told_on_stderr_without_its_content(tmp_path: Path) -> None:
    async with (
        open_publishing(folder_of(tmp_path)) as tap,
        running(*arguments(tmp_path), stderr=subprocess.PIPE) as command,
    ):
        await command.until("joined ")
        await tap.sink.publish(b"\xb1sk-secret-content")
        await tap.offer(1)
        await command.until("records=1 ")
        code, report = await command.end()
        assert command.process.stderr is not None
        errors = (await command.process.stderr.receive_some()).decode()
    assert (code, report["undecodable"]) == (0, 1)
    assert errors.startswith("undecodable record: ")
    assert "secret" not in errors + command.output


async def test_without_status_records_it_says_that_the_tail_is_not_known(tmp_path: Path) -> None:
    async with (
        open_publishing(folder_of(tmp_path), heartbeat=False) as tap,
        running(*arguments(tmp_path), stderr=subprocess.PIPE) as command,
    ):
        await command.until("subscribed ")
        async with trio.open_nursery() as offering:

            async def offer() -> None:
                while True:
                    await tap.offer(1)
                    await trio.sleep(0.02)

            offering.start_soon(offer)
            await command.until("records=")
            offering.cancel_scope.cancel()
        _, report = await command.end()
        assert command.process.stderr is not None
        errors = (await command.process.stderr.receive_some()).decode()
    assert report["tail_loss"] is None
    assert "not known: no status record came" in errors


async def test_a_reader_of_the_lines_that_leaves_ends_it_quietly(tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    flags = ("--print", "--summary-path", str(summary))
    async with (
        open_publishing(folder_of(tmp_path)) as tap,
        running(*arguments(tmp_path, *flags), stderr=subprocess.PIPE) as command,
    ):
        await command.until("joined ")
        assert command.process.stdout is not None
        await command.process.stdout.aclose()
        await tap.offer(3)
        with trio.fail_after(20):
            assert await command.process.wait() == 0
        assert command.process.stderr is not None
        assert b"Traceback" not in await command.process.stderr.receive_some()
    assert json.loads(summary.read_text())["records"] >= 1


async def test_lines_that_a_full_disk_does_not_take_end_it_with_the_summary(tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    flags = ("--topic", TOPIC, "--connect", "tcp://127.0.0.1:1", "--summary-path", str(summary))
    full = os.open("/dev/full", os.O_WRONLY)
    async with running(*flags, stdout=full, stderr=subprocess.PIPE) as command:
        os.close(full)
        with trio.fail_after(20):
            assert await command.process.wait() == 1
        assert command.process.stderr is not None
        errors = await command.process.stderr.receive_some()
    assert b"stdout: No space left on device" in errors
    assert b"Traceback" not in errors
    assert json.loads(summary.read_text())["records"] == 0


async def test_a_second_signal_ends_it_also_when_nobody_takes_its_lines(tmp_path: Path) -> None:
    """As with a pager that waits: the loop stands in a write, and hears of no signal."""
    async with (
        open_publishing(folder_of(tmp_path)) as tap,
        running(*arguments(tmp_path, "--print")) as command,
    ):
        await command.until("joined ")
        await tap.offer(30, padding=6000)
        assert command.process.stdout is not None
        pipe = command.process.stdout.fileno()  # type: ignore[attr-defined]
        await eventually(lambda: _waiting_bytes(pipe) > 40_000)
        command.process.send_signal(signal.SIGTERM)
        await _signal_is_taken(command.process.pid)
        command.process.send_signal(signal.SIGTERM)
        with trio.fail_after(10):
            assert await command.process.wait() == -signal.SIGTERM


def _waiting_bytes(pipe: int) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


async def _signal_is_taken(pid: int) -> None:
    """Wait until the process does not catch SIGTERM any more."""
    bit = 1 << (signal.SIGTERM - 1)

    def is_taken() -> bool:
        status = Path(f"/proc/{pid}/status").read_text()
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
        return not int(caught.split()[1], 16) & bit

    await eventually(is_taken)


async def test_on_a_terminal_the_progress_is_a_line_that_changes(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    async with (
        open_publishing(folder_of(tmp_path)) as tap,
        running(*arguments(tmp_path), stdout=follower) as command,
    ):
        os.close(follower)
        screen = ""
        with trio.fail_after(20):
            while "joined" not in screen:
                screen += (await _read(leader)).decode()
            await tap.offer(42)
            while "records=42" not in screen:
                screen += (await _read(leader)).decode()
            command.process.send_signal(signal.SIGINT)
            while '"publishers"' not in screen:
                screen += (await _read(leader)).decode()
            assert await command.process.wait() == 0
    os.close(leader)
    assert "\x1b[" in screen


async def _read(descriptor: int) -> bytes:
    await trio.lowlevel.wait_readable(descriptor)
    return os.read(descriptor, 65536)


async def test_a_record_file_that_takes_no_more_ends_it_with_code_1_and_the_report(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out.rec"
    code = (
        "import resource, sys, replay.cli;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000));"
        "sys.exit(replay.cli.main())"
    )
    async with open_publishing(folder_of(tmp_path)) as tap:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-c", code, "consume", *arguments(tmp_path, "--record", str(out))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        output = b""
        with trio.fail_after(20):
            while b"joined" not in output:
                output += await process.stdout.receive_some()
            await tap.offer(20)
            async for data in process.stdout:
                output += data
            assert await process.wait() == 1
            errors = await process.stderr.receive_some()
        await process.stdout.aclose()
        await process.stderr.aclose()
    assert b"--record: cannot write: " in errors
    report = json.loads(output[output.index(b"\n{\n") :])
    assert report["records"] >= len(list(RecordFiles(out)))


async def test_a_summary_that_cannot_be_written_is_told_and_the_report_still_comes(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    flags = ("--summary-path", str(folder / "summary.json"))
    async with (
        open_publishing(folder_of(tmp_path)) as tap,
        running(*arguments(tmp_path, *flags), stderr=subprocess.PIPE) as command,
    ):
        await command.until("joined ")
        folder.rmdir()
        await tap.offer(1)
        await command.until("records=1 ")
        code, report = await command.end()
        assert command.process.stderr is not None
        errors = await command.process.stderr.receive_some()
    assert (code, report["records"]) == (1, 1)
    assert b"summary.json: No such file or directory" in errors


def test_a_summary_that_cannot_take_its_place_leaves_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "summary.json").mkdir()
    assert not _write_summary(tmp_path / "summary.json", {"records": 1})
    assert os.listdir(tmp_path) == ["summary.json"]


async def test_with_curve_only_the_one_with_an_allowed_key_reads(tmp_path: Path) -> None:
    for name in ("server", "reader"):
        create_certificates(tmp_path, name)
    (tmp_path / "readers").mkdir()
    (tmp_path / "reader.key").rename(tmp_path / "readers" / "reader.key")
    keys = ServerKeys.load(str(tmp_path / "server.key_secret"), str(tmp_path / "readers"))
    secret, server = str(tmp_path / "reader.key_secret"), str(tmp_path / "server.key")
    async with open_context(term_seconds=5) as context, trio.open_nursery() as services:
        services.start_soon(serve_zap, bind_zap(context), keys)
        bound = bind_pub(context, "127.0.0.1", None, high_water_mark=10, curve=keys)
        sink = PlaneSink(TOPIC, 7, socket=bound.socket)

        async def offer() -> None:
            while True:
                await sink.publish(record(sink.next_sequence))
                await trio.sleep(0.02)

        services.start_soon(offer)
        base = ("--topic", TOPIC, "--connect", f"tcp://127.0.0.1:{bound.port}")
        interval = ("--report-interval", "0.1")
        with_keys = ("--curve-secret-key", secret, "--curve-server-key", server)
        async with running(*base, *interval) as stranger:
            await stranger.until("subscribed ")
            async with running(*base, *interval, *with_keys) as reader:
                await reader.until("records=")
                assert (await reader.end())[1]["records"] > 0
            _, report = await stranger.end()
        assert (report["records"], report["epochs"]) == (0, 0)
        services.cancel_scope.cancel()
        sink.close(linger_seconds=0)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ([], "--topic"),
        (["--topic", "t", "--connect", "tcp://127.0.0.1"], "--connect: must look like tcp://"),
        (["--topic", "t", "--connect", "tcp://a:1", "--status-connect", "x"], "--status-connect"),
        (["--topic", "t", "--report-interval", "0"], "--report-interval"),
        (["--topic", "t", "--summary-path", "/nowhere/s.json"], "/nowhere is no folder"),
        (["--topic", "t", "--summary-path", "."], "--summary-path: . is a folder"),
        (
            ["--topic", "t", "--summary-path", "a.json", "--record", "./a.tmp"],
            "over --record a.tmp",
        ),
        (["--topic", "t", "--record", "/nowhere/out.rec"], "/nowhere/out.rec: No such file"),
        (["--topic", "t", "--record", "/dev/null"], "/dev/null: is no regular file"),
        (["--topic", "t", "--curve-secret-key", "k"], "go together"),
        (["--topic", "t", "--curve-secret-key", "/n", "--curve-server-key", "/n"], "no key file"),
    ],
)
def test_wrong_usage_is_told_and_ends_with_code_2(flags: list[str], problem: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "replay", "consume", *flags],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert problem in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
