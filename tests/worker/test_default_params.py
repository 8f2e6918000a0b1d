"""Default sampling parameters: what they may be, and where they apply."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.worker.default_params import apply_default_sampling_params, default_sampling_faults

ALL = {
    "temperature": 0.5,
    "top_p": 0.25,
    "top_k": -1,
    "min_p": 0.0,
    "frequency_penalty": -2,
    "presence_penalty": 2,
    "repetition_penalty": 1.5,
    "max_new_tokens": 9,
    "min_new_tokens": 3,
    "stop": ["a", "b"],
    "stop_token_ids": [0, 2**32 - 1],
    "ignore_eos": True,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "n": 2,
    "no_stop_trim": True,
    "sampling_seed": 2**64 - 1,
}


def faulty(**defaults: Any) -> list[str]:
    return [name for name, _ in default_sampling_faults(defaults)]


def test_every_known_name_with_a_good_value_passes() -> None:
    assert faulty(**ALL) == []


def test_the_known_names_are_fields_of_the_wire() -> None:
    assert set(ALL) <= set(pb.SamplingParams.DESCRIPTOR.fields_by_name)
    left_out = set(pb.SamplingParams.DESCRIPTOR.fields_by_name) - set(ALL)
    constraint = {"regex", "json_schema", "ebnf_grammar", "structural_tag"}
    assert left_out == {"logit_bias", "custom_params", *constraint}


@pytest.mark.parametrize("name", ["", "Temperature", "max_tokens", "logit_bias", "regex"])
def test_an_unknown_name_is_refused_and_the_known_ones_are_told(name: str) -> None:
    ((fault_name, text),) = default_sampling_faults({name: 1})
    assert fault_name == name
    assert "known are temperature, top_p" in text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", 1e39),
        ("temperature", 10**400),
        ("temperature", "0.5"),
        ("temperature", True),
        ("temperature", None),
        ("top_p", 0),
        ("top_p", 1e-50),
        ("top_p", 1.01),
        ("top_k", -2),
        ("top_k", 1.0),
        ("top_k", 2**31),
        ("min_p", 1.5),
        ("frequency_penalty", 2.5),
        ("presence_penalty", -2.5),
        ("repetition_penalty", 0),
        ("max_new_tokens", -1),
        ("max_new_tokens", 2**32),
        ("max_new_tokens", True),
        ("stop", "a"),
        ("stop", [""]),
        ("stop", [1]),
        ("stop", ["\ud800"]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [2**32]),
        ("stop_token_ids", [True]),
        ("ignore_eos", 1),
        ("n", 0),
        ("n", 256),
        ("sampling_seed", 2**64),
        ("sampling_seed", -1),
    ],
)
def test_a_value_that_the_wire_cannot_mean_is_refused(name: str, value: object) -> None:
    assert faulty(**{name: value}) == [name]


def test_the_least_tokens_may_not_be_more_than_the_most() -> None:
    assert faulty(min_new_tokens=4, max_new_tokens=3) == ["min_new_tokens"]
    assert faulty(min_new_tokens=3, max_new_tokens=3) == []


def test_all_faults_are_told_at_once() -> None:
    assert faulty(top_p=5, nonsense=1, n=0) == ["top_p", "nonsense", "n"]


def test_defaults_fill_a_request_that_sets_nothing() -> None:
    message = pb.GenerateRequest(request_id="a")
    message.tokenized.input_ids.extend([1, 2, 3])
    before = message.SerializeToString()
    filled = apply_default_sampling_params(message, ALL)
    assert filled.request_id == "a"
    assert list(filled.tokenized.input_ids) == [1, 2, 3]
    for name, value in ALL.items():
        seen = getattr(filled.sampling_params, name)
        assert (list(seen) if isinstance(value, list) else seen) == value
    assert message.SerializeToString() == before
    assert not message.HasField("sampling_params")


def test_a_set_zero_stays() -> None:
    message = pb.GenerateRequest()
    message.sampling_params.temperature = 0
    message.sampling_params.max_new_tokens = 0
    message.sampling_params.sampling_seed = 0
    defaults = {"temperature": 0.5, "max_new_tokens": 9, "sampling_seed": 7}
    assert apply_default_sampling_params(message, defaults) is message


def test_what_a_request_sets_is_not_touched() -> None:
    message = pb.GenerateRequest()
    params = message.sampling_params
    params.stop.append("x")
    params.n = 3
    params.top_p = 0.5
    filled = apply_default_sampling_params(message, {"stop": ["y"], "n": 2, "top_p": 1, "top_k": 5})
    assert list(filled.sampling_params.stop) == ["x"]
    assert (filled.sampling_params.n, filled.sampling_params.top_p) == (3, 0.5)
    assert filled.sampling_params.top_k == 5


@pytest.mark.parametrize("defaults", [{}, {"ignore_eos": False, "stop": []}, {"top_p": 1}])
def test_nothing_is_copied_when_nothing_applies(defaults: dict[str, Any]) -> None:
    message = pb.GenerateRequest()
    message.sampling_params.top_p = 0.5
    assert apply_default_sampling_params(message, defaults) is message


def test_a_default_that_contradicts_the_request_does_not_apply() -> None:
    short = pb.GenerateRequest()
    short.sampling_params.max_new_tokens = 2
    filled = apply_default_sampling_params(short, {"min_new_tokens": 3, "top_p": 1})
    assert filled.sampling_params.min_new_tokens == 0
    long = pb.GenerateRequest()
    long.sampling_params.min_new_tokens = 20
    filled = apply_default_sampling_params(long, {"max_new_tokens": 9, "top_p": 1})
    assert not filled.sampling_params.HasField("max_new_tokens")


@given(st.floats(allow_nan=True, allow_infinity=True) | st.integers())
def test_an_accepted_temperature_is_finite_on_the_wire(value: float) -> None:
    if faulty(temperature=value):
        return
    message = pb.GenerateRequest()
    filled = apply_default_sampling_params(message, {"temperature": value})
    sent = pb.GenerateRequest.FromString(filled.SerializeToString()).sampling_params.temperature
    assert 0 <= sent < float("inf")
    assert sent == struct.unpack("f", struct.pack("f", value))[0]
