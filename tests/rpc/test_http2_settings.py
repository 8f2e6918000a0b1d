"""What a client's SETTINGS and windows change, and what they may cost."""

import time

from hypothesis import given
from hypothesis import strategies as st

from replay.rpc import frames
from replay.rpc.frames import SETTING, frame
from replay.rpc.http2 import Http2Limits
from tests.rpc.conversation import Conversation, data, window

INITIAL_WINDOW = frames.SETTING_INITIAL_WINDOW_SIZE


def settings_of(*pairs):
    """Make a SETTINGS frame in which a parameter may come more than once."""
    return frame(frames.SETTINGS, 0, 0, b"".join(SETTING.pack(*pair) for pair in pairs))


def is_acknowledgement(sent):
    return sent.kind == frames.SETTINGS and sent.flags == frames.ACK


def test_settings_are_acknowledged_before_they_are_used():
    """A client may hold us to its old windows and frame size until it has the acknowledgement."""
    conversation = Conversation(settings={INITIAL_WINDOW: 10}, answer=bytes(30_000))
    conversation.send(conversation.request(1), conversation.request(3))
    conversation.received()

    conversation.send(
        settings_of((INITIAL_WINDOW, 40_000), (frames.SETTING_MAX_FRAME_SIZE, 20_000))
    )

    first, *rest = conversation.received()
    assert is_acknowledgement(first)
    assert {each.stream_id for each in rest if each.kind == frames.DATA} == {1, 3}
    assert max(len(each.payload) for each in rest) == 20_000


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5))
def test_of_several_values_of_a_parameter_the_last_counts(values):
    conversation = Conversation(settings={INITIAL_WINDOW: 0}, answer=bytes(1000))
    conversation.send(conversation.request(1))
    conversation.received()
    conversation.send(settings_of(*((INITIAL_WINDOW, value) for value in values)))

    sent = [each for each in conversation.received() if each.kind == frames.DATA]

    assert sum(len(each.payload) for each in sent) == min(1000, values[-1])


def test_an_impossible_value_is_an_error_even_if_another_follows():
    conversation = Conversation()
    conversation.send(settings_of((INITIAL_WINDOW, 1 << 31), (INITIAL_WINDOW, 65_535)))

    assert conversation.outcome()[-1] == "GOAWAY 3"


def test_an_initial_window_that_makes_a_stream_overflow_ends_the_connection():
    conversation = Conversation(answer=None)
    conversation.send(conversation.request(1), window(1, 2**31 - 1 - 65_535))
    assert conversation.error is None
    conversation.send(frames.settings({INITIAL_WINDOW: 65_536}))

    assert conversation.outcome()[-1] == "GOAWAY 3"


def test_a_frame_full_of_windows_costs_no_more_than_one_window():
    """2,730 changes for each of 1,024 streams would stop the loop for a second."""
    conversation = Conversation(answer=None)
    conversation.send(*(conversation.request(2 * number + 1) for number in range(1024)))
    started = time.process_time()
    for _ in range(10):
        conversation.send(
            settings_of(*((INITIAL_WINDOW, 1000 + number % 2) for number in range(2730)))
        )
    took = time.process_time() - started

    assert conversation.error is None
    assert took < 1  # measured: 0.02 s, and 4 s when each is applied


# ---- the connection's window


def lengths(conversation):
    """Return how many bytes of DATA each stream has got."""
    got = {}
    for each in conversation.received():
        if each.kind == frames.DATA:
            got[each.stream_id] = got.get(each.stream_id, 0) + len(each.payload)
    return got


def test_streams_that_wait_for_the_connections_window_get_it_in_turn():
    """A long answer must not keep the others waiting until it is through."""
    conversation = Conversation(settings={INITIAL_WINDOW: 1 << 30}, answer=bytes(1_000_000))
    conversation.send(*(conversation.request(stream_id) for stream_id in (1, 3, 5, 7)))
    conversation.received()
    got = {}
    for _ in range(10):
        conversation.send(window(0, 4 * 16_384))  # a frame for each of them
        for stream_id, length in lengths(conversation).items():
            got[stream_id] = got.get(stream_id, 0) + length

        assert got.keys() == {1, 3, 5, 7}
        assert len(set(got.values())) == 1


def test_a_stream_whose_own_window_is_shut_gives_its_turn_away():
    conversation = Conversation(settings={INITIAL_WINDOW: 50_000}, answer=bytes(100_000))
    conversation.send(*(conversation.request(stream_id) for stream_id in (1, 3, 5)))
    conversation.received()  # 50,000 on stream 1, and what the connection's window has left
    conversation.send(frames.settings({INITIAL_WINDOW: 20_000}))

    conversation.send(window(0, 1_000_000))

    assert lengths(conversation) == {3: 20_000 - 15_535, 5: 20_000}
    conversation.send(window(1, 80_000), window(3, 80_000), window(5, 80_000))
    assert lengths(conversation) == {1: 50_000, 3: 80_000, 5: 80_000}


# ---- what the client sends us


def test_the_last_piece_of_a_request_counts_against_its_window_too():
    conversation = Conversation(limits=Http2Limits(stream_window=20_000), answer=None)
    conversation.send(conversation.headers(1))
    stream = conversation.connection.streams[1]
    stream.held = True
    conversation.send(data(1, bytes(15_000), 0), data(1, bytes(15_000)))

    assert conversation.outcome() == ["RST 3 @1"]
    assert conversation.owner.requests == []


def test_padding_counts_against_the_windows():
    conversation = Conversation(answer=None)
    conversation.send(conversation.headers(1))
    stream = conversation.connection.streams[1]
    before = stream.receive_window
    conversation.send(frame(frames.DATA, frames.PADDED, 1, b"\xc8" + b"abc" + bytes(200)))

    assert before - stream.receive_window == 204
    assert bytes(stream.body) == b"abc"


def test_data_on_a_stream_that_was_reset_still_counts_for_the_connection():
    """Its sender has spent the window, and would never get it back."""
    conversation = Conversation(answer=None)
    conversation.send(conversation.headers(1), data(1, bytes(10), 0))
    conversation.connection.reset(conversation.connection.streams[1], frames.CANCEL)
    conversation.received()
    granted = 0
    for _ in range(2000):
        conversation.send(data(1, bytes(16_000), 0))
        granted += sum(
            int.from_bytes(each.payload, "big")
            for each in conversation.received()
            if each.kind == frames.WINDOW_UPDATE and each.stream_id == 0
        )

    assert conversation.error is None
    assert granted > 1000 * 16_000


def test_trailers_of_a_request_with_pseudo_headers_end_the_stream():
    conversation = Conversation()
    conversation.send(
        conversation.headers(1),
        data(1, flags=0),
        conversation.headers(1, flags=frames.END_HEADERS | frames.END_STREAM),
    )

    assert conversation.outcome() == ["RST 1 @1"]
    assert conversation.owner.requests == []
