"""What a replay buffer keeps, and the frames by which it is asked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.plane.gap_protocol import (
    Gap,
    end_marker,
    is_end_marker,
    parse_request,
    request_frames,
)
from replay.plane.replay_buffer import ReplayBuffer
from tests.plane.records import messages


@given(
    capacity=st.integers(1, 20),
    published=st.lists(st.booleans(), max_size=40),
    first=st.integers(0, 50),
    last=st.integers(0, 50),
)
def test_it_returns_what_is_left_of_the_last_numbers_in_order(
    capacity: int, published: list[bool], first: int, last: int
) -> None:
    """A number that is not published (its send failed) takes no other's place."""
    buffer = ReplayBuffer(capacity)
    frames = messages(len(published))
    for sequence, is_published in enumerate(published):
        if is_published:
            buffer.append(sequence, frames[sequence])
    newest = max((number for number, each in enumerate(published) if each), default=-1)
    expected = [
        frames[number]
        for number, is_published in enumerate(published)
        if is_published and first <= number <= last and number > newest - capacity
    ]
    assert list(buffer.between(first, last)) == expected


def test_a_buffer_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ReplayBuffer(0)


u64 = st.integers(0, 2**64 - 1)


@given(u64, u64, u64)
def test_a_request_reads_back(publisher_id: int, first: int, last: int) -> None:
    gap = Gap(publisher_id, first, last)
    frames = request_frames(gap)
    assert frames[0] == b""
    assert [len(frame) for frame in frames] == [0, 8, 8, 8]
    assert parse_request(frames) == gap


@given(st.lists(st.binary(max_size=9), max_size=6))
def test_only_an_empty_frame_and_three_numbers_are_a_request(frames: list[bytes]) -> None:
    is_request = [len(frame) for frame in frames] == [0, 8, 8, 8]
    assert (parse_request(frames) is not None) == is_request


def test_the_end_marker_has_the_bytes_of_the_field() -> None:
    marker = end_marker(0x0102030405060708)
    assert marker == [b"", b"", bytes(range(1, 9)), b"\xff" * 8, b""]
    assert is_end_marker(marker)


def test_no_stored_message_is_taken_for_an_end() -> None:
    for frames in messages(2, publisher_id=2**53 - 1):
        assert not is_end_marker([b"", *frames])
