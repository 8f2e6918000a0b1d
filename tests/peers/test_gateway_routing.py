"""The real smg gateway before two simulated engines: where it sends requests, and what it knows.

What is true comes from the workers' admin port, what the gateway believes from its own metrics.
"""

import contextlib
import http.client
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import grpc
import pytest
from smg_gateway import Gateway, running_gateway
from worker_process import WorkerProcess, running_worker

from replay._proto import tokenspeed_scheduler_pb2 as pb

pytestmark = pytest.mark.gateway

TOKENIZER = Path(__file__).resolve().parents[1] / "data" / "tiny-model"

#: Of which 240 can be found cached: the last block is computed anew.
PROMPT_TOKENS = 256
REUSABLE_TOKENS = 240

#: Waiting requests from which the gateway takes a worker for overloaded.
OVERLOADED_WAITING = 8


def eventually(condition: Callable[[], bool], *, seconds: float = 10.0) -> None:
    """Wait for what the gateway does in its own time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@attrs.define
class Setup:
    """Two workers in one process, and the gateway in front of them."""

    worker: WorkerProcess
    gateway: Gateway
    admin_address: str
    prompts: random.Random = attrs.field(factory=lambda: random.Random(1))

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        """Ask the admin port; return the answer's JSON, if it has one."""
        connection = http.client.HTTPConnection(self.admin_address, timeout=10)
        with contextlib.closing(connection):
            connection.request(method, f"/admin{path}", None if body is None else json.dumps(body))
            response = connection.getresponse()
            answer = response.read()
        assert response.status < 300, answer
        return json.loads(answer) if answer else None

    def new_prompts(self, count: int) -> list[list[int]]:
        """Return prompts that share nothing with each other or with earlier ones."""
        return [
            [self.prompts.randrange(10, 4000) for _ in range(PROMPT_TOKENS)] for _ in range(count)
        ]

    def send(self, prompts: Sequence[list[int]]) -> list[dict[str, Any]]:
        """Send requests through the gateway, one after the other; return their records."""
        last = self.last_record()
        for ids in prompts:
            body = {
                "model": self.gateway.model,
                "input_ids": ids,
                "sampling_params": {"max_new_tokens": 2},
            }
            status, text = self.gateway.post("/generate", body)
            assert status == 200, text
        records: list[dict[str, Any]] = self.admin("GET", f"/requests?after={last}")["requests"]
        assert len(records) == len(prompts)
        return records

    def last_record(self) -> int:
        """Return the number of the last request that a worker got."""
        last = 0
        while records := self.admin("GET", f"/requests?limit=1000&after={last}")["requests"]:
            last = records[-1]["number"]
        return last

    def workers(self) -> list[dict[str, Any]]:
        """Return what is true of the workers."""
        workers: list[dict[str, Any]] = self.admin("GET", "/workers")["workers"]
        return workers

    def metric(self, name: str, worker: int, **labels: str) -> float:
        """Return what the gateway's metric says of a worker."""
        url = f"grpc://{self.worker.addresses[worker]}"
        return self.gateway.metric(name, worker=url, **labels)

    def wait_index(self) -> None:
        """Wait until the gateway has of both caches exactly what they hold."""
        eventually(
            lambda: all(
                self.metric("smg_kv_index_blocks", each["worker"]) == each["cache"]["cached"]
                for each in self.workers()
            )
        )

    @contextlib.contextmanager
    def streams_at(self, worker: int, count: int) -> Iterator[None]:
        """Have *count* long streams at a worker, past the gateway."""
        with grpc.insecure_channel(self.worker.addresses[worker]) as channel:
            generate = channel.unary_stream(
                "/tokenspeed.grpc.scheduler.TokenSpeedScheduler/Generate",
                request_serializer=pb.GenerateRequest.SerializeToString,
                response_deserializer=pb.GenerateResponse.FromString,
            )
            calls = [
                generate(
                    pb.GenerateRequest(
                        tokenized=pb.TokenizedInput(input_ids=ids),
                        sampling_params=pb.SamplingParams(max_new_tokens=20_000, ignore_eos=True),
                        stream=True,
                    )
                )
                for ids in self.new_prompts(count)
            ]
            readers = [threading.Thread(target=_drain, args=(call,)) for call in calls]
            for reader in readers:
                reader.start()
            try:
                eventually(lambda: self.workers()[worker]["in_flight"] == count)
                yield
            finally:
                for call in calls:
                    call.cancel()
                for reader in readers:
                    reader.join()
        eventually(lambda: not self.workers()[worker]["in_flight"])


def _drain(call: Any) -> None:
    with contextlib.suppress(grpc.RpcError):
        for _ in call:
            pass


@contextlib.contextmanager
def set_up(folder: Path, policy: str) -> Iterator[Setup]:
    flags = ("--engine", "realistic", "--grpc-count", "2", "--http-port", "0", "--admin")
    log = folder / "worker.log"
    with running_worker(
        *flags, "--tokenizer", TOKENIZER, "--vocab-size", "4096", log=log
    ) as worker:
        events = [json.loads(line) for line in log.read_text().splitlines()]
        (admin,) = [each["address"] for each in events if each["event"] == "http"]
        with running_gateway(*worker.addresses, log=folder / "smg.log", policy=policy) as gateway:
            yield Setup(worker, gateway, admin)


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    with set_up(tmp_path_factory.mktemp("routing"), "cache_aware") as ready:
        yield ready


@pytest.fixture(autouse=True)
def _no_faults(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "setup" in request.fixturenames:
        request.getfixturevalue("setup").admin("POST", "/reset")


def test_the_gateway_applies_every_batch_of_events(setup: Setup) -> None:
    def applied() -> list[float]:
        name = "smg_kv_event_batches_total"
        return [setup.metric(name, each, disposition="applied") for each in (0, 1)]

    def published() -> list[float]:
        return [each["kv_events"]["last"] for each in setup.workers()]

    setup.send(setup.new_prompts(6))
    assert sum(published()) == 6
    eventually(lambda: applied() == published())
    setup.wait_index()
    for worker in (0, 1):
        assert setup.metric("smg_kv_event_subscription_failures_total", worker) == 0
        assert setup.metric("smg_kv_event_parentless_blocks_total", worker) == 0


def test_the_repeat_of_a_prompt_goes_to_the_worker_that_has_it_cached(setup: Setup) -> None:
    prompts = setup.new_prompts(30)
    first = setup.send(prompts)
    setup.wait_index()
    again = setup.send(prompts)
    assert [each["worker"] for each in again] == [each["worker"] for each in first]
    assert {each["worker"] for each in first} == {0, 1}, "otherwise this says nothing"
    assert [each["cached_at_arrival"]["best"] for each in first] == [0] * 30
    assert [each["cached_at_arrival"]["here"] for each in again] == [REUSABLE_TOKENS] * 30
    assert [each["cached_tokens"] for each in again] == [REUSABLE_TOKENS] * 30


def test_batches_that_are_lost_are_asked_for_again(setup: Setup) -> None:
    missed = [setup.metric("smg_kv_event_missed_batches_total", each) for each in (0, 1)]
    for worker in (0, 1):
        setup.admin("PUT", f"/workers/{worker}/faults/kv-events", {"drop_batches": 2})
    prompts = setup.new_prompts(16)
    setup.send(prompts)
    setup.wait_index()
    assert [setup.metric("smg_kv_event_missed_batches_total", each) for each in (0, 1)] == [
        before + 2 for before in missed
    ]
    again = setup.send(prompts)
    assert [each["cached_at_arrival"]["here"] for each in again] == [REUSABLE_TOKENS] * 16


def test_batches_that_are_late_are_known_late(setup: Setup) -> None:
    for worker in (0, 1):
        setup.admin("PUT", f"/workers/{worker}/faults/kv-events", {"delay_ms": 600_000})
    blocks = [setup.metric("smg_kv_index_blocks", each) for each in (0, 1)]
    prompts = setup.new_prompts(4)
    setup.send(prompts)
    assert [setup.metric("smg_kv_index_blocks", each) for each in (0, 1)] == blocks
    for worker in (0, 1):
        setup.admin("DELETE", f"/workers/{worker}/faults/kv-events")
    setup.wait_index()
    again = setup.send(prompts)
    assert [each["cached_at_arrival"]["here"] for each in again] == [REUSABLE_TOKENS] * 4


def test_a_publisher_that_restarts_is_known_again_with_all_that_it_holds(setup: Setup) -> None:
    def resyncs() -> list[float]:
        name = "smg_kv_event_resyncs_total"
        return [setup.metric(name, each, reason="publisher_restart") for each in (0, 1)]

    prompts, before = setup.new_prompts(10), resyncs()
    setup.send(prompts)
    setup.wait_index()
    for worker in (0, 1):
        setup.admin("POST", f"/workers/{worker}/kv-events/restart")
    eventually(lambda: resyncs() == [each + 1 for each in before])
    setup.wait_index()
    new = setup.new_prompts(5)
    setup.send(new)
    setup.wait_index()
    again = setup.send([*prompts, *new])
    assert [each["cached_at_arrival"]["here"] for each in again] == [REUSABLE_TOKENS] * 15


def test_a_worker_with_a_long_queue_gets_nothing_even_if_it_has_the_prompt_cached(
    setup: Setup,
) -> None:
    prompts = setup.new_prompts(20)
    first = setup.send(prompts)
    setup.wait_index()
    at_0 = [ids for ids, each in zip(prompts, first, strict=True) if each["worker"] == 0]
    assert len(at_0) > 2
    control, *rest = at_0
    assert [each["worker"] for each in setup.send([control])] == [0]
    setup.admin("POST", "/workers/0/pause")
    with setup.streams_at(0, OVERLOADED_WAITING):
        assert setup.workers()[0]["loads"]["waiting"] == OVERLOADED_WAITING
        eventually(lambda: setup.metric("smg_engine_waiting_requests", 0) >= OVERLOADED_WAITING)
        assert {each["worker"] for each in setup.send(rest)} == {1}
    setup.admin("POST", "/workers/0/resume")
    eventually(lambda: setup.metric("smg_engine_waiting_requests", 0) == 0)
    eventually(lambda: [each["worker"] for each in setup.send([control])] == [0])


@pytest.mark.parametrize("stream", [False, True])
def test_a_fault_of_a_worker_reaches_the_client_of_the_gateway(setup: Setup, stream: bool) -> None:
    """Also with a stream it is the gateway's own status, and not an answer that begins."""
    for worker in (0, 1):
        body = {"code": "UNAVAILABLE", "message": "by design", "requests": 1}
        setup.admin("PUT", f"/workers/{worker}/faults/fail", body)
    body = {"model": setup.gateway.model, "input_ids": [5] * 20, "stream": stream}
    status, text = setup.gateway.post("/generate", body)
    assert status == 503, text
    assert "by design" in text


def test_new_requests_go_to_the_idle_one_of_two_workers(tmp_path: Path) -> None:
    with set_up(tmp_path, "least_load") as setup:
        for busy in (0, 1):
            with setup.streams_at(busy, 20):
                eventually(lambda: setup.metric("smg_engine_running_requests", busy) == 20)  # noqa: B023
                eventually(lambda: setup.metric("smg_engine_running_requests", 1 - busy) == 0)  # noqa: B023
                records = setup.send(setup.new_prompts(10))
                assert [each["worker"] for each in records] == [1 - busy] * 10
