"""ZeroMQ under Trio: one context a runtime, one owner task a socket, try first and wait second.

There is no wrapper class, because these few rules are all it takes.  A PUB or ROUTER never blocks,
so its owner sends with DONTWAIT and waits for nothing.  A receiver must try before it waits: the
descriptor tells that the socket's state changed, not that a message is there, and any call may
use that signal up.  Two tasks on one socket therefore lose wake-ups.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import attrs
import trio
import zmq

from replay.config.address import format_address
from replay.errors import BindError
from replay.logger import get_logger
from replay.plane.curve import ClientKeys, ServerKeys

log = get_logger(__name__)

#: What a reader takes beyond what its consumer has processed, in messages a publisher.  When it is
#: full the publisher's own queue fills, so no message is ever lost here.
RECEIVE_HIGH_WATER_MARK = 10_000
#: With a linger of 0 a close was measured to deliver 277 of 1,000 messages.
SHORTEST_LINGER_SECONDS = 0.1
#: A publisher's host that vanished without a word is noticed after about a minute.
_KEEPALIVE_IDLE_SECONDS, _KEEPALIVE_INTERVAL_SECONDS, _KEEPALIVE_PROBES = 30, 10, 3
#: What a subscriber may send to a publisher: a topic, or a part of ZeroMQ's handshake.
LONGEST_SUBSCRIPTION = 1024
#: A reader takes three for each publisher, and ZeroMQ's own limit of 1,023 would be 341 of them.
_MOST_SOCKETS = 16384
_MORE = zmq.SNDMORE | zmq.DONTWAIT
#: A reader may start before its publisher; it should not hammer a port that nobody listens on.
_RECONNECT_MS, _SLOWEST_RECONNECT_MS = 100, 1000


@asynccontextmanager
async def open_context(*, term_seconds: float) -> AsyncIterator[zmq.Context[zmq.Socket[bytes]]]:
    """Yield the ZeroMQ context of one runtime, and end it within about *term_seconds*.

    The sockets are closed by those who own them, each with its linger; the end waits until what
    they linger for has left.  It waits in a thread, where it cannot hold up the loop, and a wait
    that outlasts its deadline is left to that thread and logged.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, _MOST_SOCKETS)
    try:
        yield context
    finally:
        with trio.move_on_after(term_seconds, shield=True) as ending:
            await trio.to_thread.run_sync(
                context.term, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1)
            )
        if ending.cancelled_caught:
            log.warning("the event plane did not end in time", seconds=term_seconds)


@attrs.frozen
class Bound:
    """A socket that listens, and where."""

    socket: zmq.Socket[bytes]
    host: str
    """An IP address, without brackets."""
    port: int


def bind_pub(
    context: zmq.Context[zmq.Socket[bytes]],
    host: str,
    port: int | None,
    *,
    high_water_mark: int,
    curve: ServerKeys | None = None,
) -> Bound:
    """Bind a PUB socket that queues at most *high_water_mark* messages for each subscriber.

    What does not fit is dropped by ZeroMQ without a word, for that subscriber alone; the sequence
    shows it.  Raises `BindError`, and `ValueError` for a mark below 1: 0 would mean unlimited.
    """
    if high_water_mark < 1:
        raise ValueError(f"a high-water mark is at least 1, not {high_water_mark}")
    socket = context.socket(zmq.PUB)
    socket.sndhwm = high_water_mark
    # ZeroMQ keeps 46 bytes for each byte of a subscription: one of 20 MB took 915 MB of a
    # publisher.  A longer one ends its connection.
    socket.maxmsgsize = LONGEST_SUBSCRIPTION
    return _bind(socket, host, port, curve)


def bind_router(
    context: zmq.Context[zmq.Socket[bytes]],
    host: str,
    port: int | None,
    *,
    high_water_mark: int,
    longest_request: int,
    curve: ServerKeys | None = None,
) -> Bound:
    """Bind a ROUTER socket that takes frames of at most *longest_request* bytes.

    A longer frame ends the connection.  ZeroMQ's handshake must fit too.  Raises `BindError`.
    """
    socket = context.socket(zmq.ROUTER)
    socket.sndhwm = high_water_mark
    socket.maxmsgsize = longest_request
    return _bind(socket, host, port, curve)


def _bind(
    socket: zmq.Socket[bytes], host: str, port: int | None, curve: ServerKeys | None
) -> Bound:
    # Without the option libzmq takes an IPv6 address for the name of a device; with it an IPv4
    # address comes back mapped into IPv6.
    socket.ipv6 = ":" in host
    if curve is not None:
        curve.protect(socket)
    try:
        socket.bind(f"tcp://{format_address(host, port or 0)}")
    except zmq.ZMQError as error:
        socket.close(linger=0)
        asked = format_address(host, port or 0)
        reason = zmq.strerror(error.errno or 0)
        raise BindError(f"cannot bind tcp://{asked}: {reason}") from error
    endpoint = socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
    bound_host, _, bound_port = endpoint.removeprefix("tcp://").rpartition(":")
    return Bound(socket, bound_host.strip("[]"), int(bound_port))


def open_sub(
    context: zmq.Context[zmq.Socket[bytes]], topic: bytes, *, curve: ClientKeys | None = None
) -> zmq.Socket[bytes]:
    """Return a SUB socket that has subscribed to *topic* and is to be connected."""
    socket = context.socket(zmq.SUB)
    socket.rcvhwm = RECEIVE_HIGH_WATER_MARK
    socket.subscribe(topic)
    return _reading(socket, curve)


def open_dealer(
    context: zmq.Context[zmq.Socket[bytes]], *, curve: ClientKeys | None = None
) -> zmq.Socket[bytes]:
    """Return a DEALER socket that is to be connected."""
    return _reading(context.socket(zmq.DEALER), curve)


def _reading(socket: zmq.Socket[bytes], curve: ClientKeys | None) -> zmq.Socket[bytes]:
    socket.ipv6 = True
    socket.linger = 0
    socket.reconnect_ivl = _RECONNECT_MS
    socket.reconnect_ivl_max = _SLOWEST_RECONNECT_MS
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_idle = _KEEPALIVE_IDLE_SECONDS
    socket.tcp_keepalive_intvl = _KEEPALIVE_INTERVAL_SECONDS
    socket.tcp_keepalive_cnt = _KEEPALIVE_PROBES
    if curve is not None:
        curve.use(socket)
    return socket


def send_frames(socket: zmq.Socket[bytes], frames: Sequence[bytes]) -> None:
    """Send one message without waiting.

    pyzmq's `send_multipart` does the same; it looks at each frame's type and combines the flags
    anew, which was measured to take two thirds of its time.  Raises `zmq.ZMQError`.
    """
    *others, last = frames
    for frame in others:
        socket.send(frame, _MORE)
    socket.send(last, zmq.DONTWAIT)


def take_frames(socket: zmq.Socket[bytes]) -> list[bytes]:
    """Receive one message without waiting.

    A frame that is not copied yet knows whether it is the last one, which `recv_multipart` asks
    the socket for: half of its time.  Raises `zmq.Again` if there is no message.
    """
    frame = socket.recv(zmq.DONTWAIT, copy=False)
    frames = [frame.bytes]
    while frame.more:
        frame = socket.recv(zmq.DONTWAIT, copy=False)
        frames.append(frame.bytes)
    return frames


async def receive_frames(socket: zmq.Socket[bytes]) -> list[bytes]:
    """Receive one message.  Only one task may use *socket*, for anything."""
    await trio.lowlevel.checkpoint()
    while True:
        try:
            return take_frames(socket)
        except zmq.Again:
            await trio.lowlevel.wait_readable(socket)


def close_after_linger(socket: zmq.Socket[bytes], seconds: float) -> None:
    """Close a sending socket; what it has queued may still leave for *seconds*, at least 0.1 s.

    Returns at once: it is the end of the context that waits.
    """
    set_linger(socket, seconds)
    socket.close()


def set_linger(socket: zmq.Socket[bytes], seconds: float) -> None:
    """Let a socket that somebody else will close keep what it has queued for *seconds*, as above.

    By default ZeroMQ would keep it, and the context, for ever.
    """
    socket.linger = round(max(seconds, SHORTEST_LINGER_SECONDS) * 1000)
