"""A worker's GenerateRequest as a Request: the table of fields, row by row."""

import math
from typing import Any

import msgpack
import pytest

from replay._proto import common_pb2
from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.engines.base import Model
from replay.request import OutputOptions, Request, SamplingOptions, StopConditions
from replay.taps import from_generate as from_generate_module
from replay.taps.from_generate import (
    GENERATE_REQUEST_FIELDS,
    SAMPLING_PARAMS_FIELDS,
    from_generate,
    is_probe,
)

MODEL = Model(name="tiny", eos_token_ids=(2, 3))


def message(**params: Any) -> pb.GenerateRequest:
    """Return a request with a prompt of three ids and the given sampling parameters."""
    return pb.GenerateRequest(
        request_id="r-1",
        tokenized=pb.TokenizedInput(input_ids=[5, 300, 70000]),
        sampling_params=pb.SamplingParams(**params),
    )


def convert(request: pb.GenerateRequest, **kwargs: Any) -> Request:
    """Convert, and read the bytes back: what a consumer sees."""
    made = from_generate(request, model=MODEL, **kwargs)
    again = Request.unpacked(made.packed)
    assert again == made
    return made


def extra(request: Request) -> dict[str, Any]:
    """Return extra_args.tokenspeed."""
    assert request.extra_args is not None
    value: dict[str, Any] = request.extra_args.value
    assert list(value) == ["tokenspeed"]
    tokenspeed: dict[str, Any] = value["tokenspeed"]
    return tokenspeed


@pytest.mark.parametrize(
    ("table", "fields"),
    [
        (GENERATE_REQUEST_FIELDS, pb.GenerateRequest.DESCRIPTOR.fields),
        (SAMPLING_PARAMS_FIELDS, pb.SamplingParams.DESCRIPTOR.fields),
    ],
    ids=["GenerateRequest", "SamplingParams"],
)
def test_each_field_of_the_messages_has_one_place(table: Any, fields: Any) -> None:
    """A new field fails here until somebody decides where it goes."""
    assert set(table) == {field.name for field in fields}
    names = {attribute for attribute in Request.__slots__ if not attribute.startswith("_")}
    assert {place for place in table.values() if place not in (None, "envelope")} <= names


def test_bootstrap_infos_are_never_taken() -> None:
    request = message()
    plain = from_generate(request, model=MODEL).packed
    request.encode_bootstrap_info.items.add(bootstrap_host="secret-host")
    request.kv_bootstrap_info.bootstrap_host = "secret-host"
    assert from_generate(request, model=MODEL).packed == plain


def test_an_empty_request_has_the_models_values_and_nothing_else() -> None:
    request = convert(pb.GenerateRequest(request_id="r"))
    assert request.model == "tiny"
    assert list(request.token_ids) == []
    assert request.stop_conditions == StopConditions()
    assert request.sampling_options == SamplingOptions(n=1)
    assert request.output_options == OutputOptions(skip_special_tokens=False)
    assert request.eos_token_ids == (2, 3)
    assert request.annotations == ()
    for name in ("routing", "extra_args", "agent_context", "multi_modal_data", "mdc_sum"):
        assert getattr(request, name) is None


def test_the_prompt_is_its_ids() -> None:
    assert list(convert(message()).token_ids) == [5, 300, 70000]


def test_stop_conditions_have_their_values() -> None:
    made = convert(
        message(
            max_new_tokens=7, min_new_tokens=2, stop=["a", "b"], stop_token_ids=[9], ignore_eos=True
        )
    )
    assert made.stop_conditions == StopConditions(
        max_tokens=7, min_tokens=2, stop=("a", "b"), stop_token_ids=(9,), ignore_eos=True
    )
    assert made.eos_token_ids == ()


def test_an_explicit_0_of_max_new_tokens_is_not_unset() -> None:
    assert convert(message(max_new_tokens=0)).stop_conditions.max_tokens == 0
    assert convert(message()).stop_conditions.max_tokens is None


def test_sampling_options_have_the_same_names_and_float32_values() -> None:
    floats = ("temperature", "top_p", "min_p", *(f"{name}_penalty" for name in PENALTIES))
    request = message(n=2, top_k=-1, **dict.fromkeys(floats, 0.7))
    made = convert(request).sampling_options
    assert (made.n, made.top_k) == (2, -1)
    for name in floats:
        assert getattr(made, name) == getattr(request.sampling_params, name)
        assert b"\xca\x3f\x33\x33\x33" in made.packed


PENALTIES = ("presence", "frequency", "repetition")


def test_n_of_0_is_1() -> None:
    assert convert(message(n=0)).sampling_options.n == 1


def test_a_set_0_of_an_optional_value_is_kept() -> None:
    made = convert(message(temperature=0.0, top_k=0)).sampling_options
    assert (made.temperature, made.top_k) == (0.0, 0)
    negative = convert(message(top_p=-0.0)).sampling_options.top_p
    assert negative is not None
    assert math.copysign(1, negative) == -1


def test_a_seed_beyond_63_bits_goes_where_it_stays_exact() -> None:
    small = convert(message(sampling_seed=2**63 - 1))
    assert small.sampling_options.seed == 2**63 - 1
    assert small.extra_args is None
    large = convert(message(sampling_seed=2**64 - 1))
    assert large.sampling_options.seed is None
    assert extra(large) == {"sampling_seed": 2**64 - 1}


@pytest.mark.parametrize(
    ("kind", "text", "field", "value"),
    [
        ("regex", "a+", "regex", "a+"),
        ("ebnf_grammar", 'root ::= "a"', "grammar", 'root ::= "a"'),
        ("json_schema", '{"type": "object"}', "json", {"type": "object"}),
        ("structural_tag", '{"type": "tag"}', "structural_tag", {"type": "tag"}),
        ("json_schema", "not json", "json", "not json"),
        ("json_schema", str(10**30), "json", str(10**30)),
        ("json_schema", '"\\ud800"', "json", '"\\ud800"'),
    ],
)
def test_a_constraint_becomes_guided_decoding(
    kind: str, text: str, field: str, value: object
) -> None:
    guided = convert(message(**{kind: text})).sampling_options.guided_decoding
    assert guided is not None
    assert msgpack.unpackb(guided.packed) == {field: value}


def test_logprobs_say_how_many_and_whether_of_the_prompt() -> None:
    def options(**fields: Any) -> tuple[int | None, int | None]:
        made = convert(pb.GenerateRequest(**fields)).output_options
        return made.logprobs, made.prompt_logprobs

    assert options() == (None, None)
    assert options(return_logprob=True) == (0, None)
    assert options(return_logprob=True, top_logprobs_num=3) == (3, None)
    assert options(return_logprob=True, top_logprobs_num=3, logprob_start_len=0) == (3, 3)
    assert options(return_logprob=True, top_logprobs_num=3, logprob_start_len=-1) == (3, None)
    assert options(top_logprobs_num=3, logprob_start_len=0) == (None, None)
    # An upstream may take it or not; a reader of unsigned numbers has to read the record.
    assert options(return_logprob=True, top_logprobs_num=-1) == (0, None)


def test_text_options_are_kept() -> None:
    made = convert(message(skip_special_tokens=True, no_stop_trim=True)).output_options
    assert (made.skip_special_tokens, made.no_stop_trim) == (True, True)


def test_what_has_no_place_of_its_own_is_in_extra_args_when_set() -> None:
    request = message(spaces_between_special_tokens=True, logit_bias={"9": 0.5, "10": -1.0})
    request.stream = True
    request.token_ids_logprob.extend([7, 8])
    request.top_logprobs_num = 2
    request.logprob_start_len = -1
    request.tokenized.original_text = "hello"
    request.sampling_params.custom_params.update(
        {"a": [1, 2.5, None, True, "x"], "b": {"c": "sk-1"}}
    )
    made = extra(convert(request))
    assert made == {
        "stream": True,
        "logit_bias": {"10": -1.0, "9": 0.5},
        "token_ids_logprob": [7, 8],
        "spaces_between_special_tokens": True,
        "custom_params": {"a": [1.0, 2.5, None, True, "x"], "b": {"c": "sk-1"}},
        "original_text": "hello",
        "top_logprobs_num": 2,
        "logprob_start_len": -1,
    }
    assert list(made["logit_bias"]) == ["10", "9"]


def test_biases_are_float32_and_custom_params_float64() -> None:
    request = message(logit_bias={"1": 0.7})
    request.sampling_params.custom_params["x"] = 0.7
    made = convert(request).extra_args
    assert made is not None
    assert b"\xa11\xca\x3f\x33\x33\x33" in made.data
    assert b"\xa1x\xcb" in made.data


def test_nan_and_infinity_do_not_fail() -> None:
    request = message(temperature=math.nan, logit_bias={"1": math.inf})
    request.sampling_params.custom_params["x"] = math.nan
    made = from_generate(request, model=MODEL)
    assert math.isnan(Request.unpacked(made.packed).sampling_options.temperature or 0)
    assert extra(made)["logit_bias"]["1"] == math.inf


def test_the_same_request_gives_the_same_bytes() -> None:
    request = message(logit_bias={str(number): 1.0 for number in range(50)})
    request.sampling_params.custom_params.update({str(number): 1 for number in range(50)})
    again = pb.GenerateRequest.FromString(request.SerializeToString())
    assert from_generate(request, model=MODEL).packed == from_generate(again, model=MODEL).packed


def test_a_rank_is_routing_and_a_negative_one_stays_exact() -> None:
    request = message()
    request.data_parallel_rank = 3
    assert convert(request).routing is not None
    assert msgpack.unpackb(convert(request).packed)["routing"] == {"dp_rank": 3}
    request.data_parallel_rank = -1
    assert convert(request).routing is None
    assert extra(convert(request)) == {"data_parallel_rank": -1}


def media_message() -> pb.GenerateRequest:
    request = message()
    request.mm_inputs.items.add(
        modality=common_pb2.IMAGE,
        content_hash=b"\x01\xff",
        encoder_input=pb.TensorData(shape=[2, 3], dtype="float16", inline=b"pixels"),
    )
    request.mm_inputs.items.add(
        modality=common_pb2.VIDEO,
        encoder_input=pb.TensorData(shm=common_pb2.ShmHandle(name="segment")),
    )
    return request


def test_media_items_say_modality_hash_shape_and_dtype() -> None:
    made = convert(media_message()).multi_modal_data
    assert made is not None
    assert made.value == {
        "image": [
            {
                "Decoded": {
                    "modality": "image",
                    "hash": "01ff",
                    "shape": [2, 3],
                    "dtype": "float16",
                    "data": b"pixels",
                }
            }
        ],
        "video": [{"Decoded": {"modality": "video", "hash": "", "shape": [], "dtype": ""}}],
    }


def test_tensor_bytes_are_only_copied_when_something_asks_for_them() -> None:
    request = from_generate(media_message(), model=MODEL)
    assert request.multi_modal_data is not None
    assert request.multi_modal_data._data is None
    assert b"pixels" in request.multi_modal_data.data


SESSION = (b"x-claude-code-session-id", b"s-1")


def test_without_allowed_metadata_there_is_no_agent() -> None:
    made = convert(message())
    assert made.agent_context is None
    assert made.annotations == ()


def test_a_session_id_makes_an_agent_context_with_all_allowed_headers() -> None:
    headers = [SESSION, (b"x-agent", b"a"), (b"x-agent", b"b"), (b"x-parent-session-id", b"p")]
    made = convert(message(), metadata_allowed=headers)
    assert made.annotations == ()
    assert made.agent_context is not None
    assert msgpack.unpackb(made.agent_context.packed) == {
        "session_id": "s-1",
        "parent_session_id": "p",
        "agent_headers": {
            "x-claude-code-session-id": ["s-1"],
            "x-agent": ["a", "b"],
            "x-parent-session-id": ["p"],
        },
    }
    assert made.image_cache_scope is None


def test_without_a_session_id_allowed_headers_are_annotations() -> None:
    made = convert(message(), metadata_allowed=[(b"x-agent", b"a"), (b"x-b", b"\xff")])
    assert made.agent_context is None
    assert made.annotations == ("x-agent:a", "x-b:\ufffd")


@pytest.mark.parametrize(
    ("request_id", "metadata", "expected"),
    [
        ("r", [], False),
        ("HEALTH_CHECK", [], True),
        ("HEALTH_CHECK_1234", [], True),
        ("x-HEALTH_CHECK", [], False),
        ("r", [(b"x-health-check", b"1")], True),
        ("r", [(b"x-health-check", b"0")], False),
    ],
)
def test_rule_26_probes_are_known_by_their_id_or_header(
    request_id: str, metadata: list[tuple[bytes, bytes]], expected: bool
) -> None:
    assert is_probe(request_id, metadata) is expected


def test_a_probes_request_says_that_it_is_one() -> None:
    request = message()
    assert not convert(request).is_probe
    assert convert(request, health_check=True).is_probe
    request.request_id = "HEALTH_CHECK_9"
    assert convert(request).is_probe


def test_parameters_that_were_seen_before_are_told_apart_to_the_last_bit() -> None:
    for temperature in (0.0, -0.0, 0.7, 0.0):
        made = convert(message(temperature=temperature)).sampling_options.temperature
        assert made is not None
        assert math.copysign(1, made) == math.copysign(1, temperature)
        assert made == pytest.approx(temperature)


def test_parameters_with_long_texts_are_not_kept() -> None:
    before = from_generate_module._known_parts.cache_info().currsize
    convert(message(stop=["secret " * 20]))
    assert from_generate_module._known_parts.cache_info().currsize == before
