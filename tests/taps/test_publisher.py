"""The publishing task: rules 50, 53, 59 and 61, and what a broken sink costs."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import trio
import trio.testing

from replay.config.model import TapCapture, TapConfig
from replay.taps.envelope import ShadowEnvelope
from replay.taps.publisher import (
    BYTES_PER_TURN,
    HARD_STOP_SECONDS,
    WARNING_SECONDS,
    Publisher,
    run_publishers,
)
from replay.taps.tap import MirroredRequest, Tap
from tests.fakes import CollectingSink, RaisingSink, SlowSink, StalledSink
from tests.logs import capture_logs

#: {"model": "secret prompt", …} would do as well: the publisher does not look into it.
MIRRORED = MirroredRequest("r-1", "preprocessed", 1, b"\x81\xa5model\xadsecret prompt")


def make_tap(name: str = "t", **options: Any) -> Tap:
    return Tap(TapConfig(name=name, capture=TapCapture.REQUEST, **options))


def offer(tap: Tap, count: int = 1) -> None:
    for _ in range(count):
        tap.offer(MIRRORED, None, queued_ns=0)


def seqs(sink: CollectingSink) -> list[int]:
    return [ShadowEnvelope.unpacked(payload).seq for payload in sink.payloads]


def check_equations(tap: Tap) -> None:
    dropped = tap.dropped_full + tap.dropped_closed + tap.dropped_bytes
    assert tap.next_seq == tap.queued + dropped
    ended = tap.published + tap.publish_errors + tap.lost_at_shutdown
    assert tap.queued == ended + tap.still_queued
    assert tap.queued_bytes >= 0


async def test_records_are_published_in_order(autojump_clock: trio.testing.MockClock) -> None:
    tap, sink = make_tap(), CollectingSink()
    async with run_publishers({tap: sink}, drain_seconds=2):
        offer(tap, 3)
        await trio.testing.wait_all_tasks_blocked()
        assert seqs(sink) == [0, 1, 2]
        offer(tap)
        await trio.testing.wait_all_tasks_blocked()
        assert seqs(sink) == [0, 1, 2, 3]
    assert trio.current_time() == 0
    assert tap.published == tap.queued == tap.publish_lag.count == 4
    check_equations(tap)


async def test_rule_61_what_is_queued_at_the_end_is_published(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tap, sink = make_tap(), SlowSink(0.01)
    async with run_publishers({tap: sink}, drain_seconds=2):
        offer(tap, 40)
    assert seqs(sink) == list(range(40))
    assert tap.lost_at_shutdown == 0
    assert trio.current_time() == pytest.approx(0.4)


async def test_rule_61_the_drain_has_a_deadline_and_the_rest_is_counted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tap, sink = make_tap(), SlowSink(0.25)
    with capture_logs() as logs:
        async with run_publishers({tap: sink}, drain_seconds=2):
            offer(tap, 40)
    assert 2.0 <= trio.current_time() <= 2.3
    assert len(sink.payloads) in (8, 9)
    assert tap.published == len(sink.payloads)
    assert tap.lost_at_shutdown == 40 - tap.published
    check_equations(tap)
    warnings = [entry for entry in logs if entry["log_level"] == "warning"]
    assert [(entry["event"], entry["tap"], entry["lost"]) for entry in warnings] == [
        ("records lost", "t", tap.lost_at_shutdown)
    ]


async def test_rule_61_a_publish_in_progress_at_the_deadline_is_finished_first(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tap, sink = make_tap(), SlowSink(0.3)
    async with run_publishers({tap: sink}, drain_seconds=0.1):
        offer(tap, 3)
        await trio.testing.wait_all_tasks_blocked()
    assert trio.current_time() == pytest.approx(0.3)
    assert (tap.published, tap.lost_at_shutdown) == (1, 2)


async def test_rule_61_a_hung_sink_ends_at_the_hard_stop(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tap, sink = make_tap(), StalledSink()
    async with run_publishers({tap: sink}, drain_seconds=2):
        offer(tap, 5)
        await trio.testing.wait_all_tasks_blocked()
        assert tap.still_queued == 5
    assert trio.current_time() == pytest.approx(2 + HARD_STOP_SECONDS)
    assert (tap.published, tap.lost_at_shutdown, tap.still_queued) == (0, 5, 0)
    check_equations(tap)


async def test_rule_61_later_records_count_as_closed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tap = make_tap()
    async with run_publishers({tap: CollectingSink()}, drain_seconds=2):
        offer(tap)
    offer(tap, 2)
    assert (tap.published, tap.dropped_closed, tap.next_seq) == (1, 2, 3)
    check_equations(tap)


async def test_rule_50_a_stalled_sink_fills_one_queue_and_no_more(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tap, other = make_tap(capacity=4), make_tap("other")
    stalled, sink = StalledSink(), CollectingSink()
    async with run_publishers({tap: stalled, other: sink}, drain_seconds=2):
        for _ in range(10):
            offer(tap)
            offer(other)
            await trio.testing.wait_all_tasks_blocked()
        # One record is with the sink, four wait.
        assert (tap.queued, tap.dropped_full) == (5, 5)
        assert other.published == 10
        stalled.release()
        await trio.testing.wait_all_tasks_blocked()
        offer(tap)
    assert seqs(stalled) == [0, 1, 2, 3, 4, 10]
    check_equations(tap)


async def test_cancelled_requests_still_publish_their_records(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tap, sink = make_tap(), SlowSink(0.001)

    async def request() -> None:
        try:
            await trio.sleep_forever()
        finally:
            offer(tap)

    with trio.move_on_after(1):
        async with (
            run_publishers({tap: sink}, drain_seconds=2),
            trio.open_nursery() as requests,
        ):
            for _ in range(50):
                requests.start_soon(request)
    assert seqs(sink) == list(range(50))
    assert tap.lost_at_shutdown == 0


async def test_an_error_of_the_block_comes_out_after_the_drain(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tap, sink = make_tap(), SlowSink(0.1)
    with pytest.RaisesGroup(pytest.RaisesExc(KeyError)):
        async with run_publishers({tap: sink}, drain_seconds=2):
            offer(tap, 5)
            raise KeyError("x")
    assert tap.published == 5


async def test_a_block_that_begins_cancelled_still_drains(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tap, sink = make_tap(), SlowSink(0.25)
    offer(tap, 2)
    with trio.CancelScope() as scope:
        scope.cancel()
        async with run_publishers({tap: sink}, drain_seconds=2):
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert seqs(sink) == [0, 1]
    check_equations(tap)


async def test_rule_53_a_failed_publish_is_counted_and_the_next_record_flows(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tap, sink = make_tap(), CollectingSink(failing=[1])
    with capture_logs() as logs:
        async with run_publishers({tap: sink}, drain_seconds=2):
            offer(tap, 3)
    assert seqs(sink) == [0, 2]
    assert (tap.published, tap.publish_errors) == (2, 1)
    check_equations(tap)
    (warning,) = [entry for entry in logs if entry["event"] == "publish failed"]
    assert warning["tap"] == "t"
    assert warning["seq"] == 1
    assert "No space left on device" in warning["error"]


async def test_rule_53_a_sink_that_always_raises_warns_now_and_then(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tap, sink = make_tap(), RaisingSink(RuntimeError("the record: secret prompt"))
    with capture_logs() as logs:
        async with run_publishers({tap: sink}, drain_seconds=2):
            offer(tap, 500)
            await trio.sleep(WARNING_SECONDS)
            offer(tap)
    assert sink.attempts == tap.publish_errors == 501
    warnings = [entry for entry in logs if entry["event"] == "publish failed"]
    assert [(entry["seq"], entry["unreported"]) for entry in warnings] == [(0, 0), (500, 499)]
    # Any library's error could repeat what it was given.
    assert "secret" not in str(logs)
    check_equations(tap)


async def test_a_record_that_cannot_be_packed_is_a_publish_error(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tap, sink = make_tap(), CollectingSink()
    async with run_publishers({tap: sink}, drain_seconds=2):
        tap.offer(MIRRORED._replace(request_id="\ud800"), None, queued_ns=0)
        offer(tap)
    assert seqs(sink) == [1]
    assert tap.publish_errors == 1
    check_equations(tap)


def broken_clock() -> int:
    raise RuntimeError("secret")


async def test_rule_52_a_publisher_that_breaks_ends_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    broken, healthy = make_tap("broken"), make_tap("healthy")
    sink = CollectingSink()
    with capture_logs() as logs:
        async with (
            run_publishers({healthy: sink}, drain_seconds=2),
            trio.open_nursery() as tasks,
        ):
            tasks.start_soon(Publisher(broken, CollectingSink(), clock_ns=broken_clock).run)
            offer(broken, 5)
            await trio.testing.wait_all_tasks_blocked()
            assert broken.is_closed
            offer(broken, 3)
            offer(healthy, 3)
    assert (broken.queued, broken.dropped_closed) == (5, 3)
    assert (broken.published, broken.lost_at_shutdown) == (1, 4)
    check_equations(broken)
    assert healthy.published == 3
    assert [entry["event"] for entry in logs] == ["publisher broke", "records lost"]
    assert "secret" not in str(logs)


@pytest.mark.parametrize("record_bytes", [0, BYTES_PER_TURN // 3, 2 * BYTES_PER_TURN])
async def test_a_sink_that_never_waits_leaves_turns_to_others(record_bytes: int) -> None:
    """A turn is as long in bytes, be the records many or large."""
    tap, sink = make_tap(capacity=10_000), CollectingSink()
    mirrored = MIRRORED._replace(packed=bytes(record_bytes))
    tap.offer(mirrored, None, queued_ns=0)
    size = tap.queued_bytes
    a_turn = math.ceil(BYTES_PER_TURN / size)
    for _ in range(10 * a_turn):
        tap.offer(mirrored, None, queued_ns=0)
    seen = [0]
    async with run_publishers({tap: sink}, drain_seconds=2):
        while tap.still_queued:
            await trio.lowlevel.checkpoint()
            seen.append(len(sink.payloads))
    # The order of tasks in a turn of the loop is chance: two of ours may lie between two looks.
    assert max(after - before for before, after in pairwise(seen)) <= 2 * a_turn


async def test_a_loop_that_offers_more_in_a_turn_than_that_does_not_fill_the_queue() -> None:
    tap, sink = make_tap(capacity=4000), CollectingSink()
    mirrored = MIRRORED._replace(packed=bytes(BYTES_PER_TURN // 100))
    async with run_publishers({tap: sink}, drain_seconds=2):
        for _ in range(50):
            for _ in range(1000):
                tap.offer(mirrored, None, queued_ns=0)
            await trio.lowlevel.checkpoint()
    assert tap.dropped_full == 0
    assert tap.published == 50_000


async def test_the_lag_is_from_queueing_to_publishing() -> None:
    tap, sink = make_tap(), CollectingSink()
    clock: Callable[[], int] = lambda: 5_000_000  # noqa: E731
    publisher = Publisher(tap, sink, clock_ns=clock)
    tap.offer(MIRRORED, None, queued_ns=2_000_000)
    tap.close()
    await publisher.run()
    assert tap.publish_lag.sum_ns == 3_000_000


async def test_stopping_twice_keeps_to_the_later_call() -> None:
    tap = make_tap()
    publisher = Publisher(tap, CollectingSink())
    async with trio.open_nursery() as tasks:
        tasks.start_soon(publisher.run)
        publisher.stop(math.inf)
        publisher.stop(trio.current_time())
    assert tap.is_closed
