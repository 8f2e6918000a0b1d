"""Run `replay serve` as a process of its own, learn where it listens, and stop it in order."""

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import attrs

#: From the start of the process to its first port: half a second on an idle machine.
READY_SECONDS = 30.0
#: More than the grace of five seconds that streams in flight get by default.
STOP_SECONDS = 20.0


class WorkerError(Exception):
    """The worker did not start, or did not end as it should.  The text has what it logged."""


@attrs.frozen(kw_only=True, eq=False)
class WorkerProcess:
    """A worker that listens."""

    addresses: list[str]
    """Where, one `host:port` for each gRPC worker."""
    log: Path
    process: "subprocess.Popen[str]"

    @property
    def address(self) -> str:
        """The address of the first worker."""
        return self.addresses[0]

    def stop(self) -> int:
        """Ask the worker to end, wait, and return its exit code; kill it if it does not."""
        self.process.terminate()
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


@contextlib.contextmanager
def running_worker(
    *flags: str | Path, log: Path, cwd: Path | None = None
) -> Iterator[WorkerProcess]:
    """Run `replay serve` with *flags* on a free port, in *cwd*, and yield when it listens.

    Leaving the block stops it.  Raises WorkerError if it does not listen, or if it ends with an
    exit code that is not 0.
    """
    command = [sys.executable, "-m", "replay", "serve", "--grpc-base-port", "0"]
    process = subprocess.Popen(
        [*command, "--log-format", "json", *flags],
        cwd=cwd,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C at the terminal is for us, who then stop it in order
    )
    addresses: list[str] = []
    listens_or_ended = threading.Event()
    reader = threading.Thread(target=_read_log, args=(process, log, addresses, listens_or_ended))
    reader.start()
    try:
        listens_or_ended.wait(READY_SECONDS)
        if not addresses:
            process.kill()
            reader.join()
            raise WorkerError(f"the worker does not listen\n{log.read_text()[-2000:]}")
        worker = WorkerProcess(addresses=addresses, log=log, process=process)
        yield worker
        code = worker.stop()
        if code:
            raise WorkerError(f"the worker ended with {code}\n{log.read_text()[-2000:]}")
    finally:
        process.kill()
        process.wait()
        reader.join()


def _read_log(
    process: "subprocess.Popen[str]", path: Path, addresses: list[str], found: threading.Event
) -> None:
    """Copy the log line by line, so that the worker never waits; look for where it listens."""
    assert process.stderr is not None
    with process.stderr, path.open("w") as copy:
        for line in process.stderr:
            copy.write(line)
            copy.flush()
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if event.get("event") == "listening":
                    addresses += event["addresses"]
                    found.set()
    found.set()
