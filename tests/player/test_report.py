"""What a comparison looks like in JSON, CSV, on a terminal and in HTML."""

import csv
import io
import json
import re
from array import array
from html.parser import HTMLParser
from typing import Any

import attrs
import pytest
from rich.console import Console, RenderableType
from runs import noisy_run, observation

from replay.player.compare import CompareSettings, Side, compare
from replay.player.observation import Choice, Observation, Outcome
from replay.player.plots import change_plot, cumulative_plot
from replay.player.report import report_of, run_report, worst
from replay.player.report_csv import COLUMNS, csv_lines
from replay.player.report_html import html_page
from replay.player.report_terminal import comparison_tables, run_tables
from replay.player.statistics import Sample
from replay.player.wording import identifier, milliseconds, share

SECRET = "sk-the-answer-itself"
HOSTILE = "<script>alert(1)</script>\x1b[31m[bold]"


def sides() -> tuple[Side, Side, Side]:
    old, control = noisy_run(1, 60), noisy_run(2, 60)
    new = noisy_run(3, 60, slower_ms=20)
    odd = observation(HOSTILE, ids=(1, 2), ttft_ms=30)
    told = attrs.evolve(odd, choices=(attrs.evolve(odd.choices[0], text=SECRET),))
    failed = observation("broken", outcome=Outcome.ERROR)
    last = attrs.evolve(failed, error="UNAVAILABLE", scheduled_ns=5, sent_ns=50_000_005)
    return (
        attrs.evolve(old, observations=[*old.observations, told, observation("broken")]),
        attrs.evolve(
            new,
            observations=[*new.observations, attrs.evolve(odd, choices=two_tokens(7)), last],
            seconds=2.0,
        ),
        control,
    )


def two_tokens(second: int) -> tuple[Choice, ...]:
    ids = array("I", (1, second))
    return (Choice(finish_reason="length", output_tokens=2, token_ids=ids, text=SECRET),)


def made(*, with_control: bool = True) -> tuple[Any, dict[str, Any]]:
    old, new, control = sides()
    settings = CompareSettings(objectives={"ttft": 80.0})
    comparison = compare(old, new, control=control if with_control else None, settings=settings)
    return comparison, report_of(comparison)


def shown(what: RenderableType, width: int = 140) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=True, record=True)
    console.print(what)
    return console.export_text()


def test_a_report_is_json_without_infinities_and_without_answers() -> None:
    _, report = made()
    text = json.dumps(report, allow_nan=False)
    assert SECRET not in text
    assert report["flagged"] is True
    assert report["settings"]["family_error"] == 0.001
    assert "a chance of error of 0.001" in report["method"]


def test_a_report_names_failures_by_their_label_with_ids() -> None:
    _, report = made()
    [failure] = report["sides"]["candidate"]["failures"]
    assert failure == {"label": "UNAVAILABLE", "count": 1, "ids": ["broken"]}


def test_a_run_that_could_not_keep_its_schedule_says_so() -> None:
    _, report = made()
    schedule = report["sides"]["candidate"]["schedule"]
    assert (schedule["late"], schedule["kept"]) == (1, False)
    assert report["sides"]["baseline"]["schedule"] is None
    assert "the schedule was not kept" in shown(comparison_tables(report))


def test_the_worst_requests_come_first_and_only_those_that_got_slower() -> None:
    old = [observation(f"r{at}", position=at, ttft_ms=10) for at in range(40)]
    new = [observation(f"r{at}", position=at, ttft_ms=10 + (at % 5) * 10) for at in range(40)]
    rows = worst(compare(Side(name="a", observations=old), Side(name="b", observations=new)).rows)
    changes = [row.change_ms("e2e") or 0 for row in rows]
    assert len(rows) == 25
    assert changes == sorted(changes, reverse=True)
    assert min(changes) > 0


def test_the_table_for_scripts_has_a_line_for_each_request() -> None:
    comparison, _ = made()
    rows = list(csv.reader(io.StringIO("".join(csv_lines(comparison.rows)), newline="")))
    assert rows[0] == [*COLUMNS]
    assert len(rows) == 1 + len(comparison.rows) == 63
    by_id = {row[0]: dict(zip(rows[0], row, strict=True)) for row in rows[1:]}
    assert by_id[HOSTILE]["first_difference"] == "1"
    assert by_id["broken"]["candidate_outcome"] == "error"
    assert by_id["r0"]["first_difference"] == ""


@pytest.mark.parametrize("with_control", [True, False])
def test_a_terminal_shows_every_part_and_obeys_nothing_of_an_id(with_control: bool) -> None:
    _, report = made(with_control=with_control)
    text = shown(comparison_tables(report))
    for part in ("differences were found", "Time to first token", "shift", "goodput", "higher"):
        assert part in text
    assert "\x1b" not in text
    assert "\\x1b[31m[bold]" in text
    assert ("control" in text) == with_control


def test_one_run_is_shown_alone() -> None:
    _, new, _ = sides()
    text = shown(run_tables(run_report(new, {"ttft": 80.0})))
    for part in ("Time to first token", "failed with UNAVAILABLE", "goodput", "requests a second"):
        assert part in text


def test_answers_without_tokens_are_in_no_percentile_and_still_counted() -> None:
    run = [observation(f"r{at}", position=at, ids=(1, 2) if at else ()) for at in range(4)]
    report = run_report(Side(name="x", observations=run), {})
    assert report["run"]["outcomes"] == {"complete": 4}
    for metric in ("ttft", "tpot"):
        found = report["latencies"][metric]
        assert (found["count"], found["undefined"]) == (3, 1)
    # How long they took is known of all of them.
    assert report["latencies"]["e2e"]["count"] == 4


class Checker(HTMLParser):
    """Notes unbalanced tags and everything that a page could fetch or run."""

    VOID = frozenset({"meta", "link", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attributes)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "iframe", "object", "img"):
            self.outside.append(tag)
        for name, value in attributes:
            if name in ("src", "href") and not (value or "").startswith("data:"):
                self.outside.append(f"{tag} {name}")
            if name.startswith("on"):
                self.outside.append(f"{tag} {name}")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("with_control", [True, False])
def test_the_page_is_well_formed_and_takes_nothing_from_elsewhere(with_control: bool) -> None:
    comparison, report = made(with_control=with_control)
    page = html_page(comparison, report)
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    assert checker.outside == []
    assert "url(" not in page
    assert "@import" not in page
    assert SECRET not in page
    assert "&lt;script&gt;alert(1)" in page
    for part in ("Worst requests", "Requests whose answers differ", "Method", "Goodput"):
        assert f"<h2>{part}</h2>" in page
    assert page.count("<svg") == 4 + 2 + 1


def test_the_page_of_runs_without_latencies_says_so() -> None:
    answers = [Observation(request_id="a", prompt_ids=array("I", (1,)))]
    side = Side(name="capture", observations=answers)
    comparison = compare(side, side)
    assert "No latency was recorded" in html_page(comparison, report_of(comparison))


def test_no_coordinate_of_a_plot_is_outside_of_it() -> None:
    plots = [
        cumulative_plot("x", {"baseline": Sample([0.0, 0.0]), "candidate": Sample([5.0])}),
        cumulative_plot("x", {"baseline": Sample([1e-6, 1e9])}),
        change_plot("x", [0.0]),
        change_plot("x", [float(at) for at in range(-5_000, 5_000)]),
    ]
    for plot in plots:
        assert "nan" not in plot
        assert "inf" not in plot
        for x in re.findall(r' x\d?="([-\d.]+)"', plot):
            assert 0 <= float(x) <= 360
        for points in re.findall(r'points="([^"]+)"', plot):
            for point in points.split():
                x, y = map(float, point.split(","))
                assert 46 <= x <= 348
                assert 10 <= y <= 190


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "\N{EN DASH}"),
        (0.0, "0.00 ms"),
        (0.0123, "12.3 \N{MICRO SIGN}s"),
        (20.06, "20.1 ms"),
        (812.0, "812 ms"),
        (1350.0, "1.35 s"),
        (float("inf"), "\N{EN DASH}"),
    ],
)
def test_a_time_has_three_digits(value: float | None, text: str) -> None:
    assert milliseconds(value) == text


def test_signs_and_shares_are_written_out() -> None:
    assert milliseconds(5.0, signed=True) == "+5.00 ms"
    assert milliseconds(-5.0, signed=True) == "-5.00 ms"
    assert share(0.954) == "95.40%"


def test_a_long_id_loses_its_middle_and_a_hostile_one_its_powers() -> None:
    assert identifier("a" * 100, longest=11) == "aaaaa…aaaaa"
    assert identifier("a\nb\x1b[0m\u202e") == "a\\nb\\x1b[0m\\u202e"
