"""Publishers that fail behind a worker's port: clients get all their tokens, and every record is in
exactly one counter.

At any moment offered = queued + dropped and queued = published + errors + lost + still queued.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from replay.config.model import (
    Config,
    EventPlaneConfig,
    RecordFileConfig,
    TapCapture,
    TapConfig,
    Transport,
    WorkerConfig,
)
from replay.engines.base import Model
from replay.engines.canned import CannedEngine
from replay.rpc.client import Channel, open_channel
from replay.rpc.listeners import Address, listen
from replay.rpc.server import Server
from replay.runtime import open_runtime
from replay.taps.publisher import HARD_STOP_SECONDS, Publisher, run_publishers
from replay.taps.tap import Tap
from replay.taps.taps import Taps
from replay.worker.service import Scheduler
from tests.fakes import CollectingSink, RaisingSink, SlowSink, StalledSink
from tests.logs import capture_logs
from tests.taps.mirroring import ask

CAPACITY = 20
REQUESTS, TOKENS = 100, 7
DRAIN_SECONDS = 0.3


def tap(name: str, **options: Any) -> TapConfig:
    values = {"capture": TapCapture.REQUEST_RESPONSE, "capacity": CAPACITY, **options}
    return TapConfig(name=name, **values)


def check_equations(of: Tap, *, offered: int) -> None:
    assert of.next_seq == offered
    assert offered == of.queued + of.dropped_full + of.dropped_closed + of.dropped_bytes
    ended = of.published + of.publish_errors + of.lost_at_shutdown
    assert of.queued == ended + of.still_queued


@asynccontextmanager
async def serving(taps: Taps) -> AsyncIterator[Channel]:
    """Serve with *taps* whose publishers somebody else runs."""
    server = Server([Scheduler(CannedEngine(Model()), taps=taps).service()])
    listening = listen([Address("127.0.0.1")])
    async with trio.open_nursery() as tasks:
        await tasks.start(server.run, listening)
        async with open_channel(listening[0].names[0]) as channel:
            yield channel
        await server.stop(grace_seconds=1)


def broken_clock() -> int:
    raise ValueError("a secret prompt")


@pytest.mark.timed
async def test_rule_52_sinks_that_raise_hang_and_break_cost_clients_nothing() -> None:
    """Four taps of one worker, one of them healthy."""
    taps = Taps([tap("raising"), tap("hanging"), tap("broken"), tap("healthy", capacity=1000)])
    raising, hanging, broken, healthy = taps
    raiser, collector = RaisingSink(OSError(28, "No space left on device")), CollectingSink()
    sinks = {raising: raiser, hanging: StalledSink(), healthy: collector}
    with capture_logs() as logs:
        async with trio.open_nursery() as tasks:
            publisher = Publisher(broken, CollectingSink(), clock_ns=broken_clock)
            tasks.start_soon(publisher.run)
            async with run_publishers(sinks, drain_seconds=DRAIN_SECONDS), serving(taps) as channel:
                tokens = await ask(channel, REQUESTS, max_new_tokens=TOKENS)
                for each in taps:
                    check_equations(each, offered=REQUESTS)
                assert hanging.still_queued == CAPACITY + 1
                stopping_at = trio.current_time()
            took = trio.current_time() - stopping_at
    assert tokens == REQUESTS * TOKENS
    for each in taps:
        check_equations(each, offered=REQUESTS)
        assert each.still_queued == each.queued_bytes == 0
    assert (healthy.published, len(collector.payloads)) == (REQUESTS, REQUESTS)
    assert (raising.publish_errors, raising.published) == (raiser.attempts, 0)
    assert raising.publish_errors == raising.queued > 0
    assert (hanging.published, hanging.lost_at_shutdown) == (0, CAPACITY + 1)
    assert hanging.dropped_full == REQUESTS - CAPACITY - 1
    assert (broken.published, broken.is_closed) == (1, True)
    assert broken.dropped_closed == REQUESTS - broken.queued > 0
    # The hanging publish is cut off at the hard stop, and nothing waits longer.
    assert took < 1 + DRAIN_SECONDS + HARD_STOP_SECONDS
    assert "secret" not in str(logs)
    assert [each["tap"] for each in logs if each["event"] == "publisher broke"] == ["broken"]


@pytest.mark.timed
async def test_rule_61_a_slow_sink_publishes_what_the_drain_has_time_for() -> None:
    """40 queued records of 250 ms each: 8 or 9 of them in 2.0 to 2.3 s."""
    taps = Taps([tap("slow", capacity=1000)])
    (slow,) = taps
    async with serving(taps) as channel:
        assert await ask(channel, 40, max_new_tokens=TOKENS) == 40 * TOKENS
        async with run_publishers({slow: SlowSink(0.25)}, drain_seconds=2):
            started = trio.current_time()
        took = trio.current_time() - started
    assert 2.0 <= took <= 2.3
    assert slow.published in (8, 9)
    assert slow.lost_at_shutdown == 40 - slow.published
    check_equations(slow, offered=40)


async def test_a_record_file_that_takes_no_more_is_an_error_of_each_record(tmp_path: Path) -> None:
    """The folder goes away in mid run, so that no further file can be begun."""
    folder = tmp_path / "records"
    folder.mkdir()
    record_file = RecordFileConfig(path=str(folder / "r"), rotate_bytes=1)
    config = Config(
        worker=WorkerConfig(grpc_base_port=0),
        event_plane=EventPlaneConfig(transport=Transport.NONE),
        taps=(tap("failing", capacity=1000, record_file=record_file),),
    )
    with capture_logs() as logs:
        async with open_runtime(config) as runtime, open_channel(runtime.addresses[0]) as channel:
            assert runtime.taps is not None
            (failing,) = runtime.taps
            await ask(channel, 3, at_once=1, max_new_tokens=TOKENS)
            while failing.still_queued:
                await trio.lowlevel.checkpoint()
            folder.rename(tmp_path / "elsewhere")
            tokens = await ask(channel, REQUESTS, max_new_tokens=TOKENS)
    assert tokens == REQUESTS * TOKENS
    check_equations(failing, offered=3 + REQUESTS)
    assert (failing.published, failing.publish_errors) == (3, REQUESTS)
    (warning,) = (each for each in logs if each["event"] == "publish failed")
    assert (warning["tap"], warning["seq"]) == ("failing", 3)
    assert "No such file" in warning["error"]
