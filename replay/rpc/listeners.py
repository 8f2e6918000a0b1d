"""Addresses: what an operator writes, and sockets that are bound to it.

A set of addresses is bound whole or not at all, and an error names the address and the system's
reason.  Nothing is shared by SO_REUSEPORT: a second server on the same port is an error.
"""

import errno
import os
import socket
import ssl
import stat
from collections.abc import Sequence
from contextlib import suppress

import attrs
import trio

from replay.errors import BindError

BACKLOG = 1024
UNIX_PREFIX = "unix:"

#: A host that vanishes sends no RST: the kernel finds out.  A probe costs nothing, and unlike a
#: PING no peer counts it.
KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


@attrs.frozen
class Address:
    """Where to listen: a host (name, IPv4, IPv6 with or without brackets) and port, or
    `unix:/path`."""

    host: str
    port: int = 0

    @property
    def unix_path(self) -> str | None:
        """The path of a Unix socket, or None for TCP."""
        return self.host[len(UNIX_PREFIX) :] if self.host.startswith(UNIX_PREFIX) else None

    def __str__(self) -> str:
        if self.unix_path is not None:
            return self.host
        return join_host_port(self.host, self.port)


def join_host_port(host: str, port: int) -> str:
    """Write an address the usual way, IPv6 in brackets."""
    host = host.strip("[]")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_host_port(text: str) -> Address:
    """Read `host:port`, `[v6]:port` or `unix:/path`.  Raises ValueError."""
    if text.startswith(UNIX_PREFIX):
        return Address(text)
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535 or not host:
        raise ValueError(f"not an address: {text}")
    if ":" in host and not (host[:1] == "[" and host[-1:] == "]"):
        raise ValueError(f"an IPv6 address is written in brackets: {text}")
    return Address(host.strip("[]"), int(port))


@attrs.define
class Listening:
    """Bound sockets of one address, listening but not accepted from, and what they are called."""

    address: Address
    sockets: list[socket.socket]

    @property
    def names(self) -> list[str]:
        """The addresses as they are now, with the real port."""
        if self.address.unix_path is not None:
            return [str(self.address)]
        return [join_host_port(*bound.getsockname()[:2]) for bound in self.sockets]

    @property
    def port(self) -> int:
        """The real port; 0 for a Unix socket."""
        if self.address.unix_path is not None:
            return 0
        return int(self.sockets[0].getsockname()[1])

    def listeners(self, tls: ssl.SSLContext | None) -> list[trio.abc.Listener[trio.abc.Stream]]:
        """Wrap the sockets for Trio."""
        plain = [trio.SocketListener(trio.socket.from_stdlib_socket(s)) for s in self.sockets]
        if tls is None:
            return list(plain)
        return [trio.SSLListener(listener, tls) for listener in plain]

    def close(self) -> None:
        """Close the sockets; a Unix socket's file goes too, but not one of a later server."""
        sockets, self.sockets = self.sockets, []
        for bound in sockets:
            bound.close()
        if self.address.unix_path is not None and sockets:
            with suppress(OSError):
                os.unlink(self.address.unix_path)


def listen(addresses: Sequence[Address]) -> list[Listening]:
    """Bind all *addresses*.  Raises BindError, and then none of them is bound."""
    bound: list[Listening] = []
    try:
        for address in addresses:
            bound.append(_listen_one(address))
    except BindError:
        for listening in bound:
            listening.close()
        raise
    return bound


def _listen_one(address: Address) -> Listening:
    if address.unix_path is not None:
        return Listening(address, [_bind_unix(address.unix_path)])
    host = address.host.strip("[]")
    try:
        found = socket.getaddrinfo(
            host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as error:
        raise BindError(f"cannot listen on {address}: {error.strerror}") from error
    sockets: list[socket.socket] = []
    port, reason = address.port, OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    try:
        for family, kind, protocol, _, sockaddr in dict.fromkeys(found):
            try:
                # All addresses that a name stands for share one port.
                bound = _bind_tcp(family, kind, protocol, (sockaddr[0], port, *sockaddr[2:]))
            except OSError as error:
                reason = error
                # A machine without IPv6 still resolves "localhost" to both.
                if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                    continue
                raise
            sockets.append(bound)
            port = bound.getsockname()[1]
        if not sockets:
            raise reason
    except OSError as error:
        for opened in sockets:
            opened.close()
        raise BindError(f"cannot listen on {address}: {error.strerror}") from error
    return Listening(address, sockets)


def _bind_tcp(family: int, kind: int, protocol: int, sockaddr: tuple[object, ...]) -> socket.socket:
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        for option in KEEPALIVE:  # what is accepted inherits them
            bound.setsockopt(*option)
        bound.bind(sockaddr)
        bound.listen(BACKLOG)
    except BaseException:
        bound.close()
        raise
    return bound


def _bind_unix(path: str) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.setblocking(False)
        _remove_stale(path)
        bound.bind(path)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        reason = error.strerror or str(error)
        raise BindError(f"cannot listen on {UNIX_PREFIX}{path}: {reason}") from error
    return bound


def _remove_stale(path: str) -> None:
    """Remove the file of a server that has died; one that answers is in use."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return  # bind says EADDRINUSE
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
