"""Writing record files: rotation, files of others, and disks that do not take a record."""

import os
import resource
import stat
from pathlib import Path

import pytest
import trio

from replay.errors import JournalWriteError
from replay.plane import record_writer
from replay.plane.codec import Frames
from replay.plane.record_file import HEADER, RecordFiles, numbered_path, pack_record
from replay.plane.record_writer import RecordFileWriter
from tests.plane.records import messages


def as_lists(written: list[Frames]) -> list[list[bytes]]:
    return [list(frames) for frames in written]


async def test_a_message_is_in_the_file_when_append_returns(tmp_path: Path) -> None:
    base = tmp_path / "tap.rec"
    async with RecordFileWriter.open(base) as writer:
        await writer.append(messages(1))
        assert list(RecordFiles(base)) == as_lists(messages(1))
        await writer.append(messages(3)[1:])
    assert os.listdir(tmp_path) == ["tap.rec.000000"]
    assert list(RecordFiles(base)) == as_lists(messages(3))
    assert (writer.files, writer.records) == (1, 3)
    assert stat.S_IMODE(numbered_path(base, 0).stat().st_mode) == 0o600


async def test_a_new_file_begins_at_the_size_and_no_record_is_split(tmp_path: Path) -> None:
    base = tmp_path / "tap.rec"
    size = len(pack_record(messages(1)[0]))
    async with RecordFileWriter.open(base, rotate_bytes=len(HEADER) + 2 * size) as writer:
        for frames in messages(5):
            await writer.append([frames])
    sizes = [path.stat().st_size - len(HEADER) for path in RecordFiles(base).paths]
    assert sizes == [2 * size, 2 * size, size]
    assert list(RecordFiles(base)) == as_lists(messages(5))


async def test_a_record_larger_than_a_file_gets_one_of_its_own(tmp_path: Path) -> None:
    base = tmp_path / "tap.rec"
    async with RecordFileWriter.open(base, rotate_bytes=1) as writer:
        for frames in messages(3):
            await writer.append([frames])
    assert len(os.listdir(tmp_path)) == 3
    assert list(RecordFiles(base)) == as_lists(messages(3))


async def test_a_new_file_begins_at_the_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "tap.rec"
    now = 100.0
    monkeypatch.setattr(record_writer.trio, "current_time", lambda: now)
    async with RecordFileWriter.open(base, rotate_seconds=60) as writer:
        await writer.append(messages(1))
        now = 159.9
        await writer.append(messages(2)[1:])
        now = 160.0
        await writer.append(messages(3)[2:])
    assert len(os.listdir(tmp_path)) == 2
    assert list(RecordFiles(base)) == as_lists(messages(3))


async def test_a_start_leaves_the_files_of_the_last_run_alone_torn_or_not(tmp_path: Path) -> None:
    base = tmp_path / "tap.rec"
    torn = HEADER + pack_record(messages(1)[0])[:-1]
    numbered_path(base, 7).write_bytes(torn)
    async with RecordFileWriter.open(base) as writer:
        await writer.append(messages(1))
    assert numbered_path(base, 7).read_bytes() == torn
    assert numbered_path(base, 8).read_bytes() == HEADER + pack_record(messages(1)[0])


async def test_a_plain_file_is_written_itself_unless_something_stands_in_it(
    tmp_path: Path,
) -> None:
    base = tmp_path / "tap.rec"
    base.write_bytes(b"")
    async with RecordFileWriter.open(base, is_numbered=False) as writer:
        await writer.append(messages(1))
    before = base.read_bytes()
    async with RecordFileWriter.open(base, is_numbered=False) as writer:
        await writer.append(messages(2)[1:])
    assert base.read_bytes() == before
    assert list(RecordFiles(base)) == as_lists(messages(2))


@pytest.mark.parametrize("numbered", [True, False])
async def test_a_path_that_cannot_be_a_record_file_is_refused_at_once(
    tmp_path: Path, numbered: bool
) -> None:
    with pytest.raises(OSError, match="No such file"):
        RecordFileWriter.open(tmp_path / "missing" / "tap.rec", is_numbered=numbered)
    if not numbered:
        with pytest.raises(OSError, match="regular"):
            RecordFileWriter.open("/dev/null", is_numbered=False)


async def test_bytes_of_somebody_else_in_our_file_begin_a_new_one(tmp_path: Path) -> None:
    """A torn half that could not be taken back looks the same: the file ends where we did not."""
    base = tmp_path / "tap.rec"
    async with RecordFileWriter.open(base) as writer:
        await writer.append(messages(1))
        with numbered_path(base, 0).open("ab") as other:
            other.write(b"torn")
        await writer.append(messages(2)[1:])
    files = RecordFiles(base)
    assert list(files) == as_lists(messages(2))
    assert files.torn_bytes == {numbered_path(base, 0): 4}


async def test_two_writers_of_one_path_end_up_in_files_of_their_own(tmp_path: Path) -> None:
    base = tmp_path / "tap.rec"
    async with RecordFileWriter.open(base) as one, RecordFileWriter.open(base) as two:
        await one.append(messages(1))
        await two.append(messages(2)[1:])
        await one.append(messages(3)[2:])
    found = list(RecordFiles(base))
    assert sorted(found) == sorted(as_lists(messages(3)))
    assert not RecordFiles(base).torn_bytes


async def test_a_truncated_file_begins_again_with_a_header(tmp_path: Path) -> None:
    base = tmp_path / "tap.rec"
    async with RecordFileWriter.open(base) as writer:
        await writer.append(messages(1))
        os.truncate(numbered_path(base, 0), 0)
        await writer.append(messages(2)[1:])
    assert list(RecordFiles(base)) == as_lists(messages(2)[1:])


async def test_a_record_that_does_not_fit_is_an_error_and_the_next_one_may_fit(
    tmp_path: Path,
) -> None:
    base = tmp_path / "tap.rec"
    small = messages(2)
    large = (*small[0][:3], bytes(100_000))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with RecordFileWriter.open(base) as writer:
        await writer.append(small[:1])
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
        try:
            with pytest.raises(JournalWriteError):
                await writer.append([large])
            await writer.append(small[1:])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(RecordFiles(base)) == as_lists(small)
    assert not RecordFiles(base).torn_bytes


async def test_a_record_that_is_too_long_for_the_format_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replay.plane.record_file.LONGEST_RECORD", 1000)
    base = tmp_path / "tap.rec"
    frames = messages(1)[0]
    async with RecordFileWriter.open(base) as writer:
        with pytest.raises(ValueError, match="too long"):
            await writer.append([frames, (*frames[:3], bytes(2000))])
    assert list(RecordFiles(base)) == []


async def test_the_end_of_a_rotation_that_cannot_begin_is_an_error_of_the_record(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    base = folder / "tap.rec"
    async with RecordFileWriter.open(base, rotate_bytes=1) as writer:
        await writer.append(messages(1))
        folder.rename(tmp_path / "moved")
        with pytest.raises(JournalWriteError):
            await writer.append(messages(1))
        (tmp_path / "moved").rename(folder)
        with trio.fail_after(5):
            await writer.append(messages(2)[1:])
    assert list(RecordFiles(base)) == as_lists(messages(2))
