"""PURE.  A planned request on TokenSpeed's wire."""

from google.protobuf import json_format

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.player.outgoing import Outgoing

#: Parameters that are fields of the request itself; all others are sampling parameters.
_OF_THE_REQUEST = (
    "return_logprob",
    "logprob_start_len",
    "top_logprobs_num",
    "data_parallel_rank",
)
_OF_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "max_new_tokens",
    "min_new_tokens",
    "ignore_eos",
    "no_stop_trim",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "n",
    "sampling_seed",
)


def generate_request(outgoing: Outgoing) -> pb.GenerateRequest:
    """Return *outgoing* as a message.  What is unset stays unset.

    Raises ValueError for a value that its field cannot hold; the text names no content.
    """
    parameters = outgoing.parameters
    message = pb.GenerateRequest(request_id=outgoing.request_id, stream=outgoing.stream)
    message.tokenized.input_ids.extend(outgoing.ids or ())
    if outgoing.text is not None:
        message.tokenized.original_text = outgoing.text
    sampling = message.sampling_params
    # Present even when nothing in it is set, as a gateway sends it.
    sampling.SetInParent()
    for name in (*_OF_SAMPLING, *_OF_THE_REQUEST):
        value = getattr(parameters, name)
        if value is not None:
            try:
                setattr(sampling if name in _OF_SAMPLING else message, name, value)
            except (TypeError, ValueError):
                raise ValueError(f"{name}: the value does not fit the wire") from None
    sampling.stop.extend(parameters.stop)
    sampling.stop_token_ids.extend(parameters.stop_token_ids)
    message.token_ids_logprob.extend(parameters.token_ids_logprob)
    for token, bias in (parameters.logit_bias or {}).items():
        sampling.logit_bias[token] = bias
    if parameters.constraint is not None:
        kind, text = parameters.constraint
        setattr(sampling, kind, text)
    if parameters.custom_params is not None:
        json_format.ParseDict(dict(parameters.custom_params), sampling.custom_params)
    return message
