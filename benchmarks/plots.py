"""PURE.  What a report draws: values that go into its JSON, and the SVG that is made of them.

A plot is 360 wide, as a phone is, and scales from there; colours come from the page's style by
class, so that it follows a dark page.  There is no script and nothing from elsewhere.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from html import escape
from typing import Any

import attrs

from replay.player.plots import cumulative_plot
from replay.player.statistics import Sample

Points = Sequence[tuple[float, float]]

#: A series that is this much wider than its smallest x is drawn on a logarithmic axis.
_WIDE = 16
#: Up to so many different x are marked themselves.
_FEW = 8
#: How far apart marks have to be to be read.
_APART = 34
#: As many steps as a curve of this width can show.
_STEPS = 200
_WIDTH, _HEIGHT = 360, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 18, 22, 34
_ROW_HEIGHT = 22
_LABEL_WIDTH = 132
#: Letters of a label of a row that have room.
_LABEL_LETTERS = 22


class PlotKind(StrEnum):
    """How the series of a plot are drawn."""

    CUMULATIVE = "cumulative"
    """Points are a share and the value below which that share lies, in milliseconds."""
    LINES = "lines"
    """Points are x and y."""
    RATIOS = "ratios"
    """A series is a ratio: its points are the number of a round and the ratio in it."""


@attrs.frozen(kw_only=True)
class Plot:
    """A titled plot of named series."""

    kind: PlotKind
    title: str
    caption: str
    series: Mapping[str, Points]
    x_label: str = ""
    y_label: str = ""


def cumulative(title: str, samples: Mapping[str, Sample], *, caption: str) -> Plot:
    """Make the plot of the distributions of *samples*, which are milliseconds.

    What is empty, or nothing but zeros, cannot be drawn and is left out.
    """
    series = {
        name: [
            (step / _STEPS, value)
            for step in range(_STEPS + 1)
            if (value := sample.quantile(step / _STEPS)) is not None
        ]
        for name, sample in samples.items()
        if sample.quantile(1.0)
    }
    return Plot(kind=PlotKind.CUMULATIVE, title=title, caption=caption, series=series)


def ratios(
    title: str, rounds: Mapping[str, Sequence[float]], *, caption: str, x_label: str = "ratio"
) -> Plot:
    """Make the plot of ratios, each with its value in every round."""
    series = {name: list(enumerate(values, 1)) for name, values in rounds.items()}
    return Plot(
        kind=PlotKind.RATIOS,
        title=title,
        caption=caption,
        series=series,
        x_label=x_label,
    )


def plot_from_json(values: Mapping[str, Any]) -> Plot:
    """Read a plot that was written with null for what is not a number."""
    series = {
        name: [(x, math.nan if y is None else y) for x, y in points]
        for name, points in values["series"].items()
    }
    return Plot(**{**values, "kind": PlotKind(values["kind"]), "series": series})


def series_class(place: int) -> str:
    """Return the class that colours the series at *place*."""
    return f"s{place % 6}"


def draw(plot: Plot) -> str:
    """Return the SVG of *plot*."""
    match plot.kind:
        case PlotKind.CUMULATIVE:
            samples = {
                series_class(place): Sample(value for _, value in points)
                for place, points in enumerate(plot.series.values())
            }
            return cumulative_plot(plot.title, samples) if samples else ""
        case PlotKind.LINES:
            return _draw_lines(plot)
        case PlotKind.RATIOS:
            return _draw_ratios(plot)


def _draw_lines(plot: Plot) -> str:
    xs = sorted({x for points in plot.series.values() for x, _ in points})
    ys = [y for points in plot.series.values() for _, y in points if math.isfinite(y)]
    is_wide = len(xs) > 1 and xs[0] > 0 and xs[-1] >= xs[0] * _WIDE and len(xs) <= _FEW
    scale = math.log if is_wide else float
    ends = (xs[0], xs[-1]) if xs else (1.0, 2.0)
    across = _Axis(scale(ends[0]), scale(ends[1]), _LEFT, _WIDTH - _RIGHT)
    up = _Axis(0.0, max(ys, default=1.0) * 1.05 or 1.0, _HEIGHT - _BOTTOM, _TOP)
    parts = [_frame(_LEFT, _HEIGHT)]
    for value in up.ticks(4):
        y = up.place(value)
        parts.append(_line(_LEFT, y, _WIDTH - _RIGHT, y, "grid"))
        parts.append(_text(_LEFT - 6, y + 4, _short(value), "end"))
    last = -math.inf
    for value in xs if len(xs) <= _FEW else across.ticks(5):
        x = across.place(scale(value))
        if x - last >= _APART:
            parts.append(_text(x, _HEIGHT - 18, _short(value), "middle"))
            last = x
    parts.append(_text(_WIDTH - _RIGHT, _HEIGHT - 4, plot.x_label, "end"))
    parts.append(_text(_LEFT, _TOP - 8, plot.y_label, "start"))
    for place, points in enumerate(plot.series.values()):
        style = series_class(place)
        known = [(x, y) for x, y in points if math.isfinite(y)]
        known = [(across.place(scale(x)), up.place(y)) for x, y in known]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in known)
        parts.append(f'<polyline class="line {style}" points="{line}"/>')
        if len(known) <= 12:
            parts += [_dot(x, y, style) for x, y in known]
    return _svg(plot.title, parts, _HEIGHT)


def _draw_ratios(plot: Plot) -> str:
    """Draw a row for each ratio: its rounds, from the least to the most, and the median."""
    height = _TOP + _ROW_HEIGHT * len(plot.series) + _BOTTOM
    values = [y for points in plot.series.values() for _, y in points if math.isfinite(y)]
    across = _Axis(0.0, max([*values, 1.0]) * 1.05, _LABEL_WIDTH, _WIDTH - _RIGHT)
    parts = [_frame(_LABEL_WIDTH, height)]
    for value in across.ticks(4):
        x = across.place(value)
        parts.append(_line(x, _TOP, x, height - _BOTTOM, "grid"))
        parts.append(_text(x, height - 18, _short(value), "middle"))
    one = across.place(1.0)
    parts.append(_line(one, _TOP, one, height - _BOTTOM, "zero"))
    parts.append(_text(_WIDTH - _RIGHT, height - 4, plot.x_label or "ratio", "end"))
    for row, (name, points) in enumerate(plot.series.items()):
        y = _TOP + _ROW_HEIGHT * (row + 0.5)
        rounds = sorted(value for _, value in points if math.isfinite(value))
        parts.append(_text(_LABEL_WIDTH - 6, y + 4, _cut(name), "end"))
        if not rounds:
            continue
        low, high = across.place(rounds[0]), across.place(rounds[-1])
        parts.append(_line(low, y, max(high, low + 1), y, f"span {series_class(0)}"))
        parts += [_dot(across.place(value), y, f"round {series_class(0)}", 1.8) for value in rounds]
        parts.append(_dot(across.place(rounds[(len(rounds) - 1) // 2]), y, series_class(0), 4))
    return _svg(plot.title, parts, height)


@attrs.frozen
class _Axis:
    """Values from *low* to *high* on the places from *start* to *end*."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        span = (self.high - self.low) or 1.0
        return self.start + (value - self.low) / span * (self.end - self.start)

    def ticks(self, about: int) -> list[float]:
        """Return round values, *about* so many."""
        span = (self.high - self.low) or 1.0
        power = 10.0 ** math.floor(math.log10(span / about))
        step = next(each * power for each in (1, 2, 5, 10) if span / (each * power) <= about)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def _short(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.4g}{letter}"
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def _cut(text: str) -> str:
    return text if len(text) <= _LABEL_LETTERS else f"{text[: _LABEL_LETTERS - 1]}…"


def _frame(left: float, height: float) -> str:
    return (
        f'<rect class="frame" x="{left}" y="{_TOP}" width="{_WIDTH - left - _RIGHT}" '
        f'height="{height - _TOP - _BOTTOM}"/>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _dot(x: float, y: float, style: str, radius: float = 3) -> str:
    return f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(title: str, parts: Iterable[str], height: float) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:g}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )
