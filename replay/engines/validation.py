"""What a simulating engine refuses before it begins.  PURE.

Every text names the field, and none quotes what a client wrote: texts go into logs.
"""

import json
from math import inf

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.engines.base import Model
from replay.engines.regex_syntax import regex_fault

#: More choices than any gateway asks for; each one costs as much as a request.
MAX_CHOICES = 128

#: Each costs bytes for every token; gateways ask for 20 at most.
MAX_TOP_LOGPROBS = 128

#: Longer patterns and schemas are taken unparsed: a parse of more than some milliseconds would
#: hold up every other stream.
MAX_PARSED_REGEX = 1 << 15
MAX_PARSED_SCHEMA = 1 << 20


def check_request(message: pb.GenerateRequest, model: Model) -> str | None:
    """Return why *message* cannot be served, its field named, or None.

    Prompt ids are not looked at: any 32-bit id is taken, as clients may know a larger vocabulary.
    """
    prompt_tokens = len(message.tokenized.input_ids)
    if prompt_tokens > model.context_length:
        return (
            f"tokenized.input_ids: {prompt_tokens} tokens are more than the context of "
            f"{model.context_length}"
        )
    if message.return_logprob or message.top_logprobs_num or message.token_ids_logprob:
        fault = _check_logprobs(message, model)
        if fault:
            return fault
    return _check_sampling(message.sampling_params)


def _check_sampling(params: pb.SamplingParams) -> str | None:
    # Reading an unset field gives 0, which is valid for all but top_p; asking whether each is set
    # would double the cost.  NaN fails every comparison, so each range is written to hold.
    if not 0 <= params.temperature < inf:
        return "sampling_params.temperature: must be finite and at least 0"
    if not 0 < params.top_p <= 1 and params.HasField("top_p"):
        return "sampling_params.top_p: must be above 0 and at most 1"
    if params.top_k < -1:
        return "sampling_params.top_k: must be at least -1"
    if not 0 <= params.min_p <= 1:
        return "sampling_params.min_p: must be from 0 to 1"
    if not -inf < params.frequency_penalty < inf:
        return "sampling_params.frequency_penalty: must be finite"
    if not -inf < params.presence_penalty < inf:
        return "sampling_params.presence_penalty: must be finite"
    if not 0 <= params.repetition_penalty < inf:
        return "sampling_params.repetition_penalty: must be finite and at least 0"
    if params.n > MAX_CHOICES:
        return f"sampling_params.n: {params.n} choices are more than {MAX_CHOICES}"
    if params.min_new_tokens > params.max_new_tokens and params.HasField("max_new_tokens"):
        return (
            f"sampling_params.min_new_tokens: {params.min_new_tokens} is more than "
            f"max_new_tokens {params.max_new_tokens}"
        )
    if params.logit_bias and not all(-inf < bias < inf for bias in params.logit_bias.values()):
        return "sampling_params.logit_bias: every value must be finite"
    constraint = params.WhichOneof("constraint")
    return _check_constraint(params, constraint) if constraint else None


def _check_constraint(params: pb.SamplingParams, kind: str) -> str | None:
    # The grammars of ebnf_grammar and structural_tag belong to the engine that compiles them.
    if kind == "regex" and len(params.regex) <= MAX_PARSED_REGEX:
        fault = regex_fault(params.regex)
        return f"sampling_params.regex: {fault}" if fault else None
    if kind == "json_schema" and len(params.json_schema) <= MAX_PARSED_SCHEMA:
        fault = _json_schema_fault(params.json_schema)
        return f"sampling_params.json_schema: {fault}" if fault else None
    return None


def _json_schema_fault(text: str) -> str | None:
    try:
        schema = json.loads(text)
    except json.JSONDecodeError as error:
        return f"not JSON from character {error.pos}"
    except (ValueError, RecursionError):  # a number of thousands of digits; nested too deep
        return "cannot be parsed"
    if not isinstance(schema, dict | bool):
        return "must be an object or a boolean"
    return None


def _check_logprobs(message: pb.GenerateRequest, model: Model) -> str | None:
    if not 0 <= message.top_logprobs_num <= MAX_TOP_LOGPROBS:
        return f"top_logprobs_num: must be from 0 to {MAX_TOP_LOGPROBS}"
    if len(message.token_ids_logprob) > MAX_TOP_LOGPROBS:
        return f"token_ids_logprob: more than {MAX_TOP_LOGPROBS} ids"
    if any(token_id >= model.vocab_size for token_id in message.token_ids_logprob):
        return f"token_ids_logprob: an id is outside the vocabulary of {model.vocab_size}"
    return None
