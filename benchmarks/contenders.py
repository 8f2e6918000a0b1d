"""The servers that are compared, each ready to be started."""

import contextlib
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from benchmarks.payloads import Shape, Template
from benchmarks.processes import ServerProcess, free_port, python_module, start

WORKER = "replay"
GRPC_AIO = "grpc.aio"
GRPCLIB = "grpclib"
NGHTTPD = "nghttpd"

#: What every worker is started with: a free port, said in JSON.
WORKER_OPTIONS = (
    "--host=127.0.0.1",
    "--grpc-base-port=0",
    "--grpc-count=1",
    "--log-format=json",
)


@attrs.frozen
class Pace:
    """How a server waits: before its first token, and between tokens."""

    gen_ms: float = 0.0
    token_ms: float = 0.0

    def options(self) -> list[str]:
        """Return the flags, which our worker and the peers share."""
        flags = []
        if self.gen_ms:
            flags += ["--gen-ms", f"{self.gen_ms:g}"]
        if self.token_ms:
            flags += ["--token-ms", f"{self.token_ms:g}"]
        return flags


def command(name: str, pace: Pace, *, worker_command: str | None = None) -> list[str]:
    """Return the command that starts the server *name* on a free port.

    *worker_command* measures another build of the worker in place of this one.
    """
    if name == WORKER:
        if worker_command is not None:
            return [*shlex.split(worker_command), *pace.options()]
        return python_module("replay", "serve", *WORKER_OPTIONS, *pace.options())
    if name == GRPC_AIO:
        return python_module("benchmarks.peers.grpc_aio", *pace.options())
    if name == GRPCLIB:
        return python_module("benchmarks.peers.grpclib_server", *pace.options())
    raise ValueError(f"no server is called {name!r}")


@contextlib.contextmanager
def running(
    names: Sequence[str], core: int, pace: Pace, *, worker_command: str | None = None
) -> Iterator[dict[str, ServerProcess]]:
    """Run the servers *names* side by side on *core*.  Raises ServerError."""
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(
                start(name, command(name, pace, worker_command=worker_command), core)
            )
            for name in names
        }


@contextlib.contextmanager
def static_server(
    shapes: Sequence[Shape], core: int, folder: Path
) -> Iterator[ServerProcess | None]:
    """Run nghttpd with a file as large as the answer to each of *shapes*, or yield None.

    The file of a shape is asked for by `static_path(shape)`.  nghttpd is written in C: it shows
    what the kernel's sockets and HTTP/2 cost when nothing is computed.
    """
    if shutil.which(NGHTTPD) is None:
        yield None
        return
    for shape in shapes:
        path = folder / static_path(shape).removeprefix("/")
        path.write_bytes(b"x" * Template(shape).answer_bytes)
    port = free_port()
    arguments = [NGHTTPD, "--no-tls", "-a", "127.0.0.1", "-d", str(folder), str(port)]
    with start(NGHTTPD, arguments, core, address=f"127.0.0.1:{port}") as server:
        yield server


def static_path(shape: Shape) -> str:
    """Return the path of the file that stands for the answer to *shape*."""
    return f"/{shape.prompt_tokens}-{shape.output_tokens}"
