"""PURE.  The plots of a report, as SVG text that needs no script and no network.

Colours come from the page's style by class, so a plot follows a dark page.  Each is drawn 360 wide,
the width of a phone, and scales from there.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape

from replay.player.statistics import Sample
from replay.player.wording import milliseconds

_WIDTH = 360
_HEIGHT = 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 10, 30
#: As many points as a plot of this width can show.
_POINTS = 180


def cumulative_plot(title: str, samples: Mapping[str, Sample]) -> str:
    """Draw the share of values below each time, one line a side, time on a logarithmic axis."""
    low = min(_smallest_above_zero(sample) for sample in samples.values())
    high = max(sample.sorted_values[-1] for sample in samples.values())
    across = _LogAxis(low, max(high, low * 1.01))
    parts = [_frame(), *across.ticks()]
    for tick in (0.0, 0.5, 0.9, 0.99, 1.0):
        if tick != 0.99:
            y = _y(tick)
            parts.append(_line(_LEFT, y, _WIDTH - _RIGHT, y, "grid"))
            parts.append(_text(_LEFT - 6, y + 4, f"{tick:.0%}", "end"))
    for side, sample in samples.items():
        points = []
        for step in range(_POINTS + 1):
            share = step / _POINTS
            value = sample.quantile(share)
            assert value is not None
            points.append(f"{across.x(value):.1f},{_y(share):.1f}")
        parts.append(f'<polyline class="line {escape(side)}" points="{" ".join(points)}"/>')
    return _svg(f"{title}: share of values below", parts)


def change_plot(title: str, changes_ms: Sequence[float]) -> str:
    """Draw candidate - baseline of each request, in the order of arrival."""
    left = 74
    reach = max((abs(change) for change in changes_ms), default=0.0) or 1.0
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    scale = (_HEIGHT - _BOTTOM - _TOP) / 2 / reach
    parts = [_frame(left), _line(left, middle, _WIDTH - _RIGHT, middle, "zero")]
    for value in (reach, 0.0, -reach):
        y = middle - value * scale
        parts.append(_text(left - 6, y + 4, milliseconds(value, signed=True), "end"))
    step = (_WIDTH - _RIGHT - left) / max(1, len(changes_ms))
    for place, low, high in _extremes(changes_ms):
        x = left + (place + 0.5) * step
        top, bottom = middle - high * scale, middle - low * scale
        # A single request would be a line without length, which is not drawn.
        parts.append(_line(x, top - 1.5, x, bottom + 1.5, "mark"))
    parts.append(_text(left, _HEIGHT - 10, "first", "start"))
    parts.append(_text(_WIDTH - _RIGHT, _HEIGHT - 10, f"request {len(changes_ms):,}", "end"))
    return _svg(f"{title}: change of each request in the order of arrival", parts)


def interval_plot(
    rows: Sequence[tuple[str, float, float | None, float | None, float, bool]],
) -> str:
    """Draw the intervals of differences, each in units of its own threshold.

    A row is a label, the difference, the ends of its interval (None: infinite), the threshold, and
    whether it counts.
    """
    left, row_height, reach = 96, 18, 4.0
    height = _TOP + row_height * len(rows) + _BOTTOM
    centre = (left + _WIDTH - _RIGHT) / 2
    scale = (_WIDTH - _RIGHT - left) / 2 / reach

    def across(value: float) -> float:
        return centre + max(-reach, min(reach, value)) * scale

    bottom = height - _BOTTOM
    parts = [
        f'<rect class="band" x="{across(-1):.1f}" y="{_TOP}" '
        f'width="{2 * scale:.1f}" height="{bottom - _TOP}"/>',
        _line(centre, _TOP, centre, bottom, "zero"),
    ]
    for number, (label, difference, low, high, threshold, is_flagged) in enumerate(rows):
        y = _TOP + row_height * (number + 0.5)
        style = "flagged" if is_flagged else "quiet"
        start = across(-math.inf if low is None else low / threshold)
        end = across(math.inf if high is None else high / threshold)
        parts.append(_text(left - 8, y + 4, label, "end"))
        parts.append(_line(start, y, max(end, start + 1), y, f"interval {style}"))
        x = across(difference / threshold)
        parts.append(f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>')
    for value in (-reach, -1, 1, reach):
        sign = "≤ " if value == -reach else "≥ " if value == reach else ""
        anchor = "start" if value == -reach else "end" if value == reach else "middle"
        parts.append(_text(across(value), height - 10, f"{sign}{value:+g}", anchor))
    return _svg("Differences in units of their thresholds", parts, height)


class _LogAxis:
    def __init__(self, low: float, high: float) -> None:
        self._low, self._high = math.log10(low), math.log10(high)

    def x(self, value: float) -> float:
        place = (math.log10(max(value, 10**self._low)) - self._low) / (self._high - self._low)
        return _LEFT + place * (_WIDTH - _RIGHT - _LEFT)

    def ticks(self) -> list[str]:
        """Draw round times, with a label where there is room for one."""
        parts = []
        last = -math.inf
        first, final = math.floor(self._low), math.ceil(self._high)
        steps = (1, 2, 5) if final - first < 4 else (1,)
        values = [step * 10.0**power for power in range(first, final + 1) for step in steps]
        if len([value for value in values if self._low <= math.log10(value) <= self._high]) < 2:
            values = [10**self._low, 10**self._high]
        for value in values:
            if not self._low - 1e-9 <= math.log10(value) <= self._high + 1e-9:
                continue
            x = self.x(value)
            parts.append(_line(x, _TOP, x, _HEIGHT - _BOTTOM, "grid"))
            if x - last >= 60:
                anchor = "end" if x > _WIDTH - 36 else "middle"
                parts.append(_text(x, _HEIGHT - 10, _tick(value), anchor))
                last = x
        return parts


def _tick(value: float) -> str:
    if value >= 1_000:
        return f"{value / 1_000:.3g} s"
    return f"{value:.3g} ms" if value >= 1 else f"{value * 1_000:.3g} µs"


def _extremes(values: Sequence[float]) -> list[tuple[float, float, float]]:
    """Return place, smallest and largest of as many groups of neighbours as fit side by side."""
    size = max(1, -(-len(values) // (2 * _POINTS)))
    groups = [(start, values[start : start + size]) for start in range(0, len(values), size)]
    return [(start + (len(group) - 1) / 2, min(group), max(group)) for start, group in groups]


def _smallest_above_zero(sample: Sample) -> float:
    return next((value for value in sample.sorted_values if value > 0), 0.001)


def _y(share: float) -> float:
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _BOTTOM - _TOP)


def _frame(left: int = _LEFT) -> str:
    return (
        f'<rect class="frame" x="{left}" y="{_TOP}" '
        f'width="{_WIDTH - left - _RIGHT}" height="{_HEIGHT - _TOP - _BOTTOM}"/>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(title: str, parts: Sequence[str], height: float = _HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:g}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )
