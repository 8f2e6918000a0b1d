"""Medians, ratios, bars, and the reports made of them."""

import io
import json
import math

import pytest
from rich.console import Console

from benchmarks import capture, server
from benchmarks.h2load import H2loadError, parse, read_latencies
from benchmarks.measures import Bar, Measure, percentile
from benchmarks.results import Column, Report, Table

REPORT = """\
starting benchmark...
spawning thread #0: 4 total client(s). 1000 total requests
Application protocol: h2c
progress: 100% done

finished in 51.35ms, 19474.61 req/s, 38.36MB/s
requests: 1000 total, 1000 started, 1000 done, 999 succeeded, 1 failed, 0 errored, 0 timeout
status codes: 999 2xx, 0 3xx, 1 4xx, 0 5xx
traffic: 1.97MB (2065396) total, 28.32KB (29000) headers (space savings 65.48%), 1.91MB (2000000) data
                     min         max         mean         sd        +/- sd
time for request:      211us      5.59ms      1.43ms       557us    87.40%
"""  # noqa: E501


def test_the_report_of_h2load_is_read():
    outcome = parse(REPORT)
    assert (outcome.requests, outcome.succeeded, outcome.data_bytes) == (1000, 999, 2000000)
    assert outcome.seconds == pytest.approx(0.05135)


def test_a_report_that_lacks_a_line_is_refused():
    with pytest.raises(H2loadError, match="not understood"):
        parse(REPORT.replace("traffic:", "trouble:"))


def test_latencies_are_the_third_column_in_microseconds():
    assert read_latencies("1700000000000000\t200\t1500\n1700000000000001\t200\t2500\n") == (
        0.0015,
        0.0025,
    )


@pytest.mark.parametrize(
    ("share", "wanted"), [(0.5, 5), (0.9, 9), (0.99, 10), (1.0, 10), (0.0, 1), (0.1, 1), (0.11, 2)]
)
def test_a_percentile_is_a_value_that_was_measured(share, wanted):
    assert percentile([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], share) == wanted


def test_ratios_are_made_round_by_round():
    """A slow phase of the machine hits both sides of a round, and not the ratio."""
    theirs, ours = Measure((100.0, 200.0, 110.0)), Measure((10.0, 20.0, 11.0))
    assert theirs.over(ours).rounds == pytest.approx((10.0, 10.0, 10.0))
    assert theirs.spread == pytest.approx(100 / 110)


@pytest.mark.parametrize(
    ("bar", "kept"),
    [
        (Bar("a", 25.0, at_least=25), True),
        (Bar("a", 24.9, at_least=25), False),
        (Bar("a", 1.1, at_most=1.1), True),
        (Bar("a", 1.2, at_most=1.1), False),
        (Bar("a", math.nan, at_least=1), False),
        (Bar("a", math.nan, at_most=1), False),
    ],
)
def test_a_bar_is_kept_or_not(bar, kept):
    assert bar.kept is kept


def report():
    table = Table("costs", [Column("who", "server"), Column("us", "CPU µs", 1, spread=True)])
    table.rows.append({"who": "ours", "us": Measure((40.0, 44.0, 42.0))})
    table.rows.append({"who": "theirs", "us": math.nan})
    return Report("server", machine={}, tables=[table], bars=[Bar("ratio", 30.0, at_least=25)])


def test_the_file_holds_what_the_table_shows(tmp_path):
    out = io.StringIO()
    assert report().finish(Console(file=out, width=100), tmp_path / "r.json") == 0
    assert "42.0\N{NO-BREAK SPACE}±5%" in out.getvalue()
    assert "PASS" in out.getvalue()
    kept = json.loads((tmp_path / "r.json").read_text())
    rows = kept["tables"][0]["rows"]
    assert rows[0]["us"] == {"median": 42.0, "low": 40.0, "high": 44.0, "rounds": [40, 44, 42]}
    assert rows[1]["us"] is None
    assert kept["bars"][0]["kept"] is True


def test_a_missed_bar_is_shown_and_only_a_wrong_answer_fails():
    slow = report()
    slow.bars = [Bar("ratio", 3.0, at_least=25)]
    out = io.StringIO()
    assert slow.finish(Console(file=out, width=100), None) == 0
    assert "FAIL" in out.getvalue()
    slow.wrong_answers.append("ours, 512/32: 3 bytes too many")
    assert slow.finish(Console(file=out, width=100), None) == 1
    assert "3 bytes too many" in out.getvalue()


def test_a_run_beside_other_work_says_what_cannot_be_concluded():
    quiet, noisy = report(), report()
    quiet.note_noise(0.02)
    noisy.note_noise(0.4)
    noisy.note_noise(0.02)
    assert quiet.as_json()["cannot_conclude"] == []
    assert "40%" in noisy.as_json()["cannot_conclude"][0]


def test_a_missing_h2load_is_said_with_the_package_that_has_it(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    assert server.main(["--quick"]) == 1
    assert capture.main(["--quick"]) == 1
    assert capsys.readouterr().out.count("apt-get install nghttp2-client") == 2
