"""PURE.  Thresholds as an operator writes them: `ttft=5ms,10%`."""

import re

from replay.errors import ReplayError
from replay.player.latency import METRICS
from replay.player.statistics import Threshold

_THRESHOLD = re.compile(
    r"(?P<metric>[a-z0-9]+)=(?P<value>\d+(?:\.\d+)?)(?P<unit>us|ms|s)(?:,(?P<share>\d+(?:\.\d+)?)%)?"
)
_UNIT_MS = {"us": 0.001, "ms": 1.0, "s": 1_000.0}


class ThresholdError(ReplayError):
    """A threshold cannot be read."""


def read_threshold(text: str) -> tuple[str, Threshold]:
    """Return the metric and the threshold of *text*; without a share the time alone counts.

    Raises ThresholdError.
    """
    found = _THRESHOLD.fullmatch(text.replace(" ", ""))
    if found is None or found["metric"] not in METRICS:
        raise ThresholdError(
            f"threshold {text!r}: must be one of {', '.join(METRICS)}, '=', a time, "
            "and perhaps a share of the baseline: ttft=5ms,10%"
        )
    return found["metric"], Threshold(
        absolute_ms=float(found["value"]) * _UNIT_MS[found["unit"]],
        relative=float(found["share"] or 0) / 100,
    )
