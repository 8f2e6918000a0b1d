"""PURE.  A comparison as one HTML file: no script, no font, no picture from elsewhere, readable on
a phone.

Tables scroll sideways in their own frame, never the page.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from replay.player.compare import Comparison
from replay.player.plots import change_plot, cumulative_plot, interval_plot
from replay.player.report_terminal import interval_text
from replay.player.wording import (
    METRIC_NAMES,
    UNKNOWN,
    count,
    findings,
    first_difference,
    identifier,
    milliseconds,
    share,
)

#: Rows of a list that are seen without asking for more.
_SHOWN = 25

_STYLE = """
:root {
  color-scheme: light dark;
  --ink: #1c2330; --soft: #5b6474; --rule: #d9dee7; --page: #fff; --card: #f6f8fb;
  --baseline: #2563c9; --candidate: #c2570c; --control: #7b8494; --bad: #b42318; --good: #14713d;
  --shade: #1c233040;
}
@media (prefers-color-scheme: dark) { :root {
  --ink: #e6e9ef; --soft: #9aa4b5; --rule: #333b49; --page: #12161d; --card: #1a2029;
  --baseline: #7aa7f7; --candidate: #f0964f; --control: #8f98a8; --bad: #ff8a80; --good: #6fcf97;
  --shade: #000000a0;
} }
* { box-sizing: border-box }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif }
main { max-width: 1240px; margin: 0 auto; padding: 20px 16px 48px }
h1 { font-size: 1.5rem; margin: 0 0 4px }
h2 { font-size: 1.15rem; margin: 36px 0 10px }
h3 { font-size: .95rem; margin: 0 0 6px }
p { margin: 6px 0; max-width: 76ch; overflow-wrap: anywhere }
.verdict { font-weight: 650 }
.soft, figcaption { color: var(--soft) }
.bad { color: var(--bad) }
.good { color: var(--good) }
.plots {
  display: grid; gap: 20px; grid-template-columns: repeat(auto-fill, minmax(min(100%, 340px), 1fr))
}
figure { margin: 0; padding: 12px; background: var(--card); border: 1px solid var(--rule) }
figure, .table { border-radius: 8px }
figcaption { font-size: .85rem; margin-top: 4px }
svg { display: block; width: 100%; height: auto }
svg text { font: 13px system-ui, sans-serif; fill: var(--soft) }
.frame { fill: none; stroke: var(--rule) }
.grid { stroke: var(--rule); stroke-width: .7 }
.zero { stroke: var(--soft); stroke-dasharray: 3 3 }
.band { fill: var(--rule); opacity: .6 }
.line { fill: none; stroke-width: 1.8 }
.line.baseline { stroke: var(--baseline) }
.line.candidate { stroke: var(--candidate) }
.line.control { stroke: var(--control); stroke-dasharray: 4 3 }
.mark { stroke: var(--candidate); stroke-width: 2; opacity: .7 }
.interval { stroke-width: 2 }
.interval.quiet { stroke: var(--soft) }
.interval.flagged { stroke: var(--bad) }
circle.quiet { fill: var(--soft) }
circle.flagged { fill: var(--bad) }
.key span { margin-right: 16px; white-space: nowrap }
.key i { display: inline-block; width: 22px; margin-right: 6px; border-top: 3px solid }
.key i { vertical-align: middle }
.key .baseline { border-color: var(--baseline) }
.key .candidate { border-color: var(--candidate) }
.key .control { border-color: var(--control); border-top-style: dashed }
.table {
  overflow-x: auto; border: 1px solid var(--rule);
  /* A shadow at the side to which a table goes on; covers of the page's colour scroll with it. */
  background:
    linear-gradient(to right, var(--page) 40%, transparent) left / 32px 100% no-repeat local,
    linear-gradient(to left, var(--page) 40%, transparent) right / 32px 100% no-repeat local,
    linear-gradient(to right, var(--shade), transparent) left / 12px 100% no-repeat scroll,
    linear-gradient(to left, var(--shade), transparent) right / 12px 100% no-repeat scroll;
}
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { padding: 6px 12px; text-align: right; white-space: nowrap }
th, tr:not(:last-child) td { border-bottom: 1px solid var(--rule) }
th { background: var(--card); font-weight: 600 }
td.name { white-space: normal; overflow-wrap: anywhere; min-width: 9em; max-width: 44em }
.long { display: inline-block; white-space: normal; overflow-wrap: anywhere; max-width: 40ch }
ul { margin: 6px 0; padding-left: 20px }
li { overflow-wrap: anywhere }
summary { cursor: pointer; margin: 10px 0; color: var(--soft) }
th:first-child, td:first-child { text-align: left }
dl { display: grid; grid-template-columns: fit-content(50%) 1fr; gap: 2px 16px; margin: 8px 0 }
dt { color: var(--soft) }
dd { margin: 0 }
@media (max-width: 600px) {
  main { padding: 16px 12px 40px }
  table { font-size: .87rem }
  th, td { padding: 5px 7px }
  td.name { min-width: 7.5em }
  .long { max-width: 14ch }
  figure { padding: 10px 8px }
}
"""


def html_page(comparison: Comparison, report: Mapping[str, Any]) -> str:
    """Return the page of *comparison*, whose report is *report*."""
    body = "".join(_sections(comparison, report))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        # Without an icon of its own a browser asks for one, and reports that there is none.
        '<link rel="icon" href="data:,"><title>Comparison of two runs</title>'
        f"<style>{_STYLE}</style></head><body><main>{body}</main></body></html>\n"
    )


def _sections(comparison: Comparison, report: Mapping[str, Any]) -> Iterator[str]:
    yield "<h1>Comparison of two runs</h1>"
    verdict = "Differences were found." if report["flagged"] else "Nothing counts as a difference."
    yield f'<p class="verdict {"bad" if report["flagged"] else "good"}">{verdict}</p>'
    if found := list(findings(report)):
        yield "<ul>" + "".join(f"<li>{escape(each)}</li>" for each in found) + "</ul>"
    for warning in report["warnings"]:
        yield f'<p class="soft">Note: {escape(warning)}.</p>'
    yield _runs(report["sides"])
    yield _failures(report["sides"])
    yield _answers(report)
    yield _latencies(comparison, report)
    if report["goodput"]:
        yield _goodput(report)
    yield _lists(report)
    yield f"<h2>Method</h2><p>{escape(report['method'])}</p>{_thresholds(report['settings'])}"


def _runs(sides: Mapping[str, Mapping[str, Any]]) -> str:
    words = dict.fromkeys(word for side in sides.values() for word in side["outcomes"])
    rows: list[list[str]] = [
        ["source", *(_long(str(side["name"])) for side in sides.values())],
        ["requests", *(count(side["requests"]) for side in sides.values())],
    ]
    for word in words:
        cells = (count(side["outcomes"].get(word, 0)) for side in sides.values())
        rows.append([escape(word.replace("_", " ")), *cells])
    for name, key in (("prompt tokens", "prompt_tokens"), ("output tokens", "output_tokens")):
        rows.append([name, *(count(side[key]) for side in sides.values())])
    if any(side["cached_tokens"] is not None for side in sides.values()):
        rows.append(["cached tokens", *(count(side["cached_tokens"]) for side in sides.values())])
    if any(side["achieved_rate"] for side in sides.values()):
        rows.append(
            ["requests a second", *(count(side["achieved_rate"]) for side in sides.values())]
        )
    if any(side["schedule"] for side in sides.values()):
        rows.append(
            ["schedule delay p99", *(_schedule(side["schedule"]) for side in sides.values())]
        )
    return "<h2>Runs</h2>" + _table(["", *sides], rows)


def _long(text: str) -> str:
    """Return a text that is folded where there is no room for it in one line."""
    return f'<span class="long">{escape(identifier(text))}</span>'


def _failures(sides: Mapping[str, Mapping[str, Any]]) -> str:
    """Name what failed, by its label."""
    lines = []
    for role, side in sides.items():
        for failure in side["failures"]:
            ids = ", ".join(escape(identifier(each)) for each in failure["ids"][:3])
            more = ", …" if failure["count"] > 3 else ""
            label = f"{role}: failed with {failure['label']}: {count(failure['count'])}"
            lines.append(f'<p><span class="bad">{escape(label)}</span> ({ids}{more})</p>')
    return "".join(lines)


def _schedule(schedule: Mapping[str, Any] | None) -> str:
    if schedule is None:
        return UNKNOWN
    shown = milliseconds(schedule["p99_ms"])
    return shown if schedule["kept"] else f'<span class="bad">{shown}: not kept</span>'


def _answers(report: Mapping[str, Any]) -> str:
    has_control = "control" in report["sides"]
    rows = []
    for found in report["answers"]:
        if found["judged"]:
            control = [count(found["control_differing"])] if has_control else []
            rows.append(
                [
                    found["kind"].replace("_", " "),
                    _flag(found["flagged"]),
                    count(found["differing"]),
                    count(found["judged"]),
                    *control,
                ]
            )
    for name in ("missing", "extra", "ambiguous"):
        if report[name]["count"]:
            blank = [""] if has_control else []
            number = count(report[name]["count"])
            rows.append([name, _flag(name == "missing"), number, "", *blank])
    head = ["requests", "", "differ", "compared", *(["control differs"] if has_control else [])]
    return "<h2>Answers</h2>" + _table(head, rows)


def _flag(is_flagged: bool) -> str:
    return '<span class="bad">differs</span>' if is_flagged else ""


def _latencies(comparison: Comparison, report: Mapping[str, Any]) -> str:
    if not report["differences"]:
        return "<h2>Latency</h2><p>No latency was recorded on both sides.</p>"
    parts = ["<h2>Latency</h2>", _key(report["sides"]), '<div class="plots">']
    samples: dict[str, dict[str, Any]] = {}
    for found in comparison.latencies.distributions:
        if len(found.sample):
            samples.setdefault(found.metric, {})[found.side] = found.sample
    for metric, by_side in samples.items():
        plot = cumulative_plot(METRIC_NAMES[metric], by_side)
        parts.append(_figure(METRIC_NAMES[metric], plot, "Share of values below each time"))
    for metric in ("ttft", "e2e"):
        changes = [
            change for row in comparison.rows if (change := row.change_ms(metric)) is not None
        ]
        if changes and metric in samples:
            name = METRIC_NAMES[metric]
            caption = "Candidate minus baseline of each request, in the order of arrival"
            parts.append(_figure(f"{name}: change", change_plot(name, changes), caption))
    plot = interval_plot(
        [
            (
                f"{found['metric']} {found['statistic']}",
                found["difference_ms"],
                found["low_ms"],
                found["high_ms"],
                found["threshold_ms"],
                found["flagged"],
            )
            for found in report["differences"]
        ]
    )
    parts.append(
        _figure("Differences", plot, "In units of the threshold; the band is too small to count")
    )
    parts.append("</div>")
    for metric, left_out in report["latencies_left_out"].items():
        parts.append(
            f'<p class="soft">{METRIC_NAMES[metric]}: not recorded of {count(left_out)}.</p>'
        )
    parts.append("<h2>Differences in latency</h2>")
    parts.append(_difference_table(report["differences"]))
    return "".join(parts)


def _difference_table(differences: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for found in differences:
        is_shift = found["statistic"] == "shift"
        style = "bad" if found["flagged"] else "soft"
        rows.append(
            [
                f"{METRIC_NAMES[found['metric']]}, {found['statistic']}",
                f'<span class="{style}">{found["verdict"]}</span>',
                milliseconds(found["difference_ms"], signed=True),
                interval_text(found),
                milliseconds(found["threshold_ms"]),
                UNKNOWN if is_shift else milliseconds(found["baseline_ms"]),
                UNKNOWN if is_shift else milliseconds(found["candidate_ms"]),
                milliseconds(found["control_difference_ms"], signed=True),
            ]
        )
    head = ["", "", "change", "interval", "threshold", "baseline", "candidate", "control's change"]
    return _table(head, rows)


def _goodput(report: Mapping[str, Any]) -> str:
    objectives = ", ".join(
        f"{METRIC_NAMES[metric].lower()} at most {milliseconds(bound)}"
        for metric, bound in report["objectives_ms"].items()
    )
    rows = [
        [
            role,
            share(found["share"]),
            f"{share(found['low'])} … {share(found['high'])}",
            f"{count(found['met'])} of {count(found['requests'])}",
            count(found["per_second"]),
        ]
        for role, found in report["goodput"].items()
    ]
    head = ["", "share", "95 % interval", "met", "a second"]
    return f'<h2>Goodput</h2><p class="soft">{escape(objectives)}</p>' + _table(head, rows)


def _lists(report: Mapping[str, Any]) -> str:
    parts = []
    if report["slowest"]:
        rows = [
            [
                escape(identifier(row["request_id"])),
                milliseconds(row["e2e_change_ms"], signed=True),
                milliseconds(row["ttft_change_ms"], signed=True),
                milliseconds(row["tpot_change_ms"], signed=True),
                count(row["prompt_tokens"]),
                count(row["output_tokens"]),
                milliseconds(row["e2e_ms"][1]),
            ]
            for row in report["slowest"]
        ]
        head = [
            "request",
            "end to end",
            "first token",
            "per token",
            "prompt",
            "output",
            "candidate's end",
        ]
        parts.append("<h2>Worst requests</h2>" + _table(head, rows))
    if report["differing"]:
        rows = [_differing(row) for row in report["differing"]]
        head = ["request", "first difference", "output tokens", "outcomes", "also differ"]
        parts.append("<h2>Requests whose answers differ</h2>" + _folded(head, rows))
    for name, title in (("missing", "Missing in the candidate"), ("ambiguous", "Ambiguous names")):
        if report[name]["count"]:
            ids = ", ".join(escape(identifier(each)) for each in report[name]["ids"][:25])
            more = ", …" if report[name]["count"] > 25 else ""
            parts.append(f"<h2>{title}</h2><p>{ids}{more}</p>")
    return "".join(parts)


def _differing(row: Mapping[str, Any]) -> list[str]:
    before, after = row["outcomes"]
    also = [name for name in ("lengths", "finish_reasons") if row[f"{name}_differ"]]
    return [
        escape(identifier(row["request_id"])),
        first_difference(row),
        " / ".join(map(count, row["output_tokens"])),
        escape(before if before == after else f"{before} / {after}"),
        ", ".join(name.replace("_", " ") for name in also),
    ]


def _thresholds(settings: Mapping[str, Any]) -> str:
    items = [
        (
            f"threshold, {METRIC_NAMES[metric].lower()}",
            f"{milliseconds(each['absolute_ms'])}, "
            f"or {each['relative'] * 100:.3g} % of the baseline",
        )
        for metric, each in settings["thresholds"].items()
    ]
    items.append(("chance of any false alarm", f"{settings['family_error']:g}"))
    items.append(("intervals and tests", count(settings["intervals"])))
    items.append(("left out as warm-up", count(settings["warm_up"])))
    return "<dl>" + "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in items) + "</dl>"


def _key(sides: Iterable[str]) -> str:
    items = "".join(f'<span><i class="{side}"></i>{side}</span>' for side in sides)
    return f'<p class="key">{items}</p>'


def _figure(title: str, plot: str, caption: str) -> str:
    return (
        f"<figure><h3>{escape(title)}</h3>{plot}<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _folded(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of the first rows, and one of the others that opens when it is asked for."""
    table = _table(head, rows[:_SHOWN])
    if len(rows) <= _SHOWN:
        return table
    more = _table(head, rows[_SHOWN:])
    return f"{table}<details><summary>{len(rows) - _SHOWN} more</summary>{more}</details>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells are HTML already."""
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    lines = "".join(
        f'<tr><td class="name">{name}</td>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        for name, *cells in rows
    )
    return (
        f'<div class="table" tabindex="0"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )
