"""PURE.  Goodput: the share of requests that were answered, and within every objective.

A request that failed, was cancelled or was not sent meets none.  A metric that is undefined for a
request (no second token, so no time per token) does not count against it; one that the source did
not record makes the goodput unknown.
"""

import math
import re
from collections.abc import Iterable, Mapping

import attrs

from replay.errors import ReplayError
from replay.player.latency import METRICS, is_recorded, latency_ms
from replay.player.observation import Observation, Outcome
from replay.player.statistics import Interval

_OBJECTIVE = re.compile(
    r"(?P<metric>[a-z0-9]+)\s*[=:]\s*(?P<value>\d+(?:\.\d+)?)\s*(?P<unit>us|ms|s)"
)
_UNIT_MS = {"us": 0.001, "ms": 1.0, "s": 1_000.0}


class ObjectiveError(ReplayError):
    """An objective cannot be read."""


def read_objectives(text: str) -> dict[str, float]:
    """Read objectives such as `ttft=200ms,tpot=50ms,e2e=5s` into milliseconds by metric.

    The objective for `itl` is for a request's mean gap.  Raises ObjectiveError.
    """
    objectives: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        found = _OBJECTIVE.fullmatch(part)
        if found is None or found["metric"] not in METRICS:
            raise ObjectiveError(
                f"objective {part!r}: must be one of {', '.join(METRICS)}, "
                "'=', a number and us, ms or s"
            )
        if found["metric"] in objectives:
            raise ObjectiveError(f"objective {found['metric']}: is set twice")
        objectives[found["metric"]] = float(found["value"]) * _UNIT_MS[found["unit"]]
    return objectives


@attrs.frozen(kw_only=True)
class Goodput:
    """How many requests met every objective."""

    requests: int
    met: int
    per_second: float | None
    """Requests a second that met them, over the time in which requests were sent.  None: not known.
    """
    missed: Mapping[str, int]
    """Complete requests that missed an objective, by metric."""
    unknown: int
    """Complete requests of which a metric with an objective was not recorded."""
    interval: Interval
    """Of the share; it misses one time in twenty."""

    @property
    def share(self) -> float | None:
        """The share that met them; None without requests, or if it is not known of some."""
        return self.met / self.requests if self.requests and not self.unknown else None


def goodput(
    observations: Iterable[Observation],
    objectives: Mapping[str, float],
    *,
    seconds: float | None = None,
) -> Goodput:
    """Count what met *objectives* (milliseconds by metric)."""
    requests = met = unknown = 0
    missed = dict.fromkeys(objectives, 0)
    for observation in observations:
        requests += 1
        if observation.outcome is not Outcome.COMPLETE:
            continue
        failed = [name for name, bound in objectives.items() if _misses(observation, name, bound)]
        for name in failed:
            missed[name] += 1
        if failed:
            continue
        if all(is_recorded(observation, name) for name in objectives):
            met += 1
        else:
            unknown += 1
    return Goodput(
        requests=requests,
        met=met,
        per_second=met / seconds if seconds else None,
        missed=missed,
        unknown=unknown,
        interval=share_interval(met, requests),
    )


def share_interval(hits: int, count: int) -> Interval:
    """Return Wilson's 95 % interval of a share."""
    if not count:
        return Interval(0.0, 1.0)
    z = 1.959964
    share = hits / count
    scale = 1 + z * z / count
    centre = (share + z * z / (2 * count)) / scale
    reach = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / scale
    return Interval(max(0.0, centre - reach), min(1.0, centre + reach))


def _misses(observation: Observation, metric: str, bound_ms: float) -> bool:
    value = latency_ms(observation, metric)
    return value is not None and value > bound_ms
