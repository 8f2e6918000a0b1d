"""Status records: what they say, when they come, and that the last one does."""

from typing import Any

import attrs
import msgpack
import pytest
import trio
import trio.testing

from replay.config.model import TapCapture, TapConfig
from replay.packed import TokenIds
from replay.request import Request
from replay.taps.publisher import run_publishers
from replay.taps.status import LAST_RECORD_SECONDS, STATUS_TOPIC, StatusSource, run_status
from replay.taps.tap import Tap
from replay.taps.taps import Taps
from tests.fakes import CollectingSink, RaisingSink, SlowSink, StalledSink
from tests.logs import capture_logs


@attrs.define
class Numbers:
    publisher_id: int = 2**53 - 1
    next_sequence: int = 3


def joined(name: str = "t", **options: Any) -> TapConfig:
    return TapConfig(name=name, capture=TapCapture.REQUEST_RESPONSE, topic="topic", **options)


def source(*taps: Tap, router: str | None = None) -> StatusSource:
    return StatusSource(
        runtime_id="run-1", publishers={tap: Numbers() for tap in taps}, router=router
    )


def read(sink: CollectingSink) -> list[dict[str, Any]]:
    return [msgpack.unpackb(payload) for payload in sink.payloads]


def test_a_record_says_everything_that_event_plane_section_7_lists() -> None:
    taps = Taps([joined(capacity=1)])
    (tap,) = taps
    request = Request(model="m", token_ids=TokenIds([1]))
    for _ in range(3):
        with taps.record(request) as recording:
            recording.observe([1], 0, "stop")
            recording.end()
    taps.record(request).__enter__()
    record = source(tap, router="tcp://127.0.0.1:5").record(
        unix_ns=11, monotonic_ns=22, is_final=False
    )
    assert list(msgpack.unpackb(record).items()) == [
        ("schema_version", 1),
        ("kind", "status"),
        ("runtime_id", "run-1"),
        ("unix_ns", 11),
        ("monotonic_ns", 22),
        ("final", False),
        ("router", "tcp://127.0.0.1:5"),
        (
            "taps",
            [
                {
                    "tap": "t",
                    "topic": "topic",
                    "publisher_id": 2**53 - 1,
                    "next_seq": 3,
                    "next_sequence": 3,
                    "queued": 1,
                    "dropped": {"full": 2, "closed": 0, "bytes": 0},
                    "published": 0,
                    "publish_errors": 0,
                    "lost_at_shutdown": 0,
                    "skipped": 0,
                    "in_flight": 1,
                    "outcomes": {"complete": 3, "incomplete": 0, "cancelled": 0, "error": 0},
                }
            ],
        ),
    ]
    assert STATUS_TOPIC == "replay-status"


async def test_records_come_on_time_and_a_last_one_at_the_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    sink = CollectingSink()

    def clock_ns() -> int:
        return round(trio.current_time() * 1e9)

    async with run_status(source(), sink, interval_seconds=1.0, clock_ns=clock_ns):
        await trio.sleep(3.5)
    assert [(each["monotonic_ns"] / 1e9, each["final"]) for each in read(sink)] == [
        (0.0, False),
        (1.0, False),
        (2.0, False),
        (3.0, False),
        (3.5, True),
    ]


async def test_the_last_record_knows_what_became_of_the_queues(
    autojump_clock: trio.testing.MockClock,
) -> None:
    taps = Taps([joined()])
    (tap,) = taps
    status_sink = CollectingSink()
    with trio.move_on_after(1.5):
        async with (
            run_status(source(tap), status_sink, interval_seconds=1.0),
            run_publishers({tap: SlowSink(0.25)}, drain_seconds=1),
        ):
            for _ in range(40):
                with taps.record(Request(model="m", token_ids=TokenIds([1]))):
                    pass
            await trio.sleep_forever()
    last = read(status_sink)[-1]
    assert last["final"] is True
    (status,) = last["taps"]
    assert status["queued"] == 40 == status["published"] + status["lost_at_shutdown"]
    assert status["lost_at_shutdown"] > 0
    # It kept its pace while the block was cancelled and the publishers drained.
    assert len(status_sink.payloads) == 4


async def test_a_sink_that_fails_is_named_once_until_it_works_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    with capture_logs() as logs:
        async with run_status(source(), RaisingSink(RuntimeError("x")), interval_seconds=1.0):
            await trio.sleep(5.5)
    assert [entry["error"] for entry in logs] == ["RuntimeError"]


async def test_a_sink_that_hangs_does_not_hold_up_the_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with run_status(source(), StalledSink(), interval_seconds=1.0):
        await trio.sleep(2)
    assert trio.current_time() == pytest.approx(2 + LAST_RECORD_SECONDS)


async def test_a_late_record_is_sent_at_once_and_not_made_up_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    sink = SlowSink(2.5)

    def clock_ns() -> int:
        return round(trio.current_time() * 1e9)

    async with run_status(source(), sink, interval_seconds=1.0, clock_ns=clock_ns):
        await trio.sleep(6)
    times = [each["monotonic_ns"] / 1e9 for each in read(sink)]
    assert times == [0.0, 2.5]
