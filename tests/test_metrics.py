"""The metrics: names, labels, and that they read the plain numbers when scraped."""

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from replay.config.model import TapCapture, TapConfig
from replay.metrics import WorkerMetrics, build_registry
from replay.packed import TokenIds
from replay.request import Request
from replay.taps.taps import Taps

SECRET = "sk-secret-request-id"


def taps_with_traffic() -> Taps:
    taps = Taps(
        [
            TapConfig(name="a", capture=TapCapture.REQUEST_RESPONSE, capacity=2),
            TapConfig(name="b", capture=TapCapture.REQUEST, models=("other",)),
        ]
    )
    for _ in range(3):
        with taps.record(
            Request(model="m", token_ids=TokenIds([1])), request_id=SECRET
        ) as recording:
            recording.observe([1, 2], 0, "stop")
            recording.end()
    tap = next(iter(taps))
    tap.take()
    tap.publish_errors += 1
    tap.put_down()
    tap.close()
    with taps.record(Request(model="m", token_ids=TokenIds([1]))):
        pass
    taps.record(Request(model="m", token_ids=TokenIds([1]))).__enter__().observe([1])
    return taps


def samples(
    taps: Taps, worker: WorkerMetrics | None = None
) -> dict[tuple[str, frozenset[str]], float]:
    """Return the value of each sample by name and labels, as a scrape shows it."""
    text = generate_latest(build_registry(list(taps), worker)).decode()
    assert SECRET not in text
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("shadow_tap_queued_total", ("a",), 2),
        ("shadow_tap_dropped_total", ("a", "full"), 1),
        ("shadow_tap_dropped_total", ("a", "closed"), 1),
        ("shadow_tap_dropped_total", ("a", "bytes"), 0),
        ("shadow_tap_dropped_total", ("b", "full"), 0),
        ("shadow_tap_publish_errors_total", ("a",), 1),
        ("replay_tap_published_total", ("a",), 0),
        ("replay_tap_lost_at_shutdown_total", ("a",), 0),
        ("replay_tap_skipped_total", ("b",), 5),
        ("replay_tap_outcomes_total", ("a", "complete"), 3),
        ("replay_tap_outcomes_total", ("a", "cancelled"), 1),
        ("replay_tap_in_flight", ("a",), 1),
        ("replay_tap_in_flight_bytes", ("a",), 4),
        ("replay_tap_queue_records", ("a",), 1),
        ("replay_tap_publish_lag_seconds_count", ("a",), 0),
    ],
)
def test_rule_56_a_scrape_shows_what_the_tap_counts(
    name: str, labels: tuple[str, ...], value: float
) -> None:
    assert samples(taps_with_traffic())[name, frozenset(labels)] == value


def test_a_scrape_shows_what_the_workers_count() -> None:
    worker = WorkerMetrics()
    for code in ("OK", "OK", "CANCELLED"):
        worker.count(code)
    worker.ttft.observe(3_000_000)
    worker.itl.observe(20_000_000)
    worker.itl.observe(90_000_000_000)
    found = samples(Taps([]), worker)
    assert found["replay_worker_requests_total", frozenset({"OK"})] == 2
    assert found["replay_worker_requests_total", frozenset({"CANCELLED"})] == 1
    first_token = "replay_worker_time_to_first_token_seconds"
    assert found[f"{first_token}_bucket", frozenset({"0.0025"})] == 0
    assert found[f"{first_token}_bucket", frozenset({"0.005"})] == 1
    assert found[f"{first_token}_sum", frozenset()] == pytest.approx(0.003)
    between = "replay_worker_inter_token_latency_seconds"
    assert found[f"{between}_bucket", frozenset({"2.5"})] == 1
    assert (
        found[f"{between}_bucket", frozenset({"+Inf"})]
        == found[f"{between}_count", frozenset()]
        == 2
    )


def test_rule_57_nothing_runs_before_the_publishers_and_a_start_can_be_tried_again() -> None:
    """Plain functions, outside of any loop: there is no task, and no registry but this one's."""
    config = TapConfig(name="a", capture=TapCapture.REQUEST_RESPONSE)
    for _ in range(2):
        assert samples(Taps([config]))["shadow_tap_queued_total", frozenset({"a"})] == 0


def test_rule_59_two_runtimes_have_registries_of_their_own() -> None:
    first, second = taps_with_traffic(), taps_with_traffic()
    next(iter(second)).queued = 77
    assert samples(first)["shadow_tap_queued_total", frozenset({"a"})] == 2
    assert samples(second)["shadow_tap_queued_total", frozenset({"a"})] == 77


def test_what_is_not_there_has_no_metric() -> None:
    assert samples(Taps([])) == {}
