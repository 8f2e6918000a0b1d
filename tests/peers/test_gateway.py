"""The real smg gateway before the worker: what it puts on the wire is what the capture shows."""

import contextlib
import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import grpc
import pytest
from click.testing import CliRunner
from smg_gateway import Gateway, running_gateway
from worker_process import WorkerProcess, running_worker

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.cli import main

pytestmark = pytest.mark.gateway

TOKENIZER = Path(__file__).resolve().parents[1] / "data" / "tiny-model"

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"

MESSAGES = [{"role": "user", "content": "hello world"}]
#: `MESSAGES` under the chat template of the tokenizer.
CHAT_IDS = [1, 346, 201, 318, 347, 2, 201, 1, 363, 201]

#: What this gateway sends for a chat request that says nothing but `max_tokens`.
CHAT_LINE: dict[str, Any] = {
    "request_id": "",
    "input_ids": CHAT_IDS,
    "original_text": "",
    "stream": False,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "max_new_tokens": 3,
    "min_new_tokens": 0,
    "stop": [],
    "stop_token_ids": [],
    "ignore_eos": False,
    "no_stop_trim": False,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "n": 1,
    "sampling_seed": None,
    "logit_bias": {},
    "constraint": None,
    "return_logprob": False,
    "logprob_start_len": -1,
    "top_logprobs_num": 0,
    "token_ids_logprob": [],
    "has_custom_params": False,
    "has_mm_inputs": False,
    "has_encode_bootstrap_info": False,
    "has_kv_bootstrap_info": False,
    "has_data_parallel_rank": False,
}

SCHEMA = {
    "type": "object",
    "properties": {"b": {"type": "integer"}, "a": {"type": "string"}},
    "required": ["b"],
}


@attrs.frozen
class Setup:
    """A worker with a capture, and the gateway in front of it."""

    worker: WorkerProcess
    gateway: Gateway
    capture: Path

    def lines(self) -> list[dict[str, Any]]:
        """Return what is captured so far, in order."""
        return [json.loads(line) for line in self.capture.read_text().splitlines()]

    def line(self, request_id: str) -> dict[str, Any]:
        """Return the only line of a request."""
        (found,) = [line for line in self.lines() if line["request_id"] == request_id]
        return found

    def post(self, path: str, **body: Any) -> tuple[int, str]:
        """Send an OpenAI request for the worker's model."""
        return self.gateway.post(path, {"model": self.gateway.model, **body})


@pytest.fixture(scope="module", params=["cache_aware", "round_robin", "upstream"])
def setup(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Setup]:
    """A worker behind the gateway; with `upstream` it passes everything on to a second one."""
    folder = tmp_path_factory.mktemp("gateway")
    capture = folder / "generate.jsonl"
    engine = ["--tokenizer", TOKENIZER, "--token-ms", "2", "--vocab-size", "4096"]
    policy = request.param
    with contextlib.ExitStack() as processes:
        if policy == "upstream":
            policy = "cache_aware"
            below = processes.enter_context(
                running_worker(*engine, "--log-level", "debug", log=folder / "upstream.log")
            )
            engine = ["--engine", "upstream", "--upstream", f"grpc://{below.address}"]
        worker = processes.enter_context(
            running_worker(
                *engine, "--capture", capture, "--log-level", "debug", log=folder / "worker.log"
            )
        )
        gateway = processes.enter_context(
            running_gateway(worker.address, log=folder / "smg.log", policy=policy)
        )
        yield Setup(worker, gateway, capture)


def answer_id(path: str, body: str) -> str:
    """Return the id that the gateway gave to its answer."""
    events = [line[6:] for line in body.splitlines() if line.startswith("data: {")]
    answer = json.loads(events[0] if events else body)
    if path == GENERATE:
        answer = answer[0] if isinstance(answer, list) else answer
        return str(answer["meta_info"]["id"]).removesuffix("-0")
    return str(answer["id"])


@pytest.mark.parametrize(
    ("name", "path", "body", "captured"),
    [
        ("plain", CHAT, {}, {}),
        ("sampled", CHAT, {"temperature": 0.7, "top_p": 0.9}, {"temperature": 0.7, "top_p": 0.9}),
        ("greedy", CHAT, {"temperature": 0}, {"temperature": 0.0}),
        ("stop", CHAT, {"stop": ["END", "\n\n\u0001"]}, {"stop": ["END", "\n\n\u0001"]}),
        ("seed", CHAT, {"seed": 42}, {"sampling_seed": 42}),
        ("largest seed", CHAT, {"seed": 2**63 - 1}, {"sampling_seed": 2**63 - 1}),
        (
            "logprobs",
            CHAT,
            {"logprobs": True, "top_logprobs": 2},
            {"return_logprob": True, "top_logprobs_num": 2},
        ),
        ("two choices", CHAT, {"n": 2}, {"n": 2}),
        ("stream", CHAT, {"stream": True}, {"stream": True}),
        ("stream of two", CHAT, {"stream": True, "n": 2}, {"stream": True, "n": 2}),
        (
            "json_schema",
            CHAT,
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "s", "schema": SCHEMA, "strict": True},
                }
            },
            {
                "constraint": {
                    "kind": "json_schema",
                    "value": json.dumps(SCHEMA, separators=(",", ":")),
                }
            },
        ),
        (
            "regex",
            CHAT,
            {"regex": "[0-9]{1,4}"},
            {"constraint": {"kind": "regex", "value": "[0-9]{1,4}"}},
        ),
        (
            "knobs",
            CHAT,
            {
                "frequency_penalty": 0.1,
                "presence_penalty": -0.3,
                "min_p": 0.05,
                "top_k": 20,
                "repetition_penalty": 1.1,
                "ignore_eos": True,
                "stop_token_ids": [7, 9],
            },
            {
                "frequency_penalty": 0.1,
                "presence_penalty": -0.3,
                "min_p": 0.05,
                "top_k": 20,
                "repetition_penalty": 1.1,
                "ignore_eos": True,
                "stop_token_ids": [7, 9],
            },
        ),
        (
            "raw prompt",
            COMPLETIONS,
            {"prompt": "hello <|im_start|> world"},
            {"input_ids": [318, 223, 1, 347]},
        ),
        (
            "raw ids",
            GENERATE,
            {
                "input_ids": [10, 11, 12],
                "max_tokens": None,
                "sampling_params": {"max_new_tokens": 3, "temperature": 0.7, "sampling_seed": 5},
            },
            {"input_ids": [10, 11, 12], "temperature": 0.7, "sampling_seed": 5, "min_p": None,
             "frequency_penalty": None, "presence_penalty": None},
        ),
    ],
)  # fmt: skip
def test_the_captured_line_is_what_the_gateway_sent(
    setup: Setup, name: str, path: str, body: dict[str, Any], captured: dict[str, Any]
) -> None:
    rid = f"as-sent-{name}"
    prompt = {"messages": MESSAGES} if path == CHAT else {}
    settings = {"max_tokens": 3, **body}
    status, text = setup.post(
        path,
        rid=rid,
        **prompt,
        **{key: value for key, value in settings.items() if value is not None},
    )
    assert status == 200, text
    assert answer_id(path, text) == rid
    line = setup.line(rid)
    assert list(line) == list(CHAT_LINE)
    assert line == {**CHAT_LINE, "request_id": rid, **captured}


def test_the_prompts_of_an_array_are_requests_with_numbered_ids(setup: Setup) -> None:
    status, text = setup.post(COMPLETIONS, rid="array", prompt=["a", "b", "a"], max_tokens=2)
    assert status == 200, text
    assert answer_id(COMPLETIONS, text) == "array"
    assert len(json.loads(text)["choices"]) == 3
    prompts = [setup.line(f"array-p{number}")["input_ids"] for number in range(3)]
    assert prompts == [[67], [68], [67]]


def test_an_id_in_a_header_gets_a_suffix(setup: Setup) -> None:
    body = {"model": setup.gateway.model, "messages": MESSAGES, "max_tokens": 2}
    status, text = setup.gateway.post(CHAT, body, x_request_id="from-header")
    assert status == 200, text
    (line,) = [line for line in setup.lines() if line["request_id"].startswith("from-header")]
    assert re.fullmatch(r"from-header-[0-9a-f-]{32,36}", line["request_id"])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": MESSAGES, "temperature": 5}),
        (CHAT, {"messages": MESSAGES, "top_p": 0}),
        (CHAT, {"messages": []}),
        (COMPLETIONS, {"prompt": "hello", "seed": -1}),
        (CHAT, {"messages": MESSAGES, "model": "another-model"}),
    ],
    ids=["temperature", "top_p", "no messages", "negative seed", "another model"],
)
def test_a_request_that_the_gateway_rejects_leaves_no_line(
    setup: Setup, path: str, body: dict[str, Any]
) -> None:
    before = len(setup.lines())
    status, text = setup.post(path, **{"rid": "rejected", "max_tokens": 2, **body})
    assert 400 <= status < 500, text
    # A request that follows on the same way is captured, so the rejected one would have been too.
    assert setup.post(COMPLETIONS, rid="follower", prompt="a", max_tokens=1)[0] == 200
    assert [line["request_id"] for line in setup.lines()[before:]] == ["follower"]


def test_a_request_that_the_worker_refuses_is_captured_and_named(setup: Setup) -> None:
    before = len(setup.lines())
    status, text = setup.post(CHAT, rid="refused", messages=MESSAGES, max_tokens=2, regex="[0-9")
    assert status == 400, text
    assert "regex" in text
    (line,) = setup.lines()[before:]
    assert line["constraint"] == {"kind": "regex", "value": "[0-9"}


def test_the_same_seed_gives_the_same_text(setup: Setup) -> None:
    texts = []
    for number in range(2):
        status, text = setup.post(
            CHAT, rid=f"seed-{number}", messages=MESSAGES, max_tokens=8, seed=42
        )
        assert status == 200, text
        texts.append(json.loads(text)["choices"][0]["message"]["content"])
    assert texts[0]
    assert texts[0] == texts[1]


def test_log_probabilities_reach_the_client(setup: Setup) -> None:
    status, text = setup.post(
        CHAT, rid="logprobs", messages=MESSAGES, max_tokens=3, seed=1, logprobs=True, top_logprobs=2
    )
    assert status == 200, text
    positions = json.loads(text)["choices"][0]["logprobs"]["content"]
    assert [len(each["top_logprobs"]) for each in positions] == [2, 2, 2]
    assert all(each["logprob"] <= 0 for each in positions)


def test_a_client_that_leaves_its_stream_ends_the_request(setup: Setup) -> None:
    """The gateway sends an Abort and no reset."""
    body = {"model": setup.gateway.model, "messages": MESSAGES, "max_tokens": 2000, "stream": True}
    content = json.dumps({**body, "rid": "leaver"}).encode()
    where = urlsplit(setup.gateway.url)
    with socket.create_connection((where.hostname, where.port), 10) as client:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
        assert running(setup.worker) == 1
    # The stream would go on for four seconds.
    deadline = time.monotonic() + 2
    while running(setup.worker):
        assert time.monotonic() < deadline
    assert setup.line("leaver")["max_new_tokens"] == 2000


def test_text_is_played_through_the_gateway(setup: Setup, tmp_path: Path) -> None:
    """Single texts are completions, conversations chats that carry what was answered on."""
    source, results = tmp_path / "trace.jsonl", tmp_path / "results.jsonl"
    rows: list[dict[str, Any]] = [
        {"type": "single_turn", "text": "hello world", "timestamp": 0},
        {
            "type": "multi_turn",
            "session_id": "s",
            "turns": [{"text": "hello", "timestamp": 5}, {"text": "and then", "delay": 1}],
        },
    ]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    before = len(setup.lines())
    options = ["--target", f"{setup.gateway.url}/v1", "--results", str(results)]
    played = CliRunner().invoke(main, ["play", str(source), *options])
    assert played.exit_code == 0, played.output
    found = [json.loads(line) for line in results.read_text().splitlines()][1:-1]
    assert {row["outcome"] for row in found} == {"complete"}
    lines = {line["request_id"][: len("aiperf-1")]: line for line in setup.lines()[before:]}
    prompts = {len(line["input_ids"]) for line in setup.lines()[before:]}
    assert {row["prompt_tokens"] for row in found} == prompts
    # The second turn has the first, its answer, and more.
    assert len(prompts) == 3
    assert lines.keys() == {"aiperf-1", "aiperf-2"}


def test_what_a_client_wrote_is_in_no_log_of_the_worker(setup: Setup) -> None:
    asked = {"stop": ["zanzibar"], "regex": "(zanzibar"}
    assert setup.post(COMPLETIONS, rid="secret", prompt="zanzibar", max_tokens=2)[0] == 200
    assert setup.post(CHAT, rid="secret", messages=MESSAGES, **asked)[0] == 400
    log = setup.worker.log.read_text()
    assert '"listening"' in log
    assert "zanzibar" not in log


def running(worker: WorkerProcess) -> int:
    """Ask the worker itself what it is busy with: the gateway's view is a second old."""
    with grpc.insecure_channel(worker.address) as channel:
        call = channel.unary_unary(
            "/tokenspeed.grpc.scheduler.TokenSpeedScheduler/GetLoads",
            request_serializer=pb.GetLoadsRequest.SerializeToString,
            response_deserializer=pb.GetLoadsResponse.FromString,
        )
        return int(call(pb.GetLoadsRequest(), timeout=5).loads[0].num_running_reqs)


def test_a_gateway_without_the_folder_gets_the_tokenizer_from_the_worker(tmp_path: Path) -> None:
    capture = tmp_path / "generate.jsonl"
    # A path that means nothing where the gateway runs.
    with (
        running_worker(
            "--tokenizer",
            TOKENIZER.name,
            "--vocab-size",
            "4096",
            "--capture",
            capture,
            log=tmp_path / "worker.log",
            cwd=TOKENIZER.parent,
        ) as worker,
        running_gateway(worker.address, log=tmp_path / "smg.log") as gateway,
    ):
        body = {"model": gateway.model, "messages": MESSAGES, "max_tokens": 3, "rid": "fetched"}
        status, text = gateway.post(CHAT, body)
    assert status == 200, text
    assert json.loads(capture.read_text())["input_ids"] == CHAT_IDS
