"""PURE.  One run of the load generator as a value, and as the JSON that its processes get."""

import json
from typing import Any

import attrs
import cattrs

from benchmarks.generator.arrivals import SECOND_NS, Arrivals
from benchmarks.generator.workload import Workload


@attrs.frozen(kw_only=True)
class LoadSpec:
    """What one run does."""

    target: str
    """`grpc://host:port` or `http://host:port/v1`."""
    workload: Workload = attrs.field(factory=Workload)
    concurrency: int | None = None
    """Requests in flight of a closed loop; None: an open loop."""
    arrivals: Arrivals | None = None
    """Of an open loop."""
    seconds: float | None = None
    """How long requests are sent, warm-up included; None: until `requests` were."""
    requests: int | None = None
    """At most this many are sent."""
    warm_up_s: float = 0.0
    """What is sent before is sent and left out of the numbers."""
    deadline_s: float | None = None
    """How long a request may take."""
    drain_s: float = 10.0
    """How long the last requests may go on when nothing more is sent."""
    processes: int = 1
    connections: int = 1
    """For each process, of a gRPC target."""
    model: str | None = None
    """Of an OpenAI target; None: the first that it lists."""
    vocab_size: int | None = None
    """Ids of prompts are below this; None: the target is asked."""
    run: str = "load"
    """How the ids of its requests begin."""

    @property
    def is_open(self) -> bool:
        """Whether requests have times of their own."""
        return self.arrivals is not None

    def due_ns(self) -> list[int]:
        """Return when each request of an open loop is due."""
        assert self.arrivals is not None
        if self.seconds is None:
            assert self.requests is not None
            schedule = self.arrivals.due_ns()
            return [next(schedule) for _ in range(self.requests)]
        due = list(self.arrivals.until(round(self.seconds * SECOND_NS)))
        return due if self.requests is None else due[: self.requests]

    def problems(self) -> list[str]:
        """Return what keeps it from being run, each as a line."""
        found = []
        if (self.concurrency is None) == (self.arrivals is None):
            found.append("give one of --concurrency and --rate")
        if self.seconds is None and self.requests is None:
            found.append("give --seconds or --requests, or both")
        numbers = {
            "--concurrency": self.concurrency,
            "--requests": self.requests,
            "--processes": self.processes,
            "--connections": self.connections,
            "--prefixes": self.workload.prefixes,
        }
        found += [
            f"{name} must be at least 1"
            for name, value in numbers.items()
            if value is not None and value < 1
        ]
        spans = {"--seconds": self.seconds, "--deadline": self.deadline_s}
        if self.arrivals is not None:
            spans |= {"--rate": self.arrivals.rate, "--shape": self.arrivals.shape}
        found += [
            f"{name} must be above 0"
            for name, value in spans.items()
            if value is not None and not value > 0
        ]
        if not 0 <= self.workload.cancel_share <= 1:
            found.append("--cancel-rate must be from 0 to 1")
        if self.workload.cancel_delay_s < 0 or self.warm_up_s < 0 or self.drain_s < 0:
            found.append("times must not be below 0")
        if self.workload.prefix_tokens < 0:
            found.append("--prefix-tokens must not be below 0")
        if self.seconds is not None and self.warm_up_s >= self.seconds:
            found.append("the warm-up leaves nothing of --seconds")
        if self.concurrency is not None and self.concurrency < self.processes:
            found.append("--concurrency must not be below --processes")
        return found


def spec_to_json(spec: LoadSpec) -> str:
    """Return *spec* as one line."""
    return json.dumps(cattrs.unstructure(spec))


def spec_from_json(text: str) -> LoadSpec:
    """Read what `spec_to_json` wrote."""
    return cattrs.structure(json.loads(text), LoadSpec)


def settings_of(spec: LoadSpec) -> dict[str, Any]:
    """Return what a report says of *spec*: what is set, by name."""
    plain: dict[str, Any] = cattrs.unstructure(spec)
    flat: dict[str, Any] = {}
    for name, value in plain.items():
        if isinstance(value, dict):
            flat |= value
        elif value is not None and name != "run":
            flat[name] = value
    return flat
