"""Appending to files: whole lines or nothing, whoever else writes."""

import errno
import fcntl
import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from replay.append_file import RegularFile, StreamFile, begin_anywhere, open_append_file
from replay.worker.capture import end_torn_line


@pytest.fixture
def interrupt() -> Iterator[int]:
    descriptor = os.eventfd(0, os.EFD_NONBLOCK)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def open_file(interrupt: int) -> Iterator[Callable[..., RegularFile | StreamFile]]:
    """Open append files that are closed at the end of the test."""
    opened: list[RegularFile | StreamFile] = []

    def open_(path: Path | str, begin=end_torn_line) -> RegularFile | StreamFile:
        opened.append(open_append_file(str(path), begin, interrupt))
        return opened[-1]

    yield open_
    for file in opened:
        file.close()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def umask() -> Iterator[Callable[[int], None]]:
    before = os.umask(0o022)
    yield lambda mask: (os.umask(mask), None)[1]
    os.umask(before)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o277])
def test_a_new_file_is_0600_whatever_the_umask(tmp_path, open_file, umask, mask) -> None:
    umask(mask)
    open_file(tmp_path / "new")
    assert mode_of(tmp_path / "new") == 0o600


@pytest.mark.parametrize("through_link", [False, True])
def test_an_existing_file_keeps_its_mode(tmp_path, open_file, through_link) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"old\n")
    target.chmod(0o644)
    path = tmp_path / "link" if through_link else target
    if through_link:
        path.symlink_to(target)
    open_file(path).append([b"new\n"])
    assert mode_of(target) == 0o644
    assert target.read_bytes() == b"old\nnew\n"
    assert path.is_symlink() == through_link


def test_a_link_to_nothing_creates_its_target(tmp_path, open_file) -> None:
    (tmp_path / "link").symlink_to("target")
    open_file(tmp_path / "link").append([b"line\n"])
    assert (tmp_path / "target").read_bytes() == b"line\n"
    assert mode_of(tmp_path / "target") == 0o600


def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


@pytest.mark.parametrize(
    ("make", "number"),
    [
        (fifo, errno.ENXIO),
        (lambda tmp_path: tmp_path, errno.EISDIR),
        (lambda tmp_path: tmp_path / "missing" / "file", errno.ENOENT),
        (lambda tmp_path: "", errno.ENOENT),
        (lambda tmp_path: f"{tmp_path}/new/", errno.EISDIR),
    ],
)
def test_what_cannot_be_opened_says_so_at_once(tmp_path, open_file, make, number) -> None:
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is checked
        open_file(make(tmp_path))
    assert caught.value.errno == number


def run_python(code: str, *arguments: object) -> str:
    """Run *code* in a process of its own and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout


def test_a_folder_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    """In a process without privileges: root may write everywhere."""
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(0o555)
    code = """
import os, sys
from replay.append_file import begin_anywhere, open_append_file
os.chdir(sys.argv[1])  # first: the folders above may be closed to others
if os.getuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
try:
    open_append_file("new", begin_anywhere, 0)
except OSError as error:
    print(error.errno)
"""
    assert run_python(code, folder).split() == [str(errno.EACCES)]
    assert list(folder.iterdir()) == []


def test_a_batch_is_in_the_file_in_order(tmp_path, open_file) -> None:
    file = open_file(tmp_path / "f")
    assert file.append([b"1\n", b"2\n"]) == [None, None]
    assert file.append([b"3\n"]) == [None]
    assert (tmp_path / "f").read_bytes() == b"1\n2\n3\n"


def write_calls() -> int:
    """Return how often this thread has called write(2) or one of its kin."""
    counters = Path("/proc/thread-self/io").read_text()
    return int(counters.split("syscw:")[1].split()[0])


@pytest.mark.skipif(
    not Path("/proc/thread-self/io").exists(), reason="the kernel does not count system calls"
)
@pytest.mark.parametrize("before", [b"", b"torn"])
def test_a_batch_is_one_write_with_what_ends_a_torn_line(tmp_path, open_file, before) -> None:
    (tmp_path / "f").write_bytes(before)
    file = open_file(tmp_path / "f")
    calls = write_calls()
    file.append([b"x" * 20_000 + b"\n"] * 40)
    assert write_calls() - calls == 1


def test_a_torn_tail_is_ended_once_before_the_first_line(tmp_path, open_file) -> None:
    (tmp_path / "f").write_bytes(b"whole\nto")
    file = open_file(tmp_path / "f")
    file.append([b"1\n"])
    file.append([b"2\n"])
    assert (tmp_path / "f").read_bytes() == b"whole\nto\n1\n2\n"


def test_a_tail_that_another_process_tears_later_is_ended_too(tmp_path, open_file) -> None:
    file = open_file(tmp_path / "f")
    file.append([b"1\n"])
    with (tmp_path / "f").open("ab") as other:
        other.write(b"half")
    file.append([b"2\n"])
    with (tmp_path / "f").open("ab") as other:
        other.write(b"whole\n")
    file.append([b"3\n"])
    assert (tmp_path / "f").read_bytes() == b"1\nhalf\n2\nwhole\n3\n"


def test_a_format_that_keeps_its_own_tail_gets_nothing_added(tmp_path, open_file) -> None:
    (tmp_path / "f").write_bytes(b"\x00\x01")
    open_file(tmp_path / "f", begin_anywhere).append([b"\x02"])
    assert (tmp_path / "f").read_bytes() == b"\x00\x01\x02"


def test_a_format_may_begin_a_file_and_may_refuse_one(tmp_path, open_file) -> None:
    def begin(size: int, read_at: Callable[[int, int], bytes]) -> bytes:
        if size and read_at(0, 2) != b"h\n":
            raise OSError(errno.EILSEQ, "not ours")
        return b"" if size else b"h\n"

    file = open_file(tmp_path / "f", begin)
    assert file.append([b"1\n"]) == [None]
    assert (tmp_path / "f").read_bytes() == b"h\n1\n"
    (tmp_path / "f").write_bytes(b"x")
    (error,) = file.append([b"2\n"])
    assert error.errno == errno.EILSEQ
    assert (tmp_path / "f").read_bytes() == b"x"


def test_a_file_that_somebody_empties_gets_no_nuls(tmp_path, open_file) -> None:
    file = open_file(tmp_path / "f")
    file.append([b"x" * 1000 + b"\n"])
    os.truncate(tmp_path / "f", 0)
    file.append([b"after\n"])
    assert (tmp_path / "f").read_bytes() == b"after\n"


def append_with_room(path: Path, room: int, *batches: list[bytes]) -> list[list[int | None]]:
    """Append in a process whose files may grow to *room* bytes; return the errnos."""
    code = """
import ast, json, resource, sys
from replay.append_file import open_append_file
from replay.worker.capture import end_torn_line
path, room, batches = sys.argv[1], int(sys.argv[2]), ast.literal_eval(sys.argv[3])
file = open_append_file(path, end_torn_line, 0)
resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
outcomes = [[e and e.errno for e in file.append(batch)] for batch in batches]
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(json.dumps(outcomes))
"""
    outcomes: list[list[int | None]] = json.loads(run_python(code, path, room, batches))
    return outcomes


def test_lines_that_do_not_fit_leave_nothing_behind_and_the_others_stay(tmp_path: Path) -> None:
    small, large = b"s" * 99 + b"\n", b"l" * 999 + b"\n"
    outcomes = append_with_room(
        tmp_path / "f", 450, [small], [small, large, small], [large], [small]
    )
    failed = outcomes[1][1]
    assert failed in (errno.ENOSPC, errno.EFBIG)
    assert outcomes == [[None], [None, failed, None], [failed], [None]]
    assert (tmp_path / "f").read_bytes() == small * 4


def test_a_torn_tail_is_still_ended_when_the_first_line_does_not_fit(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"torn")
    large = b"l" * 999 + b"\n"
    outcomes = append_with_room(tmp_path / "f", 100, [large, b"1\n", b"2\n"])
    assert [error is None for error in outcomes[0]] == [False, True, True]
    assert (tmp_path / "f").read_bytes() == b"torn\n1\n2\n"


def test_an_append_waits_for_the_lock_of_another_process(tmp_path, open_file) -> None:
    file = open_file(tmp_path / "f")
    with (tmp_path / "f").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        writer = threading.Thread(target=file.append, args=([b"ours\n"],))
        writer.start()
        os.write(other.fileno(), b"th")
        os.write(other.fileno(), b"eirs\n")
        assert writer.is_alive()
        fcntl.flock(other, fcntl.LOCK_UN)
        writer.join(10)
    assert (tmp_path / "f").read_bytes() == b"theirs\nours\n"


def test_the_lock_is_free_after_an_append(tmp_path, open_file) -> None:
    file = open_file(tmp_path / "f")
    file.append([b"1\n"])
    with (tmp_path / "f").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_file_that_is_locked_can_be_opened(tmp_path, open_file) -> None:
    with (tmp_path / "f").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        open_file(tmp_path / "f")


def test_a_full_device_fails_each_line(open_file) -> None:
    outcomes = open_file("/dev/full").append([b"1\n", b"2\n"])
    assert [error.errno for error in outcomes] == [errno.ENOSPC, errno.ENOSPC]


def test_dev_null_takes_everything(open_file) -> None:
    assert open_file("/dev/null").append([b"1\n", b"2\n"]) == [None, None]


def test_a_pipe_whose_reader_left_fails_and_serves_the_next_reader(tmp_path, open_file) -> None:
    path = fifo(tmp_path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    file = open_file(path)
    os.close(reader)
    (error,) = file.append([b"lost\n"])
    assert error.errno == errno.EPIPE
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    assert file.append([b"read\n"]) == [None]
    assert os.read(reader, 100) == b"read\n"
    os.close(reader)


def test_lines_larger_than_a_pipe_arrive_whole_and_in_order(tmp_path, open_file) -> None:
    path = fifo(tmp_path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    file = open_file(path)
    os.set_blocking(reader, True)
    lines = [bytes([65 + number]) * 150_000 + b"\n" for number in range(5)]
    read = bytearray()

    def drain() -> None:
        while len(read) < sum(map(len, lines)):
            read.extend(os.read(reader, 65536))

    drainer = threading.Thread(target=drain)
    drainer.start()
    left = list(lines)
    while left:
        outcomes = file.append(left)
        assert outcomes == [None] * len(outcomes)
        assert outcomes  # it waits for at least one
        left = left[len(outcomes) :]
    drainer.join(10)
    assert bytes(read) == b"".join(lines)
    os.close(reader)


def test_lines_that_the_pipe_took_are_confirmed_before_the_rest_waits(
    tmp_path, open_file, interrupt
) -> None:
    path = fifo(tmp_path)
    os.eventfd_write(interrupt, 1)  # whoever waits comes back with nothing
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    outcomes = open_file(path).append([b"x" * 1023 + b"\n"] * 200)
    assert 0 < len(outcomes) < 200
    assert outcomes == [None] * len(outcomes)
    os.close(reader)


def test_a_wait_for_a_reader_that_stopped_can_be_interrupted(
    tmp_path, open_file, interrupt
) -> None:
    path = fifo(tmp_path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    file = open_file(path)
    outcome: list[list[OSError | None]] = []
    writer = threading.Thread(target=lambda: outcome.append(file.append([b"x" * 1_000_000])))
    writer.start()
    os.eventfd_write(interrupt, 1)
    writer.join(10)
    assert outcome == [[]]
    os.close(reader)
