"""The processes of the benchmark `plane`: each publishes or reads a number of records, pinned.

The bare loops are what anybody writes with pyzmq and msgpack.  They are not to be made faster or
slower, because the ratios are measured against them.
"""

import os
import struct
import time
from array import array
from multiprocessing.connection import Connection
from typing import Any

import msgpack
import trio
import zmq

from replay.config.model import TapCapture, TapConfig
from replay.consumer.consume import Consumer, Listener, Source
from replay.consumer.summary import RecordSummary
from replay.packed import TokenIds
from replay.plane.codec import Message
from replay.plane.sinks import PlaneSink
from replay.plane.sockets import bind_pub, open_context
from replay.request import Request
from replay.taps.publisher import run_publishers
from replay.taps.response import Choice, Outcome, Response
from replay.taps.tap import MirroredRequest, Tap

TOPIC = "shadow"
PUBLISHER_ID = 2**52 + 1
ARRIVAL_UNIX_NS = 1_764_500_000_000_000_000
#: Records that are offered before the publisher gets a turn, as of requests that end together.
BATCH = 16
#: Room for the probes that the reader has not taken when the records begin: none of these may be
#: dropped, since a reader counts them.
PROBES = 10_000
#: Long enough to be no record, short enough to cost nothing.
PROBE = [TOPIC.encode(), b"probe"]


def prompt_ids(tokens: int) -> list[int]:
    """Return *tokens* ids as a vocabulary of 128,000 has them."""
    return [number * 7919 % 128_000 for number in range(tokens)]


_ANSWER = array("I", prompt_ids(16))


def request(ids: list[int]) -> Request:
    """Return a request with this prompt, packed while the ids are at hand."""
    return Request(model="mock-model", token_ids=TokenIds.packing(ids), eos_token_ids=(2,))


def response() -> Response:
    """Return a response that has not been packed yet."""
    choice = Choice(index=0, finish_reason="eos", output_tokens=16, token_ids=_ANSWER)
    return Response(
        outcome=Outcome.COMPLETE,
        choices=(choice,),
        first_token_offset_ns=10_000_000,
        last_token_offset_ns=160_000_000,
        end_offset_ns=161_000_000,
    )


def tap() -> Tap:
    """Return the tap that the records come from; its queue holds a batch and more."""
    config = TapConfig(
        name="shadow-replay",
        topic=TOPIC,
        capture=TapCapture.REQUEST_RESPONSE,
        capacity=4 * BATCH,
    )
    return Tap(config)


def plain_record(tokens: int) -> dict[str, Any]:
    """Return the record that our tap publishes, as plain values."""
    taken = tap()
    packed = taken.packer.pack(
        seq=0,
        request_id="request-000000",
        origin="preprocessed",
        arrival_unix_ns=ARRIVAL_UNIX_NS,
        packed_request=taken.projection.pack(request(prompt_ids(tokens))),
        response=response(),
    )
    record: dict[str, Any] = msgpack.unpackb(packed)
    return record


# Publishing.


def publish(contender: str, tokens: int, records: int, core: int, control: Connection) -> None:
    """Publish *records* on core *core* and tell over *control* when that began."""
    os.sched_setaffinity(0, {core})
    if contender == "bare":
        _publish_bare(tokens, records, control)
    else:
        trio.run(_publish_ours, tokens, records, control)


def _wait_for_reader(socket: zmq.Socket[bytes], endpoint: str, control: Connection) -> None:
    control.send(endpoint)
    while not control.poll(0.001):
        socket.send_multipart(PROBE)
    control.recv()


def _publish_bare(tokens: int, records: int, control: Connection) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.PUB)
    socket.sndhwm = records + PROBES
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    record = plain_record(tokens)
    topic, publisher_id = TOPIC.encode(), struct.pack(">Q", PUBLISHER_ID)
    _wait_for_reader(socket, f"tcp://127.0.0.1:{port}", control)
    control.send(time.monotonic())
    for sequence in range(records):
        record["seq"] = sequence
        envelope = msgpack.packb(
            {
                "publisher_id": PUBLISHER_ID,
                "sequence": sequence,
                "published_at": time.time_ns() // 1_000_000,
                "topic": TOPIC,
                "payload": msgpack.packb(record),
            }
        )
        frame = b"\x01" + struct.pack(">I", len(envelope)) + envelope
        socket.send_multipart([topic, publisher_id, struct.pack(">Q", sequence), frame])
    control.recv()
    socket.close(linger=0)
    context.term()


async def _publish_ours(tokens: int, records: int, control: Connection) -> None:
    async with open_context(term_seconds=5) as context:
        bound = bind_pub(context, "127.0.0.1", None, high_water_mark=records + PROBES)
        _wait_for_reader(bound.socket, f"tcp://127.0.0.1:{bound.port}", control)
        source = tap()
        sink = PlaneSink(TOPIC, PUBLISHER_ID, socket=bound.socket)
        ids = prompt_ids(tokens)
        control.send(time.monotonic())
        async with run_publishers({source: sink}, drain_seconds=10):
            for number in range(records):
                mirrored = MirroredRequest(
                    "request-000000",
                    "preprocessed",
                    ARRIVAL_UNIX_NS,
                    source.projection.pack(request(ids)),
                )
                source.offer(mirrored, response(), queued_ns=time.monotonic_ns())
                if number % BATCH == BATCH - 1:
                    await trio.lowlevel.checkpoint()
                while source.still_queued > 2 * BATCH:
                    await trio.lowlevel.checkpoint()
        await trio.to_thread.run_sync(control.recv)
        sink.close(linger_seconds=0)


def drain(endpoint: str, records: int, core: int, control: Connection) -> None:
    """Read *records* without looking into them, and tell when the last one was there."""
    os.sched_setaffinity(0, {core})
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = _subscribed(context, endpoint)
    socket.recv_multipart()
    control.send("joined")
    count = size = 0
    while count < records:
        frames = socket.recv_multipart()
        if len(frames) == 4:
            count += 1
            size += len(frames[3])
    control.send((time.monotonic(), size))
    socket.close(linger=0)
    context.term()


def _subscribed(context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.SUB)
    socket.rcvhwm = 10_000
    socket.subscribe(TOPIC.encode())
    socket.connect(endpoint)
    return socket


# Reading.


def feed(tokens: int, records: int, core: int, control: Connection) -> None:
    """Publish *records* that were made before, as fast as they go."""
    os.sched_setaffinity(0, {core})
    record = plain_record(tokens)
    topic, publisher_id = TOPIC.encode(), struct.pack(">Q", PUBLISHER_ID)
    messages = []
    for sequence in range(records):
        record["seq"] = sequence
        envelope = {
            "publisher_id": PUBLISHER_ID,
            "sequence": sequence,
            "published_at": ARRIVAL_UNIX_NS // 1_000_000,
            "topic": TOPIC,
            "payload": msgpack.packb(record),
        }
        packed = msgpack.packb(envelope)
        frame = b"\x01" + struct.pack(">I", len(packed)) + packed
        messages.append([topic, publisher_id, struct.pack(">Q", sequence), frame])
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.XPUB)
    socket.sndhwm = records
    control.send(f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}")
    socket.recv()  # the subscription
    control.send(time.monotonic())
    for message in messages:
        socket.send_multipart(message)
    control.recv()
    socket.close(linger=0)
    context.term()


def consume(contender: str, endpoint: str, records: int, core: int, control: Connection) -> None:
    """Read *records*, and tell when they were counted and what they held."""
    os.sched_setaffinity(0, {core})
    if contender == "bare":
        control.send(_consume_bare(endpoint, records))
    else:
        control.send(trio.run(_consume_ours, endpoint, records))


def _consume_bare(endpoint: str, records: int) -> tuple[float, int]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = _subscribed(context, endpoint)
    tokens = 0
    for _ in range(records):
        frames = socket.recv_multipart()
        envelope = msgpack.unpackb(frames[3][5:])
        record = msgpack.unpackb(envelope["payload"])
        tokens += len(record["request"]["token_ids"]) + record["response"]["output_tokens"]
    ended = time.monotonic()
    socket.close(linger=0)
    context.term()
    return ended, tokens


class _Counter(Listener):
    def __init__(self, records: int) -> None:
        self._left = records
        self.done = trio.Event()
        self.ended = 0.0

    def record(self, summary: RecordSummary, message: Message) -> None:
        self._left -= 1
        if not self._left:
            self.ended = time.monotonic()
            self.done.set()


async def _consume_ours(endpoint: str, records: int) -> tuple[float, int]:
    counter = _Counter(records)
    consumer = Consumer(Source(topic=TOPIC, endpoints=(endpoint,)), counter)
    async with open_context(term_seconds=5) as context, trio.open_nursery() as reading:
        reading.start_soon(consumer.run, context)
        await counter.done.wait()
        reading.cancel_scope.cancel()
    report = consumer.report()
    if report["transport_gaps"] or report["tap_gaps"]:
        raise AssertionError(f"lost {report['transport_gaps']} messages that nobody dropped")
    return counter.ended, report["prompt_tokens"] + report["output_tokens"]
