"""The benchmark's client half of HTTP/2, against h2 as the server."""

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.wire import (
    DATA,
    MAX_FRAME,
    Calls,
    IndexedBlocks,
    WireError,
    call_headers,
    frame,
    literal_block,
)

BODIES = st.lists(st.binary(max_size=300), min_size=1, max_size=8)


def serve(server, data, received):
    """Let h2 read *data*; answer each whole request with its body, twice, and status 0."""
    for event in server.receive_data(data):
        if isinstance(event, h2.events.RequestReceived):
            received[event.stream_id] = [dict(event.headers), b""]
        elif isinstance(event, h2.events.DataReceived):
            received[event.stream_id][1] += event.data
            server.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            body = received[event.stream_id][1]
            server.send_headers(event.stream_id, [(":status", "200"), ("x-served", "yes")])
            server.send_data(event.stream_id, body)
            server.send_data(event.stream_id, body)
            server.send_headers(event.stream_id, [("grpc-status", "0")], end_stream=True)


def new_server():
    server = h2.connection.H2Connection(
        h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
    )
    server.initiate_connection()
    return server


@given(BODIES, st.booleans(), st.integers(1, 60))
def test_every_call_gets_its_own_answer_however_the_bytes_are_split(bodies, indexed, step):
    server, calls, received = new_server(), Calls(), {}
    encode = IndexedBlocks().encode if indexed else literal_block
    wanted = {}
    for number, body in enumerate(bodies):
        headers = [*call_headers("/a/B", "host:1"), ("grpc-timeout", f"{number}u")]
        wanted[calls.call(encode(headers), body)] = (body, headers)
    finished = []
    for _ in range(6):
        serve(server, calls.take(), received)
        answer = server.data_to_send()
        for at in range(0, len(answer), step):
            finished += calls.receive(answer[at : at + step])
    assert {one.stream_id: one.data for one in finished} == {
        stream_id: body * 2 for stream_id, (body, _) in wanted.items()
    }
    assert {one.grpc_status for one in finished} == {"0"}
    assert calls.open_calls == 0
    assert calls.settings_seen
    for stream_id, (body, headers) in wanted.items():
        assert received[stream_id] == [dict(headers), body]


def test_requests_wait_for_the_window_of_the_connection():
    server, calls, received = new_server(), Calls(), {}
    block = literal_block(call_headers("/a/B", "host:1"))
    ids = [calls.call(block, bytes(16000)) for _ in range(6)]
    serve(server, calls.take(), received)
    assert sum(len(body) for _, body in received.values()) == 64000
    finished = []
    while len(finished) < len(ids):
        finished += calls.receive(server.data_to_send())
        serve(server, calls.take(), received)
    assert [one.stream_id for one in finished] == ids


def test_a_reset_ends_the_call_without_a_status():
    server, calls = new_server(), Calls()
    stream_id = calls.call(literal_block(call_headers("/a/B", "host:1")), b"x")
    server.receive_data(calls.take())
    server.reset_stream(stream_id, 8)
    (finished,) = calls.receive(server.data_to_send())
    assert (finished.grpc_status, finished.reset) == (None, 8)


def test_a_ping_is_answered():
    server, calls = new_server(), Calls()
    server.receive_data(calls.take())
    server.ping(b"12345678")
    calls.receive(server.data_to_send())
    events = server.receive_data(calls.take())
    assert any(isinstance(event, h2.events.PingAckReceived) for event in events)


def test_what_ends_a_connection_is_raised():
    server, calls = new_server(), Calls()
    server.receive_data(calls.take())
    server.close_connection(error_code=11, additional_data=b"calm")
    with pytest.raises(WireError, match="error 11: calm"):
        calls.receive(server.data_to_send())
    with pytest.raises(WireError, match="padded"):
        Calls().receive(frame(DATA, 0x8, 1, b"\x01ab"))


def test_a_body_larger_than_a_frame_is_refused():
    with pytest.raises(ValueError, match="16385"):
        Calls().call(b"", bytes(MAX_FRAME + 1))
