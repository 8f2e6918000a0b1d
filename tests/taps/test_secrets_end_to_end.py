"""What a client sends as text is in the capture, and nowhere else when every tap is `tokens-only`.

Everything that a worker and its consumers write or say is searched: record files, the consumers'
lines, files and reports, logs at DEBUG, status texts of failed calls, metrics and status.
"""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import trio
from google.protobuf import struct_pb2
from purerpc.grpclib.exceptions import RpcFailedError

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.engines.base import Answer, Generation, Model
from replay.engines.canned import CannedEngine
from replay.engines.methods import GENERATE, METHODS
from replay.rpc.client import Channel, open_channel
from tests.engines.requests import generate_request
from tests.taps.mirroring import JOINED, PLAIN, QUICK, consuming, counted, events, worker
from tests.worker.running import config_of, running

#: Each place in which text of a client may stand has a word of its own.
CUSTOM, METADATA, ORIGINAL, REGEX, SCHEMA, GARBAGE = (
    f"sk-{place}-4f1c9e" for place in ("custom", "header", "prompt", "regex", "schema", "bytes")
)
SECRETS = (CUSTOM, METADATA, ORIGINAL, REGEX, SCHEMA, GARBAGE)

HEADERS = (
    (b"authorization", f"Bearer {METADATA}".encode()),
    (b"X-Api-Key".lower(), METADATA.encode()),
    (b"x-claude-code-session-id", METADATA.encode()),
)


def secret_request(request_id: str, **changes: Any) -> pb.GenerateRequest:
    params = struct_pb2.Struct()
    params.update({"user": CUSTOM, "nested": {CUSTOM: [CUSTOM]}})
    message = generate_request(
        request_id=request_id, **{"max_new_tokens": 4, "custom_params": params, **changes}
    )
    message.tokenized.original_text = f"My key is {ORIGINAL}"
    return message


async def send(channel: Channel, message: pb.GenerateRequest, **options: Any) -> str:
    """Send a request and return what was said when it failed, or nothing."""
    try:
        async with channel.stream(GENERATE, message, metadata=HEADERS, **options) as answers:
            async for _ in answers:
                pass
    except RpcFailedError as error:
        return str(error)
    return ""


async def every_kind_of_request(address: str) -> list[str]:
    """Send requests that succeed, fail and are cut short; return what was said of them."""
    async with open_channel(address) as channel:
        said = [
            await send(channel, secret_request("whole")),
            await send(channel, secret_request("refused", regex=f"({REGEX}", top_p=9.0)),
            await send(channel, secret_request("regex", regex=f"({REGEX}")),
            await send(channel, secret_request("schema", json_schema=f'{{"{SCHEMA}')),
            await send(channel, secret_request("late", max_new_tokens=10_000), timeout=0.2),
        ]
        with trio.move_on_after(0.2):
            await send(channel, secret_request("taken back", max_new_tokens=10_000))
        # A length that runs over the end: what cannot be parsed.
        garbage = secret_request("x").SerializeToString() + b"\x0a\x7f" + GARBAGE.encode()
        said.append(await _send_bytes(channel, garbage))
        abort = pb.AbortRequest(request_id="nobody", reason=ORIGINAL)
        said.append(str(await channel.unary(METHODS["Abort"], abort)))
        return said


class _Bytes:
    """A message that serializes to what it was given."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        return self._data


async def _send_bytes(channel: Channel, data: bytes) -> str:
    return await send(channel, _Bytes(data))  # type: ignore[arg-type]


def fetched(address: str) -> str:
    """Return all that the HTTP port says."""
    found = []
    for path in ("/metrics", "/status", "/healthz", f"/{METADATA}"):
        try:
            answer = urllib.request.urlopen(f"http://{address}{path}", timeout=10)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            found.append(answer.read().decode())
    return "\n".join(found)


def places(root: Path, secrets: tuple[str, ...]) -> set[tuple[str, str]]:
    """Return which secret is in which file below *root*."""
    return {
        (path.name, secret)
        for path in root.rglob("*")
        if path.is_file()
        for secret in secrets
        if secret.encode() in path.read_bytes()
    }


@pytest.mark.parametrize("filters", [["tokens-only"], []])
async def test_what_a_client_sends_as_text_is_in_no_artefact_but_the_capture(
    tmp_path: Path, filters: list[str]
) -> None:
    """Without the filter the same search finds what the default lets through (rule 29)."""
    taps = [
        {**tap, "filters": filters, "record_file": {"path": str(tmp_path / f"{tap['name']}.rec")}}
        for tap in (JOINED, PLAIN)
    ]
    flags = ("--log-level", "debug", "--http-port", "0", "--token-ms", "2")
    capture = tmp_path / "capture.jsonl"
    options = ("--capture", str(capture))
    with worker(tmp_path, taps, *flags, *options, event_plane=QUICK) as process:
        async with (
            consuming(tmp_path, "shadow-replay", "--print", "--record", str(tmp_path / "a")) as one,
            consuming(tmp_path, "shadow-audit", "--print", "--record", str(tmp_path / "b")) as two,
        ):
            said = await every_kind_of_request(process.address)
            for topic in ("shadow-replay", "shadow-audit"):
                await counted(tmp_path, topic, 3)
            (http,) = (line["address"] for line in events(process) if line["event"] == "http")
            (tmp_path / "http").write_text(fetched(http))
            reports = [await each.end() for each in (one, two)]
            (tmp_path / "said").write_text("\n".join(said))
            (tmp_path / "out").write_text(one.output + two.output + json.dumps(reports))
    assert [report["records"] for _, report in reports] == [3, 3]
    assert sum(bool(each) for each in said) == 6
    found = places(tmp_path, SECRETS)
    if filters:
        # A gateway's capture has the text of the prompt; it is what one turns on to have it.
        assert {name for name, _ in found} == {"capture.jsonl"}
        assert ("capture.jsonl", ORIGINAL) in found
    else:
        records = {"shadow-replay.rec.000000", "shadow-audit.rec.000000", "a", "b", "out"}
        assert found >= {(name, each) for name in records for each in (CUSTOM, ORIGINAL)}
        outside = {(name, each) for name, each in found if name not in records}
        assert {name for name, _ in outside} == {"capture.jsonl"}
        assert METADATA not in {each for name, each in found if name in records}


class Quoting(CannedEngine):
    """An engine whose exceptions quote what it was asked."""

    async def generate(self, generation: Generation, answer: Answer) -> None:
        raise ValueError(f"cannot serve {generation.message}")


async def test_an_engines_exception_is_logged_without_its_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    async with running(config_of(), engine=Quoting(Model())) as worker:
        said = await send(worker.channel, secret_request("r"))
    logged = caplog.text + str([vars(record) for record in caplog.records])
    assert "ValueError" in said
    assert "ValueError" in logged
    assert not [each for each in SECRETS if each in logged + said]
