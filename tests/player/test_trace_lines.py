"""Bytes to numbered lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.player.traces.fault import TraceError
from replay.player.traces.lines import Line, split_lines


def split(data: bytes, piece: int = 7) -> list[Line]:
    return list(split_lines(data[at : at + piece] for at in range(0, len(data), piece)))


def test_blank_lines_are_counted_but_not_handed_out() -> None:
    assert split(b"a\n\n \t\nb\n") == [Line(1, b"a", True), Line(4, b"b", True)]


def test_crlf_and_a_byte_order_mark_are_no_part_of_a_line() -> None:
    assert split(b"\xef\xbb\xbfa,b\r\n1,2\r\n") == [Line(1, b"a,b", True), Line(2, b"1,2", True)]


def test_the_last_line_says_that_no_newline_ended_it() -> None:
    assert split(b"a\nb")[-1] == Line(2, b"b", False)


def test_utf_16_is_refused_by_name() -> None:
    with pytest.raises(TraceError, match="UTF-16"):
        split("a,b\n".encode("utf-16"))


def test_a_line_that_never_ends_is_refused_before_it_fills_the_memory() -> None:
    def endless() -> object:
        while True:
            yield b"x" * 1000

    with pytest.raises(TraceError, match="trace:1: longer than 5000 bytes"):
        list(split_lines(endless(), max_line_bytes=5000))  # type: ignore[arg-type]


@given(st.lists(st.binary(max_size=8).filter(lambda line: b"\n" not in line)), st.integers(1, 9))
def test_where_the_pieces_are_cut_does_not_matter(lines: list[bytes], piece: int) -> None:
    data = b"x" + b"\n".join(lines)
    assert split(data, piece) == split(data, len(data))
