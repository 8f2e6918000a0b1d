"""The client's connection, frame by frame."""

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.rpc import frames
from replay.rpc.frames import frame
from replay.rpc.http2 import ConnectionDeadError, Http2Limits
from replay.rpc.http2_client import CLIENT_LIMITS, ClientConnection, RequestTemplate, encode_timeout
from replay.rpc.http2_server import RequestHead

HEAD = ((":status", "200"), ("content-type", "application/grpc"))
OK = (("grpc-status", "0"),)
INITIAL_WINDOW = frames.SETTING_INITIAL_WINDOW_SIZE
BLOCK = RequestTemplate.of("/package.Service/Method", authority="test").block


class Dialogue:
    """A server made of bare frames, and the connection that it answers; also its owner."""

    def __init__(self, *, limits: Http2Limits = CLIENT_LIMITS, settings=None) -> None:
        self.connection = ClientConnection(self, limits)
        self.encoder = hpack.Encoder()
        self.events: list[tuple] = []
        self.error: ConnectionDeadError | None = None
        self.greeting = b"".join(self.connection.out)
        self.connection.out.clear()
        self.send(frames.settings(settings or {}))
        self.connection.out.clear()

    def send(self, *data: bytes) -> None:
        try:
            self.connection.receive(b"".join(data), 0.0)
        except ConnectionDeadError as error:
            self.error = error

    def received(self) -> list[tuple[int, int, int, bytes]]:
        """Return kind, flags, stream and payload of the frames since the last call."""
        data, found = b"".join(self.connection.out), []
        self.connection.out.clear()
        while data:
            end = 9 + int.from_bytes(data[:3], "big")
            stream_id = int.from_bytes(data[5:9], "big")
            found.append((data[3], data[4], stream_id, data[9:end]))
            data = data[end:]
        return found

    def headers(self, stream_id: int, fields, flags: int = frames.END_HEADERS) -> bytes:
        return frame(frames.HEADERS, flags, stream_id, self.encoder.encode(list(fields)))

    def answer(self, stream_id: int, body: bytes = b"x") -> bytes:
        return (
            self.headers(stream_id, HEAD)
            + frame(frames.DATA, 0, stream_id, body)
            + self.headers(stream_id, OK, 5)
        )

    # ---- the owner

    def on_head(self, stream) -> None:
        self.events.append(("head", stream.id))

    def on_piece(self, stream) -> None:
        self.events.append(("piece", stream.id, bytes(self.connection.take_body(stream))))

    def on_end(self, stream, trailers) -> None:
        self.events.append(("end", stream.id, tuple(trailers)))

    def on_gone(self, stream, code) -> None:
        self.events.append(("gone", stream.id, code))

    def on_refused(self, stream) -> None:
        self.events.append(("refused", stream.id))

    def on_drained(self, stream) -> None:
        self.events.append(("drained", stream.id))


def test_it_greets_with_the_preface_without_push_and_with_its_windows():
    greeting = Dialogue().greeting

    assert greeting.startswith(frames.PREFACE)
    settings = greeting[len(frames.PREFACE) :]
    pairs = dict(frames.SETTING.iter_unpack(settings[9 : 9 + int.from_bytes(settings[:3], "big")]))
    assert pairs[frames.SETTING_ENABLE_PUSH] == 0
    assert pairs[INITIAL_WINDOW] == CLIENT_LIMITS.stream_window


def test_a_request_leaves_in_two_frames_and_its_answer_is_told_in_order():
    dialogue = Dialogue()
    dialogue.connection.request(BLOCK, b"abc")
    assert [each[:3] for each in dialogue.received()] == [
        (frames.HEADERS, frames.END_HEADERS, 1),
        (frames.DATA, frames.END_STREAM, 1),
    ]

    dialogue.send(dialogue.answer(1))

    assert dialogue.events == [
        ("head", 1),
        ("piece", 1, b"x"),
        ("end", 1, ((b"grpc-status", b"0"),)),
    ]
    assert not dialogue.connection.streams
    assert dialogue.received() == []  # no reset behind a whole exchange


def test_a_body_waits_for_the_servers_windows_and_ends_behind_its_last_byte():
    dialogue = Dialogue(settings={INITIAL_WINDOW: 10})
    dialogue.connection.request(BLOCK, bytes(25))
    assert [each[:2] for each in dialogue.received()] == [
        (frames.HEADERS, frames.END_HEADERS),
        (frames.DATA, 0),
    ]

    dialogue.send(frames.window_update(1, 100))

    sent = dialogue.received()
    assert [(kind, flags, len(payload)) for kind, flags, _, payload in sent] == [
        (frames.DATA, 0, 15),
        (frames.DATA, frames.END_STREAM, 0),
    ]


def test_an_answer_before_the_end_of_the_request_ends_both():
    dialogue = Dialogue(settings={INITIAL_WINDOW: 10})
    stream = dialogue.connection.request(BLOCK, bytes(25))
    dialogue.received()

    dialogue.send(dialogue.answer(1), frames.window_update(1, 100))

    assert dialogue.received() == [(frames.RST_STREAM, 0, 1, bytes(4))]
    assert stream.closed
    dialogue.connection.send(stream, b"late")
    dialogue.connection.end(stream, b"")
    assert dialogue.received() == []


def test_what_comes_late_for_a_call_that_we_have_left_is_no_error():
    dialogue = Dialogue()
    dialogue.connection.reset(dialogue.connection.request(BLOCK, b"a"), frames.CANCEL)
    dialogue.connection.request(BLOCK, b"b")
    dialogue.received()

    dialogue.send(dialogue.answer(1), frames.rst_stream(1, 0), dialogue.answer(3))

    assert dialogue.error is None
    assert [event[:2] for event in dialogue.events] == [("head", 3), ("piece", 3), ("end", 3)]


def test_a_list_above_the_limit_ends_its_stream_and_the_table_stays_right():
    limits = Http2Limits(header_bytes=4096)
    dialogue = Dialogue(limits=limits)
    for _ in range(2):
        dialogue.connection.request(BLOCK, b"a")
    dialogue.received()

    large = [*HEAD, ("own", "later"), *((f"x-{number}", "v" * 500) for number in range(7))]
    dialogue.send(dialogue.headers(1, [*large, ("x-8", "v" * 500)]))
    dialogue.send(dialogue.headers(3, [*HEAD, ("own", "later")]))

    assert ("gone", 1, frames.ENHANCE_YOUR_CALM) in dialogue.events
    assert dialogue.received() == [
        (frames.RST_STREAM, 0, 1, frames.ENHANCE_YOUR_CALM.to_bytes(4, "big"))
    ]
    assert (b"own", b"later") in dialogue.connection.streams[3].head


def test_a_bodys_bytes_that_nobody_takes_are_bounded():
    class Idle(Dialogue):
        def on_piece(self, stream) -> None:
            pass

    dialogue = Idle(limits=Http2Limits(buffered_bytes=50_000))
    dialogue.connection.request(BLOCK, b"a")
    dialogue.send(dialogue.headers(1, HEAD), *[frame(frames.DATA, 0, 1, bytes(16_000))] * 4)

    assert dialogue.events[-1] == ("gone", 1, frames.ENHANCE_YOUR_CALM)
    assert dialogue.connection._buffered == 0


def test_a_stream_that_is_held_gets_no_window_until_it_is_let_go():
    dialogue = Dialogue(limits=Http2Limits(stream_window=70_000))
    stream = dialogue.connection.request(BLOCK, b"a")
    stream.held = True
    dialogue.received()
    dialogue.send(dialogue.headers(1, HEAD), *[frame(frames.DATA, 0, 1, bytes(16_000))] * 4)
    assert dialogue.received() == []

    stream.held = False
    dialogue.connection.open_window(stream)

    assert dialogue.received() == [(frames.WINDOW_UPDATE, 0, 1, (64_000).to_bytes(4, "big"))]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(frames.PUSH_PROMISE, 4, 1, b"\0\0\0\2"), frames.PROTOCOL_ERROR),
        (frame(frames.HEADERS, 4, 2, b"\x88"), frames.PROTOCOL_ERROR),
        (frame(frames.HEADERS, 4, 3, b"\x88"), frames.PROTOCOL_ERROR),
        (frame(frames.DATA, 0, 3, b"x"), frames.PROTOCOL_ERROR),
        (frames.rst_stream(3, 0), frames.PROTOCOL_ERROR),
        (frames.window_update(3, 1), frames.PROTOCOL_ERROR),
        (frame(frames.HEADERS, 4, 1, b"\xff\xff\xff\x7f"), frames.COMPRESSION_ERROR),
        (frame(frames.HEADERS, 5, 1, b"\x88") * 2, frames.STREAM_CLOSED),
    ],
)
def test_a_servers_error_ends_the_connection(sent, code):
    dialogue = Dialogue()
    dialogue.connection.request(BLOCK, b"a")
    dialogue.received()
    dialogue.send(sent)

    assert dialogue.error is not None
    assert dialogue.error.code == code
    assert not dialogue.connection.has_room
    kind, _, _, payload = dialogue.received()[-1]
    assert kind == frames.GOAWAY
    assert int.from_bytes(payload[:4], "big") == 0  # the server has opened nothing
    assert int.from_bytes(payload[4:8], "big") == code


def test_a_goaway_refuses_what_it_does_not_cover_and_nothing_new_is_begun():
    dialogue = Dialogue()
    for _ in range(3):
        dialogue.connection.request(BLOCK, b"a")
    assert dialogue.connection.has_room

    dialogue.send(frames.goaway(2**31 - 1, 0))
    assert not dialogue.connection.has_room
    assert dialogue.events == []
    dialogue.send(frames.goaway(3, 0), dialogue.answer(3))

    assert [event[:2] for event in dialogue.events] == [
        ("refused", 5),
        ("head", 3),
        ("piece", 3),
        ("end", 3),
    ]
    assert list(dialogue.connection.streams) == [1]


def test_there_is_room_for_as_many_calls_as_the_server_says():
    dialogue = Dialogue(settings={frames.SETTING_MAX_CONCURRENT_STREAMS: 2})
    dialogue.connection.request(BLOCK, b"a")
    assert dialogue.connection.has_room
    dialogue.connection.request(BLOCK, b"a")
    assert not dialogue.connection.has_room

    dialogue.send(dialogue.answer(1))

    assert dialogue.connection.has_room


def test_equal_blocks_are_decoded_once_until_the_table_changes():
    dialogue = Dialogue()
    for _ in range(4):
        dialogue.connection.request(BLOCK, b"a")
    newest = frame(frames.HEADERS, 5, 3, b"\x88\xbe"), frame(frames.HEADERS, 5, 7, b"\x88\xbe")
    dialogue.send(frame(frames.HEADERS, 5, 1, b"\x88\x40\x03own\x011"), newest[0])
    dialogue.send(frame(frames.HEADERS, 5, 5, b"\x88\x40\x03own\x012"), newest[1])

    values = [dict(event[2])[b"own"] for event in dialogue.events if event[0] == "end"]
    assert values == [b"1", b"1", b"2", b"2"]


# ---- the request's block


def fields_of(block: bytes):
    return [tuple(map(bytes, field)) for field in hpack.Decoder().decode(block, raw=True)]


def test_a_block_has_what_grpc_wants_and_the_callers_fields_in_lower_case():
    template = RequestTemplate.of("/a.B/C", authority="host:1", scheme="https")

    fields = fields_of(template.with_fields(1.5, [(b"Own", b"1"), (b"own-bin", b"AA")]))

    assert fields[:4] == [
        (b":method", b"POST"),
        (b":scheme", b"https"),
        (b":path", b"/a.B/C"),
        (b":authority", b"host:1"),
    ]
    assert {(b"te", b"trailers"), (b"content-type", b"application/grpc")} <= set(fields)
    assert fields[-3:] == [(b"grpc-timeout", b"1500000u"), (b"own", b"1"), (b"own-bin", b"AA")]


@given(st.floats(0, 3.6e11))
def test_a_timeout_has_at_most_eight_digits_and_is_never_too_short(seconds):
    text = encode_timeout(seconds)

    assert len(text) <= 9
    fields = [(b":method", b"POST"), (b"grpc-timeout", text)]
    told = RequestHead(fields).timeout
    assert told is not None
    assert told >= min(seconds, 99_999_999 * 3600.0) * (1 - 1e-12)
    assert told <= max(seconds * 1.00002, seconds + 1.1e-6)


@pytest.mark.parametrize("seconds", [-1.0, -1e9, 0.0])
def test_a_deadline_that_has_passed_is_a_timeout_of_nothing(seconds):
    assert encode_timeout(seconds) == b"0u"
