"""Runs against an OpenAI endpoint over HTTP/1.1."""

import json
import os
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from typing import Any

import attrs
import h11
import pytest
import trio

from replay.player.answer_log import AnswerLog
from replay.player.arrival import Arrival, Parameters, TokenPrompt
from replay.player.feed import ReadAhead
from replay.player.http1 import HttpClient, HttpError
from replay.player.observation import Observation, Outcome
from replay.player.openai_body import AnswerError, EventLines, note_event, openai_request
from replay.player.openai_target import open_openai_target
from replay.player.outgoing import Outgoing
from replay.player.play import Player, PlaySettings
from replay.player.schedule import original
from replay.player.targets import TargetError

MODELS = json.dumps({"data": [{"id": "served-model"}]}).encode()


@attrs.define
class FakeEndpoint:
    """Speaks HTTP/1.1 and streams two pieces of text for each request."""

    url: str = ""
    requests: list[tuple[str, dict[str, str], dict[str, Any]]] = attrs.field(factory=list)
    connections: int = 0
    was_left: trio.Event = attrs.field(factory=trio.Event)
    """Set when a client left in the middle of an answer."""
    pause: float = 0.0
    status: int = 200
    closes_after_each: bool = False
    whole: bytes = b""
    """Answers without a stream, if it is set."""
    events: tuple[bytes, ...] = (
        b'{"choices":[{"index":0,"text":"hel"}]}',
        b'{"choices":[{"index":0,"text":"lo","finish_reason":"length"}]}',
        b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":7,'
        b'"prompt_tokens_details":{"cached_tokens":2}}}',
    )

    async def serve(self, stream: trio.SocketStream) -> None:
        """Answer the requests of one connection."""
        self.connections += 1
        protocol = h11.Connection(h11.SERVER)
        try:
            while await self._answer_one(stream, protocol):
                protocol.start_next_cycle()
        except trio.BrokenResourceError:
            self.was_left.set()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                await trio.aclose_forcefully(stream)

    async def _answer_one(self, stream: trio.SocketStream, protocol: h11.Connection) -> bool:
        body = b""
        request: h11.Request | None = None
        while True:
            event = protocol.next_event()
            if event is h11.NEED_DATA:
                protocol.receive_data(await stream.receive_some())
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                return False
        assert request is not None

        async def send(event: Any) -> None:
            await stream.send_all(protocol.send(event) or b"")

        headers = {name.decode(): value.decode() for name, value in request.headers}
        if request.method == b"GET":
            await send(
                h11.Response(status_code=200, headers=[("content-length", str(len(MODELS)))])
            )
            await send(h11.Data(data=MODELS))
        else:
            self.requests.append((request.target.decode(), headers, json.loads(body)))
            await send(
                h11.Response(status_code=self.status, headers=[("transfer-encoding", "chunked")])
            )
            if self.whole:
                await send(h11.Data(data=self.whole))
                await send(h11.EndOfMessage())
                return True
            for event in self.events if self.status == 200 else ():
                await trio.sleep(self.pause)
                await send(h11.Data(data=b"data: " + event + b"\r\n\r\n"))
            await send(h11.Data(data=b"data: [DONE]\n\n"))
        await send(h11.EndOfMessage())
        return not self.closes_after_each


@asynccontextmanager
async def endpoint(**values: Any) -> AsyncIterator[FakeEndpoint]:
    """Serve a fake endpoint on a free port."""
    fake = FakeEndpoint(**values)
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    fake.url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/v1"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, fake.serve, [listener])
        yield fake
        nursery.cancel_scope.cancel()


def arrival(number: int, **values: Any) -> Arrival:
    defaults: dict[str, Any] = {
        "request_id": f"r{number}",
        "offset_ns": number * 1_000_000,
        "prompt": TokenPrompt(array("I", (1, 2, 3))),
        "stream": True,
    }
    return Arrival(position=number, **(defaults | values))


async def play(url: str, arrivals: list[Arrival], **target_values: Any) -> list[Observation]:
    results: list[Observation] = []
    async with open_openai_target(url, **target_values) as target:
        model = await target.describe()
        player = Player(
            target,
            ReadAhead(original(arrivals)),
            vocab_size=model.vocab_size,
            settings=PlaySettings(),
            on_result=results.append,
        )
        with trio.fail_after(30):
            await player.run(stop=trio.Event(), quit_now=trio.Event())
    return sorted(results, key=lambda each: each.position)


async def test_a_stream_of_text_is_put_together_and_measured() -> None:
    async with endpoint(pause=0.01) as fake:
        [found] = await play(fake.url, [arrival(0)])
    [choice] = found.choices
    assert (found.outcome, choice.text, choice.finish_reason) == (
        Outcome.COMPLETE,
        "hello",
        "length",
    )
    assert choice.token_ids is None
    assert (choice.output_tokens, found.prompt_tokens, found.cached_tokens) == (7, 3, 2)
    assert found.ttft_ns is not None
    assert found.ttft_ns >= 10_000_000
    assert len(found.itl_ns or ()) == 1


async def test_the_model_is_the_first_that_is_listed_and_the_id_goes_along() -> None:
    async with endpoint() as fake:
        await play(fake.url, [arrival(0)], api_key="key-1")
    [(path, headers, body)] = fake.requests
    assert path == "/v1/completions"
    assert body["model"] == "served-model"
    assert body["prompt"] == [1, 2, 3]
    assert headers["x-request-id"] == "r0"
    assert headers["authorization"] == "Bearer key-1"


async def test_an_answer_that_does_not_stream_has_no_first_token() -> None:
    whole = (
        b'{"choices":[{"index":0,"text":"hello","finish_reason":"stop"}],'
        b'"usage":{"completion_tokens":2}}'
    )
    async with endpoint(whole=whole) as fake:
        [found] = await play(fake.url, [arrival(0, stream=False)])
    assert (found.outcome, found.ttft_ns, found.chunk_offsets_ns) == (Outcome.COMPLETE, None, None)
    assert (found.choices[0].text, found.output_tokens) == ("hello", 2)


async def test_a_connection_is_used_again_and_replaced_when_the_server_closed_it() -> None:
    apart = [arrival(at, offset_ns=at * 100_000_000) for at in range(3)]
    async with endpoint() as fake:
        await play(fake.url, apart)
        assert fake.connections == 1
    async with endpoint(closes_after_each=True) as fake:
        results = await play(fake.url, apart)
        assert {each.outcome for each in results} == {Outcome.COMPLETE}
        assert len(fake.requests) == 3


@pytest.mark.timed
async def test_long_streams_delay_no_arrival() -> None:
    """A hundred in flight at once, each for a third of a second: no pool holds one back."""
    async with endpoint(pause=0.1) as fake:
        results = await play(fake.url, [arrival(at) for at in range(100)])
        assert fake.connections >= 90
    assert {each.outcome for each in results} == {Outcome.COMPLETE}
    delays = sorted(each.schedule_delay_ns or 0 for each in results)
    assert delays[50] < 20_000_000


async def test_a_cancelled_request_leaves_its_connection() -> None:
    recorded = Observation(request_id="r0", outcome=Outcome.CANCELLED, end_offset_ns=150_000_000)
    async with endpoint(pause=0.1, events=FakeEndpoint().events * 20) as fake:
        [found] = await play(fake.url, [arrival(0, recorded=recorded)])
        assert found.outcome is Outcome.CANCELLED
        with trio.fail_after(5):
            await fake.was_left.wait()


@pytest.mark.parametrize(
    ("values", "label"),
    [
        ({"status": 503}, "HTTP 503"),
        ({"events": (b'{"error":{"message":"secret"}}',)}, "error in the stream"),
        ({"events": (b"no json",)}, "not JSON"),
        ({"events": (b"[]",)}, "not an object"),
    ],
)
async def test_a_failure_has_a_short_label(values: dict[str, Any], label: str) -> None:
    async with endpoint(**values) as fake:
        [found] = await play(fake.url, [arrival(0)])
    assert (found.outcome, found.error) == (Outcome.ERROR, label)


async def test_an_answer_that_takes_too_long_fails() -> None:
    async with endpoint(pause=10.0) as fake:
        [found] = await play(fake.url, [arrival(0)], timeout=0.1)
    assert (found.outcome, found.error) == (Outcome.ERROR, "DEADLINE_EXCEEDED")


async def test_a_stream_that_ends_without_a_finish_is_incomplete() -> None:
    async with endpoint(events=FakeEndpoint().events[:1]) as fake:
        [found] = await play(fake.url, [arrival(0)])
    assert found.outcome is Outcome.INCOMPLETE


async def test_nobody_at_a_url_is_one_line_that_names_it() -> None:
    with pytest.raises(TargetError, match=r"http://127\.0\.0\.1:1/v1: no connection"):
        async with open_openai_target("http://127.0.0.1:1/v1") as target:
            await target.describe()


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://x/v1", "http:///v1", "http://user:secret@x/v1", "x"),
        *("http://a..b/v1", f"http://{'x' * 64}/v1", "http://x/vé", "http://x/v 1"),
    ],
)
async def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(TargetError):
        async with open_openai_target(url):
            raise AssertionError


@pytest.mark.parametrize("key", ["a\nb", "schlüssel", "a\0"])
async def test_a_key_that_no_header_can_have_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(TargetError, match="the API key has characters") as caught:
        async with open_openai_target("http://127.0.0.1:1/v1", api_key=key):
            raise AssertionError
    assert key not in str(caught.value)


async def test_a_key_is_sent_without_the_newline_behind_it() -> None:
    async with endpoint() as fake:
        await play(fake.url, [arrival(0)], api_key="key\n")
    assert {fields["authorization"] for _, fields, _ in fake.requests} == {"Bearer key"}


async def test_a_handshake_that_fails_or_is_left_leaves_no_socket() -> None:
    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        with trio.move_on_after(wait):
            await trio.sleep_forever()

    before = len(os.listdir("/proc/self/fd"))
    async with trio.open_nursery() as serving:
        (listener,) = await serving.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        client = HttpClient(f"https://127.0.0.1:{listener.socket.getsockname()[1]}")
        wait = 0.0
        with pytest.raises(HttpError):
            async with client.request("GET", "/"):
                raise AssertionError
        wait = inf
        with trio.move_on_after(0.05):
            async with client.request("GET", "/"):
                raise AssertionError
        serving.cancel_scope.cancel()
    assert len(os.listdir("/proc/self/fd")) == before


# ---- bodies


def body_of(**values: Any) -> tuple[str, dict[str, Any]]:
    defaults: dict[str, Any] = {"request_id": "r", "parameters": Parameters(), "stream": False}
    path, body = openai_request(Outgoing(**(defaults | values)), "m")
    return path, json.loads(body)


def test_text_and_ids_are_completions_and_messages_are_chats() -> None:
    assert body_of(text="hi") == ("/completions", {"model": "m", "stream": False, "prompt": "hi"})
    assert body_of(ids=array("I", (1,)))[1]["prompt"] == [1]
    messages = ({"role": "user", "content": "hi"},)
    path, body = body_of(messages=messages, tools=({"type": "function"},), stream=True)
    assert path == "/chat/completions"
    assert body["messages"] == list(messages)
    assert body["tools"] == [{"type": "function"}]
    assert body["stream_options"] == {"include_usage": True}


def test_parameters_have_the_names_of_openai_and_unset_ones_are_left_out() -> None:
    parameters = Parameters(
        temperature=0.0,
        max_new_tokens=0,
        sampling_seed=2**64 - 1,
        stop=("END",),
        logit_bias={"5": -1.0},
        return_logprob=True,
        top_logprobs_num=3,
    )
    _, body = body_of(text="x", parameters=parameters)
    assert body == {
        "model": "m",
        "stream": False,
        "prompt": "x",
        "temperature": 0.0,
        "max_tokens": 0,
        "seed": 2**64 - 1,
        "stop": ["END"],
        "logit_bias": {"5": -1.0},
        "logprobs": 3,
    }


def test_a_value_that_json_cannot_say_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        body_of(text="x", parameters=Parameters(temperature=float("nan")))


@pytest.mark.parametrize("cut", range(1, 12))
def test_events_are_found_wherever_the_stream_is_cut(cut: int) -> None:
    data = b": comment\r\ndata: {}\r\n\r\nevent: x\ndata:[1]\n\ndata: [DONE]\n\n"
    lines = EventLines()
    found = [event for at in range(0, len(data), cut) for event in lines.feed(data[at : at + cut])]
    assert found == [b"{}", b"[1]"]


def test_a_chats_pieces_are_in_its_deltas() -> None:
    log = AnswerLog("r", 0)
    log.sent(0, expected=1, is_streamed=True)
    note_event(log, b'{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}', 1)
    note_event(log, b'{"choices":[{"index":0,"delta":{"content":"hi"}}]}', 2)
    note_event(log, b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}', 3)
    found = log.ended(4)
    assert (found.choices[0].text, found.ttft_ns, found.outcome) == ("hi", 2, Outcome.COMPLETE)
    with pytest.raises(AnswerError):
        note_event(log, b"{", 5)
