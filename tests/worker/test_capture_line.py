"""The line of a capture, byte for byte."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.worker.capture import (
    CAPTURE_KEYS,
    EXTENDED_KEYS,
    Extended,
    allowed_metadata,
    capture_line,
    end_torn_line,
)

NOTHING_SET = (
    b'{"request_id":"","input_ids":[],"original_text":"","stream":false,"temperature":null,'
    b'"top_p":null,"top_k":null,"min_p":null,"repetition_penalty":null,"frequency_penalty":null,'
    b'"presence_penalty":null,"max_new_tokens":null,"min_new_tokens":0,"stop":[],'
    b'"stop_token_ids":[],"ignore_eos":false,"no_stop_trim":false,"skip_special_tokens":false,'
    b'"spaces_between_special_tokens":false,"n":0,"sampling_seed":null,"logit_bias":{},'
    b'"constraint":null,"return_logprob":false,"logprob_start_len":null,"top_logprobs_num":0,'
    b'"token_ids_logprob":[],"has_custom_params":false,"has_mm_inputs":false,'
    b'"has_encode_bootstrap_info":false,"has_kv_bootstrap_info":false,'
    b'"has_data_parallel_rank":false}\n'
)

EVERYTHING_SET = (
    '{"request_id":"chat-7","input_ids":[0,1,4294967295],"original_text":"héllo 世界 🙂",'
    '"stream":true,"temperature":0.7,"top_p":0.95,"top_k":-1,"min_p":0.05,'
    '"repetition_penalty":1.1,"frequency_penalty":-2.0,"presence_penalty":1e-45,'
    '"max_new_tokens":4294967295,"min_new_tokens":3,"stop":["\\n\\n","END"],'
    '"stop_token_ids":[2,128001],"ignore_eos":true,"no_stop_trim":true,'
    '"skip_special_tokens":true,"spaces_between_special_tokens":true,"n":4,'
    '"sampling_seed":18446744073709551615,"logit_bias":{"10":-100.0,"5":"inf","9":0.3},'
    '"constraint":{"kind":"regex","value":"[a-z]+"},"return_logprob":true,'
    '"logprob_start_len":-1,"top_logprobs_num":5,"token_ids_logprob":[7],'
    '"has_custom_params":true,"has_mm_inputs":true,"has_encode_bootstrap_info":true,'
    '"has_kv_bootstrap_info":true,"has_data_parallel_rank":true}\n'
).encode()


def everything_set() -> pb.GenerateRequest:
    params = pb.SamplingParams(
        temperature=0.7,
        top_p=0.95,
        top_k=-1,
        min_p=0.05,
        frequency_penalty=-2.0,
        presence_penalty=1e-45,
        repetition_penalty=1.1,
        max_new_tokens=2**32 - 1,
        min_new_tokens=3,
        stop=["\n\n", "END"],
        stop_token_ids=[2, 128001],
        ignore_eos=True,
        skip_special_tokens=True,
        spaces_between_special_tokens=True,
        n=4,
        logit_bias={"9": 0.3, "10": -100.0, "5": float("inf")},
        regex="[a-z]+",
        no_stop_trim=True,
        sampling_seed=2**64 - 1,
    )
    params.custom_params.update({"knob": 1})
    return pb.GenerateRequest(
        request_id="chat-7",
        tokenized=pb.TokenizedInput(input_ids=[0, 1, 2**32 - 1], original_text="héllo 世界 🙂"),
        sampling_params=params,
        return_logprob=True,
        logprob_start_len=-1,
        top_logprobs_num=5,
        token_ids_logprob=[7],
        stream=True,
        mm_inputs=pb.MultimodalInputs(),
        encode_bootstrap_info=pb.EncodeBootstrapInfo(),
        kv_bootstrap_info=pb.KvBootstrapInfo(),
        data_parallel_rank=3,
    )


def no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def strictly(line: bytes) -> dict[str, object]:
    """Parse one line as strict readers do: one newline, at the end, and no NaN."""
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    pairs = json.loads(line.decode(), parse_constant=no_constant, object_pairs_hook=list)
    assert len({key for key, _ in pairs}) == len(pairs)
    return dict(pairs)


def test_nothing_set() -> None:
    assert capture_line(pb.GenerateRequest()) == NOTHING_SET
    empty = pb.GenerateRequest(tokenized=pb.TokenizedInput(), sampling_params=pb.SamplingParams())
    assert capture_line(empty) == NOTHING_SET


def test_everything_set() -> None:
    assert capture_line(everything_set()) == EVERYTHING_SET


def test_the_keys_are_32_and_in_order() -> None:
    assert len(CAPTURE_KEYS) == 32
    for line in (NOTHING_SET, EVERYTHING_SET):
        assert tuple(strictly(line)) == CAPTURE_KEYS


OPTIONAL = {
    "temperature": "0.0",
    "top_p": "0.0",
    "top_k": "0",
    "min_p": "0.0",
    "repetition_penalty": "0.0",
    "frequency_penalty": "0.0",
    "presence_penalty": "0.0",
    "max_new_tokens": "0",
    "sampling_seed": "0",
}


@pytest.mark.parametrize("field", OPTIONAL)
def test_a_zero_that_was_set_is_a_zero(field: str) -> None:
    params = pb.SamplingParams()
    setattr(params, field, 0)
    line = capture_line(pb.GenerateRequest(sampling_params=params))
    expected = NOTHING_SET.replace(
        f'"{field}":null'.encode(), f'"{field}":{OPTIONAL[field]}'.encode()
    )
    assert expected != NOTHING_SET
    assert line == expected


def test_logprob_start_len_0_and_rank_0_are_set() -> None:
    line = capture_line(pb.GenerateRequest(logprob_start_len=0, data_parallel_rank=0))
    assert b'"logprob_start_len":0,' in line
    assert b'"has_data_parallel_rank":true' in line


@pytest.mark.parametrize(
    ("kind", "value", "written"),
    [
        ("regex", r"\d+\s", rb'{"kind":"regex","value":"\\d+\\s"}'),
        ("json_schema", '{"a": [1,  2]}', rb'{"kind":"json_schema","value":"{\"a\": [1,  2]}"}'),
        (
            "ebnf_grammar",
            "root ::= 'a'\n",
            rb"""{"kind":"ebnf_grammar","value":"root ::= 'a'\n"}""",
        ),
        ("structural_tag", "", b'{"kind":"structural_tag","value":""}'),
    ],
)
def test_a_constraint_is_kept_as_sent(kind: str, value: str, written: bytes) -> None:
    params = pb.SamplingParams(**{kind: value})
    line = capture_line(pb.GenerateRequest(sampling_params=params))
    assert line == NOTHING_SET.replace(b'"constraint":null', b'"constraint":' + written)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ('"\\/', rb"\"\\/"),
        ("\n\r\t\b\f", rb"\n\r\t\b\f"),
        ("\0\x01\x1f", rb"\u0000\u0001\u001f"),
        ("\x7f", b"\x7f"),
        ("\u0085\u2028\u2029", "\u0085\u2028\u2029".encode()),
        ("日本語 한국어", "日本語 한국어".encode()),
        ("👩‍👩‍👧 \u202eabc", "👩‍👩‍👧 \u202eabc".encode()),
    ],
)
def test_text_is_escaped_where_json_wants_it_and_nowhere_else(text: str, written: bytes) -> None:
    message = pb.GenerateRequest(
        request_id=text,
        tokenized=pb.TokenizedInput(original_text=text),
        sampling_params=pb.SamplingParams(stop=[text]),
    )
    line = capture_line(message)
    fields = strictly(line)
    assert (fields["request_id"], fields["original_text"], fields["stop"]) == (text, text, [text])
    assert line.count(b'"' + written + b'"') == 3


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (float("nan"), b'"NaN"'),
        (float("inf"), b'"inf"'),
        (float("-inf"), b'"-inf"'),
        (-0.0, b"-0.0"),
        (1e-45, b"1e-45"),
        (1e38, b"1e+38"),
        (0.7, b"0.7"),
    ],
)
def test_floats_that_json_readers_trip_over(value: float, written: bytes) -> None:
    params = pb.SamplingParams(temperature=value, logit_bias={"5": value})
    line = capture_line(pb.GenerateRequest(sampling_params=params))
    strictly(line)
    assert b'"temperature":' + written + b"," in line
    assert b'"logit_bias":{"5":' + written + b"}" in line


def test_biases_are_sorted_as_strings() -> None:
    keys = ["9", "10", "2", "100", "-1", ""]
    params = pb.SamplingParams(logit_bias=dict.fromkeys(keys, 1.0))
    fields = json.loads(capture_line(pb.GenerateRequest(sampling_params=params)))
    assert list(fields["logit_bias"]) == ["", "-1", "10", "100", "2", "9"]


def test_a_request_gives_the_same_bytes_each_time_it_is_decoded() -> None:
    message = everything_set()
    message.sampling_params.logit_bias.update({str(token): token / 7 for token in range(300)})
    data = message.SerializeToString()
    lines = {capture_line(pb.GenerateRequest.FromString(data)) for _ in range(100)}
    assert len(lines) == 1


@pytest.mark.parametrize("count", [1, 4095, 4096, 4097, 8192, 20_000])
def test_long_prompts_keep_every_id(count: int) -> None:
    ids = [(7919 * number) % 2**32 for number in range(count)]
    message = pb.GenerateRequest(tokenized=pb.TokenizedInput(input_ids=ids))
    assert strictly(capture_line(message))["input_ids"] == ids


text = st.text(alphabet=st.characters(exclude_categories=["Cs"]))
float32 = st.integers(0, 2**32 - 1).map(
    lambda bits: struct.unpack("<f", struct.pack("<I", bits))[0]
)


@given(
    request_id=text,
    ids=st.lists(st.integers(0, 2**32 - 1)),
    original=text,
    stop=st.lists(text),
    temperature=st.none() | float32,
    bias=st.dictionaries(text, float32),
    seed=st.none() | st.integers(0, 2**64 - 1),
    schema=st.none() | text,
)
def test_any_request_is_one_line_that_parses_strictly(
    request_id: str,
    ids: list[int],
    original: str,
    stop: list[str],
    temperature: float | None,
    bias: dict[str, float],
    seed: int | None,
    schema: str | None,
) -> None:
    message = pb.GenerateRequest(
        request_id=request_id,
        tokenized=pb.TokenizedInput(input_ids=ids, original_text=original),
        sampling_params=pb.SamplingParams(
            stop=stop,
            temperature=temperature,
            logit_bias=bias,
            sampling_seed=seed,
            json_schema=schema,
        ),
    )
    fields = strictly(capture_line(message))
    assert tuple(fields) == CAPTURE_KEYS
    assert fields["request_id"] == request_id
    assert fields["input_ids"] == ids
    assert fields["original_text"] == original
    assert fields["stop"] == stop
    assert fields["sampling_seed"] == seed
    assert (fields["temperature"] is None) == (temperature is None)


def test_extended_lines_have_three_keys_more_behind_the_others() -> None:
    extended = Extended(arrival_unix_ns=1_767_225_600_123_456_789, metadata={"x-a": 'b"c'})
    line = capture_line(everything_set(), extended=extended)
    assert tuple(strictly(line)) == CAPTURE_KEYS + EXTENDED_KEYS
    assert line == EVERYTHING_SET[:-2] + (
        b',"data_parallel_rank":3,"arrival_unix_ns":1767225600123456789,'
        b'"metadata":{"x-a":"b\\"c"}}\n'
    )


@pytest.mark.parametrize(("rank", "written"), [(None, b"null"), (0, b"0"), (-1, b"-1")])
def test_an_extended_line_tells_rank_0_from_none(rank: int | None, written: bytes) -> None:
    message = pb.GenerateRequest(data_parallel_rank=rank)
    line = capture_line(message, extended=Extended(arrival_unix_ns=1))
    assert b'"data_parallel_rank":' + written + b',"arrival_unix_ns":1,"metadata":{}}\n' in line


METADATA = [
    (b"user-agent", b"smg"),
    (b"X-Claude-Code-Session", b"s1"),
    (b"x-claude-code-turn", b"2"),
    (b"authorization", b"Bearer secret"),
    (b"x-claude-code-turn", b"3"),
    (b"x-claude-code-name", "é".encode()),
    (b"x-claude-code-raw", b"\xff"),
]


def test_no_metadata_is_kept_unless_it_is_named() -> None:
    assert allowed_metadata(METADATA, []) == {}
    assert allowed_metadata(METADATA, ["x-other-*"]) == {}


def test_a_glob_lets_its_headers_through_whatever_the_case() -> None:
    assert list(allowed_metadata(METADATA, ["X-Claude-*"]).items()) == [
        ("x-claude-code-name", "é"),
        ("x-claude-code-raw", "\\xff"),
        ("x-claude-code-session", "s1"),
        ("x-claude-code-turn", "2,3"),
    ]


@pytest.mark.parametrize(
    ("content", "first"), [(b"", b""), (b"{}\n", b""), (b"{}\n{", b"\n"), (b"{}", b"\n")]
)
def test_only_a_torn_line_is_ended(content: bytes, first: bytes) -> None:
    def read_at(offset: int, length: int) -> bytes:
        return content[offset : offset + length]

    assert end_torn_line(len(content), read_at) == first
