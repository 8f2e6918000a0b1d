"""The account of one publisher: joining, exact loss, the tail, drops (cases 20 and 21)."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.consumer.ledger import SETTLE_SECONDS, PublisherLedger
from replay.consumer.status import Dropped, TapStatus


def tap(next_sequence: int, dropped: Dropped | None = None, errors: int = 0) -> TapStatus:
    return TapStatus(
        "shadow-replay", "shadow", 7, next_sequence, dropped or Dropped(), errors, 0, next_sequence
    )


def observe(
    ledger: PublisherLedger,
    now: float,
    next_sequence: int,
    *,
    dropped: Dropped | None = None,
    errors: int = 0,
    is_final: bool = False,
    is_subscribed: bool = True,
) -> None:
    """*errors* are of records that could not be packed."""
    status = tap(next_sequence, dropped, errors)
    ledger.observe(status, now, is_final=is_final, is_subscribed=is_subscribed)


def tail(ledger: PublisherLedger, now: float) -> int | None:
    return ledger.tail_loss(now, is_empty=True, is_over=False)


def test_without_status_records_only_holes_are_known() -> None:
    """Rule 66: loss after the last record, and of everything, cannot be seen."""
    ledger = PublisherLedger(7)
    for sequence in (100, 101, 104):
        assert ledger.receive(sequence, 0.0)
    assert ledger.joined_at == 100
    assert ledger.transport.missing == 2
    assert ledger.transport_loss is None
    assert ledger.dropped is None
    assert tail(ledger, 100.0) is None


def test_a_reader_has_joined_with_its_first_message() -> None:
    ledger = PublisherLedger(7)
    assert ledger.joined_at is None
    ledger.receive(100, 0.0)
    assert ledger.joined_at == 100
    observe(ledger, 0.5, 101)
    observe(ledger, 1.5, 103)
    ledger.receive(102, 1.6)
    assert ledger.transport_loss == 1


def test_without_a_message_it_has_joined_with_the_second_status_after_the_connection() -> None:
    ledger = PublisherLedger(7)
    observe(ledger, 0.0, 5, is_subscribed=False)
    assert ledger.joined_at is None
    observe(ledger, 1.0, 5)
    assert ledger.joined_at is None
    observe(ledger, 2.0, 9)
    assert ledger.joined_at == 9
    ledger.receive(12, 2.5)
    assert ledger.joined_at == 9
    assert ledger.transport_loss == 3


def test_a_message_that_a_status_overtook_moves_the_joining_back() -> None:
    ledger = PublisherLedger(7)
    observe(ledger, 1.0, 9)
    observe(ledger, 2.0, 9)
    ledger.receive(8, 2.1)
    assert ledger.joined_at == 8
    assert ledger.transport_loss == 0


def test_loss_of_everything_is_seen() -> None:
    ledger = PublisherLedger(7)
    observe(ledger, 1.0, 0)
    observe(ledger, 2.0, 0)
    observe(ledger, 3.0, 50)
    assert tail(ledger, 3.0 + SETTLE_SECONDS) == 50
    assert ledger.transport_loss == 0


def test_the_tail_is_known_when_nothing_has_come_for_a_while_after_a_status() -> None:
    ledger = PublisherLedger(7)
    for sequence in range(10):
        ledger.receive(sequence, 0.0)
    observe(ledger, 1.0, 30)
    assert tail(ledger, 1.0) is None
    assert tail(ledger, 1.0 + SETTLE_SECONDS) == 20
    ledger.receive(10, 1.6)  # it was only late
    assert tail(ledger, 1.6 + SETTLE_SECONDS / 2) is None
    assert tail(ledger, 1.6 + SETTLE_SECONDS) == 19


def test_what_waits_in_the_socket_is_not_lost() -> None:
    ledger = PublisherLedger(7)
    ledger.receive(0, 0.0)
    observe(ledger, 1.0, 30)
    assert ledger.tail_loss(9.0, is_empty=False, is_over=False) is None
    assert ledger.tail_loss(9.0, is_empty=True, is_over=False) == 29


def test_a_status_of_this_moment_does_not_undo_what_an_older_one_has_settled() -> None:
    ledger = PublisherLedger(7)
    ledger.receive(0, 0.0)
    observe(ledger, 1.0, 30)
    observe(ledger, 2.0, 40)
    assert tail(ledger, 2.0) == 29
    assert tail(ledger, 2.0 + SETTLE_SECONDS) == 39
    for beat in range(3, 100):
        observe(ledger, float(beat), 40)
    assert tail(ledger, 99.0) == 39


def test_a_burst_of_statuses_after_a_stop_settles_nothing_by_itself() -> None:
    """A process that was stopped finds a status for each second, and its messages behind them."""
    ledger = PublisherLedger(7)
    ledger.receive(0, 0.0)
    for beat in range(30):
        observe(ledger, 50.0 + beat / 1e6, 100 + beat)
    assert tail(ledger, 50.001) is None
    for sequence in range(1, 80):
        ledger.receive(sequence, 50.2)
    assert tail(ledger, 50.6) is None
    assert tail(ledger, 50.2 + SETTLE_SECONDS) == 129 - 80


def test_messages_that_keep_coming_leave_the_tail_open_until_they_reach_the_status() -> None:
    ledger = PublisherLedger(7)
    ledger.receive(0, 0.0)
    observe(ledger, 1.0, 3)
    ledger.receive(1, 2.0)
    assert tail(ledger, 2.1) is None
    ledger.receive(2, 2.2)
    assert tail(ledger, 2.2) == 0


def test_the_end_of_a_connection_settles_at_once() -> None:
    ledger = PublisherLedger(7)
    ledger.receive(0, 1.0)
    observe(ledger, 1.0, 5, is_final=True)
    assert ledger.is_final
    assert ledger.tail_loss(1.0, is_empty=True, is_over=True) == 4


def test_the_last_status_is_waited_for_although_an_older_one_has_settled() -> None:
    ledger = PublisherLedger(7)
    ledger.receive(0, 0.0)
    observe(ledger, 1.0, 1)
    assert tail(ledger, 2.0) == 0
    observe(ledger, 2.0, 5, is_final=True)
    assert tail(ledger, 2.1) is None
    assert tail(ledger, 2.0 + SETTLE_SECONDS) == 4


def test_the_drops_of_the_tap_count_from_joining() -> None:
    ledger = PublisherLedger(7)
    ledger.receive(100, 0.0)
    observe(ledger, 1.0, 101, dropped=Dropped(full=40, closed=1))
    assert ledger.dropped == Dropped()
    observe(ledger, 2.0, 101, dropped=Dropped(full=43, closed=1, bytes=2))
    assert ledger.dropped == Dropped(full=3, bytes=2)
    assert ledger.dropped.total == 5


def test_who_was_there_from_the_beginning_counts_every_drop() -> None:
    ledger = PublisherLedger(7)
    ledger.receive(0, 0.0)
    observe(ledger, 1.0, 1, dropped=Dropped(full=4))
    assert ledger.dropped == Dropped(full=4)


def test_what_a_tap_dropped_between_the_first_message_and_the_first_status_counts_too() -> None:
    ledger = PublisherLedger(7)
    ledger.receive(100, 0.0)
    ledger.count(100, 140)  # so 40 were dropped before it
    ledger.receive(101, 0.1)
    ledger.count(101, 151)
    observe(ledger, 1.0, 102, dropped=Dropped(full=55))
    assert ledger.dropped == Dropped(full=15)
    observe(ledger, 2.0, 102, dropped=Dropped(full=55, closed=2))
    assert ledger.dropped == Dropped(full=15, closed=2)


def test_drops_of_which_an_older_status_does_not_know_are_from_before_joining() -> None:
    """The first status was on its way already when the first message was sent."""
    ledger = PublisherLedger(7)
    ledger.receive(100, 0.0)
    ledger.count(100, 140)
    observe(ledger, 0.1, 98, dropped=Dropped(full=30))
    assert ledger.dropped == Dropped()
    observe(ledger, 1.1, 101, dropped=Dropped(full=42))
    assert ledger.dropped == Dropped(full=2)


@pytest.mark.parametrize(("sequence", "expected"), [(0, 42), (100, 2)])
def test_drops_are_known_also_when_the_last_status_came_before_the_first_message(
    sequence: int, expected: int
) -> None:
    ledger = PublisherLedger(7)
    observe(ledger, 0.0, 101, dropped=Dropped(full=42), is_final=True, is_subscribed=False)
    assert ledger.dropped is None
    ledger.receive(sequence, 0.1)
    ledger.count(sequence, sequence + (40 if sequence else 0))
    assert ledger.dropped == Dropped(full=expected)


def test_records_that_could_not_be_packed_are_no_drops() -> None:
    ledger = PublisherLedger(7)
    ledger.receive(100, 0.0)
    ledger.count(100, 145)
    observe(ledger, 1.0, 101, dropped=Dropped(bytes=43), errors=5)
    assert ledger.dropped == Dropped(bytes=3)


@given(
    st.lists(st.sampled_from(["sent", "dropped", "status"]), max_size=40),
    st.integers(1, 40),
)
def test_the_drops_since_joining_are_exact_wherever_a_reader_comes_in(
    course: list[str], late: int
) -> None:
    """*course* is what a tap does; a reader gets what is sent after *late* steps."""
    ledger = PublisherLedger(7)
    seq = sequence = dropped = expected = 0
    for step, what in enumerate([*course, "sent", "status"]):
        if what == "sent":
            if step >= late:
                ledger.receive(sequence, 0.0)
                ledger.count(sequence, seq)
            sequence += 1
            seq += 1
        elif what == "dropped":
            dropped += 1
            seq += 1
            expected += ledger.joined_at is not None
        elif step >= late:
            observe(ledger, 0.0, sequence, dropped=Dropped(full=dropped), is_subscribed=False)
    if ledger.joined_at is not None:
        assert ledger.dropped is not None
        assert ledger.dropped.total == (dropped if ledger.joined_at == 0 else expected)


@pytest.mark.parametrize("by_status", [True, False])
def test_from_start_also_misses_what_was_before_joining(by_status: bool) -> None:
    """Case 20: not unless asked."""
    ledger = PublisherLedger(7, from_start=True)
    if by_status:
        observe(ledger, 0.0, 90)
        observe(ledger, 1.0, 100)
    ledger.receive(100, 1.5)
    observe(ledger, 2.0, 101)
    assert ledger.joined_at == 0
    assert ledger.transport_loss == 100


def test_a_duplicate_is_counted_and_changes_nothing_else() -> None:
    ledger = PublisherLedger(7)
    assert ledger.receive(3, 0.0)
    assert not ledger.receive(3, 0.1)
    assert ledger.duplicates == 1
    assert ledger.transport.count == 1


@given(
    before=st.integers(0, 20),
    fates=st.lists(st.booleans(), max_size=60),
    beats=st.sets(st.integers(0, 60)),
)
def test_the_loss_between_joining_and_the_end_is_exact_wherever_it_falls(
    before: int, fates: list[bool], beats: set[int]
) -> None:
    """A message is sent each second and arrives or not; statuses come in between."""
    ledger = PublisherLedger(7)
    observe(ledger, -2.0, before)
    observe(ledger, -1.0, before)
    for number, arrives in enumerate(fates):
        if arrives:
            ledger.receive(before + number, float(number))
        if number in beats:
            observe(ledger, number + 0.1, before + number + 1)
    end = float(len(fates))
    observe(ledger, end, before + len(fates), is_final=True)
    lost_tail = tail(ledger, end + SETTLE_SECONDS)
    assert lost_tail is not None
    assert ledger.transport_loss is not None
    assert ledger.transport_loss + lost_tail == fates.count(False)
    trailing = len(fates) - max((n + 1 for n, each in enumerate(fates) if each), default=0)
    assert lost_tail == trailing


def test_a_ledger_keeps_few_statuses_however_long_it_lives() -> None:
    ledger = PublisherLedger(7)
    for beat in range(10_000):
        observe(ledger, float(beat), beat)
    assert len(attrs.asdict(tap(0))) == 8
    assert len(ledger._statuses) <= 2
