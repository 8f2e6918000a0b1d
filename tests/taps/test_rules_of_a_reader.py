"""Rules 64 to 67: what a reader can know of a tap from the numbers of its records."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.config.model import TapCapture, TapConfig
from replay.consumer.gaps import SequenceRanges
from replay.consumer.ledger import PublisherLedger
from replay.consumer.report import Account, build_report
from replay.consumer.totals import Totals
from replay.packed import TokenIds
from replay.request import Request
from replay.taps.taps import Taps


def missing(numbers: list[int]) -> int:
    ranges = SequenceRanges()
    for number in numbers:
        ranges.add(number)
    return ranges.missing


def test_rule_64_a_reader_that_joins_late_and_one_that_is_overtaken_miss_nothing() -> None:
    assert missing([4, 6, 5, 7]) == 0
    assert missing([4, 6, 5, 7, 10]) == 2


@given(st.sets(st.integers(0, 200), min_size=1), st.randoms())
def test_rule_64_the_order_does_not_matter(numbers: set[int], chance: object) -> None:
    shuffled = list(numbers)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    assert missing(shuffled) == max(numbers) - min(numbers) + 1 - len(numbers)


def test_rule_64_a_number_that_comes_twice_hides_no_hole() -> None:
    assert missing([1, 1, 3]) == 1


def ledger_of(publisher_id: int, records: list[tuple[int, int]]) -> PublisherLedger:
    """Return the account of a publisher whose records had these sequences and tap numbers."""
    ledger = PublisherLedger(publisher_id)
    for sequence, seq in records:
        ledger.receive(sequence, 0.0)
        ledger.tap.add(seq)
    return ledger


def gaps(*ledgers: PublisherLedger) -> tuple[int, int]:
    report = build_report(Totals(), [Account(ledger, None) for ledger in ledgers], foreign=0)
    return report["tap_gaps"], report["transport_gaps"]


def test_rule_65_ranges_are_apart_for_each_publisher_and_totals_are_sums() -> None:
    first = ledger_of(1, [(0, 0), (1, 1), (3, 3)])
    second = ledger_of(2, [(100, 50), (103, 53)])
    assert gaps(first) == (1, 1)
    assert gaps(second) == (2, 2)
    assert gaps(first, second) == (3, 3)


def test_rule_66_without_status_records_the_loss_at_the_end_is_not_known() -> None:
    ledger = ledger_of(1, [(0, 0), (1, 1)])
    assert gaps(ledger) == (0, 0)
    assert ledger.transport_loss is None
    assert ledger.tail_loss(9.0, is_empty=True, is_over=True) is None


@pytest.mark.parametrize("lost", [(), (2,), (0, 5)])
def test_rule_67_the_drops_of_a_tap_are_its_gaps_without_those_of_the_transport(
    lost: tuple[int, ...],
) -> None:
    taps = Taps([TapConfig(name="t", capture=TapCapture.REQUEST, capacity=2)])
    (tap,) = taps
    sent: list[tuple[int, int]] = []
    sequences = itertools.count()
    for _ in range(4):
        for _ in range(3):  # one more than fits
            with taps.record(Request(model="m", token_ids=TokenIds([1]))):
                pass
        while (record := tap.take()) is not None:
            tap.put_down()
            sent.append((next(sequences), record.seq))
    arrived = [each for each in sent if each[0] not in lost]
    tap_gaps, transport_gaps = gaps(ledger_of(1, arrived))
    # The last of the four drops came after the last record, the first loss before the first one.
    inside = sum(arrived[0][0] < number < arrived[-1][0] for number in lost)
    assert transport_gaps == inside
    assert tap.dropped_full == 4
    drops_inside = sum(arrived[0][1] < seq < arrived[-1][1] for seq in (2, 5, 8, 11))
    assert tap_gaps - transport_gaps == drops_inside
