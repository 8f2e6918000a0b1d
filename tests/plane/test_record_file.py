"""The framing of record files: what was written is read, what is torn is told in bytes."""

import io
import struct
import zlib
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.plane import record_file
from replay.plane.record_file import (
    HEADER,
    LONGEST_RECORD,
    NotARecordFileError,
    RecordFiles,
    RecordReader,
    fits,
    next_number,
    numbered_path,
    pack_record,
    rotation,
)
from tests.plane.records import messages


def read(data: bytes) -> tuple[list[list[bytes]], int]:
    reader = RecordReader(io.BytesIO(data))
    found = list(reader)
    assert reader.records == len(found)
    return found, reader.torn_bytes


def framed(body: bytes) -> bytes:
    return struct.pack(">II", len(body), zlib.crc32(body)) + body


def test_a_record_is_its_length_its_checksum_and_the_array_of_its_frames() -> None:
    frames = messages(1)[0]
    assert pack_record(frames) == framed(msgpack.packb(list(frames)))


frames_of_a_message = st.tuples(*[st.binary(max_size=20)] * 3, st.binary(max_size=600))


@given(st.lists(frames_of_a_message, max_size=8), st.integers(9, 64))
def test_what_was_written_is_read_whatever_the_pieces_it_comes_in(
    written: list[tuple[bytes, ...]], chunk_bytes: int
) -> None:
    data = HEADER + b"".join(map(pack_record, written))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_file, "_CHUNK_BYTES", chunk_bytes)
        assert read(data) == ([list(frames) for frames in written], 0)


def test_a_tail_torn_at_any_byte_loses_one_record_and_is_told() -> None:
    records = [pack_record(frames) for frames in messages(3)]
    whole = HEADER + b"".join(records[:2])
    for length in range(len(records[2])):
        found, torn = read(whole + records[2][:length])
        assert (len(found), torn) == (2, length)


def test_a_flipped_bit_anywhere_in_a_record_ends_the_readable_part() -> None:
    records = [pack_record(frames) for frames in messages(3)]
    rest = len(records[1]) + len(records[2])
    for position in range(len(records[1])):
        flipped = bytearray(records[1])
        flipped[position] ^= 0x10
        found, torn = read(HEADER + records[0] + bytes(flipped) + records[2])
        assert (len(found), torn) == (1, rest)


@pytest.mark.parametrize(
    "body", [b"\xc0", b"\x92\xc4\x00\x01", b"\x94\xc4\x00", b"\xff\xff", b"", b"\x91\xa1x"]
)
def test_a_body_that_is_no_array_of_bytes_is_torn_too(body: bytes) -> None:
    assert read(HEADER + framed(body)) == ([], len(body) + 8)


def test_a_length_beyond_the_longest_record_is_not_believed() -> None:
    data = HEADER + struct.pack(">II", LONGEST_RECORD + 1, 0) + b"x" * 100
    assert read(data) == ([], 108)


def test_a_header_that_was_not_finished_is_torn_and_an_empty_file_is_empty() -> None:
    assert read(b"") == ([], 0)
    for length in range(1, len(HEADER)):
        assert read(HEADER[:length]) == ([], length)


@pytest.mark.parametrize("data", [b"replay-records 2\n...", b"{}", b"\x00" * 40])
def test_another_file_is_refused(data: bytes) -> None:
    with pytest.raises(NotARecordFileError):
        read(data)


def test_a_record_that_is_too_long_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_file, "LONGEST_RECORD", 100)
    longest, longer = ((b"", b"", b"", b"x" * count) for count in (91, 92))
    assert fits(longest)
    assert len(pack_record(longest)) == 8 + 100
    assert not fits(longer)
    with pytest.raises(ValueError, match="too long"):
        pack_record(longer)


def test_a_large_record_is_read_in_one_piece_of_its_own_size() -> None:
    """Bytes are taken as they are needed: a record of 5 MiB between two small ones."""
    large = (b"t", b"1", b"2", bytes(5 << 20))
    small = messages(2)
    data = HEADER + pack_record(small[0]) + pack_record(large) + pack_record(small[1])
    found, torn = read(data)
    assert found == [list(small[0]), list(large), list(small[1])]
    assert torn == 0


def test_a_rotation_is_read_in_order_over_torn_ends(tmp_path: Path) -> None:
    base = tmp_path / "tap.rec"
    records = [pack_record(frames) for frames in messages(6)]
    for number, file in ((0, base), (1, numbered_path(base, 9)), (2, numbered_path(base, 10))):
        file.write_bytes(HEADER + records[2 * number] + records[2 * number + 1])
    with numbered_path(base, 9).open("ab") as torn:
        torn.write(records[0][:5])
    numbered_path(base, 1_000_000).write_bytes(b"")  # begun, nothing written yet
    (tmp_path / "tap.rec.0001").write_bytes(b"no number of a rotation")
    (tmp_path / "tap.rec.000011.gz").write_bytes(b"nor this")
    (tmp_path / "other.rec.000001").write_bytes(b"nor this")
    files = RecordFiles(base)
    assert [path.name for path in files.paths] == [
        "tap.rec",
        "tap.rec.000009",
        "tap.rec.000010",
        "tap.rec.1000000",
    ]
    assert list(files) == [list(frames) for frames in messages(6)]
    assert files.records == 6
    assert files.torn_bytes == {numbered_path(base, 9): 5}
    assert next_number(base) == 1_000_001


def test_a_single_file_of_a_rotation_is_read_by_its_own_name(tmp_path: Path) -> None:
    base = tmp_path / "tap.rec"
    for number in (0, 1):
        numbered_path(base, number).write_bytes(HEADER + pack_record(messages(2)[number]))
    assert list(RecordFiles(numbered_path(base, 1))) == [list(messages(2)[1])]
    assert next_number(tmp_path / "fresh.rec") == 0


def test_no_file_is_an_error(tmp_path: Path) -> None:
    assert rotation(tmp_path / "missing" / "tap.rec") == []
    with pytest.raises(FileNotFoundError, match=r"tap\.rec"):
        RecordFiles(tmp_path / "tap.rec")
