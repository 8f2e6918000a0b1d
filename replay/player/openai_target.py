"""A target with an OpenAI endpoint: `http(s)://host:port/v1`."""

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from replay.player.answer_log import AnswerLog
from replay.player.http1 import HttpClient, HttpError
from replay.player.openai_body import (
    AnswerError,
    EventLines,
    note_event,
    note_whole,
    openai_request,
)
from replay.player.outgoing import Outgoing, Speaks
from replay.player.targets import Clock, SendError, TargetError, TargetModel
from replay.rpc.dialling import reason_of

#: What prompts are made of where the endpoint does not say how many ids its model knows.
ASSUMED_VOCAB_SIZE = 32_000
DESCRIBE_SECONDS = 10.0


@asynccontextmanager
async def open_openai_target(
    url: str,
    *,
    model: str | None = None,
    vocab_size: int | None = None,
    api_key: str | None = None,
    tls: ssl.SSLContext | None = None,
    timeout: float | None = None,
) -> AsyncIterator["OpenAITarget"]:
    """Send requests to the endpoint below *url*; requests may take *timeout* seconds each.

    Without *model* the first that the endpoint lists is used.  Raises TargetError for what is no
    URL, or no key.
    """
    api_key = (api_key or "").strip()  # a file's last newline comes along easily
    if not (api_key.isascii() and api_key.isprintable()):
        raise TargetError("the API key has characters that cannot be sent in a header")
    try:
        client = HttpClient(url, tls=tls)
    except ValueError as error:
        raise TargetError(f"{url.partition('?')[0]}: {error}") from None
    try:
        yield OpenAITarget(
            url,
            client,
            model=model,
            vocab_size=vocab_size or ASSUMED_VOCAB_SIZE,
            api_key=api_key,
            timeout=timeout,
        )
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
            await client.aclose()


class OpenAITarget:
    """An endpoint that speaks OpenAI's completions and chat completions."""

    speaks = Speaks.IDS_AND_TEXT

    def __init__(
        self,
        url: str,
        client: HttpClient,
        *,
        model: str | None,
        vocab_size: int,
        api_key: str,
        timeout: float | None,
    ) -> None:
        self._url = url
        self._client = client
        self._model = model
        self._vocab_size = vocab_size
        self._timeout = timeout
        self._headers = [("accept", "text/event-stream"), ("content-type", "application/json")]
        if api_key:
            self._headers.append(("authorization", f"Bearer {api_key}"))

    async def describe(self) -> TargetModel:
        """Ask the endpoint for its models.  Raises TargetError."""
        try:
            with trio.fail_after(DESCRIBE_SECONDS):
                async with self._client.request(
                    "GET", "/models", headers=self._headers
                ) as response:
                    body = b""
                    while piece := await response.receive():
                        body += piece
        except HttpError as error:
            cause = error.__cause__
            why = "" if cause is None else f": {reason_of(cause)}"
            raise TargetError(f"{self._url}: {error}{why}") from None
        except trio.TooSlowError:
            raise TargetError(f"{self._url}: no answer in {DESCRIBE_SECONDS:g} s") from None
        if self._model is None:
            self._model = _first_model(body) if response.status == 200 else None
        if self._model is None:
            raise TargetError(
                f"{self._url}: lists no model (HTTP {response.status}): name one with --model"
            )
        return TargetModel(name=self._model, vocab_size=self._vocab_size)

    def pack(self, outgoing: Outgoing) -> "_PackedCompletion":
        """Write the request's body.  Raises ValueError for a value that JSON cannot say."""
        path, body = openai_request(outgoing, self._model or "")
        headers = self._headers
        if outgoing.request_id.isascii() and outgoing.request_id.isprintable():
            headers = [*headers, ("x-request-id", outgoing.request_id.strip())]
        return _PackedCompletion(
            client=self._client,
            timeout=self._timeout,
            path=path,
            headers=headers,
            body=body,
            choices=outgoing.parameters.n or 1,
            stream=outgoing.stream,
        )


@attrs.frozen(kw_only=True)
class _PackedCompletion:
    """A completion that is ready to be asked for."""

    client: HttpClient
    timeout: float | None
    path: str
    headers: list[tuple[str, str]] = attrs.field(repr=False)
    body: bytes = attrs.field(repr=False)
    choices: int
    stream: bool

    async def send(self, log: AnswerLog, clock: Clock) -> None:
        """Send it and note what comes back.  Raises SendError with a short label."""
        log.sent(clock.now_ns(), expected=self.choices, is_streamed=self.stream)
        with trio.move_on_after(
            self.timeout if self.timeout is not None else float("inf")
        ) as scope:
            try:
                await self._exchange(log, clock)
            except (HttpError, AnswerError) as error:
                raise SendError(str(error)) from None
        if scope.cancelled_caught:
            raise SendError("DEADLINE_EXCEEDED")

    async def _exchange(self, log: AnswerLog, clock: Clock) -> None:
        async with self.client.request(
            "POST", self.path, headers=self.headers, body=self.body
        ) as response:
            if response.status != 200:
                raise SendError(f"HTTP {response.status}")
            lines = EventLines()
            whole: list[bytes] = []
            while piece := await response.receive():
                now_ns = clock.now_ns()
                if not self.stream:
                    whole.append(piece)
                    continue
                for event in lines.feed(piece):
                    note_event(log, event, now_ns)
            if not self.stream:
                note_whole(log, b"".join(whole), clock.now_ns())


def _first_model(body: bytes) -> str | None:
    try:
        return str(json.loads(body)["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError):
        return None
