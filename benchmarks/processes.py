"""Server processes under measurement: on a core of their own, watched through the kernel."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

#: How long a server may take until it listens, and until it is gone.
START_SECONDS = 20.0
STOP_SECONDS = 10.0

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class ServerError(Exception):
    """A server did not start, or died."""


@attrs.frozen
class Cores:
    """Which core serves and which one asks; the same one when the machine has no second."""

    server: int
    client: int

    @property
    def shared(self) -> bool:
        """Whether server and client compete: then only CPU time says something, rates do not."""
        return self.server == self.client

    def as_settings(self) -> dict[str, object]:
        """Return the cores for the settings of a report."""
        return {"server_core": self.server, "client_core": self.client}


def choose_cores() -> Cores:
    """Take the first and the last core that this process may use."""
    allowed = sorted(os.sched_getaffinity(0))
    return Cores(server=allowed[0], client=allowed[-1])


@contextlib.contextmanager
def pinned(core: int) -> Iterator[None]:
    """Keep this thread, and the processes that it starts, on *core*."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def core_busy_seconds(core: int) -> float:
    """Return how long *core* has worked since the machine started, for anybody."""
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name == f"cpu{core}":
            idle = int(fields[3]) + int(fields[4])
            return (sum(int(field) for field in fields[:8]) - idle) / _TICKS_PER_SECOND
    raise ServerError(f"/proc/stat has no core {core}")


class ServerProcess:
    """A running server; `start` makes one."""

    def __init__(self, name: str, process: "subprocess.Popen[str]") -> None:
        """Watch *process*, and read its stderr so that it never blocks on it."""
        self.name = name
        self.address = ""
        self.addresses: list[str] = []
        self.http_address = ""
        self._process = process
        self._last_lines: deque[str] = deque(maxlen=20)
        self._listening = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True, name=f"{name} stderr")
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._last_lines.append(line.rstrip())
            if not self.address and ('"listening"' in line or '"http"' in line):
                with contextlib.suppress(ValueError):
                    self._note(json.loads(line))
        self._listening.set()

    def _note(self, said: dict[str, object]) -> None:
        if said.get("event") == "http":  # a worker says so first
            self.http_address = str(said["address"])
        elif said.get("event") == "listening":
            addresses = said["addresses"]
            assert isinstance(addresses, list)
            self.addresses = [str(each) for each in addresses]
            self.address = self.addresses[0]
            self._listening.set()

    def wait_listening(self) -> None:
        """Wait until it has said where it listens.  Raises ServerError."""
        if not self._listening.wait(START_SECONDS) or not self.address:
            raise ServerError(f"{self.name} does not listen; it said:\n{self.last_words()}")

    def wait_port(self, address: str) -> None:
        """Wait until *address* takes connections, for a server that does not say so."""
        host, _, port = address.rpartition(":")
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
            except OSError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise ServerError(
                        f"{self.name} does not listen; it said:\n{self.last_words()}"
                    ) from None
                time.sleep(0.02)
            else:
                self.address = address
                return

    def last_words(self) -> str:
        """Return the last lines of its stderr."""
        return "\n".join(self._last_lines)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def cpu_seconds(self) -> float:
        """Return the CPU time, user and system, of all its threads, to the nanosecond."""
        # The kernel's clock id of another process's CPU time; see clock_getcpuclockid(3).
        return time.clock_gettime(~self.pid << 3 | 2)

    def family_cpu_seconds(self) -> float:
        """Return the CPU time of it and of the processes that it has started and that still run."""
        family, found = [self.pid], 0.0
        while family:
            pid = family.pop()
            found += time.clock_gettime(~pid << 3 | 2)
            for path in Path(f"/proc/{pid}/task").glob("*/children"):
                family += [int(child) for child in path.read_text().split()]
        return found

    def rss_bytes(self) -> int:
        """Return its resident memory."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE_BYTES

    def descriptors(self) -> int:
        """Return how many file descriptors it has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def is_alive(self) -> bool:
        """Return whether it still runs."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End it: SIGTERM, and SIGKILL when that does not do."""
        if self.is_alive():
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(STOP_SECONDS)
        if self._process.stderr is not None:
            self._process.stderr.close()


@contextlib.contextmanager
def start(
    name: str, command: Sequence[str], core: int | None, *, address: str | None = None
) -> Iterator[ServerProcess]:
    """Run *command* on *core*, None is any, until the block ends; it listens when that begins.

    A server that cannot say where it listens is told so in its command, and by *address*.
    Raises ServerError.
    """
    with contextlib.nullcontext() if core is None else pinned(core):
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    server = ServerProcess(name, process)
    try:
        if address is None:
            server.wait_listening()
        else:
            server.wait_port(address)
        yield server
    finally:
        server.stop()


def python_module(module: str, *arguments: str) -> list[str]:
    """Return the command that runs *module* with this interpreter."""
    return [sys.executable, "-m", module, *arguments]


def free_port() -> int:
    """Return a port of 127.0.0.1 that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
