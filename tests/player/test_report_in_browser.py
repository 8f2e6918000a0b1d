"""The page of a comparison as a browser shows it, on a screen and on a phone."""

from pathlib import Path

import attrs
import pytest
from runs import noisy_run

from replay.player.compare import CompareSettings, Side, compare
from replay.player.observation import Outcome
from replay.player.report import report_of
from replay.player.report_html import html_page
from tests.benchmarks.browser import opened_browser

#: What a gateway makes of an id, and what a shell calls a file.
LONG_ID = "chatcmpl-3f2504e0-4f89-11d3-9a0c-0305e82c3301-3f2504e0-4f89-11d3-9a0c-0305e82c33-"
#: A label of a plot is drawn 13 high on 360 wide, and a phone has 390.
SMALLEST_TEXT_PX = 11


def page(*, findings: bool) -> str:
    before = noisy_run(1, 120)
    after = noisy_run(2, 120, slower_ms=40.0 * findings, token_seed=findings)
    name = "results/" + "of-a-long-night-" * 6 + ".jsonl"
    observations = [
        attrs.evolve(each, outcome=Outcome.ERROR, error="UNAVAILABLE")
        if findings and at % 9 == 0
        else each
        for at, each in enumerate(after.observations)
    ]
    sides = [
        Side(
            name=name,
            observations=[attrs.evolve(each, request_id=LONG_ID + each.request_id) for each in run],
            measured_at="client",
            seconds=5.0,
        )
        for run in (before.observations, observations[findings:])
    ]
    comparison = compare(*sides, settings=CompareSettings(objectives={"ttft": 80.0}))
    return html_page(comparison, report_of(comparison))


@pytest.mark.parametrize("findings", [True, False])
def test_a_page_fits_a_screen_and_a_phone_and_nothing_is_complained_of(
    tmp_path: Path, findings: bool
) -> None:
    path = tmp_path / "report.html"
    path.write_text(page(findings=findings))
    with opened_browser(tmp_path) as browser:
        for width in (1280, 390):
            browser.open(path, width=width)
            assert browser.value("document.documentElement.scrollWidth") == width
            plots = "[...document.querySelectorAll('svg')]"
            assert browser.value(f"{plots}.length") >= 7
            sizes = f"{plots}.map(each => 13 * each.getBoundingClientRect().width / 360)"
            assert min(browser.value(sizes)) >= SMALLEST_TEXT_PX
            # No label of a plot is cut off or runs into its neighbour on the same line.
            assert browser.value(_CUT) == []
            # What was found is seen without scrolling sideways.
            assert browser.value("document.querySelectorAll('ul li').length >= 5") is findings
            visible = (
                "[...document.querySelectorAll('td .bad')].every("
                "each => each.getBoundingClientRect().right <= innerWidth)"
            )
            assert browser.value(visible)
    assert browser.complaints == []
    assert {url.partition(":")[0] for url in browser.requested} <= {"file", "data"}


_CUT = """
[...document.querySelectorAll('svg')].flatMap(plot => {
  const frame = plot.getBoundingClientRect();
  const boxes = [...plot.querySelectorAll('text')].map(
    text => [text.textContent, text.getBoundingClientRect()]);
  return boxes.filter(([text, box]) => box.left < frame.left - 1 || box.right > frame.right + 1
    || boxes.some(([other, its]) => other !== text && Math.abs(its.top - box.top) < 4
      && box.left < its.left && its.left < box.right - 1)).map(([text]) => text);
})
"""
