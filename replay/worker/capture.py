"""What a capture keeps of a request: one line of JSON, 32 keys in a fixed order.

The line shows the request as it was received, before defaults and before validation: what the
client left unset is null, a zero that it sent is a zero.  The same request always gives the same
bytes.

A line ends at its `\\n` and at nothing else.  Control characters are escaped, as JSON wants it;
U+2028, U+2029 and U+0085 are not, so readers split the bytes at `\\n` (as reading a file line by
line does) and keep away from `str.splitlines`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from json.encoder import encode_basestring as json_string
from typing import Final

import attrs

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.worker.float32 import float32_json

#: The keys of a line, in their order.
CAPTURE_KEYS: Final = (
    "request_id",
    "input_ids",
    "original_text",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "max_new_tokens",
    "min_new_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "no_stop_trim",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "n",
    "sampling_seed",
    "logit_bias",
    "constraint",
    "return_logprob",
    "logprob_start_len",
    "top_logprobs_num",
    "token_ids_logprob",
    "has_custom_params",
    "has_mm_inputs",
    "has_encode_bootstrap_info",
    "has_kv_bootstrap_info",
    "has_data_parallel_rank",
)

#: The keys that `--capture-extended` adds behind them.
EXTENDED_KEYS: Final = ("data_parallel_rank", "arrival_unix_ns", "metadata")

#: Ids are written in pieces of this size, so that a thread that writes a million of them lets
#: others run in between.
_IDS_IN_ONE_GO: Final = 4096


@attrs.frozen(kw_only=True)
class Extended:
    """What `--capture-extended` adds to a line and the message does not have."""

    arrival_unix_ns: int
    metadata: Mapping[str, str] = attrs.field(factory=dict)
    """Headers that may be kept, see `allowed_metadata`."""


def capture_line(message: pb.GenerateRequest, *, extended: Extended | None = None) -> bytes:
    """Return the line of *message*, its `\\n` included.

    Its time goes into the ids, about 0.1 µs each.  For hundreds of thousands of them call it in a
    thread: it holds the interpreter for some 4096 ids at a time.
    """
    params = message.sampling_params
    line = (
        f'{{"request_id":{json_string(message.request_id)}'
        f',"input_ids":{_ids(message.tokenized.input_ids)}'
        f',"original_text":{json_string(message.tokenized.original_text)}'
        f',"stream":{_BOOL[message.stream]}'
        f',"temperature":{_float(params, "temperature")}'
        f',"top_p":{_float(params, "top_p")}'
        f',"top_k":{_int(params, "top_k")}'
        f',"min_p":{_float(params, "min_p")}'
        f',"repetition_penalty":{_float(params, "repetition_penalty")}'
        f',"frequency_penalty":{_float(params, "frequency_penalty")}'
        f',"presence_penalty":{_float(params, "presence_penalty")}'
        f',"max_new_tokens":{_int(params, "max_new_tokens")}'
        f',"min_new_tokens":{params.min_new_tokens}'
        f',"stop":{_strings(params.stop)}'
        f',"stop_token_ids":{_ids(params.stop_token_ids)}'
        f',"ignore_eos":{_BOOL[params.ignore_eos]}'
        f',"no_stop_trim":{_BOOL[params.no_stop_trim]}'
        f',"skip_special_tokens":{_BOOL[params.skip_special_tokens]}'
        f',"spaces_between_special_tokens":{_BOOL[params.spaces_between_special_tokens]}'
        f',"n":{params.n}'
        f',"sampling_seed":{_int(params, "sampling_seed")}'
        f',"logit_bias":{_logit_bias(params.logit_bias)}'
        f',"constraint":{_constraint(params)}'
        f',"return_logprob":{_BOOL[message.return_logprob]}'
        f',"logprob_start_len":{_int(message, "logprob_start_len")}'
        f',"top_logprobs_num":{message.top_logprobs_num}'
        f',"token_ids_logprob":{_ids(message.token_ids_logprob)}'
        f',"has_custom_params":{_BOOL[params.HasField("custom_params")]}'
        f',"has_mm_inputs":{_BOOL[message.HasField("mm_inputs")]}'
        f',"has_encode_bootstrap_info":{_BOOL[message.HasField("encode_bootstrap_info")]}'
        f',"has_kv_bootstrap_info":{_BOOL[message.HasField("kv_bootstrap_info")]}'
        f',"has_data_parallel_rank":{_BOOL[message.HasField("data_parallel_rank")]}'
    )
    if extended is not None:
        line += (
            f',"data_parallel_rank":{_int(message, "data_parallel_rank")}'
            f',"arrival_unix_ns":{extended.arrival_unix_ns}'
            f',"metadata":{_metadata(extended.metadata)}'
        )
    return f"{line}}}\n".encode()


def allowed_metadata(
    metadata: Iterable[tuple[bytes, bytes]], globs: Sequence[str]
) -> dict[str, str]:
    """Return the headers whose names match one of *globs*, sorted by name.

    Case does not matter in names, and they come back in lower case.  Values that were sent under
    one name are joined with a comma, which means the same on the wire.
    """
    if not globs:
        return {}
    patterns = [glob.lower() for glob in globs]
    kept: dict[str, str] = {}
    for raw_name, raw_value in metadata:
        name = raw_name.decode("ascii", "backslashreplace").lower()
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            value = raw_value.decode("utf-8", "backslashreplace")
            kept[name] = f"{kept[name]},{value}" if name in kept else value
    return dict(sorted(kept.items()))


def end_torn_line(size: int, read_at: Callable[[int, int], bytes]) -> bytes:
    """Return what ends the line that a killed process left unfinished: the journal's begin rule."""
    return b"" if size == 0 or read_at(size - 1, 1) == b"\n" else b"\n"


_BOOL: Final = {False: "false", True: "true"}


def _ids(ids: Sequence[int]) -> str:
    count = len(ids)
    if count <= _IDS_IN_ONE_GO:
        return f"[{','.join(map(repr, ids))}]"
    starts = range(0, count, _IDS_IN_ONE_GO)
    pieces = (",".join(map(repr, ids[start : start + _IDS_IN_ONE_GO])) for start in starts)
    return f"[{','.join(pieces)}]"


def _strings(strings: Iterable[str]) -> str:
    return f"[{','.join(map(json_string, strings))}]"


def _int(message: pb.GenerateRequest | pb.SamplingParams, field: str) -> str:
    return str(getattr(message, field)) if message.HasField(field) else "null"


def _float(params: pb.SamplingParams, field: str) -> str:
    return float32_json(getattr(params, field)) if params.HasField(field) else "null"


def _logit_bias(logit_bias: Mapping[str, float]) -> str:
    pairs = (
        f"{json_string(token)}:{float32_json(bias)}" for token, bias in sorted(logit_bias.items())
    )
    return f"{{{','.join(pairs)}}}"


def _constraint(params: pb.SamplingParams) -> str:
    kind = params.WhichOneof("constraint")
    if kind is None:
        return "null"
    return f'{{"kind":"{kind}","value":{json_string(getattr(params, kind))}}}'


def _metadata(metadata: Mapping[str, str]) -> str:
    pairs = (f"{json_string(name)}:{json_string(value)}" for name, value in metadata.items())
    return f"{{{','.join(pairs)}}}"
