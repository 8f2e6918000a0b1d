"""A deadline that only the server enforces: the client is raw h2, with no clock of its own."""

import h2.connection
import h2.events
import pytest
import trio

from replay.config.engines import CannedConfig
from replay.rpc.calls import frame_message
from tests.engines.requests import generate_request
from tests.worker.running import config_of, running, until


@pytest.mark.timed
async def test_a_deadline_ends_the_call_with_its_status_and_the_scope_with_it() -> None:
    async with running(config_of(engine=CannedConfig(token_ms=5))) as worker:
        host, _, port = worker.runtime.addresses[0].rpartition(":")
        stream = await trio.open_tcp_stream(host, int(port))
        async with stream:
            connection = h2.connection.H2Connection()
            connection.initiate_connection()
            connection.send_headers(
                1,
                [
                    (":method", "POST"),
                    (":scheme", "http"),
                    (":authority", "test"),
                    (":path", "/tokenspeed.grpc.scheduler.TokenSpeedScheduler/Generate"),
                    ("content-type", "application/grpc"),
                    ("te", "trailers"),
                    ("grpc-timeout", "500m"),
                ],
            )
            message = generate_request(max_new_tokens=100_000).SerializeToString()
            connection.send_data(1, frame_message(message), end_stream=True)
            await stream.send_all(connection.data_to_send())
            started = trio.current_time()
            trailers: dict[bytes, bytes] = {}
            seen: list[type] = []
            with trio.fail_after(5):
                while not trailers:
                    for event in connection.receive_data(await stream.receive_some()):
                        seen.append(type(event))
                        if isinstance(event, h2.events.TrailersReceived):
                            trailers = dict(event.headers)
            took = trio.current_time() - started
        await until(lambda: worker.in_flight == 0)
    assert trailers[b"grpc-status"] == b"4"
    assert 0.45 <= took <= 0.6
    assert h2.events.ResponseReceived in seen
    assert h2.events.DataReceived in seen
