"""The line between a process of `serve --processes N` and its supervisor.

A process says one thing over it, where it listens, and hears one thing, that the supervisor has
gone: the line ends then, however that happened.
"""

import json
import socket
from typing import Self

import attrs
import trio


@attrs.frozen
class SupervisorLine:
    """The process's end."""

    number: int
    """Which of the processes this is, from 0."""
    _socket: socket.socket

    @classmethod
    def inherited(cls, number: int, descriptor: int) -> Self:
        """Take the end that the supervisor has passed on as an open descriptor."""
        return cls(number, socket.socket(fileno=descriptor))

    def tell(self, addresses: list[str]) -> None:
        """Say where this process listens, and so that it does."""
        self._socket.sendall(json.dumps(addresses).encode() + b"\n")

    async def wait_gone(self) -> None:
        """Wait until the supervisor is not there any more.  It never writes."""
        await trio.lowlevel.wait_readable(self._socket)


async def read_addresses(line: trio.SocketStream) -> list[str] | None:
    """Wait for what a process tells; None when it ends without having told anything."""
    data = b""
    while not data.endswith(b"\n"):
        try:
            piece = await line.receive_some()
        except trio.BrokenResourceError:
            return None
        if not piece:
            return None
        data += piece
    return [str(address) for address in json.loads(data)]
