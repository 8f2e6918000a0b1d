"""Records of taps as planned requests."""

import contextlib
import gzip
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.engines.base import Model
from replay.plane.codec import MessageEncoder
from replay.plane.record_file import HEADER, numbered_path, pack_record
from replay.player.arrival import TokenPrompt
from replay.player.observation import Outcome
from replay.player.traces.fault import Notes, TraceError
from replay.player.traces.opening import Source
from replay.player.traces.record import read_record
from replay.player.traces.record_scan import in_order, places_by_arrival, scan
from replay.player.traces.record_source import RecordSource
from replay.taps.envelope import EnvelopePacker
from replay.taps.from_generate import from_generate
from replay.taps.response import Choice, Response
from replay.taps.response import Outcome as TapOutcome

DYNAMO = Path(__file__).parents[1] / "data" / "dynamo"
SECRET = "sk-the-prompt-itself"


def response(outcome: TapOutcome = TapOutcome.COMPLETE, tokens: int = 3) -> Response:
    ids = array("I", range(tokens))
    return Response(
        outcome=outcome,
        choices=(Choice(index=0, finish_reason="eos", output_tokens=tokens, token_ids=ids),),
        first_token_offset_ns=10 if tokens else None,
        last_token_offset_ns=30 if tokens else None,
        end_offset_ns=40,
        chunk_offsets_ns=array("Q", (10, 20, 30)),
    )


def payload(
    name: str = "r-1",
    *,
    arrival_unix_ns: int = 7,
    packed_request: bytes | None = None,
    answer: Response | None = None,
) -> bytes:
    if packed_request is None:
        message = pb.GenerateRequest(request_id=name)
        message.tokenized.input_ids.extend((5, 6, 7))
        packed_request = from_generate(message, model=Model()).packed
    return EnvelopePacker("tap", ["strip-worker-pins"]).pack(
        seq=0,
        request_id=name,
        origin="preprocessed",
        arrival_unix_ns=arrival_unix_ns,
        packed_request=packed_request,
        response=answer,
    )


def decoded(data: bytes) -> dict[str, Any]:
    record: dict[str, Any] = msgpack.unpackb(data, strict_map_key=False)
    return record


def file_of(payloads: Sequence[bytes]) -> bytes:
    encoder = MessageEncoder("topic", 5)
    records = (pack_record(encoder.encode(at, at, data)) for at, data in enumerate(payloads))
    return HEADER + b"".join(records)


def test_what_a_tap_records_of_a_request_comes_back_as_it_was_sent() -> None:
    message = pb.GenerateRequest(
        request_id="r-1",
        stream=True,
        return_logprob=True,
        top_logprobs_num=2,
        token_ids_logprob=[4],
        data_parallel_rank=3,
        logprob_start_len=-1,
    )
    message.tokenized.input_ids.extend((5, 6, 7))
    values = message.sampling_params
    values.temperature = 0.5
    values.top_p = 0.25
    values.top_k = 7
    values.max_new_tokens = 0
    values.min_new_tokens = 1
    values.stop.append("END")
    values.stop_token_ids.extend((8, 9))
    values.ignore_eos = True
    values.n = 2
    values.sampling_seed = 2**64 - 1
    values.logit_bias["5"] = -1.5
    values.regex = "a+"
    values.skip_special_tokens = True
    request = from_generate(message, model=Model(name="m"))
    arrival = read_record(decoded(payload(packed_request=request.packed)), 3, Notes())
    assert arrival is not None
    assert (arrival.request_id, arrival.position, arrival.time_ns) == ("r-1", 3, 7)
    assert (arrival.model, arrival.stream, arrival.missing) == ("m", True, ())
    assert arrival.prompt == TokenPrompt(array("I", (5, 6, 7)))
    found = arrival.parameters
    assert (found.temperature, found.top_p, found.top_k) == (0.5, 0.25, 7)
    assert (found.max_new_tokens, found.min_new_tokens, found.n) == (0, 1, 2)
    assert (found.stop, found.stop_token_ids, found.ignore_eos) == (("END",), (8, 9), True)
    assert found.sampling_seed == 2**64 - 1
    assert found.logit_bias == {"5": -1.5}
    assert found.constraint == ("regex", "a+")
    assert (found.return_logprob, found.top_logprobs_num) == (True, 2)
    assert found.token_ids_logprob == (4,)
    assert found.data_parallel_rank == 3


@pytest.mark.parametrize(
    "path", sorted(DYNAMO.glob("request_*.msgpack")), ids=lambda path: path.stem
)
def test_dynamos_own_requests_are_read(path: Path) -> None:
    record = decoded(payload(packed_request=path.read_bytes()))
    arrival = read_record(record, 1, Notes())
    assert arrival is not None
    assert isinstance(arrival.prompt, TokenPrompt)
    assert arrival.prompt.ids.tolist() == record["request"]["token_ids"]
    assert ("multi_modal_data" in arrival.missing) == bool(
        record["request"].get("multi_modal_data")
    )
    assert arrival.stream is None


def test_a_joined_record_tells_what_came_of_the_request() -> None:
    arrival = read_record(decoded(payload(answer=response())), 1, Notes())
    assert arrival is not None
    recorded = arrival.recorded
    assert recorded is not None
    assert (recorded.outcome, recorded.ttft_ns, recorded.e2e_ns) == (Outcome.COMPLETE, 10, 40)
    assert recorded.itl_ns == [10, 10]
    assert recorded.tpot_ns == 15.0
    assert arrival.cancel_offset_ns is None


def test_a_cancelled_record_says_when() -> None:
    arrival = read_record(decoded(payload(answer=response(TapOutcome.CANCELLED))), 1, Notes())
    assert arrival is not None
    assert arrival.cancel_offset_ns == 40


def test_tokens_that_were_not_recorded_are_not_taken_for_none() -> None:
    record = decoded(payload(answer=response()))
    del record["response"]["choices"][0]["token_ids"]
    arrival = read_record(record, 1, Notes())
    assert arrival is not None
    assert arrival.recorded is not None
    assert arrival.recorded.choices[0].token_ids is None
    record["response"]["choices"][0]["output_tokens"] = 0
    arrival = read_record(record, 1, Notes())
    assert arrival is not None
    assert arrival.recorded is not None
    assert arrival.recorded.choices[0].token_ids == array("I")


def test_an_outcome_of_a_newer_version_is_not_taken_for_a_known_one() -> None:
    record = decoded(payload(answer=response()))
    record["response"]["outcome"] = "paused"
    arrival = read_record(record, 1, Notes())
    assert arrival is not None
    assert arrival.recorded is not None
    assert arrival.recorded.outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("group", "values", "missing"),
    [
        ("sampling_options", {"best_of": 3}, "best_of"),
        ("sampling_options", {"use_beam_search": True}, "use_beam_search"),
        ("sampling_options", {"guided_decoding": {"choice": ["a", "b"]}}, "guided_decoding"),
        ("stop_conditions", {"max_thinking_tokens": 5}, "max_thinking_tokens"),
    ],
)
def test_what_the_wire_cannot_say_is_named_as_missing(
    group: str, values: dict[str, Any], missing: str
) -> None:
    record = decoded(payload())
    record["request"][group].update(values)
    arrival = read_record(record, 1, Notes())
    assert arrival is not None
    assert arrival.missing == (missing,)


def test_records_of_another_schema_and_status_records_are_no_requests() -> None:
    notes = Notes()
    newer = decoded(payload()) | {"schema_version": 2}
    assert read_record(newer, 1, notes) is None
    assert notes.unsupported == 1
    assert read_record({"schema_version": 1, "kind": "status"}, 1, notes) is None
    assert notes.unsupported == 1


@pytest.mark.parametrize(
    "change",
    [
        {"request": SECRET},
        {"request": None},
        {"request": {"token_ids": SECRET}},
        {"arrival_unix_ns": SECRET},
        {"response": {"outcome": "complete", "choices": [SECRET], "end_offset_ns": 1}},
        {"response": {"outcome": "complete"}},
    ],
)
def test_a_record_of_wrong_types_is_refused_without_its_content(change: dict[str, Any]) -> None:
    with pytest.raises(TraceError, match="trace:9: is not a record of a tap") as caught:
        read_record(decoded(payload()) | change, 9, Notes())
    assert SECRET not in str(caught.value)


# ---- files


def test_records_are_played_in_the_order_of_arrival_not_of_their_ends(tmp_path: Path) -> None:
    path = tmp_path / "taps.records"
    arrivals = [30, 10, 20, 50, 40]
    path.write_bytes(file_of([payload(f"r{at}", arrival_unix_ns=at) for at in arrivals]))
    with Source(path) as source:
        assert source.format == "records"
        assert [each.time_ns for each in source.arrivals()] == [10, 20, 30, 40, 50]


def test_a_rotation_and_packed_files_are_read_as_one_source(tmp_path: Path) -> None:
    base = tmp_path / "taps.records"
    numbered_path(base, 0).write_bytes(file_of([payload("b", arrival_unix_ns=2)]))
    numbered_path(base, 1).write_bytes(gzip.compress(file_of([payload("a", arrival_unix_ns=1)])))
    with Source(base) as source:
        assert [each.request_id for each in source.arrivals()] == ["a", "b"]


def test_a_torn_tail_costs_one_record_and_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "taps.records"
    whole = file_of([payload(f"r{at}", arrival_unix_ns=at) for at in range(5)])
    path.write_bytes(whole[:-3])
    with Source(path) as source:
        assert len(list(source.arrivals())) == 4
        last = len(whole) - len(file_of([payload(f"r{at}") for at in range(4)]))
        assert source.notes.torn_bytes == last - 3


def test_a_scan_tells_the_head_of_each_record(tmp_path: Path) -> None:
    path = tmp_path / "taps.records"
    answers = [response(), None, response(TapOutcome.ERROR)]
    payloads = [payload(f"r{at}", answer=answer) for at, answer in enumerate(answers)]
    path.write_bytes(file_of(payloads))
    found = list(RecordSource(path).scan())
    assert [each.outcome for each in found] == ["complete", None, "error"]
    assert [each.request_id for each in found] == ["r0", "r1", "r2"]


def test_messages_that_are_no_record_are_counted_and_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "taps.records"
    path.write_bytes(file_of([b"\xc1", payload("a"), b"", msgpack.packb([1])]))
    with Source(path) as source:
        assert [each.request_id for each in source.arrivals()] == ["a"]
        assert source.notes.undecodable == 3


def test_a_path_without_a_record_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RecordSource(tmp_path / "absent")


@given(st.binary())
def test_no_bytes_crash_a_scan(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        scan(data)


@given(st.lists(st.integers(0, 20)))
def test_items_come_in_the_order_of_their_arrivals_and_ties_in_that_of_the_file(
    arrivals: list[int],
) -> None:
    items = list(enumerate(arrivals))
    ordered = list(in_order(items, places_by_arrival(arrivals)))
    assert ordered == sorted(items, key=lambda item: item[1])
