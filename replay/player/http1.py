"""Requests over HTTP/1.1: as many connections as there are requests in flight, and no pool between.

A pool with a bound would hold later requests back, and a replay would measure the pool.  A
connection that has served a request is kept for the next for a few seconds.
"""

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import h11
import trio

#: Servers close connections that nobody uses after five seconds or more.
_KEPT_SECONDS = 4.0
_CONNECT_SECONDS = 10.0
_PIECE_BYTES = 1 << 16

Headers = Sequence[tuple[str, str]]


class HttpError(Exception):
    """A request got no answer.  The text is one of few words, without content."""


class Response:
    """An answer: its status, and its body as it arrives."""

    def __init__(self, connection: "_Connection", status: int) -> None:
        self._connection = connection
        self.status = status

    async def receive(self) -> bytes:
        """Wait for the next bytes of the body; none at its end.  Raises HttpError."""
        event = await self._connection.next_event()
        return bytes(event.data) if isinstance(event, h11.Data) else b""


class HttpClient:
    """Connections to one server."""

    def __init__(self, url: str, *, tls: ssl.SSLContext | None = None) -> None:
        """Raises ValueError for a URL that is not `http(s)://host…`."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                "must be http://host or https://host, with a port and a path if needed"
            )
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("takes no user, query or fragment")
        if not (parts.path.isascii() and parts.path.isprintable() and " " not in parts.path):
            raise ValueError("must have its path percent-encoded")
        try:
            self._host = parts.hostname.encode("idna").decode()
        except UnicodeError:
            raise ValueError("must have a host that is a name or an address") from None
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._authority = parts.netloc
        if not self._authority.isascii():
            self._authority = self._host if parts.port is None else f"{self._host}:{self._port}"
        self._base = parts.path.rstrip("/")
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._idle: list[_Connection] = []

    @asynccontextmanager
    async def request(
        self, method: str, path: str, *, headers: Headers = (), body: bytes = b""
    ) -> AsyncIterator[Response]:
        """Send a request; leaving the block early closes its connection.  Raises HttpError."""
        fields = [
            ("host", self._authority),
            ("content-length", str(len(body))),
            *headers,
        ]
        request = h11.Request(method=method, target=self._base + path, headers=fields)
        connection, response = await self._exchange(request, body)
        try:
            yield response
        finally:
            if connection.can_be_kept():
                self._idle.append(connection)
            else:
                await trio.aclose_forcefully(connection.stream)

    async def aclose(self) -> None:
        """Close the connections that nobody uses."""
        while self._idle:
            await trio.aclose_forcefully(self._idle.pop().stream)

    async def _exchange(self, request: h11.Request, body: bytes) -> tuple["_Connection", Response]:
        """Send a request and wait for the head of its answer.

        A kept connection that turns out to be closed has carried nothing: another takes its place.
        """
        while (connection := await self._kept()) is not None:
            with suppress(HttpError):
                return connection, await connection.exchange(request, body)
        connection = await self._connect()
        return connection, await connection.exchange(request, body)

    async def _kept(self) -> "_Connection | None":
        while self._idle:
            connection = self._idle.pop()
            if trio.current_time() - connection.used_at < _KEPT_SECONDS:
                return connection
            await trio.aclose_forcefully(connection.stream)
        return None

    async def _connect(self) -> "_Connection":
        try:
            with trio.fail_after(_CONNECT_SECONDS):
                return _Connection(await self._open())
        except (OSError, UnicodeError, trio.BrokenResourceError, trio.TooSlowError) as error:
            # The cause is for whoever asks once, at the start; a label of requests is short.
            raise HttpError("no connection") from error

    async def _open(self) -> trio.abc.Stream:
        plain = await trio.open_tcp_stream(self._host, self._port)
        if self._tls is None:
            return plain
        secure = trio.SSLStream(plain, self._tls, server_hostname=self._host, https_compatible=True)
        try:
            await secure.do_handshake()
        except BaseException:
            await trio.aclose_forcefully(secure)
            raise
        return secure


class _Connection:
    """One connection, which carries one request at a time."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.used_at = 0.0
        self._protocol = h11.Connection(h11.CLIENT)

    async def exchange(self, request: h11.Request, body: bytes) -> Response:
        """Send a request and wait for the head of its answer; closes itself if that fails."""
        try:
            parts = [
                self._protocol.send(request),
                self._protocol.send(h11.Data(data=body)) if body else b"",
                self._protocol.send(h11.EndOfMessage()),
            ]
            try:
                await self.stream.send_all(b"".join(part or b"" for part in parts))
            except (OSError, trio.BrokenResourceError):
                raise HttpError("connection lost") from None
            event = await self.next_event()
            while isinstance(event, h11.InformationalResponse):
                event = await self.next_event()
        except BaseException:
            await trio.aclose_forcefully(self.stream)
            raise
        assert isinstance(event, h11.Response)
        return Response(self, event.status_code)

    async def next_event(self) -> h11.Event:
        """Wait for the next event of the answer.  Raises HttpError."""
        try:
            while True:
                event = self._protocol.next_event()
                if event is h11.NEED_DATA:
                    self._protocol.receive_data(bytes(await self.stream.receive_some(_PIECE_BYTES)))
                elif isinstance(event, h11.Event) and not isinstance(event, h11.ConnectionClosed):
                    return event
                else:
                    raise HttpError("connection lost")
        except h11.RemoteProtocolError:
            raise HttpError("not HTTP") from None
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            raise HttpError("connection lost") from None

    def can_be_kept(self) -> bool:
        """Say whether another request may follow, and get ready for it."""
        protocol = self._protocol
        if protocol.our_state is not h11.DONE or protocol.their_state is not h11.DONE:
            return False
        protocol.start_next_cycle()
        self.used_at = trio.current_time()
        return True
