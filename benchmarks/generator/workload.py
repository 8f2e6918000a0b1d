"""PURE.  What is asked: the requests by number, the same for the same seed in every process."""

import random
from enum import StrEnum

import attrs

from benchmarks.generator.lengths import read_lengths
from replay.player.arrival import BlockPrompt, LengthPrompt, Parameters
from replay.player.outgoing import Outgoing
from replay.player.synthesis import Synthesizer

#: Prompts in words are made of these, which most tokenizers have as one token each.
_TEXT = """
time year people way day man thing woman life child world school state family
student group country problem hand part place case week company system program
question work government number night point home water room mother area money
story fact month lot right study book eye job word business issue side kind head
house service friend father power hour game line end member law car city community
name president team minute idea kid body information back parent face others level
office door health person art war history party result change morning reason
research girl guy moment
"""
_WORDS = _TEXT.split()


class Prompts(StrEnum):
    """What a prompt is made of."""

    IDS = "ids"
    TEXT = "text"
    CHAT = "chat"
    """One message of a user."""


@attrs.frozen(kw_only=True)
class Workload:
    """What is asked."""

    isl: str = "512"
    """Lengths of the prompts (`lengths.FORMS`): of ids, or of words."""
    osl: str = "32"
    """Lengths of the answers; the end of a text is ignored."""
    prompts: Prompts = Prompts.IDS
    prefix_tokens: int = 0
    """Tokens at the beginning of each prompt that others have too."""
    prefixes: int = 1
    """How many such beginnings there are."""
    cancel_share: float = 0.0
    """Share of the requests that the client takes back, unless they have ended by then."""
    cancel_delay_s: float = 0.0
    """How long after it was sent."""
    stream: bool = True
    seed: int = 0


@attrs.frozen
class Request:
    """What is sent, and when it is taken back."""

    outgoing: Outgoing
    asked_tokens: int
    cancel_after_s: float | None


class RequestMaker:
    """Makes the requests of a workload."""

    def __init__(self, workload: Workload, *, vocab_size: int, run: str) -> None:
        """Make prompts of ids below *vocab_size*; request ids begin with *run*.

        Raises ValueError for lengths that cannot be read.
        """
        self._workload, self._run = workload, run
        self._isl, self._osl = read_lengths(workload.isl), read_lengths(workload.osl)
        self._synthesizer = Synthesizer(vocab_size, seed=workload.seed)

    def make(self, number: int) -> Request:
        """Return the request *number*."""
        workload = self._workload
        chance = random.Random(workload.seed << 40 | number)
        isl, osl = self._isl.draw(chance), self._osl.draw(chance)
        prefix, cancel = chance.randrange(workload.prefixes), chance.random()
        prompt: BlockPrompt | LengthPrompt = LengthPrompt(length=isl, own=number)
        if workload.prefix_tokens:
            size = workload.prefix_tokens
            prompt = BlockPrompt(hash_ids=(prefix,), length=isl, block_size=size, own=number)
        ids = self._synthesizer.ids(prompt)
        outgoing = Outgoing(
            request_id=f"{self._run}-{number}",
            parameters=Parameters(max_new_tokens=osl, ignore_eos=True, temperature=1.0),
            stream=workload.stream,
        )
        if workload.prompts is Prompts.IDS:
            outgoing = attrs.evolve(outgoing, ids=ids)
        else:
            text = " ".join(_WORDS[token % len(_WORDS)] for token in ids)
            if workload.prompts is Prompts.TEXT:
                outgoing = attrs.evolve(outgoing, text=text)
            else:
                messages = ({"role": "user", "content": text},)
                outgoing = attrs.evolve(outgoing, messages=messages)
        is_cancelled = cancel < workload.cancel_share
        return Request(outgoing, osl, workload.cancel_delay_s if is_cancelled else None)
