"""Runs made up for tests of comparisons: the same requests, with the noise of a real machine."""

import random
from array import array
from collections.abc import Sequence

from replay.player.compare import Side
from replay.player.observation import Choice, Observation, Outcome

TOKENS = 8


def observation(
    name: str = "r0",
    *,
    position: int = 0,
    ids: Sequence[int] = (1, 2, 3),
    outcome: Outcome = Outcome.COMPLETE,
    finish: str | None = "length",
    ttft_ms: float = 10.0,
    gap_ms: float = 5.0,
    truncated: bool = False,
    text: str | None = None,
) -> Observation:
    """Return what came of one request with one choice."""
    offsets = array("Q", (round((ttft_ms + at * gap_ms) * 1e6) for at in range(len(ids))))
    return Observation(
        request_id=name,
        position=position,
        outcome=outcome,
        choices=(
            Choice(
                finish_reason=finish,
                output_tokens=len(ids),
                token_ids=None if text is not None else array("I", ids),
                text=text,
                is_truncated=truncated,
            ),
        ),
        first_token_offset_ns=offsets[0] if offsets else None,
        last_token_offset_ns=offsets[-1] if offsets else None,
        end_offset_ns=(offsets[-1] if offsets else 0) + 100_000,
        chunk_offsets_ns=offsets,
    )


def noisy_run(seed: int, count: int, *, slower_ms: float = 0.0, token_seed: int = 0) -> Side:
    """Return a run whose requests differ much from each other and repeat up to noise.

    The noise is that of a busy machine: some of each request's own, and now and then a stall that
    the requests after it share.
    """
    same = random.Random(1)
    noise = random.Random(seed)
    backlog = 0.0
    observations = []
    for number in range(count):
        own_ms = 30 + same.lognormvariate(3.5, 0.8)
        if noise.random() < 0.002:
            backlog = noise.uniform(20, 150)
        backlog = max(0.0, backlog - 10)
        ids = [(number * TOKENS + at + token_seed * 7) % 1000 for at in range(TOKENS)]
        observations.append(
            observation(
                f"r{number}",
                position=number,
                ids=ids,
                ttft_ms=own_ms + abs(noise.gauss(0, 1)) + backlog + slower_ms,
                gap_ms=6 + abs(noise.gauss(0, 0.3)),
            )
        )
    return Side(name=f"run {seed}", observations=observations)
