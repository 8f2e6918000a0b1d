"""PURE.  Capture files: one line for each `Generate` request as the worker received it.

A plain capture has no times; an extended one (`arrival_unix_ns`) has.  The `has_…` flags tell of
inputs that the line does not hold: they are named in `missing`.  A line that does not parse was
torn when its writer was killed: it is noted and passed over, wherever it stands.
"""

from collections.abc import Iterable, Iterator

from replay.player.arrival import Arrival, Parameters, Prompt, TextPrompt, TokenPrompt
from replay.player.observation import Observation
from replay.player.traces.fault import Notes
from replay.player.traces.fields import Row, read_rows
from replay.player.traces.lines import Line
from replay.player.traces.options import ReadOptions

TIME_UNIT = "ns"
#: Keys that tell a capture from other lines.
OWN_KEYS = {"request_id", "input_ids", "sampling_seed", "max_new_tokens"}

_ABSENT_INPUTS = ("custom_params", "mm_inputs", "encode_bootstrap_info", "kv_bootstrap_info")
_FLOATS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
)
_COUNTS = ("max_new_tokens", "min_new_tokens", "n", "sampling_seed")
_SIGNED = ("top_k", "logprob_start_len", "top_logprobs_num")
_FLAGS = (
    "ignore_eos",
    "no_stop_trim",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "return_logprob",
)
_NAMED_FLOATS = {"NaN": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
_KEYS = (
    {"request_id", "input_ids", "original_text", "stream", "stop", "stop_token_ids", "logit_bias"}
    | {"constraint", "token_ids_logprob", "data_parallel_rank", "arrival_unix_ns", "metadata"}
    | {f"has_{name}" for name in (*_ABSENT_INPUTS, "data_parallel_rank")}
    | {*_FLOATS, *_COUNTS, *_SIGNED, *_FLAGS}
)


def read(lines: Iterable[Line], options: ReadOptions, notes: Notes) -> Iterator[Arrival]:
    """Read the requests of a capture.  Raises TraceError with the line at fault."""
    unit_ns = options.unit_ns(TIME_UNIT)
    for row in read_rows(lines, notes, skip_broken=True):
        notes.ignore(row.values.keys() - _KEYS)
        request_id = row.text("request_id")
        if request_id is None:
            raise row.fault("request_id: is missing")
        ids = row.ids("input_ids")
        text = row.text("original_text")
        prompt: Prompt | None = None
        if ids:
            prompt = TokenPrompt(ids)
        elif text:
            prompt = TextPrompt(text)
        parameters = _parameters(row)
        yield Arrival(
            position=row.line,
            request_id=request_id,
            time_ns=row.time_ns("arrival_unix_ns", unit_ns),
            prompt=prompt,
            parameters=parameters,
            stream=row.flag("stream"),
            recorded=Observation(
                request_id=request_id,
                position=row.line,
                prompt_ids=ids,
                prompt_tokens=None if ids is None else len(ids),
            ),
            missing=tuple(_missing(row, prompt, parameters)),
        )


def _missing(row: Row, prompt: Prompt | None, parameters: Parameters) -> Iterator[str]:
    if prompt is None:
        yield "prompt"
    for name in _ABSENT_INPUTS:
        if row.flag(f"has_{name}"):
            yield name
    if row.flag("has_data_parallel_rank") and parameters.data_parallel_rank is None:
        yield "data_parallel_rank"


def _parameters(row: Row) -> Parameters:
    values = {
        **{name: _float(row, name) for name in _FLOATS},
        **{name: row.integer(name) for name in _COUNTS},
        **{name: row.integer(name, minimum=None) for name in _SIGNED},
        **{name: row.flag(name) for name in _FLAGS},
    }
    bias = row.mapping("logit_bias")
    return Parameters(
        **values,  # type: ignore[arg-type]  # each name is in the tuple of its own type
        stop=_strings(row, "stop"),
        stop_token_ids=tuple(row.ids("stop_token_ids") or ()),
        logit_bias=None
        if bias is None
        else {key: _as_float(row, "logit_bias", bias[key]) for key in bias},
        constraint=_constraint(row),
        token_ids_logprob=tuple(row.ids("token_ids_logprob") or ()),
        data_parallel_rank=row.integer("data_parallel_rank", minimum=None),
    )


def _float(row: Row, key: str) -> float | None:
    value = row.values.get(key)
    return None if value is None else _as_float(row, key, value)


def _as_float(row: Row, key: str, value: object) -> float:
    if isinstance(value, str) and value in _NAMED_FLOATS:
        return _NAMED_FLOATS[value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise row.fault(f'{key}: must be a number, "NaN", "inf" or "-inf"')


def _strings(row: Row, key: str) -> tuple[str, ...]:
    values = row.sequence(key) or []
    if not all(isinstance(value, str) for value in values):
        raise row.fault(f"{key}: must hold strings only")
    return tuple(values)


def _constraint(row: Row) -> tuple[str, str] | None:
    constraint = row.mapping("constraint")
    if constraint is None:
        return None
    kind, value = constraint.get("kind"), constraint.get("value")
    if kind not in ("regex", "json_schema", "ebnf_grammar", "structural_tag"):
        raise row.fault("constraint: its kind must be one that the wire knows")
    if not isinstance(value, str):
        raise row.fault("constraint: its value must be a string")
    return kind, value
