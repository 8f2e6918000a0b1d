"""Reading a capture back: whole lines, and where the torn ones are."""

import io

import pytest

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.worker.capture import capture_line
from replay.worker.capture_reader import CapturedLine, TornLine, read_lines

LINE = capture_line(pb.GenerateRequest(request_id="a\u2028b"))


def read(content: bytes) -> list[CapturedLine | TornLine]:
    return list(read_lines(io.BytesIO(content)))


def test_whole_lines_come_with_their_offsets() -> None:
    first, second = read(LINE + LINE)
    assert isinstance(first, CapturedLine)
    assert isinstance(second, CapturedLine)
    assert (first.offset, second.offset) == (0, len(LINE))
    assert first.fields["request_id"] == "a\u2028b"


@pytest.mark.parametrize("kept", range(1, len(LINE) - 2, 7))
def test_a_torn_line_is_reported_and_the_next_one_is_read(kept: int) -> None:
    torn, whole = read(LINE[:kept] + b"\n" + LINE)
    assert torn == TornLine(offset=0, length=kept)
    assert isinstance(whole, CapturedLine)
    assert whole.offset == kept + 1


def test_a_torn_end_is_reported() -> None:
    assert read(LINE + LINE[:10])[1:] == [TornLine(offset=len(LINE), length=10)]


def test_a_last_line_that_lacks_only_its_newline_is_whole() -> None:
    (line,) = read(LINE[:-1])
    assert isinstance(line, CapturedLine)


@pytest.mark.parametrize(
    "junk", [b"123", b"[1]", b'{"a":NaN}', b"\xff\xfe", b"\0\0\0", b"[" * 100_000, b"{}{}"]
)
def test_what_is_no_line_of_a_capture_is_torn(junk: bytes) -> None:
    assert read(junk + b"\n") == [TornLine(offset=0, length=len(junk))]


def test_blank_lines_are_left_out_and_counted_in_offsets() -> None:
    (line,) = read(b"\n\r\n" + LINE)
    assert line.offset == 3
    assert read(b"") == []
