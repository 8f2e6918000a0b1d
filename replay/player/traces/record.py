"""PURE.  Records of a tap, ours or Dynamo's, as planned requests and as what came of them.

A record has Dynamo's field names; here they become those of TokenSpeed's wire, the way back of what
a tap does.  What has no field on that wire, or what a filter left as a mere trace, is named in
`missing`.  A record of another schema version, and a status record, are passed over and counted.
"""

import json
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

from replay.player.arrival import Arrival, Parameters, TokenPrompt, token_ids
from replay.player.observation import Choice, Observation, Outcome, TokenIds
from replay.player.traces.fault import Notes, TraceError

SCHEMA_VERSION = 1

#: What a request may ask for that TokenSpeed's wire cannot say, where it is more than the default.
_UNSAYABLE: Mapping[str, tuple[tuple[str, object], ...]] = {
    "sampling_options": (
        ("best_of", 1),
        ("use_beam_search", False),
        ("length_penalty", 1.0),
        ("include_stop_str_in_output", False),
    ),
    "stop_conditions": (("max_thinking_tokens", None),),
}
_CONSTRAINTS = (
    ("regex", "regex"),
    ("json", "json_schema"),
    ("grammar", "ebnf_grammar"),
    ("structural_tag", "structural_tag"),
)


def read_record(record: Mapping[str, Any], position: int, notes: Notes) -> Arrival | None:
    """Return the request of *record*, or None for a record that is not one of a request.

    Raises TraceError for a record whose values have the wrong types.
    """
    if record.get("schema_version") != SCHEMA_VERSION:
        notes.unsupported += 1
        return None
    if "request_id" not in record and record.get("kind") == "status":
        return None
    try:
        return _read(record, position)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        # The exception's own text could quote a prompt.
        raise TraceError(
            position, "is not a record of a tap: a value is absent or of the wrong type"
        ) from None


def read_response(record: Mapping[str, Any], position: int) -> Observation | None:
    """Return what came of the request of *record*; None for a record without a response."""
    response = record.get("response")
    if response is None:
        return None
    chunks = response.get("chunk_offsets_ns")
    ids: TokenIds = token_ids(record["request"].get("token_ids") or ())
    return Observation(
        request_id=str(record["request_id"]),
        position=position,
        outcome=_outcome(response["outcome"]),
        choices=tuple(_choices(response.get("choices") or ())),
        prompt_ids=ids or None,
        prompt_tokens=len(ids),
        first_token_offset_ns=response.get("first_token_offset_ns"),
        last_token_offset_ns=response.get("last_token_offset_ns"),
        end_offset_ns=response["end_offset_ns"],
        chunk_offsets_ns=None if chunks is None else array("Q", chunks),
    )


def _read(record: Mapping[str, Any], position: int) -> Arrival:
    request: Mapping[str, Any] = record["request"]
    ids = token_ids(request.get("token_ids") or ())
    extra = _extra(request)
    stream = extra.get("stream")
    missing = list(_missing(request))
    if not ids:
        missing.append("prompt")
    return Arrival(
        position=position,
        request_id=str(record["request_id"]),
        time_ns=_integer(record["arrival_unix_ns"]),
        prompt=TokenPrompt(ids) if ids else None,
        parameters=_parameters(request, extra),
        stream=stream if isinstance(stream, bool) else None,
        model=request.get("model"),
        recorded=read_response(record, position),
        missing=tuple(missing),
    )


def _extra(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a tap of ours keeps of the wire where Dynamo's request has no field."""
    extra = request.get("extra_args")
    own = extra.get("tokenspeed") if isinstance(extra, Mapping) else None
    return own if isinstance(own, Mapping) else {}


def _missing(request: Mapping[str, Any]) -> Iterator[str]:
    for name in ("prompt_embeds", "multi_modal_data"):
        if request.get(name):
            yield name
    for group, names in _UNSAYABLE.items():
        values = request.get(group) or {}
        for name, default in names:
            if values.get(name) not in (None, default):
                yield name
    guided = (request.get("sampling_options") or {}).get("guided_decoding") or {}
    if guided and not any(guided.get(name) is not None for name, _ in _CONSTRAINTS):
        yield "guided_decoding"


def _parameters(request: Mapping[str, Any], extra: Mapping[str, Any]) -> Parameters:
    stop = request.get("stop_conditions") or {}
    sampling = request.get("sampling_options") or {}
    output = request.get("output_options") or {}
    logprobs = output.get("logprobs")
    start = extra.get("logprob_start_len")
    if start is None and output.get("prompt_logprobs") is not None:
        start = 0
    return Parameters(
        temperature=sampling.get("temperature"),
        top_p=sampling.get("top_p"),
        top_k=sampling.get("top_k"),
        min_p=sampling.get("min_p"),
        repetition_penalty=sampling.get("repetition_penalty"),
        frequency_penalty=sampling.get("frequency_penalty"),
        presence_penalty=sampling.get("presence_penalty"),
        max_new_tokens=stop.get("max_tokens"),
        min_new_tokens=stop.get("min_tokens"),
        stop=tuple(stop.get("stop") or ()),
        stop_token_ids=tuple(_stop_ids(stop)),
        ignore_eos=stop.get("ignore_eos"),
        no_stop_trim=output.get("no_stop_trim"),
        skip_special_tokens=output.get("skip_special_tokens"),
        spaces_between_special_tokens=extra.get("spaces_between_special_tokens"),
        n=sampling.get("n"),
        sampling_seed=extra.get("sampling_seed", sampling.get("seed")),
        logit_bias=extra.get("logit_bias"),
        constraint=_constraint(sampling.get("guided_decoding") or {}),
        custom_params=extra.get("custom_params"),
        return_logprob=True if logprobs is not None else None,
        logprob_start_len=start,
        top_logprobs_num=extra.get("top_logprobs_num", logprobs),
        token_ids_logprob=tuple(extra.get("token_ids_logprob") or ()),
        data_parallel_rank=(request.get("routing") or {}).get("dp_rank"),
    )


def _stop_ids(stop: Mapping[str, Any]) -> Iterator[int]:
    """Return each stop id once; Dynamo splits them by whether they show in the text."""
    seen: set[int] = set()
    for name in ("stop_token_ids", "stop_token_ids_visible", "stop_token_ids_hidden"):
        for number in stop.get(name) or ():
            if number not in seen:
                seen.add(number)
                yield number


def _constraint(guided: Mapping[str, Any]) -> tuple[str, str] | None:
    for name, kind in _CONSTRAINTS:
        value = guided.get(name)
        if value is not None:
            return kind, value if isinstance(value, str) else json.dumps(value)
    return None


def _choices(choices: Any) -> Iterator[Choice]:
    for choice in choices:
        ids = choice.get("token_ids")
        tokens = _integer(choice["output_tokens"])
        yield Choice(
            index=_integer(choice["index"]),
            finish_reason=choice.get("finish_reason"),
            output_tokens=tokens,
            # Absent means "none recorded" or "none came"; the count tells which.
            token_ids=token_ids(ids or ()) if ids is not None or not tokens else None,
            is_truncated=bool(choice.get("truncated")),
        )


def _outcome(word: str) -> Outcome:
    try:
        return Outcome(word)
    except ValueError:
        return Outcome.UNKNOWN


def _integer(value: object) -> int:
    if type(value) is not int:
        raise TypeError("must be an integer")
    return value
