"""Both ends of filling gaps: the service of a runtime that answers, and the reader who asks.

The service never waits for a reader: an answer is bounded, a reader asks again for the rest, and
for one that asks without reading ZeroMQ drops what its queue does not hold.
"""

from collections.abc import Awaitable, Callable, Mapping

import attrs
import trio
import zmq

from replay.logger import get_logger
from replay.plane.codec import MalformedMessageError, Message, decode_message
from replay.plane.curve import ClientKeys
from replay.plane.gap_protocol import (
    Gap,
    end_marker,
    is_end_marker,
    parse_request,
    request_frames,
)
from replay.plane.replay_buffer import ReplayBuffer
from replay.plane.sockets import open_dealer, receive_frames, send_frames

log = get_logger(__name__)

#: One answer must neither hold up the loop for long nor fill the memory.
ANSWER_MESSAGES = 256
ANSWER_BYTES = 4 << 20
#: Room for a few answers that a reader has not taken yet.
ROUTER_HIGH_WATER_MARK = 4 * (ANSWER_MESSAGES + 1)

#: Without another message for so long an answer is over, whatever came of it.
SILENCE_SECONDS = 2.0
#: A gap that takes longer than this stays one: messages behind it are waiting.
FILL_SECONDS = 10.0


async def serve_gaps(socket: zmq.Socket[bytes], buffers: Mapping[int, ReplayBuffer]) -> None:
    """Answer for the publishers whose ids are the keys of *buffers*, until cancelled.

    Owns and closes *socket*, which `bind_router` made.
    """
    with socket:
        while True:
            peer, *frames = await receive_frames(socket)
            gap = parse_request(frames)
            if gap is not None:
                _answer(socket, peer, gap, buffers.get(gap.publisher_id))


def _answer(socket: zmq.Socket[bytes], peer: bytes, gap: Gap, buffer: ReplayBuffer | None) -> None:
    size = 0
    if buffer is not None:
        for count, frames in enumerate(buffer.between(gap.first, gap.last), 1):
            send_frames(socket, [peer, b"", *frames])
            size += len(frames[3])
            if count == ANSWER_MESSAGES or size >= ANSWER_BYTES:
                break
    send_frames(socket, [peer, *end_marker(gap.publisher_id)])


async def fill_gaps(
    context: zmq.Context[zmq.Socket[bytes]],
    endpoint: str,
    gaps: trio.MemoryReceiveChannel[Gap],
    deliver: Callable[[list[Message]], Awaitable[None]],
    settle: Callable[[Gap], Awaitable[None]],
    *,
    curve: ClientKeys | None = None,
) -> None:
    """Ask the service at *endpoint* for each of *gaps*, one after the other, until they end.

    *deliver* gets what is had of a gap, in order and without duplicates; then *settle* is told
    that the rest of it cannot be had.  A gap takes at most `FILL_SECONDS`, *deliver* included.
    """
    async for gap in gaps:
        try:
            # A socket for each gap: what a slow service still sends for the last one goes nowhere.
            with open_dealer(context, curve=curve) as socket:
                socket.connect(endpoint)
                with trio.move_on_after(FILL_SECONDS):
                    await _fill(socket, gap, deliver)
        except zmq.ZMQError as error:
            # The endpoint is what a status record says; or no descriptor is left.
            log.warning("gaps cannot be filled", endpoint=endpoint, error=str(error))
        await settle(gap)


async def _fill(
    socket: zmq.Socket[bytes], gap: Gap, deliver: Callable[[list[Message]], Awaitable[None]]
) -> None:
    first = gap.first
    while first <= gap.last:
        messages = await _ask(socket, attrs.evolve(gap, first=first))
        if not messages:
            return
        first = messages[-1].envelope.sequence + 1
        await deliver(messages)


async def _ask(socket: zmq.Socket[bytes], gap: Gap) -> list[Message]:
    """Send one request and return its answer as far as it comes."""
    found: dict[int, Message] = {}
    send_frames(socket, request_frames(gap))
    while True:
        with trio.move_on_after(SILENCE_SECONDS) as listening:
            frames = await receive_frames(socket)
        if listening.cancelled_caught or is_end_marker(frames):
            return [found[sequence] for sequence in sorted(found)]
        try:
            envelope = decode_message(frames[1:])
        except MalformedMessageError:
            continue
        is_of_gap = envelope.publisher_id == gap.publisher_id
        if is_of_gap and gap.first <= envelope.sequence <= gap.last:
            found.setdefault(envelope.sequence, Message(frames[1:], envelope))
