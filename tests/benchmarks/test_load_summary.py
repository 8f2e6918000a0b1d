"""What is said of a run: its numbers, and when they are only the client's."""

import json
from array import array

import attrs
import pytest

from benchmarks.generator.arrivals import Arrivals
from benchmarks.generator.rows import Answered, pack_rows, row_of, unpack_rows
from benchmarks.generator.run import LoadRun
from benchmarks.generator.spec import LoadSpec
from benchmarks.generator.summary import summarise
from benchmarks.generator.tables import (
    endings_table,
    goodput_table,
    latency_table,
    load_plots,
    schedule_bars,
    schedule_table,
    sweep_plots,
    throughput_table,
)
from replay.player.observation import Choice, Observation, Outcome

MS = 1_000_000
OPEN = LoadSpec(target="", arrivals=Arrivals(rate=100), seconds=2.0, warm_up_s=1.0)
CLOSED = LoadSpec(target="", concurrency=4, seconds=2.0, warm_up_s=1.0)


def answered(number, *, delay_ms=0.1, ttft_ms=20.0, tokens=4, spec=OPEN, error=None):
    due = number * 10 * MS
    chunks = array("Q", (round((ttft_ms + 5 * at) * MS) for at in range(tokens)))
    return Answered(
        Observation(
            request_id=str(number),
            position=number,
            outcome=Outcome.COMPLETE if error is None else Outcome.ERROR,
            choices=(Choice(output_tokens=tokens),),
            prompt_tokens=8,
            first_token_offset_ns=chunks[0] if tokens else None,
            end_offset_ns=(chunks[-1] if tokens else 0) + MS,
            chunk_offsets_ns=chunks,
            scheduled_ns=due if spec.is_open else None,
            sent_ns=due + round(delay_ms * MS),
            error=error,
        ),
        asked_tokens=4,
    )


def run_of(answers, *, spec=OPEN, control_ms=0.05, busy=0.2, core_busy=0.3):
    planned = len(spec.due_ns()) if spec.is_open else None
    return LoadRun(
        spec=spec,
        answered=tuple(answers),
        planned=planned,
        control_ns=[round(control_ms * MS)] * (planned or 0),
        busy=(busy,),
        core_busy=(core_busy,),
    )


def steady(**changes):
    return run_of([answered(number, **changes) for number in range(200)])


def test_what_is_sent_in_the_warm_up_is_in_no_number():
    run = run_of([answered(number, ttft_ms=500 if number < 100 else 20) for number in range(200)])
    summary = summarise(run)
    assert summary.sent == 100
    assert summary.latency_ms("ttft", 1.0) == pytest.approx(20)


def test_the_latencies_are_those_of_the_definitions():
    summary = summarise(steady())
    assert summary.latency_ms("ttft", 0.5) == pytest.approx(20)
    assert summary.latency_ms("itl", 0.5) == pytest.approx(5)
    assert len(summary.latencies["itl"]) == 300
    assert summary.latency_ms("e2e", 0.5) == pytest.approx(36)
    assert summary.latency_ms("tpot", 0.5) == pytest.approx(16 / 3)


def test_a_rate_counts_what_ended_in_the_time_whenever_it_was_sent():
    """Else a run of 20 ms answers would lose those of its last 20 ms, and not gain the first."""
    summary = summarise(steady())
    assert summary.request_rate == pytest.approx(100, abs=1)
    assert summary.token_rate == pytest.approx(400, abs=4)


def test_failures_are_counted_by_status_and_have_no_latency():
    answers = [answered(number) for number in range(150)]
    answers += [answered(number, error="UNAVAILABLE", tokens=0) for number in range(150, 200)]
    summary = summarise(run_of(answers))
    assert summary.statuses == {"complete": 50, "UNAVAILABLE": 50}
    assert len(summary.latencies["e2e"]) == 50


def test_a_complete_answer_of_another_length_is_noticed():
    assert summarise(steady()).short == 0
    assert summarise(steady(tokens=3)).short == 100


def test_the_schedule_is_held_against_a_sleeper():
    schedule = summarise(steady(delay_ms=1.5)).schedule
    assert schedule.delay.quantile(0.99) == pytest.approx(1.5)
    assert schedule.control.quantile(0.99) == pytest.approx(0.05)
    assert (schedule.late, schedule.not_sent) == (100, 0)
    assert schedule.achieved_rate == pytest.approx(100)


def test_requests_that_were_not_sent_lower_the_rate():
    run = run_of([answered(number) for number in range(0, 200, 2)])
    schedule = summarise(run).schedule
    assert schedule.not_sent == 100
    assert schedule.kept_share == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (steady(), None),
        (steady(delay_ms=0.99), None),
        (steady(delay_ms=1.01), "p50, 1.01 ms, is above 5% of the first token's, 20.00 ms"),
        (
            run_of([answered(n, delay_ms=3.0 if n % 50 == 0 else 0.1) for n in range(200)]),
            "the schedule delay's p99, 3.00 ms",
        ),
        (run_of([answered(number) for number in range(0, 200, 2)]), "requests a second were sent"),
    ],
)
def test_an_open_loop_is_client_bound_when_it_was_late_or_slow(run, reason):
    summary = summarise(run)
    assert summary.is_client_bound is (reason is not None)
    assert reason is None or any(reason in bound for bound in summary.bounds)


@pytest.mark.parametrize(("core_busy", "is_bound"), [(0.5, False), (0.95, True)])
def test_a_closed_loop_is_client_bound_when_its_core_has_no_time_left(core_busy, is_bound):
    answers = [answered(number, spec=CLOSED) for number in range(200)]
    summary = summarise(run_of(answers, spec=CLOSED, core_busy=core_busy))
    assert summary.is_client_bound is is_bound
    assert summary.schedule is None


def test_goodput_is_the_player_s():
    summary = summarise(steady(), objectives={"ttft": 25.0, "e2e": 10.0})
    assert summary.goodput.share == 0.0
    assert summary.goodput.missed == {"ttft": 0, "e2e": 100}


def test_a_client_bound_latency_is_never_shown_without_that_word():
    slow = {"100/s": [summarise(steady(), objectives={"e2e": 50.0}), bound_summary()]}
    shown = [
        *(str(row["metric"]) for row in latency_table(slow).rows),
        *(str(row["bound"]) for row in throughput_table(slow).rows),
        *(str(row["point"]) for row in goodput_table(slow, {"e2e": 50.0}).rows),
        *(plot.title for plot in load_plots(slow) if plot.title != "Schedule delay"),
        sweep_plots({100: slow["100/s"], 200: slow["100/s"]}, "requests/s")[1].title,
    ]
    assert len(shown) >= 10
    assert [text for text in shown if "client-bound" not in text] == []


def bound_summary():
    return summarise(steady(delay_ms=5.0), objectives={"e2e": 50.0})


def test_a_run_that_kept_up_is_not_called_client_bound():
    good = {"100/s": [summarise(steady())]}
    tables = [latency_table(good), throughput_table(good), endings_table(good)]
    text = json.dumps([attrs.asdict(plot) for plot in load_plots(good)])
    text += json.dumps([table.as_json() for table in tables])
    assert "client-bound" not in text


def test_the_bars_are_the_median_of_the_rounds():
    rounds = [summarise(steady(delay_ms=delay)) for delay in (0.1, 9.0, 1.05)]
    (delay, rate) = schedule_bars({"100/s": rounds})
    assert delay.value == pytest.approx(1.0)
    assert (delay.kept, rate.kept) == (True, True)
    assert schedule_table({"100/s": rounds}).rows[0]["above"].rounds == pytest.approx(
        (0.05, 8.95, 1.0)
    )


def test_rows_are_the_same_after_their_way():
    answers = [answered(1), answered(2, error="UNAVAILABLE", tokens=0), answered(3, spec=CLOSED)]
    rows = [row_of(int(a.observation.request_id), a.asked_tokens, a.observation) for a in answers]
    again = list(unpack_rows(pack_rows(rows)))
    assert [each.asked_tokens for each in again] == [4, 4, 4]
    for before, after in zip(answers, again, strict=True):
        assert after.observation.ttft_ns == before.observation.ttft_ns
        assert after.observation.itl_ns == before.observation.itl_ns
        assert after.observation.error == before.observation.error
        assert after.observation.schedule_delay_ns == before.observation.schedule_delay_ns
        assert after.observation.output_tokens == before.observation.output_tokens
