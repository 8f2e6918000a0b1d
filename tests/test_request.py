"""`Request` and its bytes: what a real Dynamo frontend sent comes back as it was."""

from pathlib import Path
from typing import Any

import attrs
import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.packed import Packed, TokenIds
from replay.request import (
    AgentContext,
    GuidedDecoding,
    OutputOptions,
    Request,
    RouterConfigOverride,
    RouterTargets,
    Routing,
    RoutingConstraints,
    SamplingOptions,
    StopConditions,
)
from replay.wire_map import WireMap, WireMapError

FIXTURES = sorted((Path(__file__).parent / "data" / "dynamo").glob("request_*.msgpack"))

#: Wire keys in the order in which Dynamo 1.6.1 serialises them.
WIRE_KEYS = (
    *("model", "token_ids", "prompt_embeds", "multi_modal_data", "multi_modal_uuids"),
    *("mm_routing_info", "stop_conditions", "sampling_options", "output_options"),
    *("eos_token_ids", "mdc_sum", "annotations", "routing", "router_config_override"),
    *("prefill_result", "encoder_result", "migration_link", "bootstrap_info", "extra_args"),
    *("kv_hint", "require_reasoning", "router", "agent_context", "image_cache_scope"),
    *("mm_processor_kwargs", "media_io_kwargs", "request_timestamp_ms", "_HEALTH_CHECK"),
)


def rebuilt(value: Any) -> Any:
    """Return a copy that remembers no bytes, so that packing it is our own work."""
    if not isinstance(value, WireMap):
        return value
    changes = {
        field.name: rebuilt(getattr(value, field.name))
        for field in attrs.fields(type(value))
        if field.init
    }
    return type(value)(**changes)


def test_the_fixtures_are_here() -> None:
    assert len(FIXTURES) == 11


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_a_request_of_dynamo_comes_back_byte_for_byte(path: Path) -> None:
    data = path.read_bytes()
    request = Request.unpacked(data)
    assert request.packed == data
    assert request.unknown_keys() == ()


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_our_own_packing_of_it_gives_the_same_bytes(path: Path) -> None:
    """Not because the bytes were kept: order, nil or absent and float widths are Dynamo's."""
    data = path.read_bytes()
    assert rebuilt(Request.unpacked(data)).packed == data


def test_fields_have_the_values_of_the_wire() -> None:
    request = Request.unpacked((FIXTURES[0].parent / "request_rr_2.msgpack").read_bytes())
    assert request.model == "tiny"
    assert len(request.token_ids) == 10
    assert request.token_ids.array.typecode == "I"
    assert request.stop_conditions.stop == ("zzz",)
    assert request.stop_conditions.stop_token_ids_hidden == (2,)
    assert request.sampling_options.n == request.expected_choices == 2
    assert request.sampling_options.temperature == pytest.approx(0.7, abs=1e-7)
    assert request.sampling_options.seed == 7
    assert request.output_options.logprobs == 2
    assert request.eos_token_ids == (2,)
    assert request.routing == Routing()
    assert request.router_config_override is None
    assert not request.is_probe


def test_nested_maps_of_the_kv_router_are_read() -> None:
    request = Request.unpacked((FIXTURES[0].parent / "request_kv_5.msgpack").read_bytes())
    assert request.routing is not None
    assert request.routing.routing_constraints is not None
    taints = request.routing.routing_constraints.preferred_taints
    assert taints is not None
    assert taints.value == {"z": 0.5}
    assert request.router == RouterTargets(ttft_target=10.0)
    assert request.stop_conditions.ignore_eos is True
    assert request.eos_token_ids == ()


def full_request() -> Request:
    """Return a request with every field set."""
    return Request(
        model="m",
        token_ids=TokenIds([1, 200, 70000]),
        prompt_embeds="AAAA",
        multi_modal_data=Packed.of({"image_url": [{"Url": "data:,x"}]}),
        multi_modal_uuids=Packed.of({"image_url": [None, "u"]}),
        mm_routing_info=Packed.of({"hashes": [1]}),
        stop_conditions=StopConditions(max_tokens=4, stop=("a",)),
        sampling_options=SamplingOptions(
            n=2, temperature=0.7, guided_decoding=GuidedDecoding(json=Packed.of({"type": "object"}))
        ),
        output_options=OutputOptions(logprobs=1, no_stop_trim=True),
        eos_token_ids=(2,),
        mdc_sum="abc",
        annotations=("a",),
        routing=Routing(
            dp_rank=1,
            priority_jump=3,
            routing_constraints=RoutingConstraints(required_taints=("x",)),
        ),
        router_config_override=RouterConfigOverride(router_temperature=0.5),
        prefill_result=Packed.of({"p": 1}),
        encoder_result=Packed.of({"e": 1}),
        migration_link=Packed.of({"l": 1}),
        bootstrap_info=Packed.of({"b": 1}),
        extra_args=Packed.of({"x": 0.1}),
        kv_hint=Packed.of({"k": 1}),
        require_reasoning=True,
        router=RouterTargets(itl_target=5),
        agent_context=AgentContext(session_id="s", agent_headers=Packed.of({"h": ["s"]})),
        image_cache_scope="s",
        mm_processor_kwargs=Packed.of({"a": 1}),
        media_io_kwargs=Packed.of({"a": 2}),
        request_timestamp_ms=123,
        health_check=True,
    )


def test_every_key_is_on_the_wire_in_dynamos_order() -> None:
    assert tuple(msgpack.unpackb(full_request().packed)) == WIRE_KEYS


def test_a_full_request_survives_the_wire() -> None:
    request = full_request()
    again = Request.unpacked(request.packed)
    # 0.7 as a float32 is not 0.7; all the rest is equal.
    cold = attrs.evolve(request.sampling_options, temperature=None)
    assert attrs.evolve(again.sampling_options, temperature=None) == cold
    assert attrs.evolve(again, sampling_options=cold) == attrs.evolve(
        request, sampling_options=cold
    )
    assert rebuilt(again).packed == request.packed
    assert again.is_probe


def test_unset_is_nil_where_dynamo_has_no_default_and_absent_elsewhere() -> None:
    data = msgpack.unpackb(Request(model="m", token_ids=TokenIds([1])).packed)
    assert data == {
        "model": "m",
        "token_ids": [1],
        "stop_conditions": dict.fromkeys(
            (
                *("max_tokens", "stop", "stop_token_ids", "stop_token_ids_visible"),
                *("stop_token_ids_hidden", "min_tokens", "ignore_eos", "max_thinking_tokens"),
            )
        ),
        "sampling_options": dict.fromkeys(
            (
                *("n", "best_of", "presence_penalty", "frequency_penalty", "repetition_penalty"),
                *("temperature", "top_p", "top_k", "min_p", "use_beam_search", "length_penalty"),
                *("seed", "include_stop_str_in_output", "guided_decoding"),
            )
        ),
        "output_options": dict.fromkeys(
            (
                *("logprobs", "prompt_logprobs", "skip_special_tokens", "formatted_prompt"),
                "return_tokens_as_token_ids",
            )
        ),
        "eos_token_ids": [],
        "mdc_sum": None,
        "annotations": [],
        "router_config_override": None,
    }


def test_floats_that_are_float32_in_dynamo_have_four_bytes() -> None:
    sampling = SamplingOptions(temperature=0.7, top_p=1).packed
    assert b"\xabtemperature\xca" in sampling
    assert b"\xa5top_p\xca" in sampling
    assert b"\xb4request_timestamp_ms\xcb" in full_request().packed
    assert b"\xadpriority_jump\xcb" in full_request().packed


UNKNOWN_PLACES = (
    ((), "new_key"),
    (("stop_conditions",), "stop_conditions.new_key"),
    (("sampling_options",), "sampling_options.new_key"),
    (("output_options",), "output_options.new_key"),
    (("routing", "routing_constraints"), "routing.routing_constraints.new_key"),
)


@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
@pytest.mark.parametrize(("path", "reported"), UNKNOWN_PLACES)
def test_an_unknown_key_is_reported_and_kept_in_its_place(
    path: tuple[str, ...], reported: str, first: bool
) -> None:
    fields = msgpack.unpackb((FIXTURES[0].parent / "request_kv_5.msgpack").read_bytes())
    place = fields
    for key in path:
        place = place[key]
    known = dict(place)
    if first:
        place.clear()
    place.update({"new_key": {"deep": [1, 2.5]}})
    place.update(known)
    data = msgpack.packb(fields)
    request = Request.unpacked(data)
    assert request.unknown_keys() == (reported,)
    assert request.packed == data
    clean = request.known_only()
    assert clean.unknown_keys() == ()
    assert b"new_key" not in clean.packed
    assert Request.unpacked(clean.packed).model == "tiny"


def test_what_is_under_an_unknown_key_stays_as_it_came() -> None:
    data = msgpack.packb({"model": "m", "token_ids": [], "new": 0.5}, use_single_float=True)
    request = Request.unpacked(data)
    assert request.unknown["new"].data == b"\xca\x3f\x00\x00\x00"
    assert rebuilt(request).unknown == request.unknown


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", "request"),
        (b"\xc1", "request"),
        (msgpack.packb([1]), "request"),
        (msgpack.packb({"model": "m"}), "request"),
        (msgpack.packb({"model": 1, "token_ids": []}), "request.model"),
        (msgpack.packb({"model": "m", "token_ids": [-1]}), "request.token_ids"),
        (msgpack.packb({"model": "m", "token_ids": ["sk-1"]}), "request.token_ids"),
        (msgpack.packb({"model": "m", "token_ids": [2**32]}), "request.token_ids"),
        (msgpack.packb({"model": "m", "token_ids": [], "routing": 5}), "routing"),
        (msgpack.packb({1: "m"}), "request"),
        (msgpack.packb({"model": "m", "token_ids": []}) + b"\x01", "request"),
        (msgpack.packb({"model": "m", "token_ids": [1]})[:-1], "request.token_ids"),
        (
            msgpack.packb({"model": "m", "token_ids": [], "sampling_options": {"n": "sk-1"}}),
            "sampling_options.n",
        ),
    ],
)
def test_what_is_no_request_is_an_error_that_names_the_key_and_not_the_value(
    data: bytes, named: str
) -> None:
    with pytest.raises(WireMapError) as caught:
        Request.unpacked(data)
    assert str(caught.value).startswith(named)
    assert "sk-1" not in str(caught.value)
    assert caught.value.__cause__ is None


@given(st.binary(max_size=60))
def test_any_bytes_are_a_request_or_an_error(data: bytes) -> None:
    try:
        request = Request.unpacked(data)
    except WireMapError:
        return
    assert request.packed == data


def test_a_request_shows_nothing_of_its_content() -> None:
    request = full_request()
    assert repr(request) == "<Request>"
    assert repr(request.agent_context) == "<AgentContext>"


def test_a_request_cannot_be_changed() -> None:
    request = full_request()
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        request.model = "other"  # type: ignore[misc]
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        request.sampling_options.n = 3  # type: ignore[misc]


@pytest.mark.parametrize(("n", "expected"), [(None, 1), (0, 1), (1, 1), (3, 3)])
def test_rule_43_at_least_one_choice_is_expected(n: int | None, expected: int) -> None:
    request = Request(model="m", token_ids=TokenIds(), sampling_options=SamplingOptions(n=n))
    assert request.expected_choices == expected
