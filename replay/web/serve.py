"""Serves the HTTP application with Hypercorn on a socket that is bound beforehand."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import trio
from hypercorn.config import Config as HypercornConfig
from hypercorn.config import Sockets
from hypercorn.trio import serve
from starlette.applications import Starlette

from replay.rpc.listeners import Listening

#: Hypercorn's own news, such as where it listens, are said elsewhere.
_ERRORS = logging.getLogger("replay.web.hypercorn")
_ERRORS.setLevel(logging.WARNING)

#: Requests to this port are short; one that is not may take this long at a stop.
GRACE_SECONDS = 0.5


class _BoundConfig(HypercornConfig):
    """A configuration whose sockets are there already, and stay somebody else's to close."""

    def __init__(self, listening: Listening) -> None:
        super().__init__()
        self._listening = listening

    def create_sockets(self) -> Sockets:
        return Sockets(
            secure_sockets=[], insecure_sockets=list(self._listening.sockets), quic_sockets=[]
        )


@asynccontextmanager
async def serving_http(app: Starlette, listening: Listening) -> AsyncIterator[None]:
    """Serve *app* on *listening* for as long as the block lasts; the sockets are the caller's."""
    config = _BoundConfig(listening)
    config.graceful_timeout = config.shutdown_timeout = GRACE_SECONDS
    config.accesslog = None
    config.errorlog = _ERRORS
    config.include_server_header = False
    stop = trio.Event()
    lifetime = trio.CancelScope()
    async with trio.open_nursery() as serving:
        await serving.start(_serve, app, config, stop, lifetime)
        # Whoever asks for metrics while the runtime drains gets an answer.  Not shielded before it
        # has started: such a start could not be cancelled.
        lifetime.shield = True
        try:
            yield
        finally:
            stop.set()


async def _serve(
    app: Starlette,
    config: HypercornConfig,
    stop: trio.Event,
    lifetime: trio.CancelScope,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    with lifetime:
        await serve(
            cast(Any, app),  # Starlette and Hypercorn spell the same ASGI types differently
            config,
            shutdown_trigger=stop.wait,
            task_status=cast(Any, task_status),
        )
