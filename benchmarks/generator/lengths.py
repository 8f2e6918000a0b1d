"""PURE.  How many tokens a prompt or an answer has: a fixed number, or drawn for each request."""

import math
import random
import re
from typing import Protocol

import attrs

_NUMBER = r"\d+(?:\.\d+)?"
_UNIFORM = re.compile(r"uniform:(\d+)-(\d+)")
_LOGNORMAL = re.compile(rf"lognormal:(\d+),({_NUMBER})(?:,(\d+))?")

FORMS = "N, uniform:LOW-HIGH or lognormal:MEDIAN,SIGMA[,MOST]"


class Lengths(Protocol):
    """Draws a length of at least 1."""

    def draw(self, chance: random.Random) -> int:
        """Return the next length."""
        ...


@attrs.frozen
class Fixed:
    """Always the same."""

    tokens: int

    def draw(self, chance: random.Random) -> int:
        """Return the length, without a draw."""
        return self.tokens


@attrs.frozen
class Uniform:
    """Each length from `low` to `high` is as likely as any other."""

    low: int
    high: int

    def draw(self, chance: random.Random) -> int:
        """Return the next length."""
        return chance.randint(self.low, self.high)


@attrs.frozen
class LogNormal:
    """The logarithm is normal, as lengths of real prompts about are.

    Half of the lengths are below `median`; about one in six is above `median * e**sigma`.
    """

    median: int
    sigma: float
    most: int | None = None
    """Longer ones are cut to this."""

    def draw(self, chance: random.Random) -> int:
        """Return the next length."""
        drawn = max(1, round(chance.lognormvariate(math.log(self.median), self.sigma)))
        return drawn if self.most is None else min(drawn, self.most)


def read_lengths(text: str) -> Lengths:
    """Read `FORMS`.  Raises ValueError."""
    if text.isascii() and text.isdigit() and int(text) > 0:
        return Fixed(int(text))
    if found := _UNIFORM.fullmatch(text):
        low, high = int(found[1]), int(found[2])
        if 1 <= low <= high:
            return Uniform(low, high)
    elif found := _LOGNORMAL.fullmatch(text):
        median, most = int(found[1]), None if found[3] is None else int(found[3])
        if median >= 1 and (most is None or most >= 1):
            return LogNormal(median, float(found[2]), most)
    raise ValueError(f"must be {FORMS}, at least 1 token; is {text!r}")
