"""The journal: real files, pipes and processes.  No test waits for time to pass."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from replay import journal as journal_module
from replay.append_file import BeginRule
from replay.errors import JournalWriteError
from replay.journal import Journal
from replay.worker.capture import end_torn_line
from replay.worker.capture_reader import CapturedLine, TornLine, read_lines

APPEND_LINES = Path(__file__).with_name("append_lines.py")


def counters(journal: Journal) -> dict[str, int]:
    """Return the counters that are not 0."""
    return {name: value for name, value in attrs.asdict(journal.statistics()).items() if value}


def lines_of(path: Path) -> list[CapturedLine | TornLine]:
    with path.open("rb") as file:
        return list(read_lines(file))


@pytest.fixture
async def fifo(tmp_path: Path) -> AsyncIterator[tuple[Path, int]]:
    """Make a FIFO whose reader has opened it and does not read."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    yield path, reader
    os.close(reader)


def open_with_thread(
    path: Path, begin: BeginRule = end_torn_line
) -> tuple[Journal, threading.Thread]:
    """Open a journal and return its thread too."""
    before = set(threading.enumerate())
    journal = Journal.open(path, begin=begin)
    (thread,) = set(threading.enumerate()) - before
    return journal, thread


async def fill(journal: Journal, reader: int) -> None:
    """Fill the FIFO of *journal* until a line waits for the reader."""
    size = fcntl.fcntl(reader, fcntl.F_GETPIPE_SZ)
    await journal.append(b"x" * (size - 1) + b"\n")


async def test_append_returns_when_the_line_is_in_the_file(tmp_path: Path) -> None:
    async with Journal.open(tmp_path / "f") as journal:
        for number in range(3):
            await journal.append(b"%d\n" % number)
            assert (tmp_path / "f").read_bytes().splitlines()[-1] == b"%d" % number
        assert counters(journal) == {"written": 3, "written_bytes": 6, "batches": 3}


async def test_lines_are_written_in_arrival_order(tmp_path: Path) -> None:
    async with Journal.open(tmp_path / "f") as journal:
        for number in range(2000):
            journal.append_nowait(b"%d\n" % number)
        await journal.append(b"last\n")
        written = (tmp_path / "f").read_bytes().splitlines()
        assert written == [b"%d" % number for number in range(2000)] + [b"last"]


async def test_what_waits_is_written_together(tmp_path: Path) -> None:
    """While another process holds the lock 50 requests come; they need two batches, not 50."""
    async with Journal.open(tmp_path / "f") as journal:
        with (tmp_path / "f").open("ab") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            async with trio.open_nursery() as requests:
                for number in range(50):
                    requests.start_soon(journal.append, b"%d\n" % number)
                await trio.testing.wait_all_tasks_blocked()
                fcntl.flock(other, fcntl.LOCK_UN)
        assert journal.statistics().written == 50
        assert journal.statistics().batches <= 2


async def test_a_batch_is_bounded_in_bytes(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(journal_module, "BATCH_BYTES", 100)
    async with Journal.open(tmp_path / "f") as journal:
        with (tmp_path / "f").open("ab") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            for _ in range(50):
                journal.append_nowait(b"x" * 9 + b"\n")
            fcntl.flock(other, fcntl.LOCK_UN)
        await journal.append(b"last\n")
        assert 5 <= journal.statistics().batches <= 8
        assert (tmp_path / "f").stat().st_size == 505


async def test_append_is_a_checkpoint(tmp_path: Path) -> None:
    async with Journal.open(tmp_path / "f") as journal:
        with trio.testing.assert_checkpoints():
            await journal.append(b"x\n")


async def test_a_failed_write_fails_its_line_and_is_counted() -> None:
    async with Journal.open("/dev/full") as journal:
        for _ in range(2):
            with pytest.raises(
                JournalWriteError, match=r"^cannot write: No space left on device$"
            ) as caught:
                await journal.append(b"secret prompt\n")
            assert (caught.value.errno, caught.value.path) == (errno.ENOSPC, "/dev/full")
        journal.append_nowait(b"nobody waits\n")
    assert counters(journal) == {"failed": 3, "batches": 3}


@pytest.mark.parametrize("name", ["no/such/file", "."])
async def test_a_path_that_cannot_be_opened_raises_and_leaves_no_thread(
    tmp_path: Path, name: str
) -> None:
    before = (threading.active_count(), len(os.listdir("/proc/self/fd")))
    with pytest.raises(OSError):  # noqa: PT011 - the kinds are in test_append_file.py
        Journal.open(tmp_path / name)
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before


async def test_closing_gives_everything_back(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    journal, thread = open_with_thread(tmp_path / "f")
    async with journal:
        await journal.append(b"x\n")
    thread.join(10)
    assert not thread.is_alive()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_standard_output_works_when_it_is_a_pipe() -> None:
    code = """
import trio
from replay.journal import Journal
async def main():
    async with Journal.open("/dev/stdout") as journal:
        await journal.append(b"line\\n")
trio.run(main)
"""
    done = await trio.run_process([sys.executable, "-c", code], capture_stdout=True)
    assert done.stdout == b"line\n"


# A file that hangs.


async def test_a_waiting_request_can_be_cancelled_while_a_pipe_is_full(fifo) -> None:
    path, reader = fifo
    async with Journal.open(path, begin=end_torn_line) as journal:
        await fill(journal, reader)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as requests:
                requests.start_soon(journal.append, b"waits\n")
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        assert scope.cancelled_caught
        assert counters(journal)["abandoned"] == 1
        os.set_blocking(reader, True)
        content = b""
        while not content.endswith(b"waits\n"):  # it was to be captured, and now there is room
            content += await trio.to_thread.run_sync(os.read, reader, 1 << 16)
    assert counters(journal) == {
        "written": 2,
        "written_bytes": len(content),
        "batches": 2,
        "abandoned": 1,
    }


async def test_a_waiting_request_can_be_cancelled_while_a_stopped_process_has_the_lock(
    tmp_path: Path,
) -> None:
    async with Journal.open(tmp_path / "f") as journal:
        with (tmp_path / "f").open("ab") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as requests:
                    requests.start_soon(journal.append, b"waits\n")
                    await trio.testing.wait_all_tasks_blocked()
                    scope.cancel()
            assert scope.cancelled_caught
    assert (tmp_path / "f").read_bytes() == b"waits\n"


async def test_lines_that_nobody_waits_for_are_bounded(fifo, monkeypatch) -> None:
    path, reader = fifo
    os.set_blocking(reader, True)
    monkeypatch.setattr(journal_module, "UNWAITED_BYTES", 1000)
    first = b"f" * 2 * fcntl.fcntl(reader, fcntl.F_GETPIPE_SZ) + b"\n"
    async with Journal.open(path) as journal, trio.open_nursery() as requests:
        requests.start_soon(journal.append, first)
        # What can be read says that the thread is busy with the first line, and stays so.
        content = await trio.to_thread.run_sync(os.read, reader, 1)
        for _ in range(50):
            with trio.move_on_after(0):
                await journal.append(b"x" * 99 + b"\n")
        for _ in range(50):
            journal.append_nowait(b"y" * 99 + b"\n")
        while len(content) < len(first) + 10 * 100:
            content += await trio.to_thread.run_sync(os.read, reader, 1 << 16)
        requests.start_soon(journal.append, b"room again\n")
        while not content.endswith(b"room again\n"):
            content += await trio.to_thread.run_sync(os.read, reader, 1 << 16)
    assert content == first + (b"x" * 99 + b"\n") * 10 + b"room again\n"
    assert counters(journal)["abandoned"] == 50
    assert counters(journal)["dropped"] == 90
    assert counters(journal)["written"] == 12


async def test_a_full_pipe_does_not_hold_a_shutdown_with_a_deadline(fifo) -> None:
    path, reader = fifo
    journal, thread = open_with_thread(path)
    await fill(journal, reader)
    for _ in range(3):
        journal.append_nowait(b"lost\n")
    with trio.move_on_after(0.05) as scope:
        await journal.aclose()
    assert scope.cancelled_caught
    assert counters(journal)["lost_at_close"] == 3
    thread.join(10)
    assert not thread.is_alive()  # it does not stay behind in a system call
    with trio.fail_after(10):
        await journal.aclose()


async def test_whoever_waits_when_the_journal_is_closed_is_told(fifo) -> None:
    path, reader = fifo
    journal = Journal.open(path)
    await fill(journal, reader)
    told = []

    async def wait() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await journal.append(b"waits\n")
        told.append(True)

    async with trio.open_nursery() as requests:
        for _ in range(3):
            requests.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        journal.close()
    assert told == [True] * 3
    await journal.aclose()


async def test_a_closed_journal_refuses_lines(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "f")
    await journal.aclose()
    await journal.aclose()
    journal.close()
    with pytest.raises(trio.ClosedResourceError):
        await journal.append(b"x\n")
    with pytest.raises(trio.ClosedResourceError):
        journal.append_nowait(b"x\n")
    with pytest.raises(trio.ClosedResourceError):
        await journal.reopen()


async def test_closing_writes_what_is_waiting_first(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "f")
    for _ in range(5000):
        journal.append_nowait(b"x" * 999 + b"\n")
    await journal.aclose()
    assert (tmp_path / "f").stat().st_size == 5_000_000
    assert "lost_at_close" not in counters(journal)


async def test_a_fault_in_the_thread_is_reported_and_reaches_those_who_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(size: int, read_at: Callable[[int, int], bytes]) -> bytes:
        raise ZeroDivisionError

    reported: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda hook: reported.append(hook.exc_type))
    journal, thread = open_with_thread(tmp_path / "f", faulty)
    for _ in range(2):
        with trio.fail_after(10), pytest.raises(trio.ClosedResourceError):
            await journal.append(b"x\n")
    await journal.aclose()
    thread.join(10)
    assert reported == [ZeroDivisionError]


def test_a_journal_that_outlived_its_loop_can_be_closed(tmp_path: Path) -> None:
    async def leave_open() -> tuple[Journal, threading.Thread]:
        journal, thread = open_with_thread(tmp_path / "f")
        await journal.append(b"x\n")
        return journal, thread

    async def close_late(journal: Journal) -> None:
        journal.close()

    journal, thread = trio.run(leave_open)
    trio.run(close_late, journal)
    thread.join(10)
    assert not thread.is_alive()


# Rotation.


async def test_after_a_rename_lines_go_to_the_old_file_until_the_path_is_opened_again(
    tmp_path: Path,
) -> None:
    async with Journal.open(tmp_path / "f") as journal:
        await journal.append(b"1\n")
        descriptors = len(os.listdir("/proc/self/fd"))
        (tmp_path / "f").rename(tmp_path / "f.1")
        await journal.append(b"2\n")
        journal.append_nowait(b"3\n")
        await journal.reopen()
        await journal.append(b"4\n")
        assert len(os.listdir("/proc/self/fd")) == descriptors
    assert (tmp_path / "f.1").read_bytes() == b"1\n2\n3\n"
    assert (tmp_path / "f").read_bytes() == b"4\n"
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600
    assert counters(journal)["reopened"] == 1


async def test_a_path_that_cannot_be_opened_again_keeps_the_old_file(tmp_path: Path) -> None:
    async with Journal.open(tmp_path / "f") as journal:
        (tmp_path / "f").rename(tmp_path / "f.1")
        (tmp_path / "f").mkdir()
        with pytest.raises(IsADirectoryError):
            await journal.reopen()
        await journal.append(b"1\n")
        assert (tmp_path / "f.1").read_bytes() == b"1\n"
        (tmp_path / "f").rmdir()
        await journal.reopen()
        await journal.append(b"2\n")
    assert (tmp_path / "f").read_bytes() == b"2\n"
    assert counters(journal) == {
        "written": 2,
        "written_bytes": 4,
        "batches": 2,
        "reopened": 1,
        "reopen_failures": 1,
    }


async def test_a_file_that_somebody_empties_gets_no_nuls(tmp_path: Path) -> None:
    async with Journal.open(tmp_path / "f", begin=end_torn_line) as journal:
        await journal.append(b"x" * 5000 + b"\n")
        os.truncate(tmp_path / "f", 0)
        await journal.append(b"after\n")
    assert (tmp_path / "f").read_bytes() == b"after\n"


# Other writers.


async def test_two_journals_of_a_process_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "f"

    async def write(journal: Journal, letter: bytes) -> None:
        for _ in range(100):
            await journal.append(letter * 5000 + b"\n")

    async with (
        Journal.open(path, begin=end_torn_line) as one,
        Journal.open(path, begin=end_torn_line) as two,
        trio.open_nursery() as writers,
    ):
        writers.start_soon(write, one, b"a")
        writers.start_soon(write, two, b"b")
    lines = path.read_bytes().split(b"\n")
    assert sorted(set(lines)) == [b"", b"a" * 5000, b"b" * 5000]
    assert len(lines) == 201


def start_appending(
    path: Path, name: str, *, count: int = 10**9, pause_ms: int = 0, output: int = subprocess.PIPE
) -> subprocess.Popen[bytes]:
    """Start a process that appends lines of 20 kB and prints the numbers of those that are in."""
    arguments = [str(path), name, str(count), "20000", str(pause_ms)]
    return subprocess.Popen([sys.executable, str(APPEND_LINES), *arguments], stdout=output)


def test_two_processes_append_400_lines_of_20_kb_whole(tmp_path: Path) -> None:
    path = tmp_path / "capture.jsonl"
    processes = [start_appending(path, name, count=400) for name in "ab"]
    for process in processes:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert len(output.split()) == 400
    lines = lines_of(path)
    assert sorted(written_by(lines)) == [(name, number) for name in "ab" for number in range(400)]
    assert path.stat().st_size == 800 * 20_000


def written_by(lines: list[CapturedLine | TornLine]) -> list[tuple[str, int]]:
    """Return writer and number of the whole lines."""
    whole = [line.fields for line in lines if isinstance(line, CapturedLine)]
    return [(fields["writer"], fields["number"]) for fields in whole]


@pytest.mark.slow
def test_killed_writers_lose_no_confirmed_line_and_tear_one_each_at_most(tmp_path: Path) -> None:
    kill_writers(tmp_path, kills=20)


def kill_writers(folder: Path, kills: int) -> tuple[int, int]:
    """Kill *kills* writers in the middle of their work while another one goes on.

    Checks what is left, and returns the numbers of whole and of torn lines.
    """
    path = folder / "capture.jsonl"
    with (folder / "steady").open("wb") as output:
        steady = start_appending(path, "steady", pause_ms=20, output=output.fileno())
    try:
        confirmed = {
            (name, number)
            for round_ in range(kills // 4)
            for name, number in killed_in_a_round(path, round_)
        }
    finally:
        steady.terminate()
    assert steady.wait(30) == 0
    steady_lines = [("steady", int(number)) for number in (folder / "steady").read_bytes().split()]
    assert steady_lines
    assert confirmed

    lines = lines_of(path)
    written = written_by(lines)
    assert len(set(written)) == len(written)
    assert confirmed | set(steady_lines) <= set(written)
    assert [line for line in written if line[0] == "steady"] == sorted(steady_lines)
    torn = len(lines) - len(written)
    assert torn <= kills
    return len(written), torn


def killed_in_a_round(path: Path, round_: int) -> set[tuple[str, int]]:
    """Start four writers, kill each, and return what had been confirmed."""
    names = [f"killed-{round_}-{number}" for number in range(4)]
    confirmed = set()
    processes = [start_appending(path, name) for name in names]
    for delay, (name, process) in enumerate(zip(names, processes, strict=True)):
        assert process.stdout is not None
        # Each after another number of lines, so that the kills meet different moments.
        output = b"".join(process.stdout.readline() for _ in range(1 + round_ + 3 * delay))
        process.kill()
        output += process.stdout.read()
        process.stdout.close()
        assert process.wait(30) == -signal.SIGKILL
        # A pipe takes a short write whole, so what ends in a newline had been confirmed.
        confirmed |= {(name, int(number)) for number in output.split()}
    return confirmed
