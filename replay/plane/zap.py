"""Answers ZeroMQ's question who may connect: ZAP 1.0, inside the context of a runtime.

One task of the loop does it; pyzmq's own answerers belong to asyncio or to a thread.
"""

from collections.abc import Sequence

import zmq
from zmq.utils import z85

from replay.plane.curve import ServerKeys
from replay.plane.sockets import receive_frames, send_frames

_ENDPOINT = "inproc://zeromq.zap.01"
_VERSION = b"1.0"


def bind_zap(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    """Return the socket for `serve_zap`.  To be called before a protected socket binds."""
    socket = context.socket(zmq.ROUTER)
    socket.linger = 0
    socket.bind(_ENDPOINT)
    return socket


async def serve_zap(socket: zmq.Socket[bytes], keys: ServerKeys) -> None:
    """Answer ZeroMQ's question for each new connection, until cancelled; owns and closes *socket*.

    A connection is let in with CURVE and an allowed key, and with nothing else.
    """
    with socket:
        while True:
            answer = zap_answer(await receive_frames(socket), keys)
            if answer is not None:
                send_frames(socket, answer)


def zap_answer(frames: Sequence[bytes], keys: ServerKeys) -> list[bytes] | None:
    """Return the answer to a ZAP 1.0 request as a ROUTER receives it; None for anything else."""
    try:
        peer, empty, version, request_id, _domain, _address, _identity, mechanism, *rest = frames
    except ValueError:
        return None
    if empty or version != _VERSION:
        return None
    is_allowed = (
        mechanism == b"CURVE" and len(rest) == 1 and z85.encode(rest[0]) in keys.allowed_keys
    )
    status, text = (b"200", b"OK") if is_allowed else (b"400", b"key not allowed")
    return [peer, b"", version, request_id, status, text, b"", b""]
