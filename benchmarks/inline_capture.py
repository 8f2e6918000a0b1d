"""The control of the capture benchmark: `replay`, but each line is written inline by its request.

`python -m benchmarks.inline_capture serve --capture FILE …` takes the same arguments as `replay`,
builds the same lines and runs everything else unchanged; only the journal, its thread and its lock
are not in the way of a line.
"""

import os
import sys

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.cli import main as replay_command
from replay.rpc.calls import Call
from replay.worker.capture import capture_line
from replay.worker.request_capture import FileCapture


def write_inline(path: str) -> None:
    """Have every capture of this process written to *path* by the request that it belongs to."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    async def capture(self: FileCapture, message: pb.GenerateRequest, call: Call) -> None:
        os.write(descriptor, capture_line(message))

    FileCapture.capture = capture  # type: ignore[method-assign]


if __name__ == "__main__":
    write_inline(sys.argv[sys.argv.index("--capture") + 1])
    replay_command()
