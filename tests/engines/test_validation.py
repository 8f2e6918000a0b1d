from math import inf, nan
from typing import Any

import pytest

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.engines.base import Model
from replay.engines.validation import (
    MAX_CHOICES,
    MAX_PARSED_REGEX,
    MAX_PARSED_SCHEMA,
    MAX_TOP_LOGPROBS,
    check_request,
)
from tests.engines.requests import generate_request

MODEL = Model(context_length=100, vocab_size=1000)
LARGEST = 3.4028234663852886e38


def test_an_empty_message_is_served() -> None:
    assert check_request(pb.GenerateRequest(), MODEL) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", nan),
        ("temperature", inf),
        ("temperature", -0.1),
        ("top_p", nan),
        ("top_p", inf),
        ("top_p", 0.0),
        ("top_p", -0.5),
        ("top_p", 1.001),
        ("top_k", -2),
        ("min_p", nan),
        ("min_p", -0.01),
        ("min_p", 1.01),
        ("frequency_penalty", nan),
        ("frequency_penalty", -inf),
        ("presence_penalty", nan),
        ("presence_penalty", inf),
        ("repetition_penalty", nan),
        ("repetition_penalty", inf),
        ("repetition_penalty", -1.0),
        ("n", MAX_CHOICES + 1),
        ("n", 2**32 - 1),
        ("logit_bias", {"5": nan}),
        ("logit_bias", {"5": 1.0, "6": -inf}),
        ("regex", "a("),
        ("json_schema", '{"type": '),
        ("json_schema", ""),
        ("json_schema", "5"),
        ("json_schema", "[]"),
        ("json_schema", '"object"'),
        ("json_schema", "null"),
        ("json_schema", "[" * 100_000),
        ("json_schema", "1" * 5_000),
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_field(field: str, value: Any) -> None:
    fault = check_request(generate_request(**{field: value}), MODEL)
    assert fault is not None
    assert fault.startswith(f"sampling_params.{field}: ")


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.0},
        {"temperature": -0.0},
        {"temperature": 1e-45},
        {"temperature": LARGEST},
        {"top_p": 1.0},
        {"top_p": 1e-45},
        {"top_k": -1},
        {"top_k": 0},
        {"min_p": 0.0},
        {"min_p": 1.0},
        {"frequency_penalty": -2.0, "presence_penalty": 2.0, "repetition_penalty": 1.1},
        {"n": 0},
        {"n": MAX_CHOICES},
        {"min_new_tokens": 5},
        {"min_new_tokens": 5, "max_new_tokens": 5},
        {"max_new_tokens": 2**32 - 1},
        {"logit_bias": {"5": -100.0}},
        {"stop": ["x"], "stop_token_ids": [2**32 - 1]},
        {"sampling_seed": 2**64 - 1},
        {"regex": "[0-9]{1,4}"},
        {"json_schema": '{"type": "object"}'},
        {"json_schema": "true"},
        {"ebnf_grammar": "("},
        {"structural_tag": "{"},
    ],
)
def test_a_value_on_the_edge_is_served(sampling: dict[str, Any]) -> None:
    assert check_request(generate_request(**sampling), MODEL) is None


@pytest.mark.parametrize("limit", [0, 4])
def test_a_minimum_above_an_explicit_limit_is_refused(limit: int) -> None:
    fault = check_request(generate_request(min_new_tokens=5, max_new_tokens=limit), MODEL)
    assert fault == f"sampling_params.min_new_tokens: 5 is more than max_new_tokens {limit}"


def test_a_prompt_may_fill_the_context_and_not_exceed_it() -> None:
    assert check_request(generate_request(range(100)), MODEL) is None
    fault = check_request(generate_request(range(101)), MODEL)
    assert fault == "tokenized.input_ids: 101 tokens are more than the context of 100"


def test_prompt_ids_outside_the_vocabulary_are_served() -> None:
    assert check_request(generate_request([0, 2**32 - 1]), MODEL) is None


@pytest.mark.parametrize(
    ("logprobs", "field"),
    [
        ({"top_logprobs_num": -1}, "top_logprobs_num"),
        ({"top_logprobs_num": MAX_TOP_LOGPROBS + 1}, "top_logprobs_num"),
        ({"token_ids_logprob": [1000]}, "token_ids_logprob"),
        ({"token_ids_logprob": range(MAX_TOP_LOGPROBS + 1)}, "token_ids_logprob"),
    ],
)
def test_log_probabilities_that_cannot_be_given_are_refused(
    logprobs: dict[str, Any], field: str
) -> None:
    fault = check_request(generate_request(logprobs=logprobs), MODEL)
    assert fault is not None
    assert fault.startswith(f"{field}: ")


def test_log_probabilities_on_the_edge_are_served() -> None:
    logprobs = {
        "return_logprob": True,
        "top_logprobs_num": MAX_TOP_LOGPROBS,
        "token_ids_logprob": [0, 999],
    }
    assert check_request(generate_request(logprobs=logprobs), MODEL) is None


def test_what_is_too_long_to_parse_is_taken_unparsed() -> None:
    assert check_request(generate_request(regex="(" * MAX_PARSED_REGEX), MODEL)
    assert check_request(generate_request(regex="(" * (MAX_PARSED_REGEX + 1)), MODEL) is None
    assert check_request(generate_request(json_schema="{" * MAX_PARSED_SCHEMA), MODEL)
    schema = "{" * (MAX_PARSED_SCHEMA + 1)
    assert check_request(generate_request(json_schema=schema), MODEL) is None


@pytest.mark.parametrize("field", ["regex", "json_schema"])
def test_no_text_quotes_the_client(field: str) -> None:
    fault = check_request(generate_request(**{field: '("sk-secret'}), MODEL)
    assert fault is not None
    assert "secret" not in fault
