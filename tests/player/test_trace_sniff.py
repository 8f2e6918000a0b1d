"""What a source is, by its first bytes."""

import json
import pickle

import pytest

from replay.player.traces.fault import TraceError
from replay.player.traces.sniff import sniff

CAPTURE_KEYS = ("request_id", "input_ids", "original_text", "max_new_tokens", "sampling_seed")


@pytest.mark.parametrize(
    ("head", "name"),
    [
        ('{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[1]}', "mooncake"),
        ('{"timestamp":0,"input_length":1,"output_length":1}', "mooncake"),
        ('{"timestamp":0,"input_length":1,"session_id":"a"}', "dynamo"),
        ('{"created_time":0,"input_tokens":1}', "dynamo"),
        ('{"timestamp":0,"input_length":1}', "dynamo"),
        ('{"timestamp":0,"messages":[]}', "dynamo"),
        ('{"type":"single_turn","text":"x"}', "aiperf"),
        ('{"text":"x"}', "aiperf"),
        ('{"session_id":"a","turns":[]}', "aiperf"),
        ('{"type":"mooncake_trace","input_length":1}', "aiperf"),
        (json.dumps(dict.fromkeys(CAPTURE_KEYS)), "capture"),
        ('{"request_id":"a","chunks":[[1]]}', "script"),
        ('{"schema":"replay.results.v1"}', "results"),
        ('{"id":"a","prompt_token_ids":[1]}', "references"),
        ('{"request_id":"a","input_ids":[1]}\n{"request_id":"b","input_ids":[1]}', "references"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens", "azure"),
        ("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", "burstgpt"),
        ("replay-records 1\n\0\0\0\1", "records"),
    ],
)
def test_a_format_is_known_by_its_content(head: str, name: str) -> None:
    assert sniff(head.encode()) == name


@pytest.mark.parametrize("head", ['{"text":"x"}', "TIMESTAMP,ContextTokens,GeneratedTokens"])
def test_a_byte_order_mark_and_blank_lines_hide_no_format(head: str) -> None:
    assert sniff(b"\xef\xbb\xbf\r\n" + head.encode()) == sniff(head.encode())


def test_a_row_that_only_later_ones_tell_apart_is_read_with_them() -> None:
    first = '{"timestamp":0,"input_length":1,"output_length":1}'
    second = '{"input_length":1,"output_length":1,"delay":5,"session_id":"a"}'
    assert sniff(first.encode()) == "mooncake"
    assert sniff(f"{first}\n{second}\n".encode()) == "dynamo"


def test_a_capture_is_known_by_the_part_of_a_long_line_that_was_read() -> None:
    assert sniff(b'{"request_id":"a","input_ids":[1,2,3,4') == "capture"


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_is_refused_and_the_reason_given(protocol: int) -> None:
    with pytest.raises(TraceError, match="can run any code"):
        sniff(pickle.dumps({"requests": [({}, {}, 0.0, 1.0)]}, protocol))


def test_a_pickle_of_the_oldest_form_is_refused() -> None:
    with pytest.raises(TraceError, match="pickle"):
        sniff(pickle.dumps([("request", "output", 0.0, 1.0)], 0))


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"", "is empty"),
        (b"\n\r\n  \n", "is empty"),
        (b"replay-records 2\n", "of a version"),
        (b"\x89PNG\r\n\x1a\n\0\0", "is binary"),
        (b'[{"timestamp": 0}]', "is a JSON array"),
        (b'{"a": 1}\n', "its keys are those of none"),
        (b"id;time\n1;2\n", "is of no format"),
    ],
)
def test_what_no_format_begins_with_is_refused(head: bytes, reason: str) -> None:
    with pytest.raises(TraceError) as caught:
        sniff(head)
    assert reason in caught.value.reason
