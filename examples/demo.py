"""Serve, send a few requests, and show what was asked, what came back, what was captured, and what
a consumer in another process got of it through a shadow tap.

    python examples/demo.py                 requests of our own gRPC client, and OpenAI requests
                                            through the real smg gateway if it can be installed
    python examples/demo.py --gateway       fail if it cannot
    python examples/demo.py --no-gateway    our own client only

Exit 1 if something is not as it should be.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import trio
from purerpc.grpclib.exceptions import RpcFailedError
from smg_gateway import GatewayError, cache_folder, install, running_gateway
from worker_process import READY_SECONDS, STOP_SECONDS, WorkerError, running_worker

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.engines.methods import GENERATE
from replay.rpc.client import Channel, open_channel

#: Nothing here takes more than a second; a demonstration that hangs ends all the same.
DEMO_SECONDS = 60.0
DEADLINE_SECONDS = 0.2
TOKENIZER = Path(__file__).resolve().parent.parent / "tests" / "data" / "tiny-model"


@attrs.frozen
class Row:
    """One request of the demonstration."""

    asked: str
    came_back: str
    expected: str
    """What should have come back."""
    captured: dict[str, Any]
    """The request's line in the capture file."""


async def send(channel: Channel, request: pb.GenerateRequest, **limits: Any) -> str:
    """Send a request and say in a few words what came back.

    *timeout* is a deadline in seconds; after *leave_after* chunks the stream is left.
    """
    leave_after: int | None = limits.pop("leave_after", None)
    chunks, ends = 0, []
    try:
        async with channel.stream(GENERATE, request, **limits) as answers:
            async for message in answers:
                if message.HasField("complete"):
                    end = message.complete
                    ends.append(f"{end.finish_reason} after {end.completion_tokens} tokens")
                else:
                    chunks += 1
                    if chunks == leave_after:
                        return f"{chunks} chunks, then left"
    except RpcFailedError as error:
        ends.append(error.status.status_code.name)
    # How many chunks fit before a deadline depends on the machine.
    counted = [f"{chunks} chunks"] if chunks and "timeout" not in limits else []
    return ", ".join(counted + ends)


async def demonstrate(address: str, capture: Path) -> list[Row]:
    """Send the requests one after the other and join each to its line."""
    rows: list[Row] = []

    async def one(
        asked: str, expected: str, parameters: dict[str, Any], *, stream: bool = True, **limits: Any
    ) -> None:
        number = len(rows)
        request = pb.GenerateRequest(
            request_id=f"demo-{number}",
            tokenized=pb.TokenizedInput(
                input_ids=[101, 102, 103], original_text="three words here"
            ),
            sampling_params=pb.SamplingParams(**parameters),
            stream=stream,
        )
        came_back = await send(channel, request, **limits)
        rows.append(Row(asked, came_back, expected, json.loads(last_line(capture, number))))

    async with open_channel(address) as channel:
        await one(
            "a stream of four tokens",
            "4 chunks, length after 4 tokens",
            {"max_new_tokens": 4, "temperature": 0.7},
        )
        await one(
            "two choices, no stream",
            "length after 3 tokens, length after 3 tokens",
            {"max_new_tokens": 3, "n": 2, "sampling_seed": 42},
            stream=False,
        )
        await one(
            "10,000 tokens, the client leaves",
            "3 chunks, then left",
            {"max_new_tokens": 10_000},
            leave_after=3,
        )
        await one(
            f"10,000 tokens in {DEADLINE_SECONDS} s",
            "DEADLINE_EXCEEDED",
            {"max_new_tokens": 10_000},
            timeout=DEADLINE_SECONDS,
        )
        await one(
            "a temperature below zero", "INVALID_ARGUMENT", {"max_new_tokens": 4, "temperature": -1}
        )
        await one(
            "a stream after all that",
            "2 chunks, length after 2 tokens",
            {"max_new_tokens": 2, "stop": ["END"]},
        )
    return rows


def last_line(capture: Path, number: int) -> str:
    """Return line *number*, which is the last: it was there before the first answer."""
    lines = capture.read_text().splitlines()
    assert len(lines) == number + 1, f"{len(lines)} lines after {number + 1} requests"
    return lines[-1]


def demonstrate_gateway(address: str, capture: Path, log: Path) -> list[Row]:
    """Send OpenAI requests through the real gateway and join each to its line."""
    chat, completions = "/v1/chat/completions", "/v1/completions"
    hello = {"messages": [{"role": "user", "content": "hello world"}], "max_tokens": 4}
    pattern = {**hello, "regex": "[0-9]{1,4}"}
    rows: list[Row] = []
    with running_gateway(address, log=log) as gateway:

        def one(
            asked: str, path: str, body: dict[str, Any], expected: str, suffix: str = ""
        ) -> None:
            rid = f"openai-{len(rows)}"
            before = len(capture.read_text().splitlines())
            status, text = gateway.post(path, {"model": gateway.model, "rid": rid, **body})
            lines = [json.loads(line) for line in capture.read_text().splitlines()[before:]]
            ids = sorted(line["request_id"] for line in lines)  # prompts of one request overtake
            came_back = f"{status}, {text.count('finish_reason')} choices, captured as {ids}"
            rows.append(Row(asked, came_back, expected.format(rid=rid), lines[0] if lines else {}))

        one("chat", chat, hello, "200, 1 choices, captured as ['{rid}']")
        one("chat, n=2", chat, {**hello, "n": 2}, "200, 2 choices, captured as ['{rid}']")
        one("chat with a regex", chat, pattern, "200, 1 choices, captured as ['{rid}']")
        one(
            "two prompts",
            completions,
            {"prompt": ["hello", "world"], "max_tokens": 2},
            "200, 2 choices, captured as ['{rid}-p0', '{rid}-p1']",
        )
        one(
            "a temperature of 5, which the gateway rejects",
            chat,
            {**hello, "temperature": 5},
            "400, 0 choices, captured as []",
        )
    return rows


def show(title: str, rows: Sequence[Row]) -> bool:
    """Print a table and the captured lines; return whether all came back as expected."""
    print(f"\n{title}\n")
    width = max(len(row.asked) for row in rows)
    for row in rows:
        as_expected = row.came_back == row.expected
        note = "" if as_expected else f"   <- expected: {row.expected}"
        print(f"  {row.asked:{width}}  {row.came_back}{note}")
    print("\n  captured, each line with 32 keys; here without what is null, empty or false:")
    for row in rows:
        said = {
            key: value for key, value in row.captured.items() if value not in (None, "", [], {})
        }
        said = {key: value for key, value in said.items() if value is not False}
        if said:
            print(f"    {json.dumps(said, ensure_ascii=False, separators=(',', ':'))}")
    return all(row.came_back == row.expected for row in rows)


async def within(seconds: float, job: Callable[..., Any], *arguments: Any) -> Any:
    """Run an async job with a deadline of its own."""
    with trio.fail_after(seconds):
        return await job(*arguments)


#: Where the worker's tap is found, and what it mirrors.
CONFIGURATION = """\
schema_version: 1
event_plane: {{discovery: {{kind: file, root: "{folder}"}}}}
taps:
  - {{name: demo, topic: demo, capture: request_response}}
"""


@attrs.frozen
class Mirrored:
    """What a consumer has got."""

    records: list[dict[str, Any]]
    totals: dict[str, Any]


@contextlib.contextmanager
def running_consumer(folder: Path) -> Iterator[Callable[[], Mirrored]]:
    """Read the tap in a process of its own.  Call what is yielded when the worker has stopped."""
    output = folder / "consumer.out"
    command = [
        sys.executable,
        "-m",
        "replay",
        "consume",
        "--topic",
        "demo",
        "--discovery",
        f"{folder}",
    ]
    with output.open("w") as file:
        process = subprocess.Popen(
            [*command, "--print", "--until-end"], stdin=subprocess.DEVNULL, stdout=file
        )

    def mirrored() -> Mirrored:
        process.wait(STOP_SECONDS)
        lines = output.read_text().splitlines()
        end = lines.index("{")  # the totals are the one object that is indented
        records = [json.loads(line)["record"] for line in lines[:end] if line.startswith("{")]
        return Mirrored(records, json.loads("\n".join(lines[end:])))

    try:
        deadline = time.monotonic() + READY_SECONDS
        while "joined" not in output.read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise WorkerError(f"the consumer did not join\n{output.read_text()}")
            time.sleep(0.05)
        yield mirrored
    finally:
        process.kill()
        process.wait()


def show_mirrored(mirrored: Mirrored) -> bool:
    """Print what the consumer got; return whether it is everything."""
    print("\nmirrored to a consumer in another process, one joined record each\n")
    for record in mirrored.records:
        response = record["response"]
        print(
            f"  {record['request_id']:12}  {len(record['request']['token_ids'])} prompt tokens, "
            f"{response['outcome']} after {response['output_tokens']} tokens"
        )
    totals = mirrored.totals
    told = ("records", "complete", "cancelled", "tap_drops", "transport_loss", "tail_loss")
    print("\n  " + ", ".join(f"{key} {totals[key]}" for key in told))
    lost = totals["tap_drops"] or totals["transport_loss"] or totals["tail_loss"]
    return totals["records"] == len(mirrored.records) > 0 and not lost


def main() -> int:
    """Run the demonstration and return the exit status."""
    parser = argparse.ArgumentParser(description="Serve, ask, and show what was captured.")
    parser.add_argument(
        "--gateway",
        action=argparse.BooleanOptionalAction,
        help="go through the real smg, too; without this, if it can be installed",
    )
    options = parser.parse_args()
    if options.gateway is not False:
        print("the gateway smg is installed into", cache_folder(), "once", flush=True)
        try:
            install(cache_folder())
            options.gateway = True
        except GatewayError as error:
            if options.gateway:
                parser.exit(1, f"{error}\n")
            print(f"without the gateway: {error}\n")
    with tempfile.TemporaryDirectory(prefix="replay-demo-") as name:
        folder = Path(name)
        capture, configuration = folder / "generate.jsonl", folder / "taps.yaml"
        configuration.write_text(CONFIGURATION.format(folder=folder))
        flags: list[str | Path] = ["--config", configuration, "--token-ms", "5"]
        flags += ["--capture", capture]
        if options.gateway:
            flags += ["--tokenizer", TOKENIZER, "--vocab-size", "4096"]
        with contextlib.ExitStack() as stack:
            with running_worker(*flags, log=folder / "worker.log") as worker:
                print(f"replay serves on {worker.address} and captures into {capture}")
                mirrored = stack.enter_context(running_consumer(folder))
                rows = trio.run(within, DEMO_SECONDS, demonstrate, worker.address, capture)
                good = show("gRPC, our own client", rows)
                if options.gateway:
                    rows = demonstrate_gateway(worker.address, capture, folder / "smg.log")
                    good &= show("OpenAI requests through smg", rows)
            good &= show_mirrored(mirrored())
        print("\nthe server has stopped" + ("" if good else "; not everything was as expected"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
