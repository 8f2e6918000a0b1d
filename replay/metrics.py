"""Every counter, gauge and histogram, declared in one place.

The numbers are plain integers where they are counted; the collectors here read them when somebody
scrapes, on the loop's thread.  The registry belongs to one runtime and goes with it.  No label has
a value that a client can choose.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector, CollectorRegistry

from replay.histogram import NanosecondHistogram

#: Upper bounds in seconds.
TTFT_SECONDS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
ITL_SECONDS: Final = (
    *(0.0002, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075),
    *(0.1, 0.25, 0.5, 1.0, 2.5),
)


class WorkerMetrics:
    """What the workers of a runtime count about the Generate requests that they serve."""

    __slots__ = ("itl", "requests", "ttft")

    def __init__(self) -> None:
        self.requests: dict[str, int] = {}
        """Requests that have ended, by name of their status code."""
        self.ttft = NanosecondHistogram(TTFT_SECONDS)
        """Arrival to the first token."""
        self.itl = NanosecondHistogram(ITL_SECONDS)
        """Gaps between chunks with tokens."""

    def count(self, code: str) -> None:
        """Count a request that has ended with status *code*."""
        self.requests[code] = self.requests.get(code, 0) + 1


class TapNumbers(Protocol):
    """What is read of a tap.  `replay.taps.tap.Tap` says what each number means."""

    @property
    def name(self) -> str: ...
    @property
    def queued(self) -> int: ...
    @property
    def dropped_full(self) -> int: ...
    @property
    def dropped_closed(self) -> int: ...
    @property
    def dropped_bytes(self) -> int: ...
    @property
    def published(self) -> int: ...
    @property
    def publish_errors(self) -> int: ...
    @property
    def lost_at_shutdown(self) -> int: ...
    @property
    def skipped(self) -> int: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def in_flight_bytes(self) -> int: ...
    @property
    def still_queued(self) -> int: ...
    @property
    def queued_bytes(self) -> int: ...
    @property
    def outcomes(self) -> Mapping[Any, int]: ...
    @property
    def publish_lag(self) -> NanosecondHistogram: ...


class TapCollector(Collector):
    """Reads the taps.  The `shadow_tap_` names are those of Dynamo's tap (rule 56)."""

    def __init__(self, taps: Sequence[TapNumbers]) -> None:
        self._taps = taps

    def collect(self) -> Iterator[Metric]:
        """Yield every family of the taps."""
        taps = self._taps
        dropped = CounterMetricFamily(
            "shadow_tap_dropped", "Records dropped by the tap.", labels=("tap", "reason")
        )
        outcomes = CounterMetricFamily(
            "replay_tap_outcomes", "Joined records by outcome.", labels=("tap", "outcome")
        )
        lag = HistogramMetricFamily(
            "replay_tap_publish_lag_seconds", "Queueing to publishing.", labels=("tap",)
        )
        for tap in taps:
            for reason, count in (
                ("full", tap.dropped_full),
                ("closed", tap.dropped_closed),
                ("bytes", tap.dropped_bytes),
            ):
                dropped.add_metric((tap.name, reason), count)
            for outcome, count in tap.outcomes.items():
                outcomes.add_metric((tap.name, str(outcome)), count)
            _add_histogram(lag, (tap.name,), tap.publish_lag)
        yield _counters("shadow_tap_queued", "Records queued.", taps, "queued")
        yield dropped
        yield _counters(
            "shadow_tap_publish_errors", "Records that failed to publish.", taps, "publish_errors"
        )
        yield _counters("replay_tap_published", "Records published.", taps, "published")
        yield _counters(
            "replay_tap_lost_at_shutdown",
            "Records queued but never published: the drain or the publisher ended.",
            taps,
            "lost_at_shutdown",
        )
        yield _counters("replay_tap_skipped", "Requests the tap does not select.", taps, "skipped")
        yield outcomes
        yield lag
        yield _gauges("replay_tap_in_flight", "Responses being recorded.", taps, "in_flight")
        yield _gauges("replay_tap_in_flight_bytes", "Bytes they hold.", taps, "in_flight_bytes")
        yield _gauges("replay_tap_queue_records", "Records waiting.", taps, "still_queued")
        yield _gauges("replay_tap_queue_bytes", "Bytes waiting.", taps, "queued_bytes")

    describe = collect


class WorkerCollector(Collector):
    """Reads the workers."""

    def __init__(self, worker: WorkerMetrics) -> None:
        self._worker = worker

    def collect(self) -> Iterator[Metric]:
        """Yield every family of the workers."""
        requests = CounterMetricFamily(
            "replay_worker_requests", "Generate requests by status code.", labels=("code",)
        )
        for code, count in self._worker.requests.items():
            requests.add_metric((code,), count)
        yield requests
        ttft = HistogramMetricFamily(
            "replay_worker_time_to_first_token_seconds", "Arrival to the first token."
        )
        _add_histogram(ttft, (), self._worker.ttft)
        yield ttft
        itl = HistogramMetricFamily(
            "replay_worker_inter_token_latency_seconds", "Gaps between chunks with tokens."
        )
        _add_histogram(itl, (), self._worker.itl)
        yield itl

    describe = collect


def build_registry(taps: Sequence[TapNumbers], worker: WorkerMetrics | None) -> CollectorRegistry:
    """Return a registry that reads *taps* and *worker* when it is scraped."""
    registry = CollectorRegistry()
    if taps:
        registry.register(TapCollector(taps))
    if worker is not None:
        registry.register(WorkerCollector(worker))
    return registry


def _counters(
    name: str, documentation: str, taps: Sequence[TapNumbers], attribute: str
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, documentation, labels=("tap",))
    for tap in taps:
        family.add_metric((tap.name,), getattr(tap, attribute))
    return family


def _gauges(
    name: str, documentation: str, taps: Sequence[TapNumbers], attribute: str
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, documentation, labels=("tap",))
    for tap in taps:
        family.add_metric((tap.name,), getattr(tap, attribute))
    return family


def _add_histogram(
    family: HistogramMetricFamily, labels: Sequence[str], histogram: NanosecondHistogram
) -> None:
    buckets = [
        ("+Inf" if bound == float("inf") else str(bound), count)
        for bound, count in histogram.cumulated()
    ]
    family.add_metric(labels, buckets, histogram.sum_ns / 1e9)
