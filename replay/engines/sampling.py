"""What a simulated choice says, known up front.  PURE.

An engine that simulates has no model, so the tokens of a choice are a function of the request:
how many, which ids, and why it ends.

- A request that sets no `sampling_seed`, at an engine with seed 0, gets the ids 100, 101, …: a
  reader recognises them.  Every choice of such a request says the same.
- Otherwise the ids are drawn from a hash of the prompt, both seeds and the index of the choice.
  Temperature, `top_p` and the penalties change nothing: there is no distribution that they could
  bend.  A longer limit continues the same ids.
- Ids lie between 100 and the vocabulary's end, because tokenizers keep their special tokens below;
  only a vocabulary of 100 ids or fewer is used whole, without its special tokens.
- A stop id ends the choice where it comes up, and so does an eos of the model, once there are
  `min_new_tokens`.  An eos below 100 never comes up, so that a limit is met exactly; for a model
  with a larger one, `ignore_eos` says that a limit is to be met.
- The matched id is neither in the output nor counted, unless `no_stop_trim` keeps it.
"""

import hashlib
import math
import struct
from collections.abc import Sequence, Set
from functools import lru_cache

import attrs

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.engines.base import Generation, Model

#: The first id of a choice that nothing seeds.
FIRST_ID = 100

#: Ids repeat after this many at the latest, which bounds the work for one choice to some
#: milliseconds.
MAX_CYCLE = 65_536

#: Choices up to this length are shared between requests, so that encoders can cache by identity.
MAX_SHARED = 4_096


@attrs.frozen
class Choice:
    """The tokens of one choice and its end."""

    ids: tuple[int, ...]
    reason: str
    """`stop` or `length`."""
    matched: int | None = None
    """The id that ended the choice."""


@attrs.frozen(eq=False)
class _Cycle:
    """Ids that repeat for ever.  Compared by identity, so that it is cheap as a key of a cache."""

    ids: tuple[int, ...]


def plan_choice(
    generation: Generation, model: Model, *, index: int, output_tokens: int, seed: int
) -> Choice:
    """Return what choice *index* says.

    *output_tokens* counts when the client set no limit, *seed* is the engine's own.  Equal plain
    requests get the same object.
    """
    params = generation.message.sampling_params
    at_least = params.min_new_tokens
    length = generation.max_new_tokens
    reason = "length"
    if length is None:
        length, reason = max(output_tokens, at_least), "stop"
    room = max(0, model.context_length - generation.prompt_tokens)
    if length > room:
        length, reason = room, "length"

    eos = () if params.ignore_eos else model.eos_token_ids
    trim = not params.no_stop_trim
    if seed or params.HasField("sampling_seed"):
        ids = _drawn_ids(generation, model, index=index, length=length, seed=seed)
    elif length <= MAX_SHARED and not params.stop_token_ids:
        return _shared_choice(_counted_ids(model), length, reason, eos, at_least, trim)
    else:
        ids = _counted_ids(model)
    return _end_choice(ids, length, reason, {*eos, *params.stop_token_ids}, at_least, trim)


def _end_choice(
    cycle: _Cycle, length: int, reason: str, stops: Set[int], at_least: int, trim: bool
) -> Choice:
    """Cut the endless repetition of *cycle* at the first stop id, at *length* at the latest."""
    ids = (cycle.ids * math.ceil(length / len(cycle.ids)))[:length]
    if not stops.isdisjoint(ids[: len(cycle.ids)]):
        for position in range(at_least, length):
            if ids[position] in stops:
                kept = ids[: position if trim else position + 1]
                return Choice(kept, "stop", ids[position])
    return Choice(ids, reason)


@lru_cache(maxsize=256)
def _shared_choice(
    cycle: _Cycle, length: int, reason: str, eos: tuple[int, ...], at_least: int, trim: bool
) -> Choice:
    return _end_choice(cycle, length, reason, frozenset(eos), at_least, trim)


def _counted_ids(model: Model) -> _Cycle:
    return _counted_cycle(model.vocab_size, _special_ids(model))


@lru_cache(maxsize=8)
def _counted_cycle(vocab_size: int, special: tuple[int, ...]) -> _Cycle:
    allowed = _allowed_ids(vocab_size, special)
    if vocab_size > FIRST_ID:
        return _Cycle(tuple(allowed[:MAX_CYCLE]))
    start = FIRST_ID % vocab_size
    return _Cycle((*(i for i in allowed if i >= start), *(i for i in allowed if i < start)))


def _drawn_ids(
    generation: Generation, model: Model, *, index: int, length: int, seed: int
) -> _Cycle:
    params = generation.message.sampling_params
    sampling_seed = params.sampling_seed if params.HasField("sampling_seed") else None
    # Packed by protobuf: several times cheaper than an array of the ids, and the same on every
    # machine.  The prompt's text must not count, it is only a companion of the ids.
    prompt = pb.TokenizedInput()
    prompt.input_ids.MergeFrom(generation.message.tokenized.input_ids)
    source = hashlib.shake_128(f"{seed} {sampling_seed} {index} ".encode())
    source.update(prompt.SerializeToString())
    count = min(max(length, 1), MAX_CYCLE)
    numbers = struct.unpack(f"<{count}I", source.digest(4 * count))
    allowed = _allowed_ids(model.vocab_size, _special_ids(model))
    size = len(allowed)
    return _Cycle(tuple([allowed[number % size] for number in numbers]))


def _special_ids(model: Model) -> tuple[int, ...]:
    return (*model.eos_token_ids, model.bos_token_id, model.pad_token_id)


def _allowed_ids(vocab_size: int, special: tuple[int, ...]) -> Sequence[int]:
    if vocab_size > FIRST_ID:
        return range(FIRST_ID, vocab_size)
    return [i for i in range(vocab_size) if i not in special] or range(vocab_size)


def output_logprobs(
    message: pb.GenerateRequest, model: Model, ids: Sequence[int], first_position: int
) -> pb.OutputLogProbs:
    """Make up log probabilities for *ids*, which stand at *first_position* and after in a choice.

    One `top_logprobs` entry a token, whatever the request asks for, as clients align by position:
    the `top_logprobs_num` likeliest ids (the chosen one first), then those of
    `token_ids_logprob` in their order.  The values depend on position and ids only, so any cut
    into chunks gives the same, and the likeliest ones add up to less than 1.
    """
    size = model.vocab_size
    ranks = range(min(message.top_logprobs_num, size))
    others = [_logprob_at(rank) for rank in ranks[1:]]
    asked = tuple(message.token_ids_logprob)
    logprobs = pb.OutputLogProbs(token_ids=ids)
    for position, token_id in enumerate(ids, first_position):
        own = _own_logprob(position, token_id)
        logprobs.token_logprobs.append(own)
        top = logprobs.top_logprobs.add()
        if ranks:
            top.token_ids.extend([(token_id + rank) % size for rank in ranks])
            top.values.append(own)
            top.values.extend(others)
        for other in asked:
            rank = (other - token_id) % size
            top.token_ids.append(other)
            top.values.append(_logprob_at(rank) if rank else own)
    return logprobs


def _own_logprob(position: int, token_id: int) -> float:
    """Return the log probability of a chosen id: a probability between 0.6 and 0.9."""
    return -0.1 - 0.4 * ((token_id * 40_503 + position * 30_011) % 65_536) / 65_536


def _logprob_at(rank: int) -> float:
    """Return the log probability of the id *rank* places after the chosen one."""
    return -3.0 - 2.0 * math.log2(rank)
