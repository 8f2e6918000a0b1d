"""The server's connection, frame by frame."""

import pytest

from replay.rpc import frames
from replay.rpc.frames import frame
from replay.rpc.http2 import ConnectionDeadError, Http2Limits
from replay.rpc.http2_server import RequestHead, percent_encode
from tests.rpc.conversation import (
    MESSAGE,
    PATH,
    REQUEST,
    Conversation,
    data,
    reset,
    window,
)

PING = frame(frames.PING, 0, 0, b"12345678")
INITIAL_WINDOW = frames.SETTING_INITIAL_WINDOW_SIZE


def after(*sent, **options):
    """Return what a fresh connection says to frames; callables get the conversation."""
    conversation = Conversation(**options)
    conversation.send(*(each(conversation) if callable(each) else each for each in sent))
    return conversation.outcome()


def head(stream_id=1, flags=frames.END_HEADERS, fields=REQUEST):
    return lambda conversation: conversation.headers(stream_id, fields, flags)


def without(name):
    return tuple(field for field in REQUEST if field[0] != name)


def test_a_request_is_answered_in_one_piece():
    conversation = Conversation()
    conversation.send(conversation.request())

    kinds = [(each.kind, each.flags) for each in conversation.received()]

    assert kinds == [
        (frames.HEADERS, frames.END_HEADERS),
        (frames.DATA, 0),
        (frames.HEADERS, frames.END_HEADERS | frames.END_STREAM),
    ]
    assert conversation.owner.bodies == {1: MESSAGE}
    assert not conversation.connection.streams


def test_bytes_that_come_one_by_one_are_the_same_request():
    whole, pieces = Conversation(greet=False), Conversation(greet=False)
    for conversation in (whole, pieces):
        sent = (
            frames.PREFACE
            + frames.settings({})
            + conversation.request(1)
            + PING
            + conversation.headers(3, (*REQUEST, ("x-long", "v" * 300)))
            + data(3)
        )
        if conversation is whole:
            conversation.send(sent)
        else:
            for position in range(len(sent)):
                conversation.send(sent[position : position + 1])

    assert pieces.received() == whole.received()
    assert pieces.owner.bodies == whole.owner.bodies == {1: MESSAGE, 3: MESSAGE}


CONNECTION_FAULTS = {
    "PING of 7 bytes": ([frame(frames.PING, 0, 0, b"1234567")], 6),
    "PING on a stream": ([frame(frames.PING, 0, 1, b"12345678")], 1),
    "SETTINGS of 5 bytes": ([frame(frames.SETTINGS, 0, 0, b"12345")], 6),
    "SETTINGS on a stream": ([frame(frames.SETTINGS, 0, 1)], 1),
    "SETTINGS acknowledged with a body": ([frame(frames.SETTINGS, 1, 0, b"123456")], 6),
    "initial window above 2^31-1": ([frames.settings({INITIAL_WINDOW: 1 << 31})], 3),
    "frame size below 16,384": ([frames.settings({frames.SETTING_MAX_FRAME_SIZE: 100})], 1),
    "push neither on nor off": ([frames.settings({frames.SETTING_ENABLE_PUSH: 2})], 1),
    "a frame inside a header block": (
        [head(flags=0), frame(200, 0, 1, b"z")],
        1,
    ),
    "a frame larger than 16,384": ([frame(frames.DATA, 0, 1, bytes(16385))], 6),
    "DATA on an idle stream": ([data(5)], 1),
    "DATA on stream 0": ([data(0)], 1),
    "HEADERS on stream 0": ([head(0)], 1),
    "HEADERS with an even id": ([head(2)], 1),
    "HEADERS of a stream that was passed over": ([head(5), data(5), head(3)], 1),
    "HEADERS of a stream that has ended": ([head(1), data(1), head(1)], 1),
    "DATA of a stream that has ended": ([head(1), data(1), data(1)], 5),
    "PUSH_PROMISE": ([frame(frames.PUSH_PROMISE, 4, 1, b"\0\0\0\2")], 1),
    "RST_STREAM of an idle stream": ([reset(1)], 1),
    "RST_STREAM of 3 bytes": ([head(), frame(frames.RST_STREAM, 0, 1, b"\0\0\0")], 6),
    "WINDOW_UPDATE of 0": ([window(0, 0)], 1),
    "WINDOW_UPDATE of an idle stream": ([window(7, 1)], 1),
    "WINDOW_UPDATE of 3 bytes": ([frame(frames.WINDOW_UPDATE, 0, 0, b"\0\0\1")], 6),
    "a connection window above 2^31-1": ([window(0, 2**31 - 1)], 3),
    "CONTINUATION without HEADERS": ([head(), frame(frames.CONTINUATION, 4, 1)], 1),
    "CONTINUATION of another stream": ([head(flags=0), frame(frames.CONTINUATION, 4, 3)], 1),
    "CONTINUATIONs without end": (
        [head(flags=0), *[frame(frames.CONTINUATION, 0, 1)] * 100],
        11,
    ),
    "CONTINUATIONs without measure": (
        [head(flags=0), *[frame(frames.CONTINUATION, 0, 1, bytes(16000))] * 10],
        11,
    ),
    "padding longer than HEADERS": ([frame(frames.HEADERS, 0xC, 1, b"\xff\x82")], 1),
    "padding longer than DATA": ([head(), frame(frames.DATA, 9, 1, b"\xffabc")], 1),
    "padded DATA without a length": ([head(), frame(frames.DATA, 9, 1)], 6),
    "padded HEADERS without a length": ([frame(frames.HEADERS, 0xC, 1)], 6),
    "a priority that is cut off": ([frame(frames.HEADERS, 0x24, 1, b"\0\0")], 6),
    "PRIORITY of 3 bytes": ([frame(frames.PRIORITY, 0, 1, b"\0\0\0")], 6),
    "PRIORITY on stream 0": ([frame(frames.PRIORITY, 0, 0, b"\0" * 5)], 1),
    "GOAWAY on a stream": ([frame(frames.GOAWAY, 0, 1, bytes(8))], 1),
    "GOAWAY of 4 bytes": ([frame(frames.GOAWAY, 0, 0, bytes(4))], 6),
    "an index that is in no table": ([frame(frames.HEADERS, 4, 1, b"\xff\xff\xff\x7f")], 9),
    "a header block that is cut off": ([frame(frames.HEADERS, 4, 1, b"\x40\x05ab")], 9),
    "a table above what we allow": ([frame(frames.HEADERS, 4, 1, b"\x3f\xff\xff\x7f")], 9),
    "an integer without end": ([frame(frames.HEADERS, 4, 1, b"\xff" * 9)], 9),
}


@pytest.mark.parametrize("fault", CONNECTION_FAULTS)
def test_an_error_of_the_connection_is_the_last_word(fault):
    sent, code = CONNECTION_FAULTS[fault]
    conversation = Conversation()
    conversation.send(*(each(conversation) if callable(each) else each for each in sent))

    assert conversation.error is not None
    assert conversation.error.code == code
    assert conversation.outcome()[-1] == f"GOAWAY {code}"
    assert conversation.connection.dead


@pytest.mark.parametrize(
    "greeting",
    [
        b"GET / HTTP/1.1\r\nHost: test\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS hello
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rX",
        frames.PREFACE + PING,
        frames.PREFACE + frame(frames.SETTINGS, frames.ACK, 0),
    ],
)
def test_a_greeting_of_another_protocol_is_refused_at_once(greeting):
    conversation = Conversation(greet=False)
    conversation.send(greeting)

    assert conversation.outcome()[-1] == "GOAWAY 1"


STREAM_FAULTS = {
    "a window update of 0": ([head(), window(1, 0)], ["RST 1 @1"]),
    "a window above 2^31-1": ([head(), window(1, 2**31 - 1)], ["RST 3 @1"]),
    "no method": ([head(fields=without(":method")), data()], ["RST 1 @1"]),
    "no path": ([head(fields=without(":path")), data()], ["RST 1 @1"]),
    "a method twice": ([head(fields=(REQUEST[0], *REQUEST)), data()], ["RST 1 @1"]),
    "a pseudo-header behind others": (
        [head(fields=(*without(":path"), (":path", PATH))), data()],
        ["RST 1 @1"],
    ),
    "an unknown pseudo-header": ([head(fields=((":x", "1"), *REQUEST)), data()], ["RST 1 @1"]),
    "upper case": ([head(fields=(*REQUEST, ("X-A", "1"))), data()], ["RST 1 @1"]),
    "a field of HTTP/1": ([head(fields=(*REQUEST, ("connection", "close"))), data()], ["RST 1 @1"]),
    "te is not trailers": (
        [head(fields=(*without("te"), ("te", "gzip"))), data()],
        ["RST 1 @1"],
    ),
    "a line break in a value": ([head(fields=(*REQUEST, ("x-a", "a\r\nb"))), data()], ["RST 1 @1"]),
    "a space in a name": ([head(fields=(*REQUEST, ("x a", "b"))), data()], ["RST 1 @1"]),
    "trailers that do not end": ([head(), head()], ["RST 1 @1"]),
    **{
        f"trailers with {name}": (
            [head(), data(flags=0), head(fields=((name, "a"),), flags=0x5)],
            ["RST 1 @1"],
        )
        for name in (":method", ":path", ":status", ":x", "X-A", "connection", "te")
    },
    **{
        f"a body of 8 bytes that says {length}": (
            [head(fields=(*REQUEST, ("content-length", length))), data()],
            ["RST 1 @1"],
        )
        for length in ("7", "9", "0", "-8", "8.0", "1" * 20)
    },
    "no body, and a length": (
        [head(fields=(*REQUEST, ("content-length", "8")), flags=0x5)],
        ["RST 1 @1"],
    ),
    "not POST": (
        [head(fields=((":method", "GET"), *without(":method"))), data()],
        ["HTTP 405 @1"],
    ),
    "not gRPC": (
        [head(fields=(*without("content-type"), ("content-type", "text/html"))), data()],
        ["HTTP 415 @1"],
    ),
    "no content type": ([head(fields=without("content-type")), data()], ["HTTP 415 @1"]),
}


@pytest.mark.parametrize("fault", STREAM_FAULTS)
def test_an_error_of_a_stream_ends_that_stream_alone(fault):
    sent, expected = STREAM_FAULTS[fault]

    outcome = after(*sent, head(3), data(3))

    assert outcome == [*expected, "status 0 @3"]


HARMLESS = {
    "an unknown setting": frames.settings({99: 2}),
    "an unknown frame": frame(200, 255, 77, b"zz"),
    "a PING's acknowledgement": frame(frames.PING, frames.ACK, 0, b"12345678"),
    "a priority": frame(frames.PRIORITY, 0, 1, b"\0\0\0\0\x10"),
    "a GOAWAY": frame(frames.GOAWAY, 0, 0, bytes(8)),
}


@pytest.mark.parametrize("frame_of_it", HARMLESS)
def test_what_means_nothing_here_changes_nothing(frame_of_it):
    assert after(HARMLESS[frame_of_it], head(), data()) == ["status 0 @1"]


def test_padding_and_priority_are_taken_off():
    def padded(conversation):
        block = conversation.encoder.encode(list(REQUEST))
        return frame(frames.HEADERS, 0x2C, 1, b"\3" + b"\0\0\0\0\x10" + block + bytes(3))

    conversation = Conversation()
    conversation.send(padded(conversation), frame(frames.DATA, 9, 1, b"\4" + MESSAGE + bytes(4)))

    assert conversation.outcome() == ["status 0 @1"]
    assert conversation.owner.bodies == {1: MESSAGE}


def test_a_header_block_may_come_in_pieces():
    conversation = Conversation()
    block = conversation.encoder.encode([*REQUEST, ("x-long", "v" * 300)])
    conversation.send(
        frame(frames.HEADERS, 0, 1, block[:10]),
        frame(frames.CONTINUATION, 0, 1, block[10:50]),
        frame(frames.CONTINUATION, frames.END_HEADERS, 1, block[50:]),
        data(),
    )

    assert conversation.outcome() == ["status 0 @1"]
    assert (b"x-long", b"v" * 300) in conversation.owner.requests[0].head.metadata


def test_trailers_end_a_request():
    trailers = head(flags=frames.END_HEADERS | frames.END_STREAM, fields=(("x-t", "1"),))

    assert after(head(), data(flags=0), trailers) == ["status 0 @1"]


def test_the_length_of_a_body_counts_without_padding_and_is_no_metadata():
    conversation = Conversation()
    conversation.send(
        conversation.headers(fields=(*REQUEST, ("content-length", "8"))),
        frame(frames.DATA, 8, 1, b"\2" + MESSAGE[:3] + bytes(2)),
        data(body=MESSAGE[3:]),
    )

    assert conversation.outcome() == ["status 0 @1"]
    (stream,) = conversation.owner.requests
    assert not any(name == b"content-length" for name, _ in stream.head.metadata)


def test_late_frames_of_a_stream_that_we_ended_early_are_no_error():
    conversation = Conversation(answer=None)
    conversation.send(conversation.headers(1))
    stream = conversation.connection.streams[1]
    conversation.connection.finish(stream, 3, "no")
    conversation.send(data(1, flags=0), window(1, 5), reset(1), conversation.headers(1), PING)

    assert conversation.outcome() == ["status 3 @1", "RST 0 @1", "PING ACK"]


def test_window_updates_and_resets_of_a_stream_that_has_ended_are_no_error():
    assert after(head(), data(), window(1, 1), reset(1), PING) == ["status 0 @1", "PING ACK"]


def test_the_same_block_is_decoded_once_and_a_change_of_the_table_is_seen():
    """The bytes of one block stand for another path after the newest entry has changed."""
    conversation = Conversation()
    base, tail = b"\x83\x86", b"\x0f\x10\x10application/grpc"
    newest = base + b"\xbe" + tail

    def block(stream_id, content):
        return frame(frames.HEADERS, frames.END_HEADERS, stream_id, content) + data(stream_id)

    def literal_path(path):
        return base + b"\x44" + bytes((len(path),)) + path + tail

    conversation.send(block(1, literal_path(b"/one")), block(3, newest), block(5, newest))
    conversation.send(block(7, literal_path(b"/two")), block(9, newest), block(11, newest))

    paths = [stream.head.path for stream in conversation.owner.requests]
    assert paths == ["/one", "/one", "/one", "/two", "/two", "/two"]
    heads = [stream.head for stream in conversation.owner.requests]
    assert heads[1] is heads[2]
    assert heads[4] is heads[5]


def test_a_list_that_is_too_large_is_refused_and_the_table_stays_right():
    conversation = Conversation()
    many = [*REQUEST, *((f"x-{number}", "v" * 1000) for number in range(96))]
    block = conversation.encoder.encode(many)
    pieces = [block[at : at + 16000] for at in range(0, len(block), 16000)]
    sent = [frame(frames.HEADERS, 0, 1, pieces[0])]
    sent += [frame(frames.CONTINUATION, 0, 1, piece) for piece in pieces[1:]]
    sent += [frame(frames.CONTINUATION, frames.END_HEADERS, 1)]
    conversation.send(*sent)
    outcome = conversation.outcome()

    # Either the block on the wire or what it stands for is above the limit.
    assert outcome[-1] in ("GOAWAY 11", "RST 11 @1")

    bomb = Conversation()
    bomb.send(frame(frames.HEADERS, 4, 1, b"\x40\x01a\x7f\x81\x1e" + b"v" * 4000))
    bomb.outcome()
    bomb.send(frame(frames.HEADERS, 4, 3, b"\xbe" * 60), bomb.headers(5), data(5))
    assert "RST 11 @3" in bomb.outcome()
    assert [stream.id for stream in bomb.owner.requests] == [5]


# ---- windows


def pieces_of(conversation):
    return [each for each in conversation.received() if each.kind == frames.DATA]


@pytest.mark.parametrize("step", [1, 7, 100])
def test_an_answer_goes_through_a_window_that_opens_bit_by_bit(step):
    answer = bytes(range(200))
    conversation = Conversation(settings={INITIAL_WINDOW: step}, answer=answer)
    conversation.send(conversation.request())
    got = b""
    while conversation.connection.streams:
        sent = pieces_of(conversation)
        assert sent
        assert sum(len(each.payload) for each in sent) <= step
        got += b"".join(each.payload for each in sent)
        conversation.send(window(1, len(sent[-1].payload)))
    got += b"".join(each.payload for each in pieces_of(conversation))

    assert got == answer


def test_a_window_of_0_is_opened_by_settings():
    conversation = Conversation(settings={INITIAL_WINDOW: 0})
    conversation.send(conversation.request())
    assert conversation.outcome() == []

    conversation.send(frames.settings({INITIAL_WINDOW: 65535}))

    assert conversation.outcome() == ["status 0 @1"]


def test_a_window_may_become_negative():
    conversation = Conversation(settings={INITIAL_WINDOW: 50}, answer=bytes(100))
    conversation.send(conversation.request())
    assert [len(each.payload) for each in pieces_of(conversation)] == [50]
    conversation.send(frames.settings({INITIAL_WINDOW: 0}))
    conversation.send(window(1, 30))  # now -20
    assert pieces_of(conversation) == []

    conversation.send(window(1, 40))

    assert [len(each.payload) for each in pieces_of(conversation)] == [20]
    conversation.send(window(1, 100))
    assert conversation.outcome() == ["status 0 @1"]


def test_many_answers_share_the_window_of_the_connection():
    conversation = Conversation(settings={INITIAL_WINDOW: 1 << 20}, answer=bytes(5000))
    conversation.send(*(conversation.request(2 * number + 1) for number in range(100)))
    total = sum(len(each.payload) for each in pieces_of(conversation))
    assert total == 65535
    while conversation.connection.streams:
        conversation.send(window(0, 30_000))
        more = sum(len(each.payload) for each in pieces_of(conversation))
        assert 0 < more <= 30_000
        total += more

    assert total == 100 * 5000


def test_frames_are_no_larger_than_the_client_takes():
    conversation = Conversation(settings={INITIAL_WINDOW: 1 << 20}, answer=bytes(60_000))
    conversation.send(conversation.request())
    assert {len(each.payload) for each in pieces_of(conversation)} == {16384, 60_000 - 3 * 16384}

    conversation = Conversation(
        settings={INITIAL_WINDOW: 1 << 20, frames.SETTING_MAX_FRAME_SIZE: 1 << 20},
        answer=bytes(60_000),
    )
    conversation.send(conversation.request())
    assert [len(each.payload) for each in pieces_of(conversation)] == [60_000]


def test_a_client_that_oversteps_its_windows_is_stopped():
    limits = Http2Limits(stream_window=70_000, connection_window=200_000)
    stream = Conversation(limits=limits)
    # Nothing is read, so nothing is granted: hold the stream as an owner does that is full.
    stream.send(stream.headers())
    stream.connection.streams[1].held = True
    stream.send(*[data(1, bytes(16_000), 0)] * 5)
    assert stream.outcome()[-1] == "RST 3 @1"
    assert stream.owner.gone == [1]


def test_windows_are_given_back_for_what_was_read():
    conversation = Conversation()
    conversation.send(conversation.headers())
    conversation.received()
    for _ in range(200):
        conversation.send(data(1, bytes(16_000), 0))
    granted = [each for each in conversation.received() if each.kind == frames.WINDOW_UPDATE]

    assert conversation.error is None
    assert {each.stream_id for each in granted} == {1}
    assert sum(int.from_bytes(each.payload, "big") for each in granted) > 2_000_000


def test_bodies_that_never_end_are_bounded_over_all_streams():
    conversation = Conversation(limits=Http2Limits(buffered_bytes=100_000))
    for number in range(10):
        stream_id = 2 * number + 1
        conversation.send(conversation.headers(stream_id), data(stream_id, bytes(15_000), 0))

    assert conversation.owner.over_budget
    assert conversation.connection._buffered <= 100_000
    conversation.send(conversation.request(99))
    assert "status 0 @99" in conversation.outcome()


def test_a_full_window_holds_what_is_left_and_tells_when_it_has_gone():
    conversation = Conversation(settings={INITIAL_WINDOW: 10}, answer=None)
    conversation.send(conversation.request())
    stream = conversation.connection.streams[1]
    conversation.connection.respond(stream)
    conversation.connection.send(stream, bytes(25))
    assert stream.pending is not None
    assert len(stream.pending) == 15

    conversation.send(window(1, 100))

    assert stream.pending is None
    assert conversation.owner.drained == [1]


def test_nothing_is_sent_on_a_stream_that_is_over():
    conversation = Conversation(answer=None)
    conversation.send(conversation.request(), reset(1))
    stream = conversation.owner.requests[0]
    conversation.received()

    connection = conversation.connection
    connection.respond(stream)
    connection.send(stream, b"x")
    connection.answer(stream, b"x")
    connection.finish(stream, 0)
    connection.reset(stream, 2)

    assert conversation.received() == []
    assert conversation.owner.gone == [1]


# ---- what a peer may do how often


def test_resets_at_a_gateways_rate_never_trip_the_limit():
    conversation = Conversation(answer=None)
    stream_id = 1
    for second in range(120):
        for each in range(700):
            conversation.now = second + each / 700
            conversation.send(conversation.request(stream_id))
            if each % 7 < 2:
                conversation.send(reset(stream_id))
            else:
                conversation.connection.finish(conversation.connection.streams[stream_id])
            stream_id += 2
        conversation.received()

    assert conversation.error is None


def test_more_resets_at_once_than_the_burst_are_too_many():
    conversation = Conversation(answer=None)
    for number in range(2001):
        stream_id = 2 * number + 1
        assert conversation.error is None
        conversation.send(conversation.request(stream_id), reset(stream_id))

    assert conversation.outcome()[-1] == "GOAWAY 11"


def test_faults_that_make_us_reset_count_as_resets():
    conversation = Conversation(limits=Http2Limits(reset_burst=10), answer=None)
    for number in range(11):
        stream_id = 2 * number + 1
        conversation.send(conversation.headers(stream_id), window(stream_id, 0))

    assert conversation.outcome()[-1] == "GOAWAY 11"


def test_the_21st_idle_ping_is_one_too_many():
    conversation = Conversation()
    conversation.send(*[PING] * 20)
    assert conversation.outcome() == ["PING ACK"] * 20

    conversation.send(PING)

    assert conversation.outcome() == ["GOAWAY 11"]


def test_a_keepalive_of_an_idle_connection_is_never_punished():
    conversation = Conversation()
    for number in range(1000):
        conversation.now = 30.0 * number
        conversation.send(PING)

    assert conversation.outcome() == ["PING ACK"] * 1000


def test_pings_between_answers_never_count():
    conversation = Conversation()
    for number in range(200):
        conversation.send(*[PING] * 10, conversation.request(2 * number + 1))

    assert conversation.error is None


def test_a_flood_of_settings_counts_like_pings():
    conversation = Conversation()
    conversation.send(*[frames.settings({})] * 25)

    assert conversation.outcome()[-1] == "GOAWAY 11"


def test_streams_above_the_limit_are_refused_and_may_be_tried_again():
    conversation = Conversation(limits=Http2Limits(streams=2), answer=None)
    conversation.send(*(conversation.request(stream_id) for stream_id in (1, 3, 5)))
    assert conversation.outcome() == ["RST 7 @5"]

    conversation.connection.finish(conversation.connection.streams[1])
    conversation.send(conversation.request(7))

    assert conversation.outcome() == ["status 0 @1"]
    assert [stream.id for stream in conversation.owner.requests] == [1, 3, 7]


# ---- ends


def test_an_answer_before_the_requests_end_is_followed_by_a_reset_without_error():
    conversation = Conversation(answer=None)
    conversation.send(conversation.headers(), data(flags=0))
    conversation.connection.finish(conversation.connection.streams[1], 12, "no")

    assert conversation.outcome() == ["status 12 @1", "RST 0 @1"]


def test_a_drain_takes_two_goaways_and_serves_what_was_on_its_way():
    conversation = Conversation()
    conversation.connection.begin_drain()
    goaway, ping = conversation.received()
    assert int.from_bytes(goaway.payload[:4], "big") == 2**31 - 1

    conversation.send(conversation.request(1))
    assert conversation.outcome() == ["status 0 @1"]
    conversation.send(frame(frames.PING, frames.ACK, 0, ping.payload))
    (final,) = conversation.received()
    assert int.from_bytes(final.payload[:4], "big") == 1

    conversation.send(conversation.request(3))
    assert conversation.outcome() == ["RST 7 @3"]


def test_a_table_that_the_client_shrinks_is_acknowledged_once():
    conversation = Conversation(settings={frames.SETTING_HEADER_TABLE_SIZE: 0})
    conversation.send(conversation.request(1), conversation.request(3))
    blocks = [each.payload for each in conversation.received() if each.kind == frames.HEADERS]

    assert [block[:1] == b"\x20" for block in blocks] == [True, False, False, False]


def test_metadata_larger_than_a_frame_is_continued():
    conversation = Conversation(answer=None)
    conversation.send(conversation.request())
    stream = conversation.connection.streams[1]
    conversation.connection.respond(stream, [(b"x-large", b"v" * 40_000)])
    sent = conversation.received()

    assert [(each.kind, each.flags) for each in sent] == [
        (frames.HEADERS, 0),
        (frames.CONTINUATION, 0),
        (frames.CONTINUATION, frames.END_HEADERS),
    ]
    fields = conversation.decoder.decode(b"".join(each.payload for each in sent))
    assert ("x-large", "v" * 40_000) in fields


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (b"1H", 3600),
        (b"2M", 120),
        (b"3S", 3),
        (b"500m", 0.5),
        (b"7u", 7e-6),
        (b"8n", 8e-9),
        (b"99999999S", 99_999_999),
    ],
)
def test_a_timeout_is_read_in_each_unit(text, seconds):
    fields = [(name.encode(), value.encode()) for name, value in REQUEST]

    assert RequestHead([*fields, (b"grpc-timeout", text)]).timeout == pytest.approx(seconds)


@pytest.mark.parametrize("text", [b"", b"5", b"S", b"-1S", b"1.5S", b"123456789S", b"1s", b"1 S"])
def test_a_timeout_that_is_none_is_bad(text):
    fields = [(name.encode(), value.encode()) for name, value in REQUEST]
    judged = RequestHead([*fields, (b"grpc-timeout", text)])

    assert judged.timeout_bad
    assert not judged.malformed


def test_a_status_message_is_encoded_for_a_header():
    assert percent_encode("50 %\né") == b"50 %25%0A%C3%A9"
    assert len(percent_encode("x" * 5000)) == 1024


def test_a_connection_that_is_over_takes_no_more():
    conversation = Conversation()
    conversation.send(data(0))
    assert isinstance(conversation.error, ConnectionDeadError)
    conversation.received()
    conversation.connection.begin_drain()
    conversation.connection.refuse_new()

    assert conversation.received() == []
