# ruff: noqa: RUF009 - `wire` is `attrs.field` with metadata, not a default that is shared
"""PURE.  One request to a model, with the fields of Dynamo's PreprocessedRequest.

The keys, their order and which of them are nil rather than absent are those that a Dynamo 1.6.1
frontend writes, so its consumers can read these requests and a request of its own comes back byte
for byte (`Request.unpacked(data).packed == data`).
"""

from typing import ClassVar, Final

import attrs

from replay.packed import Packed, TokenIds
from replay.wire_map import (
    ANYTHING,
    ARRAY,
    BOOLEAN,
    FLOAT32,
    FLOAT64,
    IDS,
    INTEGER,
    TEXT,
    WireMap,
    a_map,
    wire,
)

#: Where a request came in, as a record says it.
ORIGINS: Final = ("chat", "completions", "preprocessed", "other")


@attrs.frozen(kw_only=True, repr=False)
class StopConditions(WireMap):
    """What ends a choice."""

    wire_name: ClassVar[str] = "stop_conditions"

    max_tokens: int | None = wire(INTEGER, nil=True)
    stop: tuple[str, ...] | None = wire(ARRAY, nil=True)
    stop_token_ids: tuple[int, ...] | None = wire(ARRAY, nil=True)
    stop_token_ids_visible: tuple[int, ...] | None = wire(ARRAY, nil=True)
    stop_token_ids_hidden: tuple[int, ...] | None = wire(ARRAY, nil=True)
    min_tokens: int | None = wire(INTEGER, nil=True)
    ignore_eos: bool | None = wire(BOOLEAN, nil=True)
    max_thinking_tokens: int | None = wire(INTEGER, nil=True)


@attrs.frozen(kw_only=True, repr=False)
class GuidedDecoding(WireMap):
    """What the output has to match.  Only what is set is on the wire."""

    wire_name: ClassVar[str] = "guided_decoding"

    json: Packed | None = wire(ANYTHING)
    regex: str | None = wire(TEXT)
    choice: tuple[str, ...] | None = wire(ARRAY)
    grammar: str | None = wire(TEXT)
    backend: str | None = wire(TEXT)
    whitespace_pattern: str | None = wire(TEXT)
    structural_tag: Packed | None = wire(ANYTHING)


@attrs.frozen(kw_only=True, repr=False)
class SamplingOptions(WireMap):
    """How tokens are chosen.  The floats are float32."""

    wire_name: ClassVar[str] = "sampling_options"

    n: int | None = wire(INTEGER, nil=True)
    best_of: int | None = wire(INTEGER, nil=True)
    presence_penalty: float | None = wire(FLOAT32, nil=True)
    frequency_penalty: float | None = wire(FLOAT32, nil=True)
    repetition_penalty: float | None = wire(FLOAT32, nil=True)
    temperature: float | None = wire(FLOAT32, nil=True)
    top_p: float | None = wire(FLOAT32, nil=True)
    top_k: int | None = wire(INTEGER, nil=True)
    min_p: float | None = wire(FLOAT32, nil=True)
    use_beam_search: bool | None = wire(BOOLEAN, nil=True)
    length_penalty: float | None = wire(FLOAT32, nil=True)
    seed: int | None = wire(INTEGER, nil=True)
    include_stop_str_in_output: bool | None = wire(BOOLEAN, nil=True)
    guided_decoding: GuidedDecoding | None = wire(a_map(GuidedDecoding), nil=True)


@attrs.frozen(kw_only=True, repr=False)
class OutputOptions(WireMap):
    """What the answer carries beside its tokens."""

    wire_name: ClassVar[str] = "output_options"

    logprobs: int | None = wire(INTEGER, nil=True)
    prompt_logprobs: int | None = wire(INTEGER, nil=True)
    skip_special_tokens: bool | None = wire(BOOLEAN, nil=True)
    formatted_prompt: bool | None = wire(BOOLEAN, nil=True)
    return_tokens_as_token_ids: bool | None = wire(BOOLEAN, nil=True)
    no_stop_trim: bool | None = wire(BOOLEAN)


@attrs.frozen(kw_only=True, repr=False)
class RoutingConstraints(WireMap):
    """Which workers may or should serve the request."""

    wire_name: ClassVar[str] = "routing_constraints"

    required_taints: tuple[str, ...] | None = wire(ARRAY)
    preferred_taints: Packed | None = wire(ANYTHING)
    """A float32 by taint."""


@attrs.frozen(kw_only=True, repr=False)
class Routing(WireMap):
    """What a router decided or has to respect.  Only what is set is on the wire."""

    wire_name: ClassVar[str] = "routing"

    backend_instance_id: int | None = wire(INTEGER)
    prefill_worker_id: int | None = wire(INTEGER)
    decode_worker_id: int | None = wire(INTEGER)
    dp_rank: int | None = wire(INTEGER)
    prefill_dp_rank: int | None = wire(INTEGER)
    expected_output_tokens: int | None = wire(INTEGER)
    lora_name: str | None = wire(TEXT)
    cache_salt: str | None = wire(TEXT)
    priority_jump: float | None = wire(FLOAT64)
    strict_priority: int | None = wire(INTEGER)
    priority: int | None = wire(INTEGER)
    allowed_worker_ids: tuple[int, ...] | None = wire(ARRAY)
    routing_constraints: RoutingConstraints | None = wire(a_map(RoutingConstraints))


@attrs.frozen(kw_only=True, repr=False)
class RouterConfigOverride(WireMap):
    """Router settings for this request only."""

    wire_name: ClassVar[str] = "router_config_override"

    overlap_score_credit: float | None = wire(FLOAT64)
    prefill_load_scale: float | None = wire(FLOAT64)
    router_temperature: float | None = wire(FLOAT64)
    assume_kv_reuse: bool | None = wire(BOOLEAN)
    track_prefill_tokens: bool | None = wire(BOOLEAN)
    shared_cache_multiplier: float | None = wire(FLOAT64)


@attrs.frozen(kw_only=True, repr=False)
class RouterTargets(WireMap):
    """Latencies that a router aims at, in milliseconds."""

    wire_name: ClassVar[str] = "router"

    ttft_target: float | None = wire(FLOAT64)
    itl_target: float | None = wire(FLOAT64)


@attrs.frozen(kw_only=True, repr=False)
class AgentContext(WireMap):
    """The agent session that a request belongs to, and the headers that said so."""

    wire_name: ClassVar[str] = "agent_context"

    session_id: str | None = wire(TEXT)
    parent_session_id: str | None = wire(TEXT)
    session_final: bool | None = wire(BOOLEAN)
    agent_headers: Packed | None = wire(ANYTHING)
    """A list of values by header name."""
    input_trigger: str | None = wire(TEXT)


@attrs.frozen(kw_only=True, repr=False)
class Request(WireMap):
    """A tokenized request.  Frozen: taps and queues share it.

    None is unset.  `Packed.of(value)` makes the value of a `Packed` field.  What is under `unknown`
    never reaches a tap's record.
    """

    wire_name: ClassVar[str] = "request"

    model: str = wire(TEXT, default=attrs.NOTHING)
    token_ids: TokenIds = wire(IDS, default=attrs.NOTHING, converter=TokenIds.of)
    """The prompt.  Any iterable of ids is copied; `.array` is an `array('I')`."""
    prompt_embeds: str | None = wire(TEXT)
    multi_modal_data: Packed | None = wire(ANYTHING)
    multi_modal_uuids: Packed | None = wire(ANYTHING)
    mm_routing_info: Packed | None = wire(ANYTHING)
    stop_conditions: StopConditions = wire(a_map(StopConditions), default=StopConditions())
    sampling_options: SamplingOptions = wire(a_map(SamplingOptions), default=SamplingOptions())
    output_options: OutputOptions = wire(a_map(OutputOptions), default=OutputOptions())
    eos_token_ids: tuple[int, ...] = wire(ARRAY, default=())
    mdc_sum: str | None = wire(TEXT, nil=True)
    annotations: tuple[str, ...] = wire(ARRAY, default=())
    routing: Routing | None = wire(a_map(Routing))
    router_config_override: RouterConfigOverride | None = wire(
        a_map(RouterConfigOverride), nil=True
    )
    prefill_result: Packed | None = wire(ANYTHING)
    encoder_result: Packed | None = wire(ANYTHING)
    migration_link: Packed | None = wire(ANYTHING)
    bootstrap_info: Packed | None = wire(ANYTHING)
    extra_args: Packed | None = wire(ANYTHING)
    kv_hint: Packed | None = wire(ANYTHING)
    require_reasoning: bool | None = wire(BOOLEAN)
    router: RouterTargets | None = wire(a_map(RouterTargets))
    agent_context: AgentContext | None = wire(a_map(AgentContext))
    image_cache_scope: str | None = wire(TEXT)
    mm_processor_kwargs: Packed | None = wire(ANYTHING)
    media_io_kwargs: Packed | None = wire(ANYTHING)
    request_timestamp_ms: float | None = wire(FLOAT64)
    health_check: bool | None = wire(BOOLEAN, key="_HEALTH_CHECK")

    @property
    def is_probe(self) -> bool:
        """Whether this is a health check and no client's request."""
        return bool(self.health_check)

    @property
    def expected_choices(self) -> int:
        """`n`, at least 1."""
        return max(1, self.sampling_options.n or 1)
