"""What the one HTTP port answers: metrics, health, and the state of the runtime as JSON."""

from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route


def build_app(
    registry: CollectorRegistry,
    *,
    is_healthy: Callable[[], bool],
    status: Callable[[], Mapping[str, Any]],
    routes: tuple[BaseRoute, ...] = (),
) -> Starlette:
    """Return the application; *routes* are answered beside its own.

    Every handler runs on the loop's thread: the counters that it reads have no locks.
    """

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), media_type=content_type)

    async def health(request: Request) -> Response:
        if is_healthy():
            return PlainTextResponse("ok\n")
        return PlainTextResponse("shutting down\n", status_code=503)

    async def show_status(request: Request) -> Response:
        return JSONResponse(status())

    return Starlette(
        routes=[
            Route("/metrics", metrics),
            Route("/healthz", health),
            Route("/status", show_status),
            *routes,
        ]
    )
