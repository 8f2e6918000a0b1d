"""PURE.  What a tap's filters drop of a request, and which requests they skip (rules 13 to 29).

Each of our own filters and Dynamo's is one row of a table below.  Every field of `Request` is in
exactly one of `ALWAYS_KEPT`, `NEVER_COPIED` and the rows of the table; a test fails on a field of
which nobody has decided.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

import attrs

from replay.request import Request, Routing
from replay.taps.filter_names import FilterKind, FilterName
from replay.wire_map import MapPacker

#: Rule 15: no filter drops these.
ALWAYS_KEPT: Final = frozenset(
    {
        "model",
        "token_ids",
        "stop_conditions",
        "sampling_options",
        "output_options",
        "eos_token_ids",
        "require_reasoning",
        "request_timestamp_ms",
    }
)
#: Rule 16: state of the primary that no shadow may see.  `unknown` joins them: what nobody knows
#: may hold anything, and a filter that promises to drop prompts could not keep its word.
NEVER_COPIED: Final = frozenset(
    {
        "prefill_result",
        "encoder_result",
        "bootstrap_info",
        "migration_link",
        "health_check",
        "unknown",
    }
)
#: Rules 17 to 22: the fields that a filter drops.  `annotations` is emptied, not absent (rule 21).
#: `image_cache_scope` holds the agent's session id.
DROPPED_FIELDS: Final = {
    FilterKind.STRIP_MULTIMODAL: frozenset(
        {
            "multi_modal_data",
            "multi_modal_uuids",
            "mm_routing_info",
            "mm_processor_kwargs",
            "media_io_kwargs",
            "image_cache_scope",
        }
    ),
    FilterKind.STRIP_EMBEDS: frozenset({"prompt_embeds"}),
    FilterKind.STRIP_EXTRA_ARGS: frozenset({"extra_args"}),
    FilterKind.STRIP_AGENT_CONTEXT: frozenset(
        {"agent_context", "annotations", "image_cache_scope"}
    ),
}
#: Rule 22: what `tokens-only` drops beside what all the others do.
DROPPED_BY_TOKENS_ONLY: Final = frozenset(
    {"routing", "router", "kv_hint", "router_config_override", "mdc_sum"}
)
#: Rule 17: the parts of `routing` that tie a request to the primary's workers.
WORKER_PINS: Final = (
    "backend_instance_id",
    "prefill_worker_id",
    "decode_worker_id",
    "dp_rank",
    "prefill_dp_rank",
    "allowed_worker_ids",
)
#: What goes in the place of a dropped field.  `annotations` is always on the wire (rule 21).
_EMPTY: Final = {"annotations": ()}


@attrs.frozen
class Projection:
    """What a record keeps of a request.  Taps with equal projections share one copy (rule 28)."""

    dropped: frozenset[str]
    """Names of fields of `Request`."""
    keeps_pins: bool
    """Whether the worker pins in `routing` stay."""
    _packer: MapPacker = attrs.field(init=False, eq=False)

    @_packer.default
    def _default_packer(self) -> MapPacker:
        dropped = self.dropped | NEVER_COPIED
        return MapPacker(Request, {name: _EMPTY.get(name) for name in dropped})

    def pack(self, request: Request) -> bytes:
        """Pack what the record keeps of *request*, which is not changed.

        A dropped payload is not touched: it can be megabytes.
        """
        request = request.known_only()
        routing = request.routing
        if routing is not None and not self.keeps_pins:
            without_pins = _without_pins(routing)
            if without_pins is not routing:
                request = attrs.evolve(request, routing=without_pins)
        return self._packer.pack(request)


def _without_pins(routing: Routing) -> Routing:
    # An otherwise empty routing stays: it is `{}` on the wire.
    if all(getattr(routing, pin) is None for pin in WORKER_PINS):
        return routing
    no_pins: dict[str, Any] = dict.fromkeys(WORKER_PINS)
    return attrs.evolve(routing, **no_pins)


def projection(filters: Iterable[FilterName]) -> Projection:
    """Return what *filters* keep."""
    kinds = {each.kind for each in filters}
    tokens_only = FilterKind.TOKENS_ONLY in kinds
    dropped: frozenset[str] = DROPPED_BY_TOKENS_ONLY if tokens_only else frozenset()
    for kind, fields in DROPPED_FIELDS.items():
        if tokens_only or kind in kinds:
            dropped |= fields
    return Projection(dropped, keeps_pins=FilterKind.KEEP_WORKER_PINS in kinds)


def effective_names(filters: Sequence[FilterName]) -> tuple[str, ...]:
    """Return `envelope.filters`: the configured texts, then whether pins are dropped (rule 14)."""
    names = tuple(each.text for each in filters if each.kind is not FilterKind.STRIP_WORKER_PINS)
    if any(each.kind is FilterKind.KEEP_WORKER_PINS for each in filters):
        return names
    return (*names, FilterKind.STRIP_WORKER_PINS.value)


@attrs.frozen
class Selection:
    """Which requests a tap mirrors (rules 23 to 25, and `sample`)."""

    models: frozenset[str]
    """Empty: all."""
    skip_multimodal: bool
    max_tokens: int | None
    """The longest prompt that passes."""
    share: float | None

    @property
    def passes_all(self) -> bool:
        """Whether there is nothing to ask of a request."""
        return self == _EVERYTHING

    def passes(self, *, model: str, prompt_tokens: int, has_media: bool, request_id: str) -> bool:
        """Say whether the tap mirrors the request.

        *has_media* says whether it carries `multi_modal_data` or `prompt_embeds`.
        """
        return not (
            (self.models and model not in self.models)
            or (self.max_tokens is not None and prompt_tokens > self.max_tokens)
            or (self.skip_multimodal and has_media)
            or (self.share is not None and sample_position(request_id) >= self.share)
        )


_EVERYTHING: Final = Selection(frozenset(), False, None, None)


def selection(filters: Iterable[FilterName], models: Iterable[str]) -> Selection:
    """Return which requests *filters* and *models* let through.  Each of them has to."""
    limits = []
    shares = []
    skip_multimodal = False
    for each in filters:
        if each.max_tokens is not None:
            limits.append(each.max_tokens)
        if each.share is not None:
            shares.append(each.share)
        skip_multimodal |= each.kind is FilterKind.SKIP_MULTIMODAL
    return Selection(
        models=frozenset(models),
        skip_multimodal=skip_multimodal,
        max_tokens=min(limits, default=None),
        share=min(shares, default=None),
    )


def sample_position(request_id: str) -> float:
    """Return where in [0, 1) a request lies: the same on every tap, replica and day.

    `sample=F` passes those below F, so a smaller share is always part of a larger one.
    """
    digest = hashlib.blake2b(request_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    # 53 bits: all that a float holds, so that the largest digest stays below 1.
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


def has_media(request: Request) -> bool:
    """Say whether `skip-multimodal` skips *request* (rule 23)."""
    return request.multi_modal_data is not None or request.prompt_embeds is not None
