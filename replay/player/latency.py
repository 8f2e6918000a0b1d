"""PURE.  The latencies of requests as numbers to compare, in milliseconds."""

import math

from replay.player.observation import Observation

#: Time to first token, gaps between token events, time per output token, end to end.
METRICS = ("ttft", "itl", "tpot", "e2e")


def latency_ms(observation: Observation, metric: str) -> float | None:
    """Return one number of *metric* for a request, of gaps their mean; None if it has none."""
    value: float | None
    match metric:
        case "ttft":
            value = observation.ttft_ns
        case "tpot":
            value = observation.tpot_ns
        case "e2e":
            value = observation.e2e_ns
        case "itl":
            gaps = observation.itl_ns
            value = math.fsum(gaps) / len(gaps) if gaps else None
        case _:
            raise ValueError(f"no such metric: {metric}")
    return None if value is None else value / 1e6


def latencies_ms(observation: Observation, metric: str) -> list[float]:
    """Return every value of *metric* for a request: all its gaps, else one number or none."""
    if metric == "itl":
        return [gap / 1e6 for gap in observation.itl_ns or ()]
    value = latency_ms(observation, metric)
    return [] if value is None else [value]


def is_recorded(observation: Observation, metric: str) -> bool:
    """Whether the source tells *metric* where the request has one.

    A request without a second token has no gaps and no time per token: that is recorded, it is just
    undefined.
    """
    tokens = observation.output_tokens
    match metric:
        case "ttft":
            return observation.first_token_offset_ns is not None or tokens == 0
        case "itl":
            return observation.chunk_offsets_ns is not None or tokens < 2
        case "tpot":
            return tokens < 2 or observation.tpot_ns is not None
        case _:
            return observation.end_offset_ns is not None
