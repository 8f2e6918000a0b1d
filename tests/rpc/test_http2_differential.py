"""Our halves against h2's: whatever one end of a conversation does, both ends see the same."""

import h2.events
import h2.exceptions
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replay.rpc import frames
from replay.rpc.http2 import ConnectionDeadError, Http2Limits
from replay.rpc.http2_client import ClientConnection, RequestTemplate, ResponseStream
from replay.rpc.http2_server import RequestStream, ServerConnection
from tests.rpc.conversation import Owner
from tests.rpc.h2_peer import H2Connection

EXAMPLES = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)

SIZES = st.one_of(st.integers(0, 50), st.sampled_from([16384, 16385, 40_000, 65_535, 70_000]))
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("request"), SIZES, st.booleans()),
        st.tuples(st.just("more"), st.integers(0, 5), SIZES),
        st.tuples(st.just("end"), st.integers(0, 5)),
        st.tuples(st.just("reset"), st.integers(0, 5)),
        st.tuples(st.just("window"), st.integers(0, 5), st.integers(1, 100_000)),
        st.tuples(st.just("connection window"), st.integers(1, 200_000)),
        st.tuples(st.just("initial window"), st.sampled_from([65_535, 100_000, 1_000_000])),
        st.tuples(st.just("frame size"), st.sampled_from([16_384, 20_000, 1 << 20])),
        st.tuples(st.just("table size"), st.sampled_from([0, 100, 4096])),
        st.tuples(
            st.just("ping"),
        ),
        st.tuples(st.just("answer"), st.integers(0, 5), SIZES),
        st.tuples(st.just("message"), st.integers(0, 5), SIZES),
        st.tuples(st.just("refuse"), st.integers(0, 5)),
    ),
    max_size=20,
)
SPLITS = st.integers(1, 5000)


def split(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def body_of(number: int, size: int) -> bytes:
    return (b"%d." % number * (size // 2 + 1))[:size]


class ServerUnderTest:
    """Our server, an h2 client that talks to it, and an h2 server that hears the same bytes."""

    def __init__(self, step: int) -> None:
        self.owner = Owner(answer=None)
        self.ours = ServerConnection(Http2Limits(), self.owner)
        self.owner.connection = self.ours
        self.client = H2Connection(client_side=True)
        self.oracle = H2Connection(client_side=False)
        self.step = step
        self.opened: list[int] = []
        self.answers: dict[int, bytearray] = {}
        self.expected: dict[int, bytearray] = {}
        self.ended: set[int] = set()
        self.uploaded: set[int] = set()
        self.client_reset: set[int] = set()
        self.server_reset: set[int] = set()
        self.client.initiate_connection()
        self.oracle.initiate_connection()
        self.exchange()

    def exchange(self) -> None:
        """Carry bytes until nobody has any."""
        for _ in range(1000):
            sent = self.client.data_to_send()
            for piece in split(sent, self.step):
                self.ours.receive(piece, 0.0)
            if sent:
                self.oracle.receive_data(sent)
                # What h2 itself would say is of no interest: its answers are not ours.
                self.oracle.clear_outbound_data_buffer()
            answer = b"".join(self.ours.out)
            self.ours.out.clear()
            for piece in split(answer, self.step):
                self.hear(self.client.receive_data(piece))
            if not sent and not answer:
                return
        raise AssertionError("they never come to an end")

    def hear(self, events: list[h2.events.Event]) -> None:
        for event in events:
            if isinstance(event, h2.events.DataReceived):
                self.answers.setdefault(event.stream_id, bytearray()).extend(event.data)
                self.client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                self.ended.add(event.stream_id)
            elif isinstance(event, h2.events.StreamReset):
                self.server_reset.add(event.stream_id)
            assert not isinstance(event, h2.events.ConnectionTerminated)

    def pick(self, number: int, *, uploading: bool = False) -> int | None:
        """Choose a stream that is open to the client, or that it can still send on."""
        over = self.client_reset | self.server_reset | self.ended
        over |= self.uploaded if uploading else set()
        mine = [each for each in self.opened if each not in over]
        return mine[number % len(mine)] if mine else None

    def serving(self, number: int) -> RequestStream | None:
        streams = list(self.ours.streams.values())
        return streams[number % len(streams)] if streams else None

    def do(self, operation: tuple) -> None:
        name, *arguments = operation
        client = self.client
        if name == "request":
            size, ends = arguments
            stream_id = client.get_next_available_stream_id()
            headers = [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", "/a/b"),
                (":authority", "test"),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                ("x-number", f"{stream_id}"),
            ]
            client.send_headers(stream_id, headers)
            self.opened.append(stream_id)
            self.upload(stream_id, size, ends)
        elif name == "more" and (stream_id := self.pick(arguments[0], uploading=True)):
            self.upload(stream_id, arguments[1], False)
        elif name == "end" and (stream_id := self.pick(arguments[0], uploading=True)):
            self.upload(stream_id, 0, True)
        elif name == "reset" and (stream_id := self.pick(arguments[0])) is not None:
            client.reset_stream(stream_id, ErrorCodes.CANCEL)
            self.client_reset.add(stream_id)
        elif name == "window" and (stream_id := self.pick(arguments[0])) is not None:
            client.increment_flow_control_window(arguments[1], stream_id)
        elif name == "connection window":
            client.increment_flow_control_window(arguments[0])
        elif name == "initial window":
            # h2 cannot take what it has made too small itself; that is tested frame by frame.
            if arguments[0] >= client.local_settings.initial_window_size:
                client.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: arguments[0]})
        elif name == "frame size":
            client.update_settings({SettingCodes.MAX_FRAME_SIZE: arguments[0]})
        elif name == "table size":
            client.update_settings({SettingCodes.HEADER_TABLE_SIZE: arguments[0]})
        elif name == "ping":
            client.ping(b"12345678")
        elif name == "answer" and (stream := self.serving(arguments[0])) is not None:
            self.answer(stream, arguments[1], ends=True)
        elif name == "message" and (stream := self.serving(arguments[0])) is not None:
            self.answer(stream, arguments[1], ends=False)
        elif name == "refuse" and (stream := self.serving(arguments[0])) is not None:
            self.ours.finish(stream, 12, "no")
        self.exchange()

    def upload(self, stream_id: int, size: int, ends: bool) -> None:
        room = min(
            self.client.local_flow_control_window(stream_id), self.client.max_outbound_frame_size
        )
        self.client.send_data(stream_id, body_of(stream_id, min(size, room)), end_stream=ends)
        if ends:
            self.uploaded.add(stream_id)

    def answer(self, stream: RequestStream, size: int, *, ends: bool) -> None:
        if stream.trailer is not None:
            return
        payload = body_of(stream.id, size)
        self.expected.setdefault(stream.id, bytearray()).extend(payload)
        if ends:
            self.ours.answer(stream, payload)
        else:
            self.ours.respond(stream)
            self.ours.send(stream, payload)


@EXAMPLES
@given(OPERATIONS, SPLITS)
def test_a_client_of_h2_and_our_server_agree_on_everything(operations, step):
    test = ServerUnderTest(step)
    for operation in operations:
        test.do(operation)

    # What is left goes out once all windows are open.
    test.client.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 2**31 - 1 - 10_000_000})
    test.client.increment_flow_control_window(10_000_000)
    test.exchange()
    for stream_id, payload in test.expected.items():
        if stream_id not in test.client_reset:
            assert bytes(test.answers.get(stream_id, b"")) == bytes(payload)
        else:
            assert bytes(payload).startswith(bytes(test.answers.get(stream_id, b"")))
    for stream in test.owner.requests:
        number = dict(stream.head.fields)[b"x-number"]
        assert number == b"%d" % stream.id
    still_open = set(test.ours.streams)
    assert still_open == {
        each
        for each in test.opened
        if each not in test.client_reset | test.ended | test.server_reset
    }


@EXAMPLES
@given(OPERATIONS, SPLITS)
def test_our_server_hears_the_requests_that_h2s_server_hears(operations, step):
    """The same bytes, requests only: the bodies of both are the same."""
    test = ServerUnderTest(step)
    heard: dict[int, bytearray] = {}
    original = test.oracle.receive_data

    def listen(data: bytes):
        events = original(data)
        for event in events:
            if isinstance(event, h2.events.DataReceived):
                heard.setdefault(event.stream_id, bytearray()).extend(event.data)
                test.oracle.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        return events

    test.oracle.receive_data = listen
    for operation in operations:
        if operation[0] not in ("answer", "message", "refuse"):
            test.do(operation)

    for stream_id, body in test.owner.bodies.items():
        assert body == bytes(heard.get(stream_id, b""))


GARBAGE = st.one_of(
    st.tuples(
        # 10 is ALTSVC, an extension that h2 knows and judges.
        st.sampled_from([*range(10), 11, 200]),
        st.sampled_from([0, 1, 4, 5, 8, 9, 0x20, 0x24, 0x2C]),
        st.sampled_from([0, 1, 2, 3, 5, 2**31 - 1]),
        st.one_of(
            st.binary(max_size=12),
            st.sampled_from(
                [b"\0" * 4, b"\0\0\0\1", b"\x7f\xff\xff\xff", b"\0" * 5, b"\0" * 8, b"\x82\x86"]
            ),
        ),
    )
)


def verdict_of_h2(conversation: bytes) -> bool:
    server = H2Connection(client_side=False)
    server.initiate_connection()
    try:
        server.receive_data(conversation)
    except (h2.exceptions.ProtocolError, IndexError, ValueError):
        return False
    return True


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.lists(GARBAGE, min_size=1, max_size=4))
def test_what_h2_takes_for_an_error_of_the_connection_is_one_to_us(parts):
    """Errors that we see and h2 does not are allowed: it is laxer about some of RFC 9113."""
    conversation = frames.PREFACE + frames.settings({})
    for kind, flags, stream_id, payload in parts:
        conversation += frames.frame(kind, flags, stream_id, payload)
    owner = Owner(answer=None)
    ours = ServerConnection(Http2Limits(), owner)
    owner.connection = ours
    try:
        ours.receive(conversation, 0.0)
    except ConnectionDeadError:
        return
    spoken = b"".join(ours.out)
    has_reset = any(spoken[at + 3] == frames.RST_STREAM for at in _frame_starts(spoken))
    # h2 ends the connection for malformed headers, where RFC 9113 (8.1.1) wants the stream ended.
    assert verdict_of_h2(conversation) or has_reset or owner.requests or _is_incomplete(parts)


def _frame_starts(data: bytes) -> list[int]:
    starts, at = [], 0
    while at + 9 <= len(data):
        starts.append(at)
        at += 9 + int.from_bytes(data[at : at + 3], "big")
    return starts


def _is_incomplete(parts) -> bool:
    """Whether a header block is still open, so that nothing has been judged yet."""
    return any(kind == frames.HEADERS and not flags & 4 for kind, flags, _, _ in parts)


# ---- our client against h2's server


class Listener:
    """Remembers what our client is told."""

    def __init__(self) -> None:
        self.connection: ClientConnection
        self.bodies: dict[int, bytearray] = {}
        self.trailers: dict[int, dict[bytes, bytes]] = {}
        self.gone: dict[int, int] = {}
        self.refused: list[int] = []

    def on_head(self, stream: ResponseStream) -> None:
        pass

    def on_piece(self, stream: ResponseStream) -> None:
        body = self.connection.take_body(stream)
        self.bodies.setdefault(stream.id, bytearray()).extend(body)

    def on_end(self, stream: ResponseStream, trailers) -> None:
        self.trailers[stream.id] = dict(trailers)

    def on_gone(self, stream: ResponseStream, code: int) -> None:
        self.gone[stream.id] = code

    def on_drained(self, stream: ResponseStream) -> None:
        pass

    def on_refused(self, stream: ResponseStream) -> None:
        self.refused.append(stream.id)


ANSWERS = st.lists(
    st.tuples(
        st.sampled_from(["ok", "trailers only", "reset", "nothing"]), SIZES, SIZES, st.booleans()
    ),
    min_size=1,
    max_size=12,
)


@EXAMPLES
@given(ANSWERS, SPLITS)
def test_our_client_and_a_server_of_h2_agree(plans, step):
    listener = Listener()
    ours = ClientConnection(listener)
    listener.connection = ours
    server = H2Connection(client_side=False)
    server.initiate_connection()
    template = RequestTemplate.of("/a/b", authority="test")
    uploads: dict[int, bytearray] = {}
    waiting: dict[int, bytes] = {}
    answered: dict[int, tuple[str, bytes]] = {}

    def serve(events) -> None:
        for event in events:
            if isinstance(event, h2.events.DataReceived):
                uploads.setdefault(event.stream_id, bytearray()).extend(event.data)
                server.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                answer(event.stream_id)
            elif isinstance(event, h2.events.WindowUpdated):
                push()

    def answer(stream_id: int) -> None:
        kind, _, size, shrinks = plans[(stream_id - 1) // 2]
        answered[stream_id] = (kind, body_of(stream_id, size))
        head = [(":status", "200"), ("content-type", "application/grpc")]
        if shrinks:
            server.update_settings({SettingCodes.HEADER_TABLE_SIZE: 0})
        if kind == "ok":
            server.send_headers(stream_id, head)
            waiting[stream_id] = answered[stream_id][1]
            push()
        elif kind == "trailers only":
            server.send_headers(stream_id, [*head, ("grpc-status", "5")], end_stream=True)
        elif kind == "reset":
            server.reset_stream(stream_id, ErrorCodes.REFUSED_STREAM)

    def push() -> None:
        for stream_id, left in list(waiting.items()):
            while left:
                room = min(
                    server.local_flow_control_window(stream_id), server.max_outbound_frame_size
                )
                if room <= 0:
                    break
                server.send_data(stream_id, left[:room])
                left = left[room:]
            waiting[stream_id] = left
            if not left:
                del waiting[stream_id]
                server.send_headers(stream_id, [("grpc-status", "0")], end_stream=True)

    def exchange() -> None:
        for _ in range(2000):
            sent = b"".join(ours.out)
            ours.out.clear()
            for piece in split(sent, step):
                serve(server.receive_data(piece))
            back = server.data_to_send()
            for piece in split(back, step):
                ours.receive(piece, 0.0)
            if not sent and not back:
                return
        raise AssertionError("they never come to an end")

    exchange()
    for number, (_, size, _, _) in enumerate(plans):
        stream = ours.request(template.with_fields(None, ()), body_of(2 * number + 1, size))
        assert stream.id == 2 * number + 1
        exchange()

    for stream_id, (kind, body) in answered.items():
        size = plans[(stream_id - 1) // 2][1]
        assert bytes(uploads.get(stream_id, b"")) == body_of(stream_id, size)
        if kind == "ok":
            assert bytes(listener.bodies.get(stream_id, b"")) == body
            assert listener.trailers[stream_id] == {b"grpc-status": b"0"}
        elif kind == "trailers only":
            assert listener.trailers[stream_id][b"grpc-status"] == b"5"
        elif kind == "reset":
            assert listener.gone[stream_id] == frames.REFUSED_STREAM
    silent = {stream_id for stream_id, (kind, _) in answered.items() if kind == "nothing"}
    assert set(ours.streams) == silent
