"""PURE.  The tables and plots that say what several runs of a load were like.

A latency of a client-bound run is never shown without that word.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from benchmarks.generator.summary import CLIENT_BOUND, LATE_MS, Summary
from benchmarks.measures import Bar, Measure
from benchmarks.plots import Plot, PlotKind, cumulative
from benchmarks.results import Cell, Column, Table
from replay.player.latency import METRICS
from replay.player.statistics import QUANTILES, Sample
from replay.player.wording import METRIC_NAMES

#: How much later than a sleeper a request may leave, at the 99th percentile.
DELAY_ABOVE_CONTROL_MS = 3.0
#: How far the sent rate may be from the asked one.
RATE_SHARE = 0.99

#: Summaries of the rounds of each point: a concurrency, a rate, a variant.
Points = Mapping[str, Sequence[Summary]]

_DELAYS = (("p50", 0.5), ("p99", 0.99), ("max", 1.0))


def is_client_bound(rounds: Sequence[Summary]) -> bool:
    """Whether any round was."""
    return any(one.is_client_bound for one in rounds)


def named(text: str, rounds: Sequence[Summary]) -> str:
    """Return *text*, marked if *rounds* were client-bound."""
    return f"{text}, {CLIENT_BOUND}" if is_client_bound(rounds) else text


def _measure(rounds: Sequence[Summary], value: Callable[[Summary], float]) -> Measure:
    return Measure(tuple(value(one) for one in rounds))


def _quantile(sample: Sample, share: float) -> float:
    value = sample.quantile(share)
    return float("nan") if value is None else value


def throughput_table(points: Points) -> Table:
    """Say how much was done."""
    table = Table(
        "Throughput",
        [
            Column("point", "load"),
            Column("sent", "sent", 0),
            Column("complete", "complete", 0),
            Column("requests", "requests/s", 1, spread=True),
            Column("tokens", "tokens/s", 0, spread=True),
            Column("busy_pct", "client CPU %", 0),
            Column("bound", ""),
        ],
    )
    for point, rounds in points.items():
        table.rows.append(
            {
                "point": point,
                "sent": _measure(rounds, lambda one: one.sent),
                "complete": _measure(rounds, lambda one: one.complete),
                "requests": _measure(rounds, lambda one: one.request_rate),
                "tokens": _measure(rounds, lambda one: one.token_rate),
                "busy_pct": _measure(rounds, lambda one: one.busy * 100),
                "bound": CLIENT_BOUND if is_client_bound(rounds) else "",
            }
        )
    return table


def latency_table(points: Points) -> Table:
    """Say how long complete answers took."""
    table = Table(
        "Latency of complete answers, ms",
        [
            Column("point", "load"),
            Column("metric", "metric"),
            Column("count", "values", 0),
            *(
                Column(f"p{share * 100:g}", f"p{share * 100:g}", 3, spread=True)
                for share in QUANTILES
            ),
        ],
    )
    for point, rounds in points.items():
        for metric in METRICS:
            row: dict[str, Cell] = {
                "point": point,
                "metric": named(METRIC_NAMES[metric], rounds),
                "count": _measure(rounds, lambda one, name=metric: len(one.latencies[name])),  # type: ignore[misc]
            }
            for share in QUANTILES:
                row[f"p{share * 100:g}"] = Measure(
                    tuple(one.latency_ms(metric, share) for one in rounds)
                )
            table.rows.append(row)
    return table


def schedule_table(points: Points) -> Table | None:
    """Say how open loops kept their times; None when there is none."""
    table = Table(
        f"Schedule, ms: delay of the requests (late: above {LATE_MS:g}) and of a sleeper",
        [
            Column("point", "load"),
            Column("scheduled", "due/s", 1),
            Column("achieved", "sent/s", 1),
            *(Column(f"delay_{name}", name, 2) for name, _ in _DELAYS),
            *(
                Column(f"control_{name}", f"sleeper {name}" if name == "p99" else f"its {name}", 2)
                for name, _ in _DELAYS
            ),
            Column("above", "p99 above", 2),
            Column("late", "late", 0),
            Column("not_sent", "unsent", 0),
        ],
    )
    for point, rounds in points.items():
        schedules = [one.schedule for one in rounds if one.schedule is not None]
        if not schedules:
            continue
        row: dict[str, Cell] = {
            "point": point,
            "scheduled": Measure(tuple(one.scheduled_rate for one in schedules)),
            "achieved": Measure(tuple(one.achieved_rate for one in schedules)),
            "above": above_control(rounds),
            "late": Measure(tuple(float(one.late) for one in schedules)),
            "not_sent": Measure(tuple(float(one.not_sent) for one in schedules)),
        }
        for name, share in _DELAYS:
            row[f"delay_{name}"] = Measure(tuple(_quantile(one.delay, share) for one in schedules))
            row[f"control_{name}"] = Measure(
                tuple(_quantile(one.control, share) for one in schedules)
            )
        table.rows.append(row)
    return table if table.rows else None


def above_control(rounds: Sequence[Summary]) -> Measure:
    """Return by how many milliseconds the delay's p99 is above the sleeper's."""
    return Measure(
        tuple(
            _quantile(one.schedule.delay, 0.99) - _quantile(one.schedule.control, 0.99)
            for one in rounds
            if one.schedule is not None
        )
    )


def schedule_bars(points: Points) -> list[Bar]:
    """Return the promises of an open loop."""
    bars = []
    for point, rounds in points.items():
        shares = [one.schedule.kept_share for one in rounds if one.schedule is not None]
        if shares:
            bars.append(
                Bar(
                    f"{point}: schedule delay p99 above a sleeper's, ms",
                    above_control(rounds).median,
                    at_most=DELAY_ABOVE_CONTROL_MS,
                )
            )
            bars.append(
                Bar(
                    f"{point}: sent rate / scheduled rate",
                    Measure(tuple(shares)).median,
                    at_least=RATE_SHARE,
                )
            )
    return bars


def endings_table(points: Points) -> Table:
    """Say how the requests ended."""
    table = Table(
        "Endings",
        [
            Column("point", "load"),
            Column("status", "ended"),
            Column("count", "requests", 0),
            Column("share_pct", "%", 2),
        ],
    )
    for point, rounds in points.items():
        sent = sum(one.sent for one in rounds) or 1
        statuses = dict.fromkeys(status for one in rounds for status in one.statuses)
        for status in statuses:
            count = sum(one.statuses.get(status, 0) for one in rounds)
            table.rows.append(
                {"point": point, "status": status, "count": count, "share_pct": count / sent * 100}
            )
    return table


def goodput_table(points: Points, objectives: Mapping[str, float]) -> Table:
    """Say how many requests met every objective."""
    text = ", ".join(f"{metric} at most {bound:g} ms" for metric, bound in objectives.items())
    table = Table(
        f"Goodput: {text}",
        [
            Column("point", "load"),
            Column("share_pct", "met %", 2, spread=True),
            Column("rate", "met/s", 1, spread=True),
        ],
    )
    for point, rounds in points.items():
        found = [one.goodput for one in rounds if one.goodput is not None]
        shares = tuple((one.share or 0.0) * 100 for one in found)
        rates = tuple(one.per_second or 0.0 for one in found)
        row: dict[str, Cell] = {
            "point": named(point, rounds),
            "share_pct": Measure(shares),
            "rate": Measure(rates),
        }
        table.rows.append(row)
    return table


def load_plots(points: Points) -> list[Plot]:
    """Draw the distributions of the latencies, all rounds of a point together, and the delays."""
    plots = []
    for metric in METRICS:
        samples = {
            named(point, rounds): _pooled(one.latencies[metric] for one in rounds)
            for point, rounds in points.items()
        }
        bound = any(map(is_client_bound, points.values()))
        title = f"{METRIC_NAMES[metric]}, {CLIENT_BOUND}" if bound else METRIC_NAMES[metric]
        plot = cumulative(title, samples, caption="Share of values below each time")
        if plot.series:
            plots.append(plot)
    delays: dict[str, Sample] = {}
    for point, rounds in points.items():
        schedules = [one.schedule for one in rounds if one.schedule is not None]
        if schedules:
            delays[point] = _pooled(one.delay for one in schedules)
            delays[f"{point}: sleeper"] = _pooled(one.control for one in schedules)
    if delays:
        plots.append(
            cumulative(
                "Schedule delay",
                delays,
                caption="How late requests left, beside a process that only sleeps",
            )
        )
    return plots


def sweep_plots(by_load: Mapping[float, Sequence[Summary]], load: str) -> list[Plot]:
    """Draw throughput and first tokens against *load*: the concurrency, or the asked rate."""
    rates = [
        (load_of, _measure(rounds, lambda one: one.request_rate).median)
        for load_of, rounds in by_load.items()
    ]
    bound = any(map(is_client_bound, by_load.values()))
    first = {
        f"p{share * 100:g}": [
            (
                load_of,
                _measure(rounds, lambda one, at=share: one.latency_ms("ttft", at)).median,  # type: ignore[misc]
            )
            for load_of, rounds in by_load.items()
        ]
        for share in QUANTILES
    }
    return [
        Plot(
            kind=PlotKind.LINES,
            title=f"Throughput against {load}",
            caption="Complete answers a second, the median of the rounds",
            series={"requests/s": rates},
            x_label=load,
            y_label="requests/s",
        ),
        Plot(
            kind=PlotKind.LINES,
            title=f"Time to first token against {load}{f', {CLIENT_BOUND}' if bound else ''}",
            caption="The median of the rounds",
            series=first,
            x_label=load,
            y_label="ms",
        ),
    ]


def _pooled(samples: Iterable[Sample]) -> Sample:
    values: list[float] = []
    for sample in samples:
        values += sample.sorted_values
    return Sample(values)
