"""Numbers of several rounds, and what is said about them."""

import math
import statistics
from collections.abc import Sequence

import attrs


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least *share* (0 to 1) of *values* do not exceed."""
    if not values:
        return math.nan
    rank = max(1, math.ceil(share * len(values) - 1e-9))
    return sorted(values)[rank - 1]


@attrs.frozen
class Measure:
    """One quantity, a value for each round, in the order of the rounds."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The value that is quoted."""
        return statistics.median(self.rounds) if self.rounds else math.nan

    @property
    def low(self) -> float:
        """The smallest round."""
        return min(self.rounds, default=math.nan)

    @property
    def high(self) -> float:
        """The largest round."""
        return max(self.rounds, default=math.nan)

    @property
    def spread(self) -> float:
        """From the smallest to the largest round, as a share of the median: the noise."""
        return (self.high - self.low) / self.median if self.median else math.nan

    def over(self, other: "Measure") -> "Measure":
        """Divide round by round: what both went through in one round cancels out."""
        pairs = zip(self.rounds, other.rounds, strict=True)
        return Measure(tuple(mine / its if its else math.nan for mine, its in pairs))

    def scaled(self, factor: float) -> "Measure":
        """Multiply every round, to change the unit."""
        return Measure(tuple(value * factor for value in self.rounds))

    def as_json(self) -> dict[str, object]:
        """Return the summary and the rounds, for the results file."""
        return {
            "median": self.median,
            "low": self.low,
            "high": self.high,
            "rounds": list(self.rounds),
        }


@attrs.frozen
class Bar:
    """A promise about a number, and whether this run kept it."""

    what: str
    value: float
    at_most: float | None = None
    at_least: float | None = None

    @property
    def kept(self) -> bool:
        """Whether the value is within the limit; a value that is not a number is not."""
        if self.at_most is not None:
            return self.value <= self.at_most
        assert self.at_least is not None
        return self.value >= self.at_least

    @property
    def limit(self) -> str:
        """The limit in words."""
        if self.at_most is not None:
            return f"at most {self.at_most:g}"
        return f"at least {self.at_least:g}"

    def as_json(self) -> dict[str, object]:
        """Return the bar for the results file."""
        return {
            "what": self.what,
            "value": self.value,
            "limit": self.limit,
            "at_most": self.at_most,
            "at_least": self.at_least,
            "kept": self.kept,
        }
