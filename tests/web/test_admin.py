"""Truth and faults over HTTP, at a real runtime."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import yaml
from purerpc.grpclib.exceptions import ResourceExhaustedError

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.config.engines import CannedConfig, RealisticConfig
from replay.config.model import Config, HttpConfig, WorkerConfig
from replay.engines.methods import GENERATE, METHODS
from replay.errors import ConfigError
from replay.rpc.client import Channel, open_channel
from replay.runtime import Runtime, open_runtime
from tests.engines.requests import generate_request
from tests.web.asking import Answered, ask
from tests.worker.running import until


@attrs.frozen
class Served:
    """A runtime with admin, and a channel to its first worker."""

    runtime: Runtime
    channel: Channel

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answered:
        return await ask(self.runtime.http_address, method, f"/admin{path}", body, **headers)

    async def get(self, path: str) -> Any:
        answered = await self.ask("GET", path)
        assert answered.status == 200, answered.body
        return answered.json

    async def generate(self, **request: Any) -> list[Any]:
        async with self.channel.stream(GENERATE, generate_request(**request)) as answers:
            return [each async for each in answers]


@asynccontextmanager
async def served(
    *, token_file: Path | None = None, engine: Any = None, count: int = 1
) -> AsyncIterator[Served]:
    config = Config(
        worker=WorkerConfig(
            grpc_base_port=0, grpc_count=count, engine=engine or RealisticConfig(speedup=100)
        ),
        http=HttpConfig(
            port=0, admin=True, token_file=None if token_file is None else str(token_file)
        ),
    )
    async with open_runtime(config) as runtime, open_channel(runtime.addresses[0]) as channel:
        yield Served(runtime, channel)


async def test_without_the_flag_there_is_no_admin() -> None:
    config = Config(worker=WorkerConfig(grpc_base_port=0), http=HttpConfig(port=0))
    async with open_runtime(config) as runtime:
        assert (await ask(runtime.http_address, "GET", "/admin/workers")).status == 404
        assert (await ask(runtime.http_address, "GET", "/healthz")).status == 200


async def test_the_fleet_is_told_with_what_each_worker_holds() -> None:
    async with served(count=2) as it:
        await it.generate(prompt=range(40), max_new_tokens=1)
        first, second = (await it.get("/workers"))["workers"]
        assert [first["addresses"], second["addresses"]] == [
            [each] for each in it.runtime.addresses
        ]
        assert (first["worker"], first["engine"], first["is_healthy"]) == (0, "realistic", True)
        assert first["cache"] == {
            "block_size": 16, "capacity": 32768, "free": 32766, "active": 0, "cached": 2
        }  # fmt: skip
        assert first["kv_events"] == {"first": 1, "last": 1, "restarts": 0}
        assert second["kv_events"]["last"] == 0
        assert await it.get("/workers/1") == second


async def test_requests_are_told_by_worker_and_id() -> None:
    async with served(count=2) as it:
        for number in range(3):
            await it.generate(prompt=range(40), request_id=f"r{number}", max_new_tokens=2)
        records = (await it.get("/requests"))["requests"]
        assert [each["request_id"] for each in records] == ["r0", "r1", "r2"]
        assert records[1]["cached_at_arrival"] == {"here": 32, "best": 32, "best_worker": 0}
        assert (records[1]["outcome"], records[1]["output_tokens"]) == ("OK", 2)
        assert (await it.get("/requests?request_id=r1"))["requests"] == records[1:2]
        assert (await it.get("/requests?after=1&limit=1"))["requests"] == records[1:2]
        assert (await it.get("/requests?worker=1"))["requests"] == []


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "after=-1", "worker=x", "after=%C2%B2"])
async def test_a_wrong_query_is_named(query: str) -> None:
    async with served() as it:
        answered = await it.ask("GET", f"/requests?{query}")
        assert answered.status == 422
        assert answered.json["problems"][0].startswith(f"{query.partition('=')[0]}: must be ")


async def test_passes_and_the_cache_are_told() -> None:
    async with served() as it:
        await it.generate(prompt=range(40), max_new_tokens=3)
        passes = (await it.get("/workers/0/passes"))["passes"]
        assert [each["number"] for each in passes] == [1, 2, 3]
        assert (await it.get("/workers/0/passes?after=1&limit=1"))["passes"] == passes[1:2]
        cache = await it.get("/workers/0/cache")
        assert (cache["block_size"], cache["capacity"]) == (16, 32768)
        first, second = cache["blocks"]
        assert (first["parent"], second["parent"]) == (None, first["hash"])


async def test_a_large_cache_is_told_whole() -> None:
    async with served() as it:
        await it.generate(prompt=range(20000), max_new_tokens=1)
        blocks = (await it.get("/workers/0/cache"))["blocks"]
        assert len({each["hash"] for each in blocks}) == 1250


async def test_each_fault_can_be_set_seen_and_taken_back() -> None:
    async with served() as it:
        nothing = {
            "is_paused": False,
            "fail": None,
            "stall": None,
            "admission": None,
            "kv_events": {"drop_batches": 0, "delay_ms": 0.0},
        }
        assert await it.get("/workers/0/faults") == nothing
        for path, key, body, shown in (
            ("fail", "fail", {"code": "ABORTED", "requests": 3}, {"requests_left": 3}),
            ("stall", "stall", {"after_tokens": 2}, {"requests_left": None}),
            ("admission", "admission", {"per_second": 7}, {"delay_ms": 0.0}),
            ("kv-events", "kv_events", {"drop_batches": 2}, {"delay_ms": 0.0}),
            ("kv-events", "kv_events", {"delay_ms": 63.7}, {"drop_batches": 0}),
        ):
            answered = await it.ask("PUT", f"/workers/0/faults/{path}", body)
            assert answered.status == 200
            said = answered.json[key]
            assert {**said, **body, **shown} == said
            assert (await it.get("/workers/0/faults")) == answered.json
            assert (await it.ask("DELETE", f"/workers/0/faults/{path}")).status == 204
            assert await it.get("/workers/0/faults") == nothing


async def test_a_fault_does_what_it_says() -> None:
    async with served() as it:
        body = {"code": "RESOURCE_EXHAUSTED", "message": "enough", "requests": 1}
        await it.ask("PUT", "/workers/0/faults/fail", body)
        with pytest.raises(ResourceExhaustedError, match="enough"):
            await it.generate()
        await it.generate()
        (failed, sound) = (await it.get("/requests"))["requests"]
        assert (failed["outcome"], sound["outcome"]) == ("RESOURCE_EXHAUSTED", "OK")
        assert (await it.get("/workers/0/faults"))["fail"]["requests_left"] == 0


async def test_a_paused_worker_goes_on_when_it_is_resumed() -> None:
    async with served() as it, trio.open_nursery() as requests:
        assert (await it.ask("POST", "/workers/0/pause")).status == 204
        done: list[str] = []

        async def one() -> None:
            await it.generate()
            done.append("done")

        requests.start_soon(one)
        await until(lambda: it.runtime.workers[0].scheduler.in_flight)
        view = await it.get("/workers/0")
        assert (view["is_paused"], view["loads"]["waiting"], done) == (True, 1, [])
        assert (await it.ask("POST", "/workers/0/resume")).status == 204
    assert done == ["done"]


async def test_a_reset_is_for_one_worker_or_for_all() -> None:
    async with served(count=2) as it:
        await it.generate(prompt=range(40))
        for worker in (0, 1):
            await it.ask("PUT", f"/workers/{worker}/faults/admission", {"delay_ms": 1})
        assert (await it.ask("POST", "/workers/0/reset")).status == 204
        assert (await it.get("/requests"))["requests"] == []
        assert (await it.get("/workers/0/cache"))["blocks"] == []
        faults = [(await it.get(f"/workers/{each}/faults"))["admission"] for each in (0, 1)]
        assert faults == [None, {"delay_ms": 1.0, "per_second": None}]
        assert (await it.ask("POST", "/reset")).status == 204
        assert (await it.get("/workers/1/faults"))["admission"] is None
        await it.ask("POST", "/workers/0/pause")
        assert (await it.ask("DELETE", "/workers/0/faults")).status == 204
        assert (await it.get("/workers/0"))["is_paused"] is False


async def test_the_publisher_of_kv_events_restarts() -> None:
    async with served() as it:
        await it.generate(prompt=range(40), max_new_tokens=1)
        assert (await it.ask("POST", "/workers/0/kv-events/restart")).status == 204
        assert (await it.get("/workers/0"))["kv_events"] == {"first": 1, "last": 2, "restarts": 1}


async def test_a_worker_that_is_not_there_is_refused() -> None:
    async with served(engine=CannedConfig()) as it:
        for name in ("1", "00", "x", "-1", "9" * 50):
            answered = await it.ask("GET", f"/workers/{name}")
            assert answered.status == 404
            assert answered.json == {"problems": ["there is no such worker; there are 0 to 0"]}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "cache"),
        ("PUT", "faults/kv-events"),
        ("DELETE", "faults/kv-events"),
        ("POST", "kv-events/restart"),
    ],
)
async def test_a_worker_without_a_cache_has_no_kv_events(method: str, path: str) -> None:
    async with served(engine=CannedConfig()) as it:
        answered = await it.ask(method, f"/workers/0/{path}", {} if method == "PUT" else None)
        assert answered.status == 409
        assert (await it.get("/workers/0"))["cache"] is None
        assert (await it.get("/workers/0/faults"))["kv_events"] is None


async def test_another_method_is_told_which_there_are() -> None:
    async with served() as it:
        answered = await it.ask("POST", "/workers/0/faults/fail", {"code": "ABORTED"})
        assert (answered.status, answered.headers["allow"]) == (405, "PUT, DELETE")
        assert (await it.ask("HEAD", "/workers")).status == 200


async def test_a_body_that_is_too_long_is_refused() -> None:
    async with served() as it:
        answered = await it.ask("PUT", "/workers/0/faults/stall", b" " * 20_000 + b"{}")
        assert answered.status == 413
        answered = await it.ask("PUT", "/workers/0/faults/stall", b"{")
        assert (answered.status, answered.json) == (400, {"problems": ["the body is not JSON"]})


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served() as it:
        assert it.runtime.http_address is not None
        host, _, port = it.runtime.http_address.partition(":")
        client = await trio.open_tcp_stream(host, int(port))
        async with client:
            head = b"PUT /admin/workers/0/faults/stall HTTP/1.1\r\nhost: localhost\r\n"
            await client.send_all(head + b"content-length: 9\r\n\r\n{")
            assert await it.get("/workers/0/faults")
        assert (await it.get("/workers/0/faults"))["stall"] is None
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "example.org"},
        {"host": "rebound.example.org:8080"},
        {"host": "192.0.2.1"},
        {"host": ""},
        {"origin": "http://example.org"},
        {"origin": "null"},
    ],
)
async def test_without_a_token_no_page_and_no_other_name_may_ask(headers: dict[str, str]) -> None:
    async with served() as it:
        answered = await it.ask("POST", "/workers/0/pause", **headers)
        assert answered.status == 403
        assert (await it.get("/workers/0"))["is_paused"] is False


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "[::1]", "[::1]:80", "LOCALHOST."])
async def test_this_machine_may_ask_by_any_name_of_its_own(host: str) -> None:
    async with served() as it:
        assert (await it.ask("GET", "/workers", host=host)).status == 200


async def test_with_a_token_whoever_bears_it_may_ask(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret-token\n")
    async with served(token_file=file) as it:
        for authorization in (
            "", "Bearer", "Bearer s3cret-toke", "Bearer s3cret-token x", "Basic s3cret-token"
        ):  # fmt: skip
            answered = await it.ask("GET", "/workers", authorization=authorization)
            assert (answered.status, answered.headers["www-authenticate"]) == (
                401,
                'Bearer realm="admin"',
            )
            assert b"s3cret" not in answered.body
        assert (await it.ask("GET", "/workers")).status == 401
        for headers in ({}, {"host": "example.org", "origin": "http://example.org"}):
            answered = await it.ask(
                "GET", "/workers", authorization="bearer s3cret-token", **headers
            )
            assert answered.status == 200
        assert (await ask(it.runtime.http_address, "GET", "/metrics")).status == 200


@pytest.mark.parametrize("content", [b"", b" \n", b"two words", b"caf\xc3\xa9", b"\xff"])
async def test_a_file_without_a_token_stops_the_start(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"http\.token_file: must hold one token") as refused:
        async with served(token_file=file):
            pass
    assert "words" not in str(refused.value)


async def test_a_token_file_that_is_gone_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"http\.token_file: cannot be read: No such file"):
        async with served(token_file=tmp_path / "none"):
            pass


async def test_the_description_is_served() -> None:
    async with served() as it:
        answered = await it.ask("GET", "/openapi.yaml")
        assert answered.headers["content-type"] == "application/yaml"
        assert yaml.safe_load(answered.body)["openapi"] == "3.1.0"


async def test_what_waits_for_admission_is_told_by_the_worker_too() -> None:
    async with served() as it, trio.open_nursery() as requests:
        await it.ask("PUT", "/workers/0/faults/admission", {"delay_ms": 1e6})
        requests.start_soon(lambda: it.generate(prompt=range(50)))
        await until(lambda: it.runtime.workers[0].scheduler.in_flight)
        async with open_channel(it.runtime.addresses[0]) as channel:
            loads = await channel.unary(METHODS["GetLoads"], pb.GetLoadsRequest())
        assert loads.loads[0].num_waiting_reqs == 1
        assert loads.loads[0].num_waiting_uncached_tokens == 50
        await it.ask("DELETE", "/workers/0/faults/admission")
