"""A worker's configuration with taps, and the consumers that read them, as processes."""

import contextlib
import json
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.processes import STOP_SECONDS, ServerError, pinned, python_module

#: The two taps of Dynamo's demonstration.
TAPS: tuple[dict[str, Any], ...] = (
    {
        "name": "shadow-replay",
        "topic": "shadow-replay",
        "capture": "request_response",
        "filters": ["strip-multimodal", "strip-embeds"],
    },
    {
        "name": "shadow-audit",
        "topic": "shadow-audit",
        "capture": "request",
        "filters": ["tokens-only"],
    },
)

#: What a consumer's report says of records that did not come.
LOSSES = ("tap_drops", "transport_loss", "tail_loss")

#: How long a consumer may take until it has joined.
JOIN_SECONDS = 20.0


def write_config(
    folder: Path, taps: Sequence[dict[str, Any]], *, worker: dict[str, Any] | None = None
) -> Path:
    """Write the configuration of a worker with *taps*, whose discovery is in *folder* too."""
    config = {
        "schema_version": 1,
        "worker": {"engine": {"kind": "canned"}, **(worker or {})},
        "event_plane": {"discovery": {"kind": "file", "root": str(folder / "discovery")}},
        "taps": list(taps),
    }
    path = folder / "taps.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


class ConsumerProcess:
    """A running `replay consume`; `consuming` starts one."""

    def __init__(self, folder: Path, topic: str, process: "subprocess.Popen[str]") -> None:
        """Watch *process*, which writes its summary into *folder*."""
        self.topic = topic
        self._summary = folder / f"{topic}.json"
        self._process = process
        self._joined = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("joined"):
                self._joined.set()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def wait_joined(self) -> None:
        """Wait until it reads.  Raises ServerError."""
        if not self._joined.wait(JOIN_SECONDS):
            raise ServerError(f"the consumer of {self.topic} does not join")

    def end(self) -> dict[str, Any]:
        """End it, and return what it has counted; empty if it could not tell."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        with contextlib.suppress(OSError):
            found: dict[str, Any] = json.loads(self._summary.read_text())
            return found
        return {}


@contextlib.contextmanager
def consuming(folder: Path, topic: str, core: int) -> Iterator[ConsumerProcess]:
    """Read *topic* on *core* until the block ends.  Raises ServerError when it does not join."""
    command = python_module(
        "replay",
        "consume",
        f"--topic={topic}",
        f"--discovery={folder / 'discovery'}",
        f"--summary-path={folder / topic}.json",
    )
    with pinned(core):
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    consumer = ConsumerProcess(folder, topic, process)
    try:
        consumer.wait_joined()
        yield consumer
    finally:
        if process.poll() is None:
            consumer.end()


def account_fault(report: Mapping[str, Any], sent: int, *, may_lose: bool) -> str | None:
    """Return what is wrong with the account of a consumer that was there for *sent* records."""
    losses = {key: report.get(key) for key in LOSSES}
    known = [value for value in losses.values() if value is not None]
    if len(known) < len(LOSSES):
        return f"the loss is not known: {losses}"
    if report["records"] + sum(known) != sent:
        return f"{report['records']} records and {losses} of {sent}"
    if any(known) and not may_lose:
        return f"records were lost: {losses}"
    return None
