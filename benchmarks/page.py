"""PURE.  Reports as one HTML file: no script, no font and no picture from elsewhere.

It is made of the reports' JSON and of nothing else, so a kept JSON gives the page again.  Tables
scroll sideways in their own frame, never the page, and it reads on a phone.
"""

import datetime
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from benchmarks.plots import Plot, PlotKind, draw, plot_from_json, series_class

_STYLE = """
:root {
  color-scheme: light dark;
  --ink: #1c2330; --soft: #5b6474; --rule: #d9dee7; --page: #fff; --card: #f6f8fb;
  --bad: #b42318; --good: #14713d; --warn: #8a5a00;
  --s0: #2563c9; --s1: #c2570c; --s2: #14713d; --s3: #8a3ffc; --s4: #b0256a; --s5: #64748b;
}
@media (prefers-color-scheme: dark) { :root {
  --ink: #e6e9ef; --soft: #9aa4b5; --rule: #333b49; --page: #12161d; --card: #1a2029;
  --bad: #ff8a80; --good: #6fcf97; --warn: #f2c14e;
  --s0: #7aa7f7; --s1: #f0964f; --s2: #6fcf97; --s3: #b794f6; --s4: #f28bb9; --s5: #9aa4b5;
} }
* { box-sizing: border-box }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif }
main { max-width: 1240px; margin: 0 auto; padding: 20px 16px 48px }
h1 { font-size: 1.5rem; margin: 0 0 4px }
h2 { font-size: 1.25rem; margin: 44px 0 8px }
h3 { font-size: 1rem; margin: 24px 0 8px }
p, li { max-width: 80ch; overflow-wrap: anywhere }
p { margin: 6px 0 }
ul { margin: 6px 0; padding-left: 20px }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 8px 0; padding: 8px 12px;
  background: var(--card); border: 1px solid var(--rule); border-radius: 8px;
  font: 13px/1.5 ui-monospace, monospace }
.soft, figcaption, dt { color: var(--soft) }
.bad { color: var(--bad) }
.good { color: var(--good) }
.limits { border-left: 3px solid var(--warn); padding-left: 12px }
.plots {
  display: grid; gap: 20px; margin: 12px 0;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 340px), 1fr))
}
figure { margin: 0; padding: 12px; background: var(--card); border: 1px solid var(--rule) }
figure, .table { border-radius: 8px }
figure h4 { font-size: .95rem; margin: 0 0 6px }
figcaption { font-size: .85rem; margin-top: 4px }
svg { display: block; width: 100%; height: auto }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft) }
.frame { fill: none; stroke: var(--rule) }
.grid { stroke: var(--rule); stroke-width: .7 }
.zero { stroke: var(--soft); stroke-dasharray: 3 3 }
.line { fill: none; stroke-width: 1.8 }
.span { stroke-width: 2 }
.round { opacity: .55 }
SERIES
.key { display: flex; flex-wrap: wrap; gap: 2px 14px; margin: 6px 0 0; font-size: .85rem }
.key i { display: inline-block; width: 18px; margin-right: 6px; border-top: 3px solid }
.key i { vertical-align: middle }
.table { overflow-x: auto; border: 1px solid var(--rule); margin: 6px 0 }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { padding: 5px 12px; text-align: right; white-space: nowrap }
th, tr:not(:last-child) td { border-bottom: 1px solid var(--rule) }
th { background: var(--card); font-weight: 600 }
.text { text-align: left }
.bars td:nth-child(2) { white-space: normal; min-width: 150px }
dl { display: grid; gap: 2px 24px; margin: 8px 0;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 280px), 1fr)) }
dl div { display: flex; gap: 10px }
dt { flex: none; min-width: 110px }
dd { margin: 0; overflow-wrap: anywhere; min-width: 0 }
nav { display: flex; flex-wrap: wrap; gap: 2px 14px }
nav a { color: inherit }
""".replace(
    "SERIES",
    "\n".join(
        f".line.s{n}, .span.s{n}, .key .s{n} {{ stroke: var(--s{n}); border-color: var(--s{n}) }}\n"
        f"circle.s{n} {{ fill: var(--s{n}) }}"
        for n in range(6)
    ),
)

#: A number that is not there.
_DASH = "\N{EN DASH}"


def html_page(reports: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of *reports*, each as `Report.as_json` gives it."""
    names = [str(report["scenario"]) for report in reports]
    title = f"Benchmark: {names[0]}" if len(names) == 1 else "Benchmarks"
    links = "".join(f'<a href="#{escape(name)}">{escape(name)}</a>' for name in names)
    head = f"<h1>{escape(title)}</h1>" + (f"<nav>{links}</nav>" if len(names) > 1 else "")
    body = "".join(_report(report) for report in reports)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        # Without an icon of its own a browser asks for one, and reports that there is none.
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><main>{head}{body}{_machine(reports)}"
        "</main></body></html>\n"
    )


def _report(report: Mapping[str, Any]) -> str:
    name = escape(str(report["scenario"]))
    parts = [f'<section><h2 id="{name}">{name}</h2>']
    if report["about"]:
        parts.append(f"<p>{escape(report['about'])}</p>")
    parts += [
        f'<p class="bad">Wrong answer: {escape(each)}</p>' for each in report["wrong_answers"]
    ]
    if report["bars"]:
        parts.append(_bars(report["bars"]))
    if report["plots"]:
        figures = "".join(_figure(plot_from_json(each)) for each in report["plots"])
        parts.append(f'<div class="plots">{figures}</div>')
    parts += [_table(table) for table in report["tables"]]
    if report["cannot_conclude"]:
        items = _items(report["cannot_conclude"])
        parts.append(f'<div class="limits"><h3>What cannot be concluded</h3>{items}</div>')
    if report["remarks"]:
        parts.append(f"<h3>To know</h3>{_items(report['remarks'])}")
    parts.append(f"<h3>Configuration</h3>{_definitions(report['settings'])}")
    machine = report["machine"]
    when = datetime.datetime.fromtimestamp(machine["started_unix"], datetime.UTC)
    command = escape(" ".join(machine["command"]))
    parts.append(f"<h3>Command, {when:%Y-%m-%d %H:%M} UTC</h3><pre>{command}</pre></section>")
    return "".join(parts)


def _items(lines: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def _bars(bars: Iterable[Mapping[str, Any]]) -> str:
    rows = []
    for bar in bars:
        kept = (
            '<span class="good">kept</span>' if bar["kept"] else '<span class="bad">missed</span>'
        )
        rows.append([kept, escape(bar["what"]), _number(bar["value"], 2), escape(bar["limit"])])
    heads = ["", "what", "measured", "limit"]
    return '<h3>Bars</h3><div class="bars">' + _grid(heads, rows, texts={0, 1, 3}) + "</div>"


def _figure(plot: Plot) -> str:
    key = "".join(
        f'<span><i class="{series_class(place)}"></i>{escape(name)}</span>'
        for place, name in enumerate(plot.series)
    )
    # A row of ratios has its name beside it.
    shown = "" if plot.kind is PlotKind.RATIOS else f'<div class="key">{key}</div>'
    return (
        f'<figure data-series="{len(plot.series)}"><h4>{escape(plot.title)}</h4>{draw(plot)}'
        f"{shown}<figcaption>{escape(plot.caption)}</figcaption></figure>"
    )


def _table(table: Mapping[str, Any]) -> str:
    columns = table["columns"]
    texts = {
        place
        for place, column in enumerate(columns)
        if any(isinstance(row.get(column["key"]), str) for row in table["rows"])
    }
    rows = [[_cell(row.get(column["key"]), column) for column in columns] for row in table["rows"]]
    heads = [column["head"] for column in columns]
    return f"<h3>{escape(table['title'])}</h3>" + _grid(heads, rows, texts=texts)


def _cell(value: Any, column: Mapping[str, Any]) -> str:
    decimals = column["decimals"]
    if isinstance(value, str):
        return escape(value)
    if value is None:
        return _DASH
    if isinstance(value, Mapping):
        text = _number(value["median"], decimals)
        if column["spread"] and len(value["rounds"]) > 1:
            low, high = _number(value["low"], decimals), _number(value["high"], decimals)
            text += f' <span class="soft">{low}…{high}</span>'
        return text
    return _number(value, decimals)


def _number(value: float | None, decimals: int) -> str:
    return _DASH if value is None else f"{value:,.{decimals}f}"


def _grid(heads: Sequence[str], rows: Iterable[Sequence[str]], *, texts: set[int]) -> str:
    def row(tag: str, cells: Iterable[str]) -> str:
        styles = (' class="text"' if place in texts else "" for place in range(len(heads)))
        return "".join(
            f"<{tag}{style}>{cell}</{tag}>" for cell, style in zip(cells, styles, strict=True)
        )

    lines = "".join(f"<tr>{row('td', cells)}</tr>" for cells in rows)
    head = row("th", map(escape, heads))
    return (
        f'<div class="table" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def _definitions(values: Mapping[str, Any]) -> str:
    items = "".join(
        f"<div><dt>{escape(name.replace('_', ' '))}</dt><dd>{escape(_plain(value))}</dd></div>"
        for name, value in values.items()
    )
    return f"<dl>{items}</dl>"


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _machine(reports: Sequence[Mapping[str, Any]]) -> str:
    machine = reports[0]["machine"]
    values = {name: machine[name] for name in ("cpu", "cores", "memory_mb", "kernel")}
    values["load before"] = machine["load_average"]
    values |= machine["versions"]
    return f"<section><h2>Machine and versions</h2>{_definitions(values)}</section>"
