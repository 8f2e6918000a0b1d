"""One path of the admin port: who may ask, and which handler answers.

Without a token only this machine may ask, and no page in a browser: the person who looks at one
must not lend it the way to a worker.
"""

import hmac
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from replay.config.address import is_loopback

#: A fault is a few numbers.
LONGEST_BODY = 16 * 1024

Handler = Callable[[Request], Awaitable[Response]]


class RefusedError(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, *problems: str, **headers: str) -> None:
        super().__init__(*problems)
        self.status = status
        self.problems = problems
        self.headers = headers

    def response(self) -> Response:
        """Return the answer that says so."""
        return JSONResponse({"problems": self.problems}, self.status, self.headers)


class GuardedPath:
    """An ASGI application with a handler for each method.

    *token* is what requests have to bear; None: nothing.
    """

    def __init__(self, handlers: Mapping[str, Handler], token: str | None) -> None:
        self.handlers = handlers
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            self._check(request)
            method = "GET" if request.method == "HEAD" else request.method
            handler = self.handlers.get(method)
            if handler is None:
                allowed = ", ".join(self.handlers)
                raise RefusedError(405, f"only {allowed} is answered here", allow=allowed)
            response = await handler(request)
        except RefusedError as refused:
            response = refused.response()
        except ClientDisconnect:
            return
        await response(scope, receive, send)

    def _check(self, request: Request) -> None:
        if self._token is not None:
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            is_right = hmac.compare_digest(token.strip().encode(), self._token.encode())
            if scheme.lower() != "bearer" or not is_right:
                challenge = {"www-authenticate": 'Bearer realm="admin"'}
                raise RefusedError(401, "the bearer token is missing or wrong", **challenge)
        elif "origin" in request.headers:
            raise RefusedError(403, "a page in a browser may not ask without a token")
        elif not is_loopback(_host_name(request.headers.get("host", ""))):
            raise RefusedError(403, "without a token only this machine may ask, by its own name")


def _host_name(host: str) -> str:
    """Return the name or address of a Host header, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


async def read_whole(request: Request) -> bytes:
    """Return the body; raises RefusedError for one that is too long."""
    body = b""
    async with aclosing(request.stream()) as pieces:
        async for piece in pieces:
            body += piece
            if len(body) > LONGEST_BODY:
                raise RefusedError(413, f"the body is longer than {LONGEST_BODY} bytes")
    return body
