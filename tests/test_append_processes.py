"""Whole lines of several processes on one file: one write for a batch, under one lock."""

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from replay.append_file import open_append_file
from replay.worker.capture import end_torn_line

#: Enough that two processes on a busy machine do write at the same time: some 50 ms.
LINES, LINE_BYTES = 3000, 4000

#: Appends `LINES` lines made of the one letter that it is told, each ended by a newline.
WRITER = """
import os, sys
from replay.append_file import open_append_file
from replay.worker.capture import end_torn_line
path, letter, count, size = sys.argv[1], sys.argv[2].encode(), int(sys.argv[3]), int(sys.argv[4])
file = open_append_file(path, end_torn_line, os.eventfd(0))
print("ready", flush=True)
sys.stdin.readline()
for number in range(count):
    assert file.append([letter * (size - 1) + b"\\n"]) == [None]
"""


def test_the_lines_of_two_processes_stay_whole(tmp_path: Path) -> None:
    path = tmp_path / "f"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, path, letter, str(LINES), str(LINE_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for letter in "ab"
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(b"go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=30)
        assert writer.returncode == 0
    lines = path.read_bytes().splitlines()
    whole = {letter * (LINE_BYTES - 1): LINES for letter in (b"a", b"b")}
    assert {line: lines.count(line) for line in set(lines)} == whole


def test_an_append_waits_while_somebody_else_has_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "f"
    file = open_append_file(str(path), end_torn_line, os.eventfd(0))
    with path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        writer = threading.Thread(target=file.append, args=([b"ours\n"],))
        writer.start()
        writer.join(0.3)  # what does not wait for the lock needs some microseconds
        assert path.read_bytes() == b""
        fcntl.flock(other, fcntl.LOCK_UN)
        writer.join(10)
    file.close()
    assert path.read_bytes() == b"ours\n"


def test_a_batch_goes_out_in_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two writes of one line a process can be killed, and the line is torn."""
    file = open_append_file(str(tmp_path / "f"), end_torn_line, os.eventfd(0))
    written: list[bytes] = []
    write = os.write

    def count(descriptor: int, data: bytes) -> int:
        written.append(bytes(data))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", count)
    file.append([b"one line\n"])
    file.append([b"two\n", b"lines\n"])
    monkeypatch.undo()
    file.close()
    assert written == [b"one line\n", b"two\nlines\n"]
    assert (tmp_path / "f").read_bytes() == b"one line\ntwo\nlines\n"
