"""PURE.  A TokenSpeed `GenerateRequest` as a `Request`.

The tables name every field of the two messages once; a test fails on a field of which nobody has
decided.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

import msgpack
from google.protobuf import struct_pb2

from replay._proto import common_pb2
from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.engines.base import Model
from replay.packed import Packed, TokenIds, map_header, pack, pack_float32
from replay.request import (
    AgentContext,
    GuidedDecoding,
    OutputOptions,
    Request,
    Routing,
    SamplingOptions,
    StopConditions,
)

#: Where each field of `GenerateRequest` goes: a field of `Request`, `envelope`, or nowhere.
GENERATE_REQUEST_FIELDS: Final[Mapping[str, str | None]] = {
    "request_id": "envelope",
    "tokenized": "token_ids",  # `original_text` goes to extra_args
    "sampling_params": "sampling_options",  # field by field, below
    "return_logprob": "output_options",
    "logprob_start_len": "output_options",
    "top_logprobs_num": "output_options",
    "token_ids_logprob": "extra_args",
    "stream": "extra_args",
    "mm_inputs": "multi_modal_data",
    # Bootstrap infos are state of the primary: a shadow that used them would disturb it.
    "encode_bootstrap_info": None,
    "kv_bootstrap_info": None,
    "data_parallel_rank": "routing",
}
#: Where each field of `SamplingParams` goes.
SAMPLING_PARAMS_FIELDS: Final[Mapping[str, str]] = {
    "temperature": "sampling_options",
    "top_p": "sampling_options",
    "top_k": "sampling_options",
    "min_p": "sampling_options",
    "frequency_penalty": "sampling_options",
    "presence_penalty": "sampling_options",
    "repetition_penalty": "sampling_options",
    "max_new_tokens": "stop_conditions",
    "min_new_tokens": "stop_conditions",
    "stop": "stop_conditions",
    "stop_token_ids": "stop_conditions",
    "ignore_eos": "stop_conditions",
    "skip_special_tokens": "output_options",
    "spaces_between_special_tokens": "extra_args",
    "n": "sampling_options",
    "logit_bias": "extra_args",
    "regex": "sampling_options",
    "json_schema": "sampling_options",
    "ebnf_grammar": "sampling_options",
    "structural_tag": "sampling_options",
    "no_stop_trim": "output_options",
    "custom_params": "extra_args",
    "sampling_seed": "sampling_options",
}

#: A gateway's probes carry one of these.
PROBE_HEADER: Final = (b"x-health-check", b"1")
PROBE_REQUEST_ID: Final = "HEALTH_CHECK"

#: Dynamo reads a seed into 63 bits.
_LARGEST_SEED: Final = 2**63 - 1
_MODALITY_WORDS: Final = {
    common_pb2.IMAGE: "image",
    common_pb2.AUDIO: "audio",
    common_pb2.VIDEO: "video",
}


def is_probe(request_id: str, metadata: Iterable[tuple[bytes, bytes]]) -> bool:
    """Say whether a call is a gateway's health check.  *metadata* is all of the call's."""
    return request_id.startswith(PROBE_REQUEST_ID) or PROBE_HEADER in metadata


def has_inputs(message: pb.GenerateRequest) -> bool:
    """Say whether the request carries media: `mm_inputs` alone may have nothing in it."""
    return message.HasField("mm_inputs") and bool(message.mm_inputs.items)


def from_generate(
    message: pb.GenerateRequest,
    *,
    model: Model,
    token_ids: TokenIds | None = None,
    metadata_allowed: Sequence[tuple[bytes, bytes]] = (),
    health_check: bool = False,
) -> Request:
    """Make a request of *message*.

    *token_ids* are the message's if somebody has packed them.  *metadata_allowed* is what the
    configuration allows of the call's metadata, names in lower case.
    The message must not be changed as long as the request has not been packed.
    """
    parts = _parts(message.sampling_params.SerializeToString())
    return Request(
        model=model.name,
        token_ids=token_ids or TokenIds.packing(message.tokenized.input_ids),
        multi_modal_data=_media(message),
        stop_conditions=parts.stop_conditions,
        sampling_options=parts.sampling_options,
        output_options=_output_options(message),
        eos_token_ids=() if parts.stop_conditions.ignore_eos else model.eos_token_ids,
        annotations=_annotations(metadata_allowed),
        routing=_routing(message),
        extra_args=_extra_args(message, parts.extra),
        agent_context=_agent_context(metadata_allowed),
        health_check=health_check or message.request_id.startswith(PROBE_REQUEST_ID) or None,
    )


class _Parts(NamedTuple):
    """What only depends on the sampling parameters."""

    stop_conditions: StopConditions
    sampling_options: SamplingOptions
    extra: Mapping[str, Any]


#: Longer parameters hold strings, grammars or schemas: they are rarely the same, and not kept.
_LONGEST_KNOWN_PARAMS: Final = 64


def _parts(params: bytes) -> _Parts:
    if len(params) > _LONGEST_KNOWN_PARAMS:
        return _make_parts(params)
    return _known_parts(params)


def _make_parts(data: bytes) -> _Parts:
    params = pb.SamplingParams.FromString(data)
    stop_conditions = StopConditions(
        max_tokens=params.max_new_tokens if params.HasField("max_new_tokens") else None,
        stop=tuple(params.stop) or None,
        stop_token_ids=tuple(params.stop_token_ids) or None,
        min_tokens=params.min_new_tokens or None,
        ignore_eos=params.ignore_eos or None,
    )
    return _Parts(stop_conditions, _sampling_options(params), _extra_of_params(params))


#: The traffic of a gateway has few sets of parameters.  One that is known costs neither the reading
#: of twenty fields nor their packing, which together are most of what a short request costs here.
_known_parts = lru_cache(256)(_make_parts)


def _sampling_options(params: pb.SamplingParams) -> SamplingOptions:
    values: dict[str, Any] = {
        name: getattr(params, name) for name in _SAMPLING_NAMES if params.HasField(name)
    }
    if params.HasField("sampling_seed") and params.sampling_seed <= _LARGEST_SEED:
        values["seed"] = params.sampling_seed
    kind = params.WhichOneof("constraint")
    if kind is not None:
        values["guided_decoding"] = _guided_decoding(kind, getattr(params, kind))
    return SamplingOptions(n=params.n or 1, **values)


#: Fields that have the same name in both, and may be unset.
_SAMPLING_NAMES: Final[tuple[Any, ...]] = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)


def _guided_decoding(kind: str, text: str) -> GuidedDecoding:
    match kind:
        case "regex":
            return GuidedDecoding(regex=text)
        case "ebnf_grammar":
            return GuidedDecoding(grammar=text)
        case "json_schema":
            return GuidedDecoding(json=_json_value(text))
        case _:
            return GuidedDecoding(structural_tag=_json_value(text))


def _json_value(text: str) -> Packed:
    """Return the value that *text* is in JSON, or *text* where MessagePack cannot say the value."""
    try:
        return Packed.of(json.loads(text))
    except (ValueError, OverflowError, RecursionError):
        return Packed.of(text)


def _output_options(message: pb.GenerateRequest) -> OutputOptions:
    # A number below 0 is the upstream's to refuse.  Dynamo's has no sign, so a reader there could
    # not take the record; what was asked stands in extra_args.
    logprobs = max(0, message.top_logprobs_num) if message.return_logprob else None
    of_prompt = logprobs is not None and (
        message.HasField("logprob_start_len") and message.logprob_start_len >= 0
    )
    params = message.sampling_params
    return _known_output_options(
        logprobs, logprobs if of_prompt else None, params.skip_special_tokens, params.no_stop_trim
    )


@lru_cache(256)
def _known_output_options(
    logprobs: int | None, prompt_logprobs: int | None, skip_special_tokens: bool, no_stop_trim: bool
) -> OutputOptions:
    """Make options once: all traffic has few of them, and each is packed only once."""
    return OutputOptions(
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        skip_special_tokens=skip_special_tokens,
        no_stop_trim=no_stop_trim or None,
    )


def _routing(message: pb.GenerateRequest) -> Routing | None:
    if not message.HasField("data_parallel_rank") or message.data_parallel_rank < 0:
        return None
    return Routing(dp_rank=message.data_parallel_rank)


def _extra_of_params(params: pb.SamplingParams) -> Mapping[str, Any]:
    """Return what of the sampling parameters has no place of its own."""
    extra: dict[str, Any] = {}
    if params.logit_bias:
        # A protobuf map has no order: the same request is to give the same bytes.
        extra["logit_bias"] = dict(sorted(params.logit_bias.items()))
    if params.spaces_between_special_tokens:
        extra["spaces_between_special_tokens"] = True
    if params.HasField("custom_params"):
        extra["custom_params"] = _struct(params.custom_params)
    if params.HasField("sampling_seed") and params.sampling_seed > _LARGEST_SEED:
        extra["sampling_seed"] = params.sampling_seed
    return extra


def _extra_args(message: pb.GenerateRequest, extra_of_params: Mapping[str, Any]) -> Packed | None:
    """Return `{"tokenspeed": {…}}` with what has no place of its own, or None if nothing is set."""
    extra = dict(extra_of_params)
    if message.stream:
        extra["stream"] = True
    if message.token_ids_logprob:
        extra["token_ids_logprob"] = message.token_ids_logprob[:]
    if message.tokenized.original_text:
        extra["original_text"] = message.tokenized.original_text
    if message.top_logprobs_num:
        extra["top_logprobs_num"] = message.top_logprobs_num
    if message.HasField("logprob_start_len"):
        extra["logprob_start_len"] = message.logprob_start_len
    if message.HasField("data_parallel_rank") and message.data_parallel_rank < 0:
        # Dynamo's rank has no sign; a record that says -1 could not be read there.
        extra["data_parallel_rank"] = message.data_parallel_rank
    return Packed.when_needed(partial(_pack_extra_args, extra)) if extra else None


def _pack_extra_args(extra: Mapping[str, Any]) -> bytes:
    pieces = [map_header(1), pack("tokenspeed"), map_header(len(extra))]
    for name, value in extra.items():
        # The biases are float32 in the message, the numbers of custom_params float64.
        pieces += (
            pack(name),
            pack_float32(value) if name == "logit_bias" else msgpack.packb(value),
        )
    return b"".join(pieces)


def _struct(struct: struct_pb2.Struct) -> dict[str, Any]:
    return {name: _struct_value(value) for name, value in sorted(struct.fields.items())}


def _struct_value(value: struct_pb2.Value) -> Any:
    kind = value.WhichOneof("kind")
    match kind:
        case "struct_value":
            return _struct(value.struct_value)
        case "list_value":
            return [_struct_value(each) for each in value.list_value.values]
        case "null_value" | None:
            return None
        case _:
            return getattr(value, kind)


def _media(message: pb.GenerateRequest) -> Packed | None:
    if not has_inputs(message):
        return None
    return Packed.when_needed(partial(_pack_media, message.mm_inputs))


def _pack_media(inputs: pb.MultimodalInputs) -> bytes:
    by_word: dict[str, list[Any]] = {}
    for item in inputs.items:
        word = _MODALITY_WORDS.get(item.modality, "unspecified")
        tensor = item.encoder_input
        entry: dict[str, Any] = {
            "modality": word,
            "hash": item.content_hash.hex(),
            "shape": tensor.shape[:],
            "dtype": tensor.dtype,
        }
        # A handle to shared or remote memory is the primary's: only bytes in the message are taken.
        if tensor.WhichOneof("payload") == "inline":
            entry["data"] = tensor.inline
        by_word.setdefault(word, []).append({"Decoded": entry})
    packed: bytes = msgpack.packb(by_word)
    return packed


def _session_id(metadata: Sequence[tuple[bytes, bytes]], *, parent: bool) -> str | None:
    for name, value in metadata:
        if name.endswith(b"session-id") and name.endswith(b"parent-session-id") is parent:
            return _text(value)
    return None


def _agent_context(metadata: Sequence[tuple[bytes, bytes]]) -> AgentContext | None:
    """Return the session that allowed headers name.  Without a session id there is none."""
    session_id = _session_id(metadata, parent=False)
    if session_id is None:
        return None
    headers: dict[str, list[str]] = {}
    for name, value in metadata:
        headers.setdefault(_text(name), []).append(_text(value))
    return AgentContext(
        session_id=session_id,
        parent_session_id=_session_id(metadata, parent=True),
        agent_headers=Packed.of(headers),
    )


def _annotations(metadata: Sequence[tuple[bytes, bytes]]) -> tuple[str, ...]:
    """Return allowed headers as `name:value` where no session id gives them a better place."""
    if not metadata or _session_id(metadata, parent=False) is not None:
        return ()
    return tuple(f"{_text(name)}:{_text(value)}" for name, value in metadata)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
