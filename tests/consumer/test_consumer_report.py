"""Status records, totals, reports and lines of a consumer."""

import json
import math
from typing import Any

import msgpack
import pytest

from replay.consumer.ledger import PublisherLedger
from replay.consumer.record_json import record_line
from replay.consumer.report import Account, build_report, progress_line
from replay.consumer.status import Dropped, RuntimeStatus, TapStatus, read_status
from replay.consumer.summary import SummaryReader
from replay.consumer.totals import Totals
from replay.plane.codec import EventEnvelope, Message
from replay.taps.envelope import UndecodableRecordError, UnsupportedRecordError
from tests.plane.records import record, status, tap_status

DYNAMOS_KEYS = [
    "records",
    "prompt_tokens",
    "output_tokens",
    "responses",
    "complete",
    "incomplete",
    "cancelled",
    "error",
    "tap_gaps",
    "transport_gaps",
    "arrival_span_ms",
]


def test_a_status_record_is_read() -> None:
    dropped = {"full": 1, "closed": 2, "bytes": 3}
    taps = [tap_status(7, 30, dropped=dropped, publish_errors=4, lost_at_shutdown=5)]
    assert read_status(status(taps, final=True, router="tcp://127.0.0.1:5")) == RuntimeStatus(
        "runtime",
        True,
        "tcp://127.0.0.1:5",
        (TapStatus("shadow-replay", "shadow", 7, 30, Dropped(1, 2, 3), 4, 5, 30),),
    )
    assert read_status(status([], newer="key")).taps == ()


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x05",
        b"\x90",
        status([{"tap": "a"}]),
        status([tap_status(-1, 0)]),
        status([tap_status(7, True)]),
        status([tap_status(7, 0, dropped=[1, 2, 3])]),
        status([5]),  # type: ignore[list-item]
        status([], router=5),  # type: ignore[arg-type]
        status([], runtime_id=None),
    ],
)
def test_what_is_no_status_record_is_undecodable(payload: bytes) -> None:
    with pytest.raises(UndecodableRecordError):
        read_status(payload)


@pytest.mark.parametrize("changes", [{"schema_version": 2}, {"kind": "event"}])
def test_a_newer_status_record_is_unsupported(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedRecordError):
        read_status(status([], **changes))


def totals_of(*payloads: bytes) -> Totals:
    totals, reader = Totals(), SummaryReader()
    for payload in payloads:
        totals.add(reader.read(payload))
    return totals


def test_totals_sum_up_records_with_and_without_a_response() -> None:
    totals = totals_of(
        record(0, response=...),
        record(3),
        record(1, response={"outcome": "error", "output_tokens": 0}),
        record(2, response={"outcome": "cancelled", "output_tokens": 7}),
    )
    assert (totals.records, totals.prompt_tokens, totals.output_tokens) == (4, 12, 9)
    assert totals.responses == 3
    assert totals.outcomes == {"complete": 1, "incomplete": 0, "cancelled": 1, "error": 1}
    assert totals.arrival_span_ms == 3
    assert Totals().arrival_span_ms == 0


def test_a_report_has_dynamos_keys_first_and_in_dynamos_order() -> None:
    report = build_report(Totals(), [], foreign=0)
    assert list(report)[: len(DYNAMOS_KEYS)] == DYNAMOS_KEYS
    assert list(report)[len(DYNAMOS_KEYS) :] == [
        "tap_drops",
        "transport_loss",
        "tail_loss",
        "joined_at",
        "epochs",
        "duplicates",
        "foreign",
        "undecodable",
        "unsupported",
        "recovered",
        "unrecovered",
        "end_seen",
        "publishers",
    ]
    assert json.loads(json.dumps(report)) == report


def test_publishers_have_ranges_of_their_own_and_totals_are_sums() -> None:
    """Rules 65 and 67: a tap's gaps include what was lost in transport."""
    one, two = PublisherLedger(0xA), PublisherLedger(0xB)
    for sequence in (5, 7):
        one.receive(sequence, 0.0)
        one.tap.add(sequence + 100)
    for sequence in (0, 1, 5):
        two.receive(sequence, 0.0)
    for seq in (0, 2, 8):
        two.tap.add(seq)
    report = build_report(Totals(), [Account(one, None), Account(two, None)], foreign=3)
    assert (report["tap_gaps"], report["transport_gaps"]) == (1 + 6, 1 + 3)
    assert report["joined_at"] == {"a": 5, "b": 0}
    assert (report["epochs"], report["foreign"]) == (2, 3)
    for unknown in ("tap_drops", "transport_loss", "tail_loss", "end_seen"):
        assert report[unknown] is None


def test_one_publisher_without_a_status_leaves_the_sum_unknown() -> None:
    ours, dynamos = PublisherLedger(1), PublisherLedger(2)
    tap = read_status(status([tap_status(1, 10)])).taps[0]
    for ledger in (ours, dynamos):
        ledger.receive(0, 0.0)
    ours.observe(tap, 0.0, is_final=True, is_subscribed=True)
    accounts = [Account(ours, 9), Account(dynamos, None)]
    report = build_report(Totals(), accounts, foreign=0)
    assert (report["tail_loss"], report["transport_loss"], report["end_seen"]) == (
        None,
        None,
        False,
    )
    assert report["publishers"][0]["tail_loss"] == 9
    alone = build_report(Totals(), accounts[:1], foreign=0)
    assert (alone["tail_loss"], alone["transport_loss"], alone["end_seen"]) == (9, 0, True)


def test_a_publisher_that_never_was_joined_is_listed_and_not_counted() -> None:
    report = build_report(Totals(), [Account(PublisherLedger(5), None)], foreign=0)
    assert (report["epochs"], report["joined_at"]) == (0, {})
    assert report["publishers"][0]["publisher_id"] == "5"


def test_the_progress_line_is_dynamos() -> None:
    before = build_report(Totals(), [], foreign=0)
    now = build_report(totals_of(record(0), record(1)), [], foreign=0)
    assert progress_line(before, now, 0.5) == (
        "records=2 prompt_tokens=6 output_tokens=4 (4 req/s, 12 prompt tok/s)"
        " tap_gaps=0 transport_gaps=0"
    )


def line_of(payload: bytes) -> dict[str, Any]:
    envelope = EventEnvelope(2**53 - 1, 2**63, 1_700_000_000_000, "shadow", payload)
    text = record_line(Message([], envelope))
    assert "\n" not in text
    assert text.isascii()

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    parsed: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return parsed


def test_a_printed_record_is_one_line_of_strict_json_with_exact_numbers() -> None:
    """Cases 7, 10 and 11."""
    request = {
        "token_ids": [1, 2**32 - 1],
        "sampling_options": {"temperature": math.nan, "top_p": math.inf, "min_p": -math.inf},
        "extra_args": {"text": "\u2028\n\x1b[31m\x00emoji \U0001f600", "seed": 2**64 - 1},
        "multi_modal_data": {"image": [b"\x00\xff"]},
        "mixed": [1, None, True, -0.0, [b""]],
    }
    line = line_of(record(1, request=request))
    assert (line["publisher_id"], line["sequence"]) == (2**53 - 1, 2**63)
    read = line["record"]["request"]
    assert read["sampling_options"] == {
        "temperature": "NaN",
        "top_p": "Infinity",
        "min_p": "-Infinity",
    }
    assert read["extra_args"] == request["extra_args"]
    assert read["multi_modal_data"] == {"image": [{"base64": "AP8="}]}
    assert read["mixed"] == [1, None, True, -0.0, [{"base64": ""}]]
    assert read["token_ids"] == [1, 2**32 - 1]


def test_what_json_has_no_form_for_gets_one() -> None:
    extras = {5: msgpack.ExtType(4, b"\x01"), "time": msgpack.Timestamp(1, 5)}
    read = line_of(record(extra=extras))["record"]["extra"]
    assert read == {
        "5": {"extension": 4, "base64": "AQ=="},
        "time": {"unix_ns": 1_000_000_005},
    }
    torn_text = msgpack.packb({"a": "xx"}).replace(b"xx", b"x\xff")
    assert line_of(torn_text)["record"] == {"a": "x\ufffd"}


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x91" * 3000 + b"\x00"])
def test_what_cannot_be_printed_says_so(payload: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        line_of(payload)
