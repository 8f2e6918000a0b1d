"""A plain HTTP client for the port under test."""

import http.client
import json
from functools import partial
from typing import Any

import attrs
import trio


@attrs.frozen
class Answered:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


async def ask(
    address: str | None, method: str, path: str, body: Any = None, **headers: str
) -> Answered:
    """Send one request; *body* is bytes as they are, or what JSON can say.

    *headers* are names with underscores.
    """
    assert address is not None
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    return await trio.to_thread.run_sync(partial(_ask, address, method, path, sent, named))


def _ask(
    address: str, method: str, path: str, body: bytes | None, headers: dict[str, str]
) -> Answered:
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        received = {name.lower(): value for name, value in response.getheaders()}
        return Answered(response.status, received, response.read())
    finally:
        connection.close()
