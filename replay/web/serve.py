"""Serves the HTTP application on a socket that is bound beforehand.

Hypercorn speaks HTTP on each connection; accepting is our own.  It shields what it writes from a
cancellation, so at a stop it would wait for ever for a client that does not read.  Here the
connections are known, and those that outlast the grace are cut off.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import trio
from hypercorn.config import Config as HypercornConfig
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import wrap_app
from starlette.applications import Starlette

from replay.rpc.listeners import Listening

#: Where Hypercorn tells of what fails.
_ERRORS = logging.getLogger("replay.web.hypercorn")
_ERRORS.setLevel(logging.WARNING)

#: Requests to this port are short; one that is not may take this long at a stop.
GRACE_SECONDS = 0.5


@asynccontextmanager
async def serving_http(app: Starlette, listening: Listening) -> AsyncIterator[None]:
    """Serve *app* on *listening* for as long as the block lasts; the sockets are the caller's."""
    stop = trio.Event()
    lifetime = trio.CancelScope()
    async with trio.open_nursery() as serving:
        await serving.start(_serve, app, listening, stop, lifetime)
        # Whoever asks for metrics while the runtime drains gets an answer.  Not shielded before it
        # has started: such a start could not be cancelled.
        lifetime.shield = True
        try:
            yield
        finally:
            stop.set()


async def _serve(
    app: Starlette,
    listening: Listening,
    stop: trio.Event,
    lifetime: trio.CancelScope,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    connections = _Connections(app)
    listeners = [
        trio.SocketListener(trio.socket.from_stdlib_socket(bound)) for bound in listening.sockets
    ]
    with lifetime:
        async with trio.open_nursery() as answering:
            accept = partial(trio.serve_listeners, handler_nursery=answering)
            async with trio.open_nursery() as accepting:
                await accepting.start(accept, connections.answer, listeners)
                task_status.started()
                await stop.wait()
                accepting.cancel_scope.cancel()
            await connections.end()
            answering.cancel_scope.cancel()


class _Connections:
    """The connections of one application."""

    def __init__(self, app: Starlette) -> None:
        self._config = HypercornConfig()
        self._config.accesslog = None
        self._config.errorlog = _ERRORS
        self._config.include_server_header = False
        # Starlette and Hypercorn spell the same ASGI types differently.
        self._app = wrap_app(cast(Any, app), self._config.wsgi_max_body_size, "asgi")
        self._context = WorkerContext(None)
        self._open: set[trio.SocketStream] = set()
        self._one_ended = trio.Event()

    async def answer(self, stream: trio.SocketStream) -> None:
        """Answer what comes on a connection, until it ends."""
        self._open.add(stream)
        server = TCPServer(self._app, self._config, self._context, ConnectionState({}), stream)
        try:
            await server.run()
        except Exception:  # concerns this connection; the others go on
            _ERRORS.exception("a connection failed")
        finally:
            self._open.remove(stream)
            self._one_ended.set()

    async def end(self) -> None:
        """Let requests end within the grace, and cut off what is left."""
        await self._context.terminated.set()  # idle connections close
        with trio.move_on_after(GRACE_SECONDS):
            while self._open:
                await self._one_ended.wait()
                self._one_ended = trio.Event()
        for stream in self._open:
            stream.socket.close()  # wakes a write, which no cancellation does
