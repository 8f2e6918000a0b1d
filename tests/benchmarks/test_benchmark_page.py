"""The page of a report: what is in it, and how a browser shows it."""

import math
import re

import attrs
import pytest
from browser import opened_browser

from benchmarks.all import names
from benchmarks.measures import Bar, Measure
from benchmarks.page import html_page
from benchmarks.plots import Plot, PlotKind, cumulative, draw, plot_from_json, ratios
from benchmarks.results import Column, Report, Table, finite
from replay.player.statistics import Sample

MACHINE = {
    "cpu": "AMD <EPYC>",
    "cores": 2,
    "memory_mb": 1000,
    "kernel": "6",
    "versions": {"python": "3.11"},
    "command": ["python", "-m", "benchmarks", "load", "--rate", "5"],
    "started_unix": 1_700_000_000,
    "load_average": [0.1, 0.2, 0.3],
}

LINES = Plot(
    kind=PlotKind.LINES,
    title="Throughput against concurrency",
    caption="Complete answers a second",
    series={"ours": [(1, 10.0), (8, 70.0), (64, math.nan)], "theirs": [(1, 9.0), (64, 50.0)]},
    x_label="requests at once",
    y_label="requests/s",
)


def samples(*names):
    return {
        name: Sample([1.0 + at + place for at in range(40)]) for place, name in enumerate(names)
    }


def report(scenario="load"):
    table = Table("Costs", [Column("who", "server"), Column("us", "CPU µs", 1, spread=True)])
    table.rows.append({"who": "ours", "us": Measure((40.0, 44.0, 42.0))})
    table.rows.append({"who": "theirs <b>", "us": math.nan})
    return Report(
        scenario,
        "What it costs.",
        machine=MACHINE,
        settings={"rounds": 3, "a": [1, 2]},
        tables=[table],
        bars=[Bar("ratio", 30.0, at_least=25), Bar("other", math.nan, at_most=1)],
        plots=[
            cumulative("Time to first token", samples("5/s", "10/s"), caption="Share below"),
            LINES,
            ratios("Ratios", {"a": [1.5, 1.7, 1.6], "b": [0.5]}, caption="Each round"),
        ],
        limits=["nothing of small differences"],
    )


def page_of(*reports):
    return html_page([finite(each.as_json()) for each in reports])


def test_the_page_says_all_that_the_report_holds():
    text = page_of(report())
    for wanted in (
        "python -m benchmarks load --rate 5",
        "2023-11-14",
        "AMD &lt;EPYC&gt;",
        "theirs &lt;b&gt;",
        "42.0 <span",
        "40.0…44.0",
        "kept",
        "missed",
        "What cannot be concluded",
        "nothing of small differences",
    ):
        assert wanted in text


def test_the_page_asks_for_nothing_from_elsewhere():
    text = page_of(report())
    assert re.findall(r"https?:|<script|@import|url\(", text) == []


def test_each_plot_draws_its_series():
    drawn = [draw(plot) for plot in report().plots]
    assert [text.count("<polyline") for text in drawn] == [2, 2, 0]
    assert drawn[2].count('class="span') == 2
    assert all("nan" not in text for text in drawn)


def test_a_plot_survives_its_way_through_json():
    kept = finite(attrs.asdict(LINES))
    assert kept["series"]["ours"][2] == [64, None]
    assert draw(plot_from_json(kept)) == draw(LINES)


def test_what_cannot_be_drawn_is_left_out():
    plot = cumulative(
        "t", {"none": Sample([]), "zero": Sample([0.0]), "some": Sample([1.0])}, caption=""
    )
    assert list(plot.series) == ["some"]
    assert draw(cumulative("t", {"none": Sample([])}, caption="")) == ""
    assert "<svg" in draw(attrs.evolve(LINES, series={"flat": [(1.0, 0.0)]}))


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with opened_browser(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_shows_every_plot_and_complains_of_nothing(browser, tmp_path, width):
    path = tmp_path / "report.html"
    path.write_text(page_of(*(report(name) for name in names())), encoding="utf-8")
    browser.complaints.clear()
    browser.requested.clear()
    browser.open(path, width=width)
    assert browser.value("document.documentElement.scrollWidth") == width
    figures = browser.value(
        "[...document.querySelectorAll('figure')].map(f => [+f.dataset.series,"
        " f.querySelectorAll('polyline, .span').length, f.querySelector('svg').clientWidth])"
    )
    assert len(figures) == 3 * len(names())
    assert all(series == drawn for series, drawn, _ in figures)
    assert all(300 <= shown <= width for *_, shown in figures)
    letters = browser.value(
        "Math.min(...[...document.querySelectorAll('svg text')]"
        ".map(t => t.getBoundingClientRect().height))"
    )
    assert letters >= 10
    outside = browser.value(
        "[...document.querySelectorAll('svg')].flatMap(s => [...s.querySelectorAll('text')]"
        ".map(t => [t.getBoundingClientRect(), s.getBoundingClientRect(), t.textContent])"
        ".filter(([t, s]) => t.left < s.left - 1 || t.right > s.right + 1).map(x => x[2]))"
    )
    assert outside == []
    assert browser.complaints == []
    assert browser.requested == [path.resolve().as_uri()]
