"""Each format of lines: what a row becomes, and what is refused with its line."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from replay.player.arrival import (
    Arrival,
    BlockPrompt,
    ChatPrompt,
    LengthPrompt,
    Parameters,
    TextPrompt,
    TokenPrompt,
)
from replay.player.observation import Outcome
from replay.player.traces.fault import Notes, TraceError
from replay.player.traces.formats import TEXT_FORMATS
from replay.player.traces.lines import split_lines
from replay.player.traces.options import ReadOptions

TRACES = Path(__file__).parents[1] / "data" / "traces"
SECRET = "sk-the-prompt-itself"

MOONCAKE = {"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [1, 2]}
CAPTURE: dict[str, Any] = {
    "request_id": "r-1",
    "input_ids": [5, 6, 7],
    "original_text": SECRET,
    "stream": True,
    "temperature": 0.7,
    "top_p": None,
    "top_k": -1,
    "min_p": None,
    "repetition_penalty": None,
    "frequency_penalty": None,
    "presence_penalty": None,
    "max_new_tokens": 0,
    "min_new_tokens": 0,
    "stop": ["END"],
    "stop_token_ids": [9],
    "ignore_eos": False,
    "no_stop_trim": False,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "n": 2,
    "sampling_seed": 2**64 - 1,
    "logit_bias": {"5": "-inf", "7": 1.5},
    "constraint": {"kind": "regex", "value": "a+"},
    "return_logprob": False,
    "logprob_start_len": None,
    "top_logprobs_num": 0,
    "token_ids_logprob": [],
    "has_custom_params": False,
    "has_mm_inputs": False,
    "has_encode_bootstrap_info": False,
    "has_kv_bootstrap_info": False,
    "has_data_parallel_rank": False,
}


def read(
    name: str, data: str | bytes, notes: Notes | None = None, options: ReadOptions | None = None
) -> list[Arrival]:
    text = data.encode() if isinstance(data, str) else data
    read_rows = TEXT_FORMATS[name].read
    return list(read_rows(split_lines([text]), options or ReadOptions(), notes or Notes()))


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def refused(name: str, data: str | bytes) -> TraceError:
    with pytest.raises(TraceError) as caught:
        read(name, data)
    assert SECRET not in str(caught.value)
    return caught.value


# ---- Mooncake


def test_mooncake_rows_are_milliseconds_lengths_and_blocks() -> None:
    [arrival] = read("mooncake", lines(MOONCAKE | {"timestamp": 27}))
    assert arrival.time_ns == 27_000_000
    assert arrival.prompt == BlockPrompt(hash_ids=(1, 2), length=1000, block_size=512, own=1)
    assert arrival.parameters == Parameters(max_new_tokens=5, ignore_eos=True)


@pytest.mark.parametrize("name", ["mooncake_conversation_first20", "mooncake_synthetic_first8"])
def test_real_mooncake_rows_are_read(name: str) -> None:
    data = (TRACES / f"{name}.jsonl").read_bytes()
    arrivals = read("mooncake", data)
    rows = [json.loads(line) for line in data.splitlines()]
    assert [arrival.position for arrival in arrivals] == [*range(1, len(rows) + 1)]
    for arrival, row in zip(arrivals, rows, strict=True):
        assert isinstance(arrival.prompt, BlockPrompt)
        assert arrival.prompt.length == row["input_length"]
        assert arrival.parameters.max_new_tokens == row["output_length"]


def test_mooncake_ids_may_leave_out_the_part_of_a_block_at_the_end() -> None:
    [arrival] = read("mooncake", lines(MOONCAKE | {"hash_ids": [1]}))
    assert arrival.prompt == BlockPrompt(hash_ids=(1,), length=1000, block_size=512, own=1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hash_ids": [1, 2, 3]}, "3 ids for 1000 tokens, which are 2 blocks of 512"),
        ({"hash_ids": [1, True]}, "must hold 64-bit integers"),
        ({"hash_ids": [1, 2**64]}, "must hold 64-bit integers"),
        ({"hash_ids": "12"}, "hash_ids: must be a list, is a string"),
        ({"input_length": 0}, "input_length: must be at least 1, is 0"),
        ({"input_length": 5_000_000_000}, "input_length: must be at most 16777216"),
        ({"input_length": None}, "input_length: is missing"),
        ({"output_length": -1}, "output_length: must be at least 0, is -1"),
        ({"output_length": 2.5}, "output_length: must be an integer, is a fraction"),
        ({"timestamp": "12"}, "timestamp: must be a finite number, is a string"),
        ({"timestamp": True}, "timestamp: must be a finite number, is true or false"),
        ({"timestamp": -1}, "timestamp: must be at least 0"),
        ({"timestamp": 1e30}, "timestamp: is beyond 292 years"),
    ],
)
def test_a_wrong_value_is_refused_with_its_line_and_field(
    change: dict[str, Any], reason: str
) -> None:
    error = refused("mooncake", "\n" + lines(MOONCAKE, MOONCAKE | change))
    assert error.line == 3
    assert reason in error.reason


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"timestamp": NaN}', "NaN is not a number"),
        ('{"timestamp": Infinity}', "Infinity is not a number"),
        ('{"timestamp": 1,}', "is not JSON"),
        ('{"timestamp": 1},', "the line ends with a comma"),
        ('{"timestamp": 1} {}', "is not JSON: extra data at column 18"),
        ("[1]", "must be an object, is a list"),
        ("12", "must be an object, is an integer"),
        (f'{{"timestamp": {SECRET}}}', "is not JSON"),
        ('{"a":' * 100_000, "is nested too deeply"),
        ('{"timestamp": 1' + "0" * 5000 + "}", "holds a number that is too long"),
    ],
)
def test_a_line_that_is_no_object_is_refused_with_its_number(line: str, reason: str) -> None:
    error = refused("mooncake", f"{lines(MOONCAKE)}{line}\n{lines(MOONCAKE)}")
    assert error.line == 2
    assert reason in error.reason


def test_text_that_is_not_utf_8_is_refused() -> None:
    assert "not UTF-8 at byte 1" in refused("mooncake", b'"\xff"\n').reason


def test_a_torn_last_line_is_noted_and_the_rest_is_read() -> None:
    notes = Notes()
    arrivals = read("mooncake", lines(MOONCAKE, MOONCAKE)[:-10], notes)
    assert len(arrivals) == 1
    assert notes.torn_lines == [2]
    assert notes.summary() == ["skipped 1 torn line(s): 2"]


def test_a_last_line_without_a_newline_that_is_whole_is_read() -> None:
    notes = Notes()
    assert len(read("mooncake", lines(MOONCAKE, MOONCAKE)[:-1], notes)) == 2
    assert not notes.torn_lines


def test_keys_that_no_rule_speaks_of_are_named_once() -> None:
    notes = Notes()
    read("mooncake", lines(MOONCAKE | {"hash_idz": 1}, MOONCAKE | {"hash_idz": 2}), notes)
    assert notes.summary() == ["ignored keys: 'hash_idz'"]


def test_the_operator_may_name_another_unit_and_block_size() -> None:
    options = ReadOptions(time_unit="s", block_size=64)
    row = {"timestamp": 1.5, "input_length": 65, "output_length": 1, "hash_ids": [1, 2]}
    [arrival] = read("mooncake", lines(row), options=options)
    assert arrival.time_ns == 1_500_000_000
    assert isinstance(arrival.prompt, BlockPrompt)


# ---- Dynamo


def test_dynamo_takes_either_of_two_names() -> None:
    [arrival] = read("dynamo", lines({"created_time": 7, "input_tokens": 9, "output_tokens": 2}))
    assert arrival.time_ns == 7_000_000
    assert arrival.prompt == LengthPrompt(length=9, own=1)
    assert arrival.parameters.max_new_tokens == 2


def test_dynamo_sessions_count_their_turns_and_later_turns_have_a_delay() -> None:
    first, other, second = read(
        "dynamo",
        lines(
            {"timestamp": 0, "input_length": 9, "output_length": 1, "session_id": "a"},
            {"timestamp": 5, "input_length": 9, "output_length": 1, "session_id": "b"},
            {"delay": 250, "input_length": 19, "output_length": 1, "session_id": "a"},
        ),
    )
    assert (first.session, first.turn, first.think_ns) == ("a", 0, None)
    assert (other.session, other.turn) == ("b", 0)
    assert (second.turn, second.think_ns, second.time_ns) == (1, 250_000_000, None)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"timestamp": 0, "created_time": 0, "input_length": 1}, "two names of one value"),
        ({"delay_ms": 5, "input_length": 1}, "delay_ms: a delay without a session_id"),
        ({"session_id": 5, "input_length": 1}, "session_id: must be a string, is an integer"),
        ({"input_length": 1, "text_input": SECRET}, "a prompt is described in one way only"),
        ({"messages": [SECRET]}, "messages: must hold at least one object"),
        ({"messages": []}, "messages: must hold at least one object"),
        ({"messages": [{}], "message_mode": SECRET}, "message_mode: must be history or delta"),
    ],
)
def test_a_wrong_dynamo_row_is_refused(row: dict[str, Any], reason: str) -> None:
    assert reason in refused("dynamo", lines(row)).reason


# ---- AIPerf


def test_a_single_turn_is_text_at_a_time() -> None:
    [arrival] = read("aiperf", lines({"type": "single_turn", "text": "hello", "timestamp": 12.5}))
    assert arrival.prompt == TextPrompt("hello")
    assert arrival.time_ns == 12_500_000


def test_the_turns_of_a_conversation_follow_on_each_other() -> None:
    turns = [{"text": "one", "timestamp": 3}, {"text": "two", "delay": 100}, {"text": "three"}]
    row = {"type": "multi_turn", "session_id": "s", "turns": turns}
    arrivals = read("aiperf", lines(row))
    assert [(each.session, each.turn) for each in arrivals] == [("s", 0), ("s", 1), ("s", 2)]
    assert [each.think_ns for each in arrivals] == [None, 100_000_000, 0]
    assert len({each.request_id for each in arrivals}) == 3
    assert arrivals[1].prompt == ChatPrompt(
        messages=({"role": "user", "content": "two"},), is_delta=True
    )


def test_several_texts_are_parts_of_one_message() -> None:
    texts = ["a", {"name": "b", "contents": ["c", "d"]}]
    [arrival] = read("aiperf", lines({"texts": texts}))
    assert isinstance(arrival.prompt, ChatPrompt)
    assert [part["text"] for part in arrival.prompt.messages[0]["content"]] == ["a", "c", "d"]


def test_a_turn_with_an_image_says_that_it_is_missing() -> None:
    [arrival] = read("aiperf", lines({"text": "look", "image": "x.png"}))
    assert arrival.missing == ("image",)
    [arrival] = read("aiperf", lines({"type": "single_turn", "images": ["x.png"]}))
    assert arrival.missing == ("images", "prompt")


def test_aiperfs_mooncake_rows_are_read_as_blocks() -> None:
    [arrival] = read("aiperf", lines(MOONCAKE | {"type": "mooncake_trace", "extra": {"a": 1}}))
    assert isinstance(arrival.prompt, BlockPrompt)
    assert arrival.missing == ("extra",)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"type": "random_pool", "text": SECRET}, "has no order"),
        ({"type": SECRET}, "type: must be one of"),
        ({"type": "multi_turn", "turns": []}, "turns: must hold at least one turn"),
        ({"type": "multi_turn", "turns": [SECRET]}, "turns[0]: must be an object, is a string"),
        ({"texts": [{"contents": [5]}]}, "texts[0]: must be a string, or an object"),
        ({"text": 5}, "text: must be a string, is an integer"),
    ],
)
def test_a_wrong_aiperf_row_is_refused(row: dict[str, Any], reason: str) -> None:
    assert reason in refused("aiperf", lines(row)).reason


# ---- BurstGPT

BURST_OLD = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
BURST_NEW = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
)


def test_burstgpt_with_the_old_columns_is_seconds_and_lengths() -> None:
    [arrival] = read("burstgpt", BURST_OLD + "5.25,ChatGPT,472,18,490,Conversation log\n")
    assert arrival.time_ns == 5_250_000_000
    assert arrival.prompt == LengthPrompt(length=472, own=2)
    assert arrival.parameters == Parameters(max_new_tokens=18, ignore_eos=True)
    assert (arrival.model, arrival.session) == ("ChatGPT", None)


def test_burstgpt_with_the_new_columns_has_sessions_and_how_long_answers_took() -> None:
    first, second, other = read(
        "burstgpt",
        BURST_NEW
        + "5,7,1.5,GPT-4,10,2,12,Conversation log\n"
        + "9,7,2,GPT-4,20,2,22,Conversation log\n"
        + "9,,2,GPT-4,20,2,22,API log\n",
    )
    assert [(each.session, each.turn) for each in (first, second, other)] == [
        ("7", 0),
        ("7", 1),
        (None, 0),
    ]
    assert first.recorded is not None
    assert first.recorded.end_offset_ns == 1_500_000_000


def test_a_burstgpt_row_without_response_tokens_is_a_failure_that_asks_for_none() -> None:
    """No token came, so there is no first token and no time per token."""
    [arrival] = read("burstgpt", BURST_NEW + "5,7,1.5,GPT-4,10,0,10,API log\n")
    assert arrival.parameters.max_new_tokens == 0
    assert arrival.recorded is not None
    assert arrival.recorded.outcome is Outcome.ERROR
    assert arrival.recorded.ttft_ns is None
    assert arrival.recorded.tpot_ns is None


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("5,ChatGPT,472,18,490,Conversation log,", "has 7 cells, the header has 6 (a comma"),
        ("5,ChatGPT,472,18", "has 4 cells, the header has 6"),
        ("-1,ChatGPT,472,18,490,x", "Timestamp: must be at least 0"),
        ("NaN,ChatGPT,472,18,490,x", "Timestamp: must be a finite number"),
        (f"{SECRET},ChatGPT,472,18,490,x", "Timestamp: must be a number"),
        ("5,ChatGPT,0,18,490,x", "Request tokens: must be at least 1"),
        ("5,ChatGPT,5e9,18,490,x", "Request tokens: must be at most 16777216"),
        ("5,ChatGPT,4.5,18,490,x", "Request tokens: must be a whole number"),
        ("5,ChatGPT,4,,490,x", "Response tokens: is missing"),
        ("5,ChatGPT,4,1e300,490,x", "Response tokens: is too large"),
        ("1e11,ChatGPT,4,1,490,x", "Timestamp: is beyond 292 years"),
        ('5,"Chat,4,1,5,x', "is not a row of comma-separated values"),
    ],
)
def test_a_wrong_row_of_a_table_is_refused_with_its_line(row: str, reason: str) -> None:
    error = refused("burstgpt", f"{BURST_OLD}5,ChatGPT,4,1,5,x\n{row}\n5,ChatGPT,4,1,5,x\n")
    assert error.line == 3
    assert reason in error.reason


def test_a_comma_at_the_end_of_header_and_rows_alike_is_no_column() -> None:
    header = BURST_OLD.replace("\n", ",\n")
    assert len(read("burstgpt", header + "5,ChatGPT,4,1,5,x,\n")) == 1


def test_a_header_without_a_column_or_with_one_twice_is_refused() -> None:
    assert (
        "lacks the column Response tokens"
        in refused("burstgpt", "Timestamp,Request tokens\n").reason
    )
    header = "Timestamp,Request tokens,Response tokens,Timestamp\n"
    assert "names a column twice" in refused("burstgpt", header).reason


def test_a_torn_last_row_of_a_table_is_noted() -> None:
    notes = Notes()
    assert len(read("burstgpt", BURST_OLD + "5,ChatGPT,4,1,5,x\n6,ChatGPT,4", notes)) == 1
    assert notes.torn_lines == [3]


def test_a_last_row_without_a_newline_is_read_and_the_doubt_about_it_noted() -> None:
    notes = Notes()
    assert len(read("burstgpt", BURST_OLD + "5,ChatGPT,4,1,5,x", notes)) == 1
    assert "last number may be cut short" in notes.summary()[0]


# ---- Azure


def test_real_azure_rows_are_read_to_the_last_digit_of_their_seconds() -> None:
    arrivals = read("azure", (TRACES / "azure_llm_2023_conv_first20.csv").read_bytes())
    assert len(arrivals) == 20
    first, second = arrivals[:2]
    assert first.time_ns is not None
    assert second.time_ns is not None
    assert first.time_ns == 1_700_158_546_680_590_000
    assert second.time_ns - first.time_ns == 4_314_579_000
    assert first.prompt == LengthPrompt(length=374, own=2)
    assert first.parameters.max_new_tokens == 44


@pytest.mark.parametrize(
    "moment",
    [
        "2023-11-16 18:15:46.68059",
        "2023-11-16T18:15:46.680590000",
        "2023-11-16 18:15:46.68059Z",
        "2023-11-16 18:15:46.68059+00:00",
        "2023-11-16 20:15:46.68059+02:00",
    ],
)
def test_a_date_may_be_written_in_several_ways(moment: str) -> None:
    [arrival] = read("azure", f"TIMESTAMP,ContextTokens,GeneratedTokens\n{moment},1,1\n")
    assert arrival.time_ns == 1_700_158_546_680_590_000


@pytest.mark.parametrize(
    "moment", ["46.7", "1700158546", "2023-13-01 00:00:00", "1969-01-01 00:00:00"]
)
def test_what_is_no_date_is_refused(moment: str) -> None:
    error = refused("azure", f"TIMESTAMP,ContextTokens,GeneratedTokens\n{moment},1,1\n")
    assert error.line == 2
    assert "TIMESTAMP" in error.reason


def test_a_unit_for_dates_is_refused() -> None:
    with pytest.raises(TraceError, match="dates"):
        read(
            "azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n", options=ReadOptions(time_unit="s")
        )


# ---- captures


def test_a_captured_request_keeps_its_values_and_their_absence() -> None:
    [arrival] = read("capture", lines(CAPTURE))
    assert arrival.request_id == "r-1"
    assert isinstance(arrival.prompt, TokenPrompt)
    assert arrival.prompt.ids.tolist() == [5, 6, 7]
    assert arrival.stream is True
    assert arrival.time_ns is None
    assert arrival.missing == ()
    values = arrival.parameters
    assert (values.max_new_tokens, values.top_p, values.n) == (0, None, 2)
    assert values.sampling_seed == 2**64 - 1
    assert values.logit_bias == {"5": float("-inf"), "7": 1.5}
    assert (values.stop, values.stop_token_ids) == (("END",), (9,))
    assert values.constraint == ("regex", "a+")
    assert values.top_k == -1


def test_an_extended_capture_has_times() -> None:
    [arrival] = read("capture", lines(CAPTURE | {"arrival_unix_ns": 2**60 + 1, "metadata": {}}))
    assert arrival.time_ns == 2**60 + 1


def test_inputs_that_a_capture_does_not_hold_are_named() -> None:
    flags = {f"has_{name}": True for name in ("mm_inputs", "custom_params", "kv_bootstrap_info")}
    [arrival] = read("capture", lines(CAPTURE | flags | {"has_data_parallel_rank": True}))
    assert set(arrival.missing) == {
        "mm_inputs",
        "custom_params",
        "kv_bootstrap_info",
        "data_parallel_rank",
    }
    extended = {"has_data_parallel_rank": True, "data_parallel_rank": 3}
    [arrival] = read("capture", lines(CAPTURE | extended))
    assert arrival.missing == ()


def test_a_capture_without_ids_falls_back_on_its_text_and_then_on_nothing() -> None:
    [text] = read("capture", lines(CAPTURE | {"input_ids": []}))
    assert text.prompt == TextPrompt(SECRET)
    [nothing] = read("capture", lines(CAPTURE | {"input_ids": None, "original_text": ""}))
    assert nothing.prompt is None
    assert nothing.missing == ("prompt",)


def test_a_torn_line_anywhere_in_a_capture_is_skipped_and_noted() -> None:
    notes = Notes()
    data = lines(CAPTURE) + lines(CAPTURE)[:40] + "\n" + lines(CAPTURE)
    assert [arrival.position for arrival in read("capture", data, notes)] == [1, 3]
    assert notes.torn_lines == [2]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"request_id": None}, "request_id: is missing"),
        ({"input_ids": [1, -1]}, "input_ids: must hold integers from 0"),
        ({"input_ids": [1, 2**32]}, "input_ids: must hold integers from 0"),
        ({"input_ids": [True]}, "input_ids: must hold integers from 0"),
        ({"temperature": "hot"}, "temperature: must be a number"),
        ({"stop": [5]}, "stop: must hold strings only"),
        ({"constraint": {"kind": "poem", "value": SECRET}}, "constraint: its kind"),
        ({"constraint": {"kind": "regex", "value": 5}}, "constraint: its value"),
        ({"logit_bias": [1]}, "logit_bias: must be an object, is a list"),
        ({"stream": "yes"}, "stream: must be true or false, is a string"),
    ],
)
def test_a_wrong_value_in_a_capture_is_refused(change: dict[str, Any], reason: str) -> None:
    assert reason in refused("capture", lines(CAPTURE | change)).reason


def test_the_repr_of_a_request_shows_nothing_of_its_prompt() -> None:
    [arrival] = read("capture", lines(CAPTURE | {"input_ids": [], "stop": [SECRET]}))
    assert SECRET not in repr(arrival)
    assert SECRET not in repr(arrival.prompt)


# ---- scripts


def script(*rows: dict[str, Any]) -> Iterable[Arrival]:
    return read("script", lines(*rows))


def test_a_script_tells_answers_but_no_prompts() -> None:
    row = {
        "request_id": "a",
        "chunks": [[1, 2], [], [3]],
        "offsets_ms": [5, 6, 7.5],
        "finish_reason": "stop",
    }
    [arrival] = script(row)
    assert arrival.missing == ("prompt",)
    assert arrival.recorded is not None
    [choice] = arrival.recorded.choices
    assert choice.token_ids is not None
    assert choice.token_ids.tolist() == [1, 2, 3]
    assert arrival.recorded.ttft_ns == 5_000_000
    assert arrival.recorded.itl_ns == [2_500_000]


def test_lines_of_one_id_and_several_indexes_are_one_request() -> None:
    first, second = script(
        {"request_id": "a", "index": 1, "chunks": [[4]]},
        {"request_id": "a", "index": 0, "chunks": [[3]]},
        {"request_id": "a", "index": 0, "chunks": [[9]]},
    )
    assert first.recorded is not None
    assert [choice.index for choice in first.recorded.choices] == [0, 1]
    assert first.parameters.n == 2
    assert second.parameters.n is None


def test_the_fallback_of_a_script_is_no_request() -> None:
    assert script({"request_id": "*", "chunks": [[1]]}) == []


def test_a_scripted_failure_is_a_recorded_error() -> None:
    [arrival] = script({"request_id": "a", "chunks": [], "error": {"code": "UNAVAILABLE"}})
    assert arrival.recorded is not None
    assert (arrival.recorded.outcome, arrival.recorded.error) == (Outcome.ERROR, "UNAVAILABLE")
