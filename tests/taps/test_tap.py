"""The request-path half of a tap: rules 50 to 52, and the bound in bytes."""

from array import array
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from replay.config.model import ResponseConfig, TapCapture, TapConfig
from replay.taps.response import Choice, Outcome, Response
from replay.taps.tap import CHOICE_OVERHEAD_BYTES, RECORD_OVERHEAD_BYTES, MirroredRequest, Tap

MIRRORED = MirroredRequest("r-1", "preprocessed", 1, b"\x80" * 100)


def make_tap(**options: Any) -> Tap:
    return Tap(TapConfig(name="t", capture=TapCapture.REQUEST_RESPONSE, **options))


def offer(tap: Tap, response: Response | None = None) -> None:
    tap.offer(MIRRORED, response, queued_ns=0)


def drain(tap: Tap) -> list[int]:
    """Take everything, and return the numbers."""
    taken = []
    while (record := tap.take()) is not None:
        taken.append(record.seq)
        tap.put_down()
    return taken


def test_rule_51_a_full_queue_drops_and_leaves_a_gap_in_seq() -> None:
    tap = make_tap(capacity=2)
    for _ in range(3):
        offer(tap)
    assert drain(tap) == [0, 1]
    offer(tap)
    assert drain(tap) == [3]
    assert (tap.queued, tap.dropped_full, tap.next_seq) == (3, 1, 4)


def test_rule_52_a_closed_tap_drops_for_another_reason() -> None:
    tap = make_tap(capacity=1)
    offer(tap)
    tap.close()
    offer(tap)
    assert (tap.queued, tap.dropped_full, tap.dropped_closed) == (1, 0, 1)
    assert tap.next_seq == 2
    assert drain(tap) == [0]


def test_rule_50_an_offer_never_waits_for_a_publisher() -> None:
    """It is a plain function: it works without a loop, so it cannot wait for one."""
    tap = make_tap(capacity=1)
    offer(tap)
    offer(tap)
    assert tap.dropped_full == 1


RESPONSE = Response(
    outcome=Outcome.COMPLETE,
    choices=(
        Choice(index=0, finish_reason="stop", output_tokens=5, token_ids=array("I", [1] * 5)),
    ),
    first_token_offset_ns=1,
    last_token_offset_ns=1,
    end_offset_ns=1,
)


def test_bytes_are_counted_until_the_record_has_been_published() -> None:
    tap = make_tap()
    offer(tap)
    offer(tap, RESPONSE)
    one = RECORD_OVERHEAD_BYTES + 100
    response = CHOICE_OVERHEAD_BYTES + 5 * 4
    assert tap.queued_bytes == 2 * one + response
    tap.take()
    assert tap.queued_bytes == 2 * one + response
    tap.put_down()
    assert tap.queued_bytes == one + response
    drain(tap)
    assert tap.queued_bytes == 0


def test_what_does_not_fit_in_capacity_bytes_is_dropped_for_its_bytes() -> None:
    one = RECORD_OVERHEAD_BYTES + 100
    tap = make_tap(capacity_bytes=2 * one)
    offer(tap)
    offer(tap, RESPONSE)
    assert (tap.queued, tap.dropped_bytes) == (1, 1)
    offer(tap)
    assert (tap.queued, tap.dropped_bytes) == (2, 1)
    assert drain(tap) == [0, 2]


def test_a_record_that_is_larger_than_the_bound_never_fits() -> None:
    tap = make_tap(capacity_bytes=50)
    offer(tap)
    assert (tap.queued, tap.dropped_bytes, tap.still_queued) == (0, 1, 0)


def test_the_record_in_hand_is_still_queued_until_it_is_put_down() -> None:
    tap = make_tap()
    offer(tap)
    tap.take()
    assert tap.still_queued == 1
    tap.put_down()
    tap.put_down()
    assert tap.still_queued == 0


def test_giving_up_counts_everything_that_was_not_published() -> None:
    tap = make_tap()
    for _ in range(3):
        offer(tap)
    tap.take()
    assert tap.give_up() == 3
    assert (tap.lost_at_shutdown, tap.still_queued, tap.queued_bytes) == (3, 0, 0)
    assert tap.is_closed
    assert tap.give_up() == 0


@given(
    st.lists(st.sampled_from(["offer", "take", "put_down", "close", "give_up"]), max_size=60),
    st.integers(1, 4),
    st.none() | st.integers(1, 4000),
)
def test_the_counters_add_up_after_any_events(
    events: list[str], capacity: int, capacity_bytes: int | None
) -> None:
    tap = make_tap(capacity=capacity, capacity_bytes=capacity_bytes)
    offered = published = 0
    for event in events:
        if event == "offer":
            offer(tap)
            offered += 1
        elif event == "take":
            if tap.still_queued == len(tap._queue):
                tap.take()
        elif event == "put_down":
            published += tap.still_queued - len(tap._queue)
            tap.put_down()
        else:
            getattr(tap, event)()
        dropped = tap.dropped_full + tap.dropped_closed + tap.dropped_bytes
        assert offered == tap.next_seq == tap.queued + dropped
        assert tap.queued == published + tap.lost_at_shutdown + tap.still_queued
        assert len(tap._queue) <= capacity
        assert capacity_bytes is None or tap.queued_bytes <= capacity_bytes
        assert tap.queued_bytes == tap.still_queued * (RECORD_OVERHEAD_BYTES + 100)


async def test_an_offer_and_a_close_wake_the_publisher() -> None:
    tap = make_tap()
    woken = []

    async def publisher() -> None:
        for _ in range(2):
            await tap.wait_queued()
            woken.append(tap.take())

    async with trio.open_nursery() as tasks:
        tasks.start_soon(publisher)
        await trio.testing.wait_all_tasks_blocked()
        offer(tap)
        await trio.testing.wait_all_tasks_blocked()
        assert len(woken) == 1
        assert woken[0] is not None
        tap.close()
    assert woken[1] is None


def test_rule_33_a_plain_tap_records_no_response() -> None:
    plain = Tap(TapConfig(name="t", capture=TapCapture.REQUEST))
    assert not plain.is_joined
    assert plain.bounds is None
    joined = make_tap(response=ResponseConfig(max_tokens=3, max_bytes_in_flight=9))
    assert joined.is_joined
    assert joined.bounds is not None
    assert joined.bounds.max_tokens == 3
    assert joined.budget is not None
    assert joined.budget.limit == 9


@pytest.mark.parametrize("attribute", ["in_flight", "in_flight_bytes", "next_seq", "skipped"])
def test_a_new_tap_starts_at_0(attribute: str) -> None:
    assert getattr(make_tap(), attribute) == 0
