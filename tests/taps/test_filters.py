"""What each filter drops and skips: rules 12 to 29."""

import json
from pathlib import Path
from typing import Any

import attrs
import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.packed import Packed, TokenIds
from replay.request import AgentContext, Request, Routing
from replay.taps.filter_names import FilterKind, parse_filter
from replay.taps.filters import (
    ALWAYS_KEPT,
    DROPPED_BY_TOKENS_ONLY,
    DROPPED_FIELDS,
    NEVER_COPIED,
    WORKER_PINS,
    effective_names,
    has_media,
    projection,
    sample_position,
    selection,
)
from replay.taps.from_generate import GENERATE_REQUEST_FIELDS, SAMPLING_PARAMS_FIELDS
from tests.test_request import full_request

FIXTURES = Path(__file__).parents[1] / "data" / "dynamo"


def filters(*texts: str) -> list[Any]:
    return [parse_filter(text) for text in texts]


def projected(request: Request, *texts: str) -> dict[str, Any]:
    """Return what a record says of *request*."""
    fields: dict[str, Any] = msgpack.unpackb(projection(filters(*texts)).pack(request))
    return fields


#: By filter: fields of `Request` that are gone, absent or in their empty form.
DROPPED = {
    "strip-worker-pins": set(),
    "keep-worker-pins": set(),
    "strip-multimodal": {
        *("multi_modal_data", "multi_modal_uuids", "mm_routing_info"),
        *("mm_processor_kwargs", "media_io_kwargs", "image_cache_scope"),
    },
    "strip-embeds": {"prompt_embeds"},
    "strip-extra-args": {"extra_args"},
    "strip-agent-context": {"agent_context", "annotations", "image_cache_scope"},
    "tokens-only": {
        *("multi_modal_data", "multi_modal_uuids", "mm_routing_info", "mm_processor_kwargs"),
        *("media_io_kwargs", "image_cache_scope", "prompt_embeds", "extra_args"),
        *("agent_context", "annotations", "routing", "router", "kv_hint"),
        *("router_config_override", "mdc_sum"),
    },
    "skip-multimodal": set(),
    "max-tokens=9": set(),
    "sample=0.5": set(),
}
FIELDS = {field.name for field in attrs.fields(Request) if field.init}
#: What a dropped field still shows on the wire.
EMPTY = {"router_config_override": None, "mdc_sum": None, "annotations": []}
KEY = {"health_check": "_HEALTH_CHECK"}


def test_each_field_of_a_request_is_always_kept_never_copied_or_dropped_by_something() -> None:
    """A new field fails here until somebody decides."""
    droppable = frozenset().union(DROPPED_BY_TOKENS_ONLY, *DROPPED_FIELDS.values())
    assert ALWAYS_KEPT | NEVER_COPIED | droppable == FIELDS
    assert not ALWAYS_KEPT & NEVER_COPIED
    assert not ALWAYS_KEPT & droppable
    assert not NEVER_COPIED & droppable


def test_every_filter_is_in_the_table_below() -> None:
    assert {parse_filter(text).kind for text in DROPPED} == set(FilterKind)


@pytest.mark.parametrize("text", DROPPED)
def test_rules_15_to_22_each_field_is_kept_dropped_or_never_copied(text: str) -> None:
    request = attrs.evolve(full_request(), unknown={"new": Packed.of(1)})
    before = msgpack.unpackb(request.packed)
    record = projected(request, text)
    for name in FIELDS:
        key = KEY.get(name, name)
        if name in NEVER_COPIED:
            assert key not in record, name
        elif name in DROPPED[text]:
            assert record.get(key) == EMPTY.get(name), name
            assert (key in record) is (name in EMPTY), name
        elif name == "routing" and text != "keep-worker-pins":
            assert record[key] == {
                part: value for part, value in before[key].items() if part not in WORKER_PINS
            }
        else:
            assert record[key] == before[key], name
    assert msgpack.unpackb(request.packed) == before


@pytest.mark.parametrize("text", DROPPED)
def test_each_field_of_the_workers_messages_follows_its_place(text: str) -> None:
    """Kept, dropped or never, for every field of GenerateRequest and SamplingParams."""
    places = {**GENERATE_REQUEST_FIELDS, **SAMPLING_PARAMS_FIELDS}
    fate = {
        name: "never" if place is None else "dropped" if place in DROPPED[text] else "kept"
        for name, place in places.items()
    }
    never = {name for name, each in fate.items() if each == "never"}
    assert never == {"encode_bootstrap_info", "kv_bootstrap_info"}
    dropped = {name for name, each in fate.items() if each == "dropped"}
    extra = {
        *("token_ids_logprob", "stream", "spaces_between_special_tokens", "logit_bias"),
        "custom_params",
    }
    expected = {
        "strip-extra-args": extra,
        "strip-multimodal": {"mm_inputs"},
        "tokens-only": {*extra, "mm_inputs", "data_parallel_rank"},
    }
    assert dropped == expected.get(text, set())


ROUTING = Routing(
    backend_instance_id=1,
    prefill_worker_id=2,
    decode_worker_id=3,
    dp_rank=4,
    prefill_dp_rank=5,
    expected_output_tokens=6,
    lora_name="lora",
    cache_salt="salt",
    priority_jump=1.5,
    strict_priority=7,
    priority=8,
    allowed_worker_ids=(9,),
)


def routed(routing: Routing | None) -> Request:
    return Request(model="m", token_ids=TokenIds([1]), routing=routing)


def test_rule_17_worker_pins_go_and_the_rest_of_routing_stays() -> None:
    assert projected(routed(ROUTING))["routing"] == {
        "expected_output_tokens": 6,
        "lora_name": "lora",
        "cache_salt": "salt",
        "priority_jump": 1.5,
        "strict_priority": 7,
        "priority": 8,
    }
    kept = projected(routed(ROUTING), "keep-worker-pins")["routing"]
    assert kept == msgpack.unpackb(ROUTING.packed)


def test_rule_17_a_routing_of_nothing_but_pins_stays_as_an_empty_map() -> None:
    assert projected(routed(Routing(dp_rank=0)))["routing"] == {}
    assert projected(routed(Routing()))["routing"] == {}
    assert "routing" not in projected(routed(None))


def test_rule_12_keep_wins_over_strip() -> None:
    both = ("keep-worker-pins", "strip-worker-pins")
    assert projected(routed(ROUTING), *both)["routing"]["dp_rank"] == 4
    assert effective_names(filters(*both)) == ("keep-worker-pins",)


@pytest.mark.parametrize(
    ("configured", "effective"),
    [
        ([], ["strip-worker-pins"]),
        (["tokens-only"], ["tokens-only", "strip-worker-pins"]),
        (["keep-worker-pins"], ["keep-worker-pins"]),
        (["strip-worker-pins", "strip-embeds"], ["strip-embeds", "strip-worker-pins"]),
        (
            ["max-tokens=4096", "strip-multimodal", "sample=0.05"],
            ["max-tokens=4096", "strip-multimodal", "sample=0.05", "strip-worker-pins"],
        ),
    ],
)
def test_rule_14_the_effective_names(configured: list[str], effective: list[str]) -> None:
    assert list(effective_names(filters(*configured))) == effective


def test_rule_21_annotations_are_emptied_and_stay_on_the_wire() -> None:
    assert projected(full_request(), "strip-agent-context")["annotations"] == []


def test_rule_22_tokens_only_leaves_nil_where_dynamo_does() -> None:
    record = projected(full_request(), "tokens-only")
    assert record["mdc_sum"] is None
    assert record["router_config_override"] is None
    assert set(record) == {
        *("model", "token_ids", "stop_conditions", "sampling_options", "output_options"),
        *("eos_token_ids", "mdc_sum", "annotations", "router_config_override"),
        *("require_reasoning", "request_timestamp_ms"),
    }


def test_rule_29_with_the_default_filters_extra_args_reach_the_shadow() -> None:
    secret = attrs.evolve(full_request(), extra_args=Packed.of({"key": "sk-1"}))
    assert b"sk-1" in projection([]).pack(secret)
    for name in ("strip-extra-args", "tokens-only"):
        assert b"sk-1" not in projection(filters(name)).pack(secret)


#: A session id and two other agent headers, as Dynamo spreads them over a request.
SESSION, OTHERS = "cc-session-7", ("agent-header-a", "agent-header-b")
AGENT_REQUEST = Request(
    model="m",
    token_ids=TokenIds([1]),
    agent_context=AgentContext(
        session_id=SESSION,
        agent_headers=Packed.of(
            {"x-session-id": [SESSION], "x-first": [OTHERS[0]], "x-second": [OTHERS[1]]}
        ),
    ),
    image_cache_scope=SESSION,
    annotations=(),
)


@pytest.mark.parametrize(
    ("names", "sessions", "others"),
    [
        ((), 3, 2),
        (("strip-agent-context",), 0, 0),
        (("strip-multimodal",), 2, 2),
        (("strip-agent-context", "strip-multimodal"), 0, 0),
        (("tokens-only",), 0, 0),
    ],
)
def test_rules_18_and_21_how_often_a_session_id_is_in_the_record(
    names: tuple[str, ...], sessions: int, others: int
) -> None:
    packed = projection(filters(*names)).pack(AGENT_REQUEST)
    text = json.dumps(msgpack.unpackb(packed))
    assert packed.count(SESSION.encode()) == text.count(SESSION) == sessions
    assert sum(packed.count(other.encode()) for other in OTHERS) == others
    assert sum(text.count(other) for other in OTHERS) == others


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("request_*.msgpack")), ids=lambda p: p.stem)
def test_a_request_of_dynamo_without_pins_is_mirrored_byte_for_byte(path: Path) -> None:
    data = path.read_bytes()
    assert projection(filters("keep-worker-pins")).pack(Request.unpacked(data)) == data


def test_what_nobody_knows_is_not_mirrored_at_any_depth() -> None:
    fields = msgpack.unpackb((FIXTURES / "request_kv_5.msgpack").read_bytes())
    fields["new"] = fields["stop_conditions"]["new"] = "sk-1"
    fields["routing"]["routing_constraints"]["new"] = "sk-1"
    request = Request.unpacked(msgpack.packb(fields))
    assert b"sk-1" not in projection(filters("keep-worker-pins")).pack(request)


def test_rule_13_a_dropped_payload_is_not_built_and_the_live_request_not_changed() -> None:
    def explode() -> bytes:
        raise AssertionError("a dropped payload was built")

    request = attrs.evolve(full_request(), multi_modal_data=Packed.when_needed(explode))
    assert "multi_modal_data" not in projected(request, "strip-multimodal")
    assert request.routing == full_request().routing


def test_rule_28_equal_effects_are_equal_projections() -> None:
    assert projection(filters("strip-embeds", "max-tokens=5")) == projection(
        filters("strip-embeds", "sample=0.1", "strip-worker-pins")
    )
    assert projection(filters("strip-embeds")) != projection(filters("strip-extra-args"))
    assert projection([]) != projection(filters("keep-worker-pins"))


def passes(*texts: str, models: tuple[str, ...] = (), **request: Any) -> bool:
    values = {"model": "m", "prompt_tokens": 10, "has_media": False, "request_id": "r", **request}
    return selection(filters(*texts), models).passes(**values)


def test_rule_23_skip_multimodal_skips_media_and_embeds() -> None:
    assert passes("skip-multimodal")
    assert not passes("skip-multimodal", has_media=True)
    assert passes(has_media=True)
    assert has_media(full_request())
    assert has_media(Request(model="m", token_ids=TokenIds(), prompt_embeds="A"))
    assert not has_media(Request(model="m", token_ids=TokenIds()))


@pytest.mark.parametrize(("tokens", "expected"), [(9, True), (10, True), (11, False)])
def test_rule_24_a_prompt_of_exactly_max_tokens_passes(tokens: int, expected: bool) -> None:
    assert passes("max-tokens=10", prompt_tokens=tokens) is expected


def test_rule_25_models_match_exactly_and_none_means_all() -> None:
    assert passes(models=("m", "n"))
    assert not passes(models=("n", "M", "m2"))
    assert passes(models=())


def test_each_filter_has_to_let_a_request_through() -> None:
    assert not passes("max-tokens=100", "max-tokens=5")
    assert selection(filters("sample=0.5", "sample=0.1"), ()).share == 0.1
    assert selection(filters("strip-embeds"), ()).passes_all
    assert not selection(filters("sample=1"), ()).passes_all


@given(st.text())
def test_a_sample_is_a_place_in_0_to_1_that_only_the_id_decides(request_id: str) -> None:
    assert 0 <= sample_position(request_id) < 1
    assert sample_position(request_id) == sample_position(request_id)
    assert passes("sample=1", request_id=request_id)


def test_a_sample_is_the_same_on_every_replica_and_day() -> None:
    """The values are part of the promise: two versions that sample apart mirror other requests."""
    assert sample_position("req-1") == pytest.approx(0.01671343258139224, abs=1e-15)


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_a_sample_has_its_share_and_lies_in_every_larger_one(share: float) -> None:
    ids = [f"req-{number}" for number in range(20_000)]
    sampled = {each for each in ids if passes(f"sample={share}", request_id=each)}
    assert len(sampled) == pytest.approx(20_000 * share, rel=0.05)
    assert sampled <= {each for each in ids if passes("sample=0.6", request_id=each)}
