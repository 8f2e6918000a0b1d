"""How taps start: a file as Dynamo's, a line for each tap, all or nothing, several runtimes."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import prometheus_client
import pytest
import trio
from worker_process import running_worker
from zmq.auth import create_certificates

from replay.config.model import (
    Config,
    CurveConfig,
    DiscoveryConfig,
    EventPlaneConfig,
    HttpConfig,
    RecordFileConfig,
    TapCapture,
    TapConfig,
    WorkerConfig,
)
from replay.errors import BindError, ConfigError, FileOpenError
from replay.rpc.client import open_channel
from replay.runtime import open_runtime
from tests.cli.test_serve_process import refused
from tests.consumer.commands import running
from tests.logs import capture_logs
from tests.plane.peers import eventually
from tests.taps.mirroring import ask, ask_worker, channels_of, consuming, counted, events

#: The configuration of Dynamo's demonstration, as it stands there.
DEMONSTRATION = """\
schema_version: 1
taps:
  - name: kv-history-tracker
    topic: kv-history-tracker
    capture: request
    filters: [tokens-only]
  - name: shadow-replay
    topic: shadow-replay
    capture: request_response
    emit: joined
    filters: [strip-multimodal, strip-embeds]
"""


async def test_rule_62_dynamos_own_file_starts_and_its_start_lines_are_enough_to_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "taps.yaml"
    config.write_text(DEMONSTRATION)
    monkeypatch.setenv("DYN_FILE_KV", str(tmp_path))
    with running_worker("--config", config, log=tmp_path / "log") as worker:
        lines = [line for line in events(worker) if line["event"] == "tap"]
        (plane,) = (line for line in events(worker) if line["event"] == "event plane")
        async with running(
            *("--topic", "shadow-replay", "--connect", lines[1]["endpoint"]),
            *("--status-connect", plane["status"]),
            *("--summary-path", str(tmp_path / "replay.json"), "--report-interval", "0.1"),
        ) as consumer:
            await consumer.until("joined ")
            await ask_worker(worker, 20, max_new_tokens=3)
            await counted(tmp_path, "replay", 20)
            _, report = await consumer.end()
    assert [
        {key: line[key] for key in ("tap", "namespace", "topic", "capture", "filters", "capacity")}
        for line in lines
    ] == [
        {
            "tap": "kv-history-tracker",
            "namespace": "dynamo",
            "topic": "kv-history-tracker",
            "capture": "request",
            "filters": ["tokens-only", "strip-worker-pins"],
            "capacity": 1024,
        },
        {
            "tap": "shadow-replay",
            "namespace": "dynamo",
            "topic": "shadow-replay",
            "capture": "request_response",
            "filters": ["strip-multimodal", "strip-embeds", "strip-worker-pins"],
            "capacity": 1024,
        },
    ]
    assert report["records"] == report["complete"] == 20
    assert report["output_tokens"] == 60


# ---- A start that fails


def config_of(folder: Path, *, bind: str = "tcp://127.0.0.1:*") -> Config:
    """Return two taps with everything that a start opens for them."""
    for name in ("captures", "first", "second"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    plane = EventPlaneConfig(discovery=DiscoveryConfig(root=str(folder / "kv")), bind=bind)
    return Config(
        worker=WorkerConfig(grpc_base_port=0, capture=str(folder / "captures" / "lines")),
        event_plane=plane,
        http=HttpConfig(port=0),
        taps=tuple(
            TapConfig(
                name=name,
                capture=TapCapture.REQUEST_RESPONSE,
                replay_buffer=10,
                record_file=RecordFileConfig(path=str(folder / name / "records")),
            )
            for name in ("first", "second")
        ),
    )


@contextmanager
def port_in_use(port: int) -> Iterator[None]:
    with socket.create_server(("127.0.0.1", port)):
        yield


@contextmanager
def missing(folder: Path) -> Iterator[None]:
    folder.rmdir()
    yield
    folder.mkdir()


@contextmanager
def a_file_in_the_place_of(folder: Path) -> Iterator[None]:
    folder.write_text("")
    yield
    folder.unlink()


def free_pair() -> int:
    """Return a port that was free a moment ago together with the next one."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port: int = first.getsockname()[1]
            try:
                socket.create_server(("127.0.0.1", port + 1)).close()
            except OSError:
                continue
            return port


FAILURES: dict[str, tuple[Callable[[Path, int], Any], type[Exception]]] = {
    "the port of the first tap": (lambda _, port: port_in_use(port), BindError),
    "the port of the second tap": (lambda _, port: port_in_use(port + 1), BindError),
    "discovery": (lambda folder, _: a_file_in_the_place_of(folder / "kv"), ConfigError),
    "a record file": (lambda folder, _: missing(folder / "second"), FileOpenError),
    "the capture": (lambda folder, _: missing(folder / "captures"), FileOpenError),
}


def holdings() -> tuple[int, int, int, set[str]]:
    """Return the tasks, descriptors, threads of ZeroMQ and process-wide metrics of this process."""
    return (
        trio.lowlevel.current_statistics().tasks_living,
        len(os.listdir("/proc/self/fd")),
        sum(map(_is_of_zeromq, Path("/proc/self/task").iterdir())),
        {family.name for family in prometheus_client.REGISTRY.collect()},
    )


def _is_of_zeromq(thread: Path) -> bool:
    try:
        return "ZMQ" in (thread / "comm").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it ended while we looked
        return False


@pytest.mark.parametrize("what", FAILURES)
async def test_rule_57_a_start_that_fails_leaves_nothing_and_can_be_tried_again(
    tmp_path: Path, what: str
) -> None:
    obstacle, error = FAILURES[what]
    port = free_pair()
    config = config_of(tmp_path / "tried", bind=f"tcp://127.0.0.1:{port}")
    async with open_runtime(config_of(tmp_path / "before")):
        pass  # what a process makes once and keeps
    before = holdings()
    folder = tmp_path / "tried"
    with obstacle(folder, port):
        with_obstacle = holdings()
        for _ in range(2):
            with pytest.raises((error, BaseExceptionGroup)) as caught:
                async with open_runtime(config):
                    pytest.fail("it has started")
            assert isinstance(caught.value, error) or caught.group_contains(error)
            assert holdings() == with_obstacle
        assert channels_of(folder / "kv") == []
        assert list(folder.glob("*/records*")) == []
    async with open_runtime(config) as runtime, open_channel(runtime.addresses[0]) as channel:
        assert len(channels_of(folder / "kv")) == 3
        await ask(channel, 5)
        assert [tap.queued for tap in runtime.taps or ()] == [5, 5]
    assert channels_of(folder / "kv") == []
    assert holdings() == before


async def test_a_start_with_keys_that_fails_does_not_wait_for_a_socket_of_its_own(
    tmp_path: Path,
) -> None:
    create_certificates(tmp_path, "server")
    (tmp_path / "allowed").mkdir()
    curve = CurveConfig(
        secret_key_file=str(tmp_path / "server.key_secret"),
        allowed_keys_dir=str(tmp_path / "allowed"),
    )
    tried = config_of(tmp_path / "tried")
    config = attrs.evolve(tried, event_plane=attrs.evolve(tried.event_plane, curve=curve))
    before = holdings()
    with missing(tmp_path / "tried" / "second"), capture_logs() as logged:
        with pytest.raises(FileOpenError):
            async with open_runtime(config):
                pytest.fail("it has started")
        assert [each for each in logged if each["log_level"] == "warning"] == []
        assert holdings() == before


# ---- A configuration that is wrong

#: A fault of each kind that tap-rules 3 to 12 name, and where each is reported.
WRONG = """\
schema_version: 2
colour: blue
event_plane: {bind: "tcp://0.0.0.0:*", heartbeat_seconds: -1}
taps:
  - {name: "a b", capture: request, response: {}}
  - {name: c, capture: everything, capacity: 0}
  - {name: c, topic: shadow, capture: request, emit: joined, filters: [strip-everything]}
  - {name: d, topic: shadow, capture: request, filters: [max-tokens=abc], capacity: "5"}
  - {name: e, capture: request_response, response: {max_tokens: 0, colour: blue}}
  - {name: f, capture: request, filters: [tokens-only, keep-worker-pins], capacity: true}
"""
WRONG_PLACES = (
    *("1: $.schema_version", "2: $.colour"),
    *("5: $.taps[0].name", "5: $.taps[0].response"),
    *("6: $.taps[1].capture", "6: $.taps[1].capacity"),
    *("7: $.taps[2].emit", "7: $.taps[2].filters[0]"),
    *("8: $.taps[3].filters[0]", "8: $.taps[3].capacity"),
    *("9: $.taps[4].response.max_tokens", "9: $.taps[4].response.colour"),
    *("10: $.taps[5].filters[1]", "10: $.taps[5].capacity"),
)


def test_a_wrong_configuration_is_refused_with_all_faults_at_once_and_nothing_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "taps.yaml"
    config.write_text(WRONG)
    monkeypatch.setenv("DYN_FILE_KV", str(tmp_path / "kv"))
    code, out, err = refused("--config", str(config), "--grpc-base-port", "0")
    assert (code, out) == (2, "")
    assert [place for place in WRONG_PLACES if f"taps.yaml:{place}" not in err] == []
    assert list(tmp_path.iterdir()) == [config]


# ---- Runtimes side by side, and none


async def test_rule_59_runtimes_of_one_process_have_taps_of_their_own(tmp_path: Path) -> None:
    """Of one name and topic, which a consumer of the topic reads together."""
    config = Config(
        worker=WorkerConfig(grpc_base_port=0),
        event_plane=EventPlaneConfig(
            discovery=DiscoveryConfig(root=str(tmp_path)), heartbeat_seconds=0.2
        ),
        taps=(TapConfig(name="shadow", topic="shadow", capture=TapCapture.REQUEST_RESPONSE),),
    )
    async with open_runtime(config) as first:
        async with (
            open_runtime(config) as second,
            open_channel(first.addresses[0]) as to_first,
            open_channel(second.addresses[0]) as to_second,
            consuming(tmp_path, "shadow") as consumer,
        ):
            assert len(channels_of(tmp_path)) == 4
            await consumer.until("joined ", times=2)
            await ask(to_first, 5)
            await ask(to_second, 7)
            await counted(tmp_path, "shadow", 12)
            assert [tap.queued for each in (first, second) for tap in each.taps or ()] == [5, 7]
            _, report = await consumer.end()
        assert len(channels_of(tmp_path)) == 2
        async with open_channel(first.addresses[0]) as channel:
            await ask(channel, 1)
        assert [tap.queued for tap in first.taps or ()] == [6]
    assert report["epochs"] == 2
    assert report["records"] == 12
    assert report["tap_gaps"] == report["transport_gaps"] == 0


async def test_without_taps_nothing_of_them_is_built(tmp_path: Path) -> None:
    """No socket, no thread of ZeroMQ, no task, no folder: what runs is what ran without taps."""
    plane = EventPlaneConfig(discovery=DiscoveryConfig(root=str(tmp_path / "kv")))
    config = Config(worker=WorkerConfig(grpc_base_port=0), event_plane=plane)
    taps = (TapConfig(name="a", capture=TapCapture.REQUEST),)
    async with open_runtime(config) as runtime:
        assert runtime.taps is None
        without = holdings()
        assert not (tmp_path / "kv").exists()
    async with open_runtime(Config(worker=config.worker, event_plane=plane, taps=taps)):
        # A thread gets its name when it runs.
        await eventually(lambda: holdings()[2] > 0)
        with_taps = holdings()
    assert without[2] == 0
    # Publisher, status, discovery.
    assert with_taps[0] - without[0] >= 3
