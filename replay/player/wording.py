"""PURE.  How numbers and ids are written for a person, on a terminal and in HTML alike."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

#: What a metric is called.
METRIC_NAMES = {
    "ttft": "Time to first token",
    "itl": "Time between tokens",
    "tpot": "Time per output token",
    "e2e": "End to end",
}
UNKNOWN = "\N{EN DASH}"


def milliseconds(value: float | None, *, signed: bool = False) -> str:
    """Write a time with three digits: `812 µs`, `20.1 ms`, `1.35 s`."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    sign = "+" if signed and value > 0 else ""
    size = abs(value)
    if size >= 1_000:
        return f"{sign}{_three_digits(value / 1_000)} s"
    if size >= 1 or size == 0:
        return f"{sign}{_three_digits(value)} ms"
    return f"{sign}{_three_digits(value * 1_000)} µs"


def share(value: float | None) -> str:
    """Write a share in per cent."""
    return UNKNOWN if value is None else f"{value:.2%}"


def count(value: float | None) -> str:
    """Write a number with its thousands apart."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def identifier(text: str, longest: int = 60) -> str:
    """Write an id that came from a client: what a terminal would obey is spelled out, the middle of
    a long one left out."""
    safe = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
    if len(safe) <= longest:
        return safe
    half = (longest - 1) // 2
    return f"{safe[:half]}…{safe[-half:]}"


def first_difference(row: Mapping[str, Any]) -> str:
    """Write where two answers, or else two prompts, to one request differ first."""
    if row["first_difference"] is not None:
        return f"choice {row['choice']}, {row['unit']} {count(row['first_difference'])}"
    if row["prompt_first_difference"] is not None:
        return f"prompt, token {count(row['prompt_first_difference'])}"
    return UNKNOWN


def findings(report: Mapping[str, Any]) -> Iterator[str]:
    """Write everything that counts as a difference in a comparison's report, a line each."""
    for found in report["answers"]:
        if found["flagged"]:
            kind = found["kind"].replace("_", " ")
            share_of = f"{count(found['differing'])} of {count(found['judged'])}"
            yield f"{kind} differ in {share_of} requests"
    if report["missing"]["count"]:
        yield f"{count(report['missing']['count'])} request(s) are missing in the candidate"
    for found in report["differences"]:
        if found["flagged"]:
            name = METRIC_NAMES[found["metric"]].lower()
            change = milliseconds(found["difference_ms"], signed=True)
            yield (
                f"{name}, {found['statistic']}: {change}, {found['verdict']} by more than "
                f"{milliseconds(found['threshold_ms'])}"
            )


def _three_digits(value: float) -> str:
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}"
