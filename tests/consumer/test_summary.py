"""Reading past a record: what is counted, what is undecodable, what is of a newer kind."""

import contextlib
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.consumer.summary import RecordSummary, SummaryReader, read_seq
from replay.taps.envelope import UndecodableRecordError, UnsupportedRecordError
from tests.plane.records import record


def test_a_joined_record_is_read() -> None:
    assert SummaryReader().read(record(5)) == RecordSummary(
        tap="shadow-replay",
        seq=5,
        request_id="request-5",
        arrival_unix_ns=1_700_000_000_005_000_000,
        prompt_tokens=3,
        outcome="complete",
        output_tokens=2,
    )


@pytest.mark.parametrize("response", [..., None])
def test_a_record_of_a_request_alone_has_no_outcome(response: object) -> None:
    summary = SummaryReader().read(record(response=response))
    assert (summary.outcome, summary.output_tokens) == (None, 0)


@pytest.mark.parametrize("count", [0, 15, 16, 65_535, 65_536])
def test_prompt_tokens_are_counted_in_each_form_of_an_array(count: int) -> None:
    request = {"model": "m", "token_ids": [7] * count, "annotations": []}
    assert SummaryReader().read(record(request=request)).prompt_tokens == count


def test_keys_that_are_not_known_and_any_order_are_no_matter() -> None:
    fields = msgpack.unpackb(record(3))
    fields["truncated"] = {"deep": [1.5, None, b"x"]}
    fields["response"]["choices"][0]["truncated"] = True
    turned = msgpack.packb(dict(reversed(list(fields.items()))))
    assert SummaryReader().read(turned) == SummaryReader().read(record(3))


@pytest.mark.parametrize(
    "changes",
    [
        {"schema_version": 2},
        {"schema_version": 2, "request": [1, 2]},
        {"response": {"outcome": "postponed", "output_tokens": 1}},
        {"filters": ["strip-worker-pins", "strip-everything"]},
        {"filters": ["max-tokens=many"]},
    ],
)
def test_a_record_of_a_newer_kind_is_unsupported(changes: dict[str, Any]) -> None:
    """Case 52."""
    with pytest.raises(UnsupportedRecordError):
        SummaryReader().read(record(9, **changes))
    assert read_seq(record(9, **changes)) == 9


@pytest.mark.parametrize(
    "changes",
    [
        *({name: ...} for name in ("schema_version", "tap", "seq", "request_id", "filters")),
        {"arrival_unix_ns": ...},
        {"request": ...},
        {"request": None},
        {"request": {"model": "m"}},
        {"request": {"token_ids": None}},
        {"request": {"token_ids": b"\x01\x02"}},
        {"seq": -1},
        {"seq": True},
        {"seq": "5"},
        {"tap": 5},
        {"tap": b"shadow"},
        {"request_id": None},
        {"arrival_unix_ns": 1.5},
        {"schema_version": "1"},
        {"filters": "strip-worker-pins"},
        {"filters": [5]},
        {"response": {"output_tokens": 2}},
        {"response": {"outcome": "complete"}},
        {"response": {"outcome": 5, "output_tokens": 2}},
        {"response": {"outcome": "complete", "output_tokens": -2}},
        {"response": ["complete"]},
    ],
)
def test_a_record_that_lacks_what_it_must_have_is_undecodable(changes: dict[str, Any]) -> None:
    """Rule 68."""
    with pytest.raises(UndecodableRecordError):
        SummaryReader().read(record(**changes))


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x05", record()[:-1], record() + b"\0"])
def test_what_is_not_one_whole_record_is_undecodable(payload: bytes) -> None:
    with pytest.raises(UndecodableRecordError):
        SummaryReader().read(payload)


def test_a_bad_record_does_not_touch_the_next_one() -> None:
    reader = SummaryReader()
    whole = record(1)
    for cut in range(0, len(whole), 7):
        with pytest.raises(UndecodableRecordError):
            reader.read(whole[:cut])
        with pytest.raises(UnsupportedRecordError):
            reader.read(record(schema_version=2))
        assert reader.read(whole).seq == 1


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused_with_one_of_two_errors(payload: bytes) -> None:
    reader = SummaryReader()
    with contextlib.suppress(UndecodableRecordError, UnsupportedRecordError):
        reader.read(payload)
    assert reader.read(record(1)).seq == 1
    read_seq(payload)


def test_a_refusal_quotes_nothing_of_the_record() -> None:
    secret = "sk-very-secret"
    for changes in (
        {"tap": [secret]},
        {"filters": [secret]},
        {"request": {"token_ids": secret}},
        {"response": {"outcome": secret, "output_tokens": 1}},
        {"schema_version": secret},
    ):
        with pytest.raises((UndecodableRecordError, UnsupportedRecordError)) as caught:
            SummaryReader().read(record(**changes))
        assert secret not in str(caught.value)
        assert caught.value.__cause__ is None


@pytest.mark.parametrize("payload", [b"\x05", b"\x80", b"\xff", msgpack.packb({"seq": -1})])
def test_a_record_without_a_number_has_none(payload: bytes) -> None:
    assert read_seq(payload) is None
