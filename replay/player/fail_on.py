"""PURE.  Rules for CI: `--fail-on 'ttft.p99 > +10%'`.

A rule is a number of the comparison, one of `> >= < <= == !=`, and a value.  Numbers:

- `flagged`: how many differences count.  `missing`, `extra`: requests that one side lacks.
  `failed`: requests of the candidate that did not complete.
- `tokens`, `lengths`, `finish_reasons`, `outcomes`, `prompts`: requests that differ; with `%` a
  share of those that could be judged.
- `ttft`, `itl`, `tpot`, `e2e` with `.p50`, `.p90`, `.p99` or `.mean`: a latency of the candidate
  (`e2e.p99 > 2s`), or with a sign its change against the baseline (`ttft.p99 > +20ms`,
  `tpot.p50 > +10%`).  `.shift`, the median change request by request, is always a change.
- `goodput`: the candidate's share, `goodput < 95%`.
- `schedule_delay` with `.p50`, `.p99` or `.max`: of the candidate, `schedule_delay.p99 > 5ms`.

A rule whose number is not known cannot be judged, and counts as broken: a check that did not happen
has not passed.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

import attrs

from replay.errors import ReplayError

_RULE = re.compile(
    r"(?P<name>[a-z0-9_]+(?:\.[a-z0-9_]+)?)\s*(?:(?P<sign>>=|<=|==|!=|>|<)\s*"
    r"(?P<change>[+-])?(?P<value>\d+(?:\.\d+)?)\s*(?P<unit>%|us|ms|s)?)?"
)
_SIGNS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
_UNIT_MS = {"us": 0.001, "ms": 1.0, "s": 1_000.0}
_LATENCIES = ("ttft", "itl", "tpot", "e2e")
_COUNTS = ("flagged", "missing", "extra", "failed")
_ANSWERS = ("tokens", "lengths", "finish_reasons", "outcomes", "prompts")


class RuleError(ReplayError):
    """A rule cannot be read."""


class Measure(StrEnum):
    """What the value of a rule is held against."""

    NUMBER = "number"
    SHARE = "share"
    MILLISECONDS = "milliseconds"
    CHANGE_MS = "change in milliseconds"
    CHANGE_SHARE = "change as a share"


@attrs.frozen(kw_only=True)
class Rule:
    """One rule."""

    text: str
    name: str
    measure: Measure
    sign: str
    value: float
    """Milliseconds, a share of 1, or a plain number."""

    @property
    def key(self) -> tuple[str, Measure]:
        """What to look up among the numbers of a comparison."""
        return self.name, self.measure


def read_rule(text: str) -> Rule:
    """Read one rule; a name alone means "more than 0".  Raises RuleError."""
    found = _RULE.fullmatch(text.strip())
    if found is None:
        raise RuleError(f"rule {text!r}: must be a name, a comparison and a value: ttft.p99 > +10%")
    name, unit, change = found["name"], found["unit"], found["change"]
    family, _, statistic = name.partition(".")
    if family in _LATENCIES and statistic in ("p50", "p90", "p99", "mean", "shift"):
        measure = _latency_measure(text, found["sign"], statistic, change, unit)
    elif family == "schedule_delay" and statistic in ("p50", "p99", "max"):
        if unit not in _UNIT_MS or change:
            raise RuleError(f"rule {text!r}: needs a time such as 5ms")
        measure = Measure.MILLISECONDS
    elif name == "goodput":
        if unit != "%" or change:
            raise RuleError(f"rule {text!r}: needs a share such as 95%")
        measure = Measure.SHARE
    elif name in _ANSWERS and unit in (None, "%") and not change:
        measure = Measure.SHARE if unit else Measure.NUMBER
    elif name in _COUNTS and unit is None and not change:
        measure = Measure.NUMBER
    else:
        raise RuleError(f"rule {text!r}: {name} is not known, or not in this unit")
    value = float(found["value"] or 0)
    if unit == "%":
        value /= 100
    elif unit:
        value *= _UNIT_MS[unit]
    return Rule(
        text=text.strip(),
        name=name,
        measure=measure,
        sign=found["sign"] or ">",
        value=-value if change == "-" else value,
    )


def _latency_measure(
    text: str, sign: str | None, statistic: str, change: str | None, unit: str | None
) -> Measure:
    if sign is None or unit is None:
        raise RuleError(f"rule {text!r}: needs a comparison and a time or a share")
    if change or statistic == "shift":
        return Measure.CHANGE_SHARE if unit == "%" else Measure.CHANGE_MS
    if unit == "%":
        raise RuleError(f"rule {text!r}: a share is one of the baseline: write +10% or -10%")
    return Measure.MILLISECONDS


@attrs.frozen(kw_only=True)
class Broken:
    """A rule that holds, so the check fails, or that could not be judged."""

    rule: Rule
    number: float | None
    """None: not known."""

    def __str__(self) -> str:
        if self.number is None:
            return f"{self.rule.text}: cannot be judged, {self.rule.name} is not known"
        return f"{self.rule.text}: is {_shown(self.number, self.rule.measure)}"


def broken(
    rules: Sequence[Rule], numbers: Mapping[tuple[str, Measure], float | None]
) -> list[Broken]:
    """Return the rules that hold for *numbers*, and those that cannot be judged."""
    found = []
    for rule in rules:
        number = numbers.get(rule.key)
        if number is None or _SIGNS[rule.sign](number, rule.value):
            found.append(Broken(rule=rule, number=number))
    return found


def _shown(number: float, measure: Measure) -> str:
    match measure:
        case Measure.NUMBER:
            return f"{number:g}"
        case Measure.SHARE:
            return f"{number:.2%}"
        case Measure.CHANGE_SHARE:
            return f"{number:+.2%}"
        case Measure.CHANGE_MS:
            return f"{number:+.3f} ms"
        case Measure.MILLISECONDS:
            return f"{number:.3f} ms"
