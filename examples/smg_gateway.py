"""Put the real smg gateway (PyPI `smg`) in front of a running worker.

    python examples/smg_gateway.py 127.0.0.1:50051

prints the gateway's address when the worker is ready behind it, and runs until Ctrl-C.  The gateway
lives in a virtual environment of its own, made once in the user's cache folder: it wants other
versions of gRPC and protobuf than `replay` may want, and it is no dependency of it.
"""

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

VERSION = "1.13.0"

#: From its start until the worker is ready behind it: two seconds on an idle machine.
READY_SECONDS = 40.0
#: The gateway waits one second for its requests (`--shutdown-grace-period-secs`), then ends.
STOP_SECONDS = 8.0

#: Never through a proxy: the gateway is on this machine.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


class GatewayError(Exception):
    """The gateway could not be installed, started, or brought to take the worker."""


class _PortTakenError(Exception):
    """Another process was quicker to take the port that was free a moment ago."""


def cache_folder() -> Path:
    """Return the folder that outlives this tree, by the XDG rule."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "replay-gateway"


def install(cache: Path) -> Path:
    """Install the gateway into *cache* unless it is there, and return its program.

    Two processes may call this at once: one installs, the other waits.  An installation that was
    cut short, or whose interpreter is gone, is made anew.  Raises GatewayError if pip fails.
    """
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"smg-{VERSION}"
    complete = folder / "complete"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (complete.exists() and (folder / "bin" / "python").exists()):
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, with_pip=True)
            pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
            done = subprocess.run(
                [*pip, f"smg=={VERSION}"], stdin=subprocess.DEVNULL, capture_output=True, text=True
            )
            if done.returncode:
                raise GatewayError(f"smg {VERSION} could not be installed: {done.stderr[-1000:]}")
            complete.touch()
    return folder / "bin" / "smg"


@attrs.frozen(kw_only=True)
class Gateway:
    """A gateway that runs and has the worker ready."""

    url: str
    metrics_url: str
    """Where it tells its own counters, in the text format of Prometheus."""
    model: str
    """Name of the model as the workers gave it."""
    log: Path
    """What the gateway wrote to its standard output and error."""

    def get(self, path: str) -> tuple[int, str]:
        """Send a GET and return status and body."""
        return _send(urllib.request.Request(self.url + path))

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric over its series that have *labels*."""
        _, text = _send(urllib.request.Request(self.metrics_url))
        wanted = {f'{label}="{value}"' for label, value in labels.items()}
        total = 0.0
        for line in text.splitlines():
            series, _, value = line.rpartition(" ")
            metric, _, rest = series.partition("{")
            if metric == name and wanted <= set(rest.rstrip("}").split(",")):
                total += float(value)
        return total

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, str]:
        """Send *body* as JSON and return status and body; 0 when the connection failed.

        *headers* are names with underscores: `x_request_id="7"`.
        """
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return _send(
            urllib.request.Request(
                self.url + path,
                json.dumps(body).encode(),
                {"content-type": "application/json", **named},
            )
        )


def _send(request: urllib.request.Request, *, seconds: float = 20.0) -> tuple[int, str]:
    try:
        with _open(request, timeout=seconds) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode("utf-8", "replace")
    except OSError as error:
        return 0, str(error)


@contextlib.contextmanager
def running_gateway(
    *workers: str, log: Path, policy: str = "cache_aware", arguments: Sequence[str] = ()
) -> Iterator[Gateway]:
    """Run a gateway in front of *workers* (HOST:PORT) and yield when it can use all of them.

    The workers must serve a tokenizer, and must outlive this.  *arguments* go to `smg launch` as
    they are.  Raises GatewayError; its text ends with what the gateway logged.
    """
    program = install(cache_folder())
    with contextlib.ExitStack() as stack:
        for attempt in range(3):
            try:
                gateway = stack.enter_context(_launched(program, workers, log, policy, arguments))
            except _PortTakenError:
                if attempt == 2:
                    raise GatewayError("no free port for the gateway in three attempts") from None
            else:
                break
        yield gateway


@contextlib.contextmanager
def _launched(
    program: Path, workers: Sequence[str], log: Path, policy: str, arguments: Sequence[str]
) -> Iterator[Gateway]:
    port, prometheus_port = _free_ports(2)
    command: list[str | Path] = [program, "launch", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(prometheus_port)]
    command += ["--worker-urls", *(f"grpc://{worker}" for worker in workers), "--policy", policy]
    command += ["--worker-startup-check-interval", "1", "--load-monitor-interval", "1"]
    command += ["--health-check-interval-secs", "2", "--shutdown-grace-period-secs", "1"]
    command += ["--disable-retries", "--log-level", "info", *arguments]
    # Offline: a model name that looks like one of a hub is not worth a look-up.
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C at the terminal is for us, who then stop it in order
        )
    try:
        url = f"http://127.0.0.1:{port}"
        yield Gateway(
            url=url,
            metrics_url=f"http://127.0.0.1:{prometheus_port}/metrics",
            model=_wait_ready(process, url, log, len(workers)),
            log=log,
        )
    finally:
        _stop(process)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _wait_ready(process: subprocess.Popen[bytes], url: str, log: Path, workers: int) -> str:
    """Ask until all workers are ready and the tokenizer is loaded; return the model's name."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            text = log.read_text(errors="replace")
            if "Address already in use" in text:
                raise _PortTakenError
            raise GatewayError(f"the gateway ended with {process.returncode}\n{text[-2000:]}")
        ready = [each for each in _listed(url, "workers") if each.get("status") == "ready"]
        if len(ready) == workers:
            model: str = ready[0]["model_id"]
            if any(each.get("name") == model for each in _listed(url, "v1/tokenizers")):
                return model
        time.sleep(0.05)
    text = log.read_text(errors="replace")
    raise GatewayError(f"the gateway did not take the workers in {READY_SECONDS} s\n{text[-2000:]}")


def _listed(url: str, path: str) -> list[dict[str, Any]]:
    status, body = _send(urllib.request.Request(f"{url}/{path}"), seconds=5)
    if status != 200:
        return []
    found: list[dict[str, Any]] = json.loads(body)[path.rpartition("/")[2]]
    return found


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main() -> int:
    """Run a gateway in the foreground until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(description="Run the smg gateway in front of a worker.")
    parser.add_argument("worker", metavar="HOST:PORT")
    parser.add_argument("--policy", default="cache_aware")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="replay-gateway-") as folder:
        log = Path(folder) / "smg.log"
        try:
            with running_gateway(options.worker, log=log, policy=options.policy) as gateway:
                print(f"{gateway.url} serves {gateway.model}; Ctrl-C ends it", flush=True)
                signal.pause()
        except GatewayError as error:
            print(error, file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
