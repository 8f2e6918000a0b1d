"""The simulated engine in real time and over the wire, against the model's own time."""

import http.client
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from worker_process import WorkerProcess, running_worker

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.engines.methods import GENERATE
from replay.rpc.client import Channel, open_channel
from tests.engines.requests import generate_request
from tests.worker.wire_log import WireLog, tokens_of

pytestmark = pytest.mark.timed

PROMPT_TOKENS = 4096
#: Of a prompt of which nothing is cached.
FIRST_TOKEN_MS = 16.50142 + 1.518344e-2 * PROMPT_TOKENS + 4.209989e-7 * PROMPT_TOKENS**2


@attrs.frozen
class Simulated:
    """A simulated engine in a process of its own, with its admin port."""

    worker: WorkerProcess
    admin_address: str

    def passes(self) -> list[dict[str, Any]]:
        """Return what passes there were."""
        passes: list[dict[str, Any]] = []
        with closing(http.client.HTTPConnection(self.admin_address, timeout=10)) as connection:
            while True:
                after = passes[-1]["number"] if passes else 0
                connection.request("GET", f"/admin/workers/0/passes?limit=1000&after={after}")
                more = json.loads(connection.getresponse().read())["passes"]
                if not more:
                    return passes
                passes += more


@pytest.fixture
def simulated(tmp_path: Path) -> Iterator[Simulated]:
    log = tmp_path / "worker.log"
    flags = ("--engine", "realistic", "--http-port", "0", "--admin")
    with running_worker(*flags, log=log) as worker:
        events = [json.loads(line) for line in log.read_text().splitlines()]
        (admin,) = [each["address"] for each in events if each["event"] == "http"]
        yield Simulated(worker, admin)


async def first_tokens_ms(channel: Channel, count: int, *, pause_ms: float = 0.0) -> list[float]:
    """Ask for one token, *count* times, each time with a new prompt; return the times."""
    times = []
    for number in range(count):
        await trio.sleep(pause_ms / 1000)
        prompt = range(number * PROMPT_TOKENS, (number + 1) * PROMPT_TOKENS)
        message = generate_request([each % 32000 for each in prompt], max_new_tokens=1)
        message.tokenized.input_ids[0] = number
        start = time.perf_counter()
        async with channel.stream(GENERATE, message) as answers:
            first = await answers.receive()
            times.append((time.perf_counter() - start) * 1000)
            assert len(first.chunk.token_ids) == 1
            assert [each async for each in answers][-1].complete.cached_tokens == 0
    return times


async def test_a_lone_request_has_its_first_token_when_the_model_says(tmp_path: Path) -> None:
    with (
        running_worker("--engine", "realistic", log=tmp_path / "realistic.log") as realistic,
        running_worker(log=tmp_path / "canned.log") as canned,
    ):
        async with open_channel(realistic.address) as one, open_channel(canned.address) as other:
            await first_tokens_ms(other, 5)
            round_trip = statistics.median(await first_tokens_ms(other, 20))
            times = await first_tokens_ms(one, 20)
    assert min(times) > FIRST_TOKEN_MS
    assert statistics.median(times) - round_trip <= FIRST_TOKEN_MS + 2


@pytest.mark.parametrize(("streams", "late_ms"), [(64, 10), (256, 25)])
def test_tokens_leave_when_the_model_says_and_the_load_is_what_the_streams_saw(
    simulated: Simulated, streams: int, late_ms: int
) -> None:
    prompt_tokens, output_tokens = 64, 200
    log = WireLog(simulated.worker.address)
    with closing(log):
        log.call(
            "Generate",
            *(
                generate_request([number + 1] * prompt_tokens, max_new_tokens=output_tokens)
                for number in range(streams)
            ),
        )
        deadline = time.monotonic() + 30
        ended = quiet = 0
        while ended < streams:
            assert time.monotonic() < deadline, f"{ended} of {streams} streams have ended"
            log.call("GetLoads", pb.GetLoadsRequest())
            quiet = quiet + 1 if log.read_for(0.05) < 500 else 0
            if quiet >= 5:  # reading takes time, in which nothing would be written down
                ended = sum(log.is_generate(each) and each.is_end for each in log.said())

    due: list[int] = []
    for each in simulated.passes():
        due += [each["due_unix_ns"]] * each["tokens"]
    came: list[int] = []
    seen: dict[int, int] = defaultdict(int)
    open_streams: set[int] = set()
    compared = compared_tokens = 0
    for each in log.said():
        if log.is_generate(each):
            if each.is_end:
                open_streams.remove(each.stream_id)
            elif each.message is None:
                open_streams.add(each.stream_id)
            count = tokens_of(each)
            seen[each.stream_id] += count
            came += [each.unix_ns] * count
        elif each.message is not None:
            (load,) = each.message.loads
            assert load.num_running_reqs + load.num_waiting_reqs == len(open_streams)
            compared += 1
            if all(seen[stream] for stream in open_streams):
                held = sum(prompt_tokens + seen[stream] for stream in open_streams)
                assert load.num_used_tokens == held
                compared_tokens += held > 0
    assert compared_tokens > 5
    assert len(came) == len(due) == streams * output_tokens
    late = sorted((there - then) / 1e6 for there, then in zip(came, due, strict=True))
    assert late[0] >= 0
    assert late[int(len(late) * 0.99)] <= late_ms
