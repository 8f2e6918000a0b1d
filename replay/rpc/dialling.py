"""How a channel gets its connections: one attempt at a time, however many calls wait for it.

The attempt is a task of the channel's, so a call that is cancelled does not take it away from the
others.  All who wait share its outcome; after one that failed, calls fail at once until the pause
is over, and the next one tries again.
"""

import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio
from purerpc.grpclib.exceptions import UnavailableError

from replay.rpc.backoff import Backoff
from replay.rpc.listeners import KEEPALIVE, Address

C = TypeVar("C")

#: How long a connection may take until the server has spoken.
CONNECT_SECONDS = 10.0

#: A request that a vanished host does not take is given up by the kernel, as an idle connection is.
_USER_TIMEOUT = (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)


class _Attempt(Generic[C]):
    """One try, and what came of it."""

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.connection: C | None = None


class Dialler(Generic[C]):
    """Opens connections to one server with *open_one*, which may raise what `open_stream` does."""

    def __init__(
        self, tasks: trio.Nursery, open_one: Callable[[], Awaitable[C]], *, server: str
    ) -> None:
        self._tasks = tasks
        self._open_one = open_one
        self._server = server
        self._backoff = Backoff()
        self._attempt: _Attempt[C] | None = None
        self._reason = ""

    async def connect(self) -> C:
        """Return a new connection, the same to all who wait.

        Raises UNAVAILABLE when it cannot be had, and without trying while the pause lasts.
        """
        if self._attempt is None:
            if self._backoff.left(trio.current_time()):
                raise self._error()
            self._attempt = _Attempt()
            self._tasks.start_soon(self._try, self._attempt)
        attempt = self._attempt
        await attempt.ended.wait()
        if attempt.connection is None:
            raise self._error()
        return attempt.connection

    def _error(self) -> Exception:
        error: Exception = UnavailableError(f"cannot connect to {self._server}: {self._reason}")
        return error

    async def _try(self, attempt: _Attempt[C]) -> None:
        self._reason = "the channel is closed"  # unless it turns out to be something else
        try:
            with trio.fail_after(CONNECT_SECONDS):
                attempt.connection = await self._open_one()
        except (OSError, UnicodeError, trio.TooSlowError, trio.BrokenResourceError) as error:
            # UnicodeError: the host is no name that could be looked up.
            self._reason = reason_of(error)
            self._backoff.failed(trio.current_time())
        else:
            self._backoff.succeeded()
        finally:
            self._attempt = None
            attempt.ended.set()


def reason_of(error: BaseException) -> str:
    """Say why there is no connection: in the system's words if it gave any."""
    if isinstance(error, trio.TooSlowError):
        return "no answer in time"
    if isinstance(error, BaseExceptionGroup):  # an attempt for each address of a name
        return reason_of(error.exceptions[0])
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if error.__cause__ is not None:
        return reason_of(error.__cause__)
    return str(error) or type(error).__name__


async def open_stream(address: Address, tls: ssl.SSLContext | None) -> trio.abc.Stream:
    """Connect to *address*, and through the TLS handshake.

    Raises OSError, Trio's errors, and UnicodeError for a host that is no name.
    """
    plain: trio.SocketStream
    if address.unix_path is not None:
        plain = await trio.open_unix_socket(address.unix_path)
    else:
        plain = await trio.open_tcp_stream(address.host, address.port)
        for option in (*KEEPALIVE, _USER_TIMEOUT):
            plain.setsockopt(*option)
    if tls is None:
        return plain
    tls.set_alpn_protocols(["h2"])
    secure = trio.SSLStream(plain, tls, server_hostname=address.host, https_compatible=True)
    try:
        await secure.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(secure)
        raise
    return secure
