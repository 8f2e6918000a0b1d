"""Sources on a disk: packed or not, whole or cut off, never held whole."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from replay.player.traces.fault import Notes, TraceError
from replay.player.traces.opening import Source
from replay.player.traces.unpacking import UnpackedStream

ROOT = Path(__file__).resolve().parents[2]

ROW = {"timestamp": 0, "input_length": 10, "output_length": 1, "hash_ids": [1]}


def trace(rows: int) -> bytes:
    return b"".join(json.dumps(ROW | {"timestamp": at}).encode() + b"\n" for at in range(rows))


@pytest.mark.parametrize("packing", [None, "gz", "zst"])
def test_a_packed_source_reads_like_the_plain_one(tmp_path: Path, packing: str | None) -> None:
    """The packed forms have two members each, as files that were joined have."""
    data = trace(3), trace(2)
    match packing:
        case "gz":
            packed = b"".join(map(gzip.compress, data))
        case "zst":
            packed = b"".join(map(zstandard.ZstdCompressor().compress, data))
        case _:
            packed = b"".join(data)
    path = tmp_path / "trace"
    path.write_bytes(packed)
    with Source(path) as source:
        assert (source.packing, source.format, source.time_unit) == (packing, "mooncake", "ms")
        assert [arrival.position for arrival in source.arrivals()] == [1, 2, 3, 4, 5]
        assert source.notes.summary() == []


def test_a_gzip_stream_that_was_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "trace.gz"
    path.write_bytes(gzip.compress(trace(50_000))[:-5_000])
    with Source(path) as source:
        arrivals = list(source.arrivals())
        assert 0 < len(arrivals) < 50_000
        assert any("cut off" in note for note in source.notes.summary())


@pytest.mark.parametrize("rows", [3, 2_000])
@pytest.mark.parametrize("packing", ["gz", "zst"])
def test_whatever_was_packed_before_a_cut_is_read(tmp_path: Path, rows: int, packing: str) -> None:
    """Also of a file that is shorter than what is looked at to tell its format."""
    path, data = tmp_path / "trace", trace(rows)
    compress = gzip.compress if packing == "gz" else zstandard.ZstdCompressor().compress
    path.write_bytes(compress(data) + compress(data)[:-9])
    with Source(path) as source:
        assert len(list(source.arrivals())) >= rows
        assert any("cut off" in note or "torn" in note for note in source.notes.summary())


@pytest.mark.parametrize("size", [1, 7, 1 << 16])
def test_a_gzip_stream_is_read_in_pieces_of_any_size(tmp_path: Path, size: int) -> None:
    """Zeros behind a member are none; blocks of a tape are filled up with them."""
    path, data = tmp_path / "trace", b"a" * 300_000 + trace(200)
    path.write_bytes(gzip.compress(data) + gzip.compress(b"") + bytes(512) + gzip.compress(b"end"))
    read = b""
    with path.open("rb") as file:
        stream = UnpackedStream(file, Notes())
        while piece := stream.read(size):
            assert len(piece) <= max(size, 1 << 15)
            read += piece
            if size == 1 and len(read) > 2_000:
                return
    assert read == data + b"end"


def test_what_is_packed_twice_and_what_is_behind_a_stream_is_told(tmp_path: Path) -> None:
    path = tmp_path / "trace.gz.gz"
    path.write_bytes(gzip.compress(gzip.compress(trace(3))))
    with pytest.raises(TraceError, match="is packed twice"):
        Source(path)
    path.write_bytes(gzip.compress(trace(3)) + b"garbage")
    with pytest.raises(TraceError, match="damaged"), Source(path) as source:
        list(source.arrivals())


def test_a_damaged_stream_is_refused(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(trace(50_000)))
    packed[len(packed) // 2] ^= 0xFF
    path = tmp_path / "trace.gz"
    path.write_bytes(packed)
    with pytest.raises(TraceError, match="damaged"), Source(path) as source:
        list(source.arrivals())


AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
AZURE_ROW = b"2023-11-16 18:15:46.6805900,374,44\n"
FORMS = {
    "one row": (lambda head, row: head + row, 1),
    "CRLF": (lambda head, row: (head + row + row).replace(b"\n", b"\r\n"), 2),
    "a byte order mark": (lambda head, row: b"\xef\xbb\xbf" + head + row, 1),
    "blank lines": (lambda head, row: b"\n\n" + head + b"\n" + row + b"\n\n" + row + b"\n", 2),
    "gz": (lambda head, row: gzip.compress(head + row * 3), 3),
    "zst": (lambda head, row: zstandard.ZstdCompressor().compress(head + row * 3), 3),
    "no newline at the end": (lambda head, row: head + (row * 2).rstrip(), 2),
    "a torn last line": (lambda head, row: head + row * 2 + row[:20], 2),
    "nothing but a torn line": (lambda head, row: head + row[:20], 0),
    "a comma at the end of a row": (lambda head, row: head + row.replace(b"\n", b",\n"), None),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("head", "row"), [(b"", trace(1)), (AZURE, AZURE_ROW)])
def test_small_files_of_every_form_are_read_or_refused_with_their_line(
    tmp_path: Path, form: str, head: bytes, row: bytes
) -> None:
    made, rows = FORMS[form]
    path = tmp_path / "trace"
    path.write_bytes(made(head, row))
    if rows is None:
        line = head.count(b"\n") + 1
        with pytest.raises(TraceError, match=rf":{line}: .*comma"), Source(path) as source:
            list(source.arrivals())
    elif not rows and not head:
        with pytest.raises(TraceError, match="no format"):
            Source(path)
    else:
        with Source(path) as source:
            assert len(list(source.arrivals())) == rows
            assert any("torn" in note for note in source.notes.summary()) is ("torn" in form)


def test_an_error_names_the_file_and_the_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(trace(1) + b'{"timestamp": "12"}\n')
    with Source(path) as source, pytest.raises(TraceError) as caught:
        list(source.arrivals())
    assert str(caught.value).startswith(f"{path}:2: timestamp:")


def test_a_file_that_is_no_source_is_closed_again(tmp_path: Path) -> None:
    """An open file that nobody closes is a warning, and warnings fail this suite."""
    path = tmp_path / "trace"
    path.write_bytes(b"")
    with pytest.raises(TraceError, match="is empty"):
        Source(path)
    with pytest.raises(FileNotFoundError):
        Source(tmp_path / "absent")


def test_a_large_trace_is_read_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    row = json.dumps(ROW | {"input_length": 512 * 400, "hash_ids": [*range(400)]}).encode() + b"\n"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(30_000):
            file.write(row)
    program = (
        "import sys\n"
        "from benchmarks.memory import peak_rss_bytes\n"
        "from replay.player.traces.opening import Source\n"
        "with Source(sys.argv[1]) as source:\n"
        "    before = peak_rss_bytes()\n"
        "    assert sum(1 for _ in source.arrivals()) == 30_000\n"
        "    print((peak_rss_bytes() - before) // 1024)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    grown_kb = int(done.stdout)
    assert grown_kb < 20_000, f"60 MB of lines took {grown_kb} kB"
