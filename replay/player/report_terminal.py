"""PURE.  A comparison, or one run, as tables on a terminal."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from replay.player.wording import (
    METRIC_NAMES,
    UNKNOWN,
    count,
    first_difference,
    identifier,
    milliseconds,
    share,
)

_VERDICT_STYLES = {"higher": "bold red", "lower": "bold green", "too few": "dim"}
#: How many requests a terminal shows; the files have the rest.
_SHOWN = 10


def comparison_tables(report: Mapping[str, Any]) -> RenderableType:
    """Return the tables of a comparison's report."""
    return Group(*_comparison(report))


def run_tables(report: Mapping[str, Any]) -> RenderableType:
    """Return the tables of one run's report."""
    return Group(_sides({"run": report["run"]}), *_run(report))


def _comparison(report: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield _sides(report["sides"])
    for role, side in report["sides"].items():
        yield from _failures(side, f"{role}: ")
    yield _answers(report)
    if report["differences"]:
        yield _differences(report)
    if report["goodput"]:
        yield _goodput(report["goodput"])
    if report["differing"]:
        yield _differing(report["differing"])
    for warning in report["warnings"]:
        yield Text(f"note: {warning}", style="yellow")
    for metric, left_out in report["latencies_left_out"].items():
        text = f"note: {metric} is not recorded of {count(left_out)} request(s)"
        yield Text(text, style="yellow")
    verdict = "differences were found" if report["flagged"] else "nothing counts as a difference"
    yield Text(verdict, style="bold red" if report["flagged"] else "bold green")


def _run(report: Mapping[str, Any]) -> Iterator[RenderableType]:
    table = _table("latency", "p50", "p90", "p99", "max", "count")
    for metric, found in report["latencies"].items():
        table.add_row(
            METRIC_NAMES[metric],
            *(milliseconds(found[name]["ms"]) for name in ("p50", "p90", "p99")),
            milliseconds(found["max_ms"]),
            count(found["count"]),
        )
    if report["latencies"]:
        yield table
    if report["run"]["targets"]:
        yield _targets(report["run"]["targets"])
    yield from _failures(report["run"], "")
    if report["goodput"] is not None:
        yield _goodput({"run": report["goodput"]})


def _failures(side: Mapping[str, Any], role: str) -> Iterator[Text]:
    """Name what failed, by its label."""
    for failure in side["failures"]:
        ids = ", ".join(map(identifier, failure["ids"][:3]))
        more = ", …" if failure["count"] > 3 else ""
        yield Text(
            f"{role}failed with {failure['label']}: {count(failure['count'])} ({ids}{more})",
            style="red",
        )


def _sides(sides: Mapping[str, Mapping[str, Any]]) -> Table:
    table = _table("", *sides)
    table.add_row("source", *(Text(identifier(str(side["name"]))) for side in sides.values()))
    table.add_row("requests", *(count(side["requests"]) for side in sides.values()))
    words = dict.fromkeys(word for side in sides.values() for word in side["outcomes"])
    for word in words:
        cells = (side["outcomes"].get(word, 0) for side in sides.values())
        table.add_row(f"  {word.replace('_', ' ')}", *map(count, cells))
    table.add_row("output tokens", *(count(side["output_tokens"]) for side in sides.values()))
    if any(side["cached_tokens"] is not None for side in sides.values()):
        table.add_row("cached tokens", *(count(side["cached_tokens"]) for side in sides.values()))
    if any(side["achieved_rate"] for side in sides.values()):
        table.add_row(
            "requests a second", *(count(side["achieved_rate"]) for side in sides.values())
        )
    if any(side["schedule"] for side in sides.values()):
        table.add_row(
            "schedule delay p99", *(_schedule(side["schedule"]) for side in sides.values())
        )
    return table


def _targets(targets: list[Mapping[str, Any]]) -> Table:
    table = _table(
        "target", "requests", "complete", "output tokens", "cached tokens", "TTFT p50", "TTFT p99"
    )
    for each in targets:
        table.add_row(
            Text(identifier(each["name"])),
            count(each["requests"]),
            count(each["outcomes"].get("complete", 0)),
            count(each["output_tokens"]),
            count(each["cached_tokens"]),
            milliseconds(each["ttft_p50_ms"]),
            milliseconds(each["ttft_p99_ms"]),
        )
    return table


def _schedule(schedule: Mapping[str, Any] | None) -> Text:
    if schedule is None:
        return Text(UNKNOWN)
    shown = milliseconds(schedule["p99_ms"])
    if schedule["kept"]:
        return Text(shown)
    return Text(f"{shown}: the schedule was not kept", style="bold red")


def _answers(report: Mapping[str, Any]) -> Table:
    has_control = "control" in report["sides"]
    table = _table("answers", "compared", "differ", *(["control"] if has_control else []), "")
    for found in report["answers"]:
        if not found["judged"]:
            continue
        control = [count(found["control_differing"])] if has_control else []
        flag = Text("differs", style="bold red") if found["flagged"] else Text("")
        kind = found["kind"].replace("_", " ")
        table.add_row(kind, count(found["judged"]), count(found["differing"]), *control, flag)
    for name in ("missing", "extra", "ambiguous"):
        if report[name]["count"]:
            flag = Text("differs", style="bold red") if name == "missing" else Text("")
            blank = [""] if has_control else []
            table.add_row(name, "", count(report[name]["count"]), *blank, flag)
    return table


def _differences(report: Mapping[str, Any]) -> Table:
    table = _table("latency", "", "baseline", "candidate", "change", "interval", "threshold", "")
    last = None
    for found in report["differences"]:
        name = METRIC_NAMES[found["metric"]] if found["metric"] != last else ""
        last = found["metric"]
        is_shift = found["statistic"] == "shift"
        table.add_row(
            name,
            found["statistic"],
            UNKNOWN if is_shift else milliseconds(found["baseline_ms"]),
            UNKNOWN if is_shift else milliseconds(found["candidate_ms"]),
            milliseconds(found["difference_ms"], signed=True),
            interval_text(found),
            milliseconds(found["threshold_ms"]),
            Text(found["verdict"], style=_VERDICT_STYLES.get(found["verdict"], "dim")),
        )
    return table


def interval_text(found: Mapping[str, Any]) -> str:
    """Write the interval of a difference."""
    low, high = found["low_ms"], found["high_ms"]
    if low is None and high is None:
        return "unbounded"
    return (
        f"{'-∞' if low is None else milliseconds(low, signed=True)} … "
        f"{'∞' if high is None else milliseconds(high, signed=True)}"
    )


def _goodput(goodputs: Mapping[str, Mapping[str, Any]]) -> Table:
    table = _table("goodput", "share", "95 % interval", "met", "a second", "not known")
    for role, found in goodputs.items():
        table.add_row(
            role,
            share(found["share"]),
            f"{share(found['low'])} … {share(found['high'])}",
            f"{count(found['met'])} of {count(found['requests'])}",
            count(found["per_second"]),
            count(found["unknown"]),
        )
    return table


def _differing(rows: list[Mapping[str, Any]]) -> Table:
    table = _table("differing requests", "first difference", "tokens", "outcomes")
    for row in rows[:_SHOWN]:
        tokens, outcomes = row["output_tokens"], row["outcomes"]
        table.add_row(
            Text(identifier(row["request_id"])),
            first_difference(row),
            f"{tokens[0]} / {tokens[1]}",
            outcomes[0] if outcomes[0] == outcomes[1] else f"{outcomes[0]} / {outcomes[1]}",
        )
    if len(rows) > _SHOWN:
        table.add_row("…", "", "", "")
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table
