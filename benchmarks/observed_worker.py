"""`replay` with one thing more: at SIGUSR1 it writes how many tasks it has into a file.

`python -m benchmarks.observed_worker FILE serve …` takes the arguments of `replay` after the file.
Nothing else is different, and nothing runs until the signal comes.
"""

import json
import os
import signal
import sys
from types import FrameType

import trio

from replay.cli import main as replay_command


def write_at_signal(path: str) -> None:
    """Write to *path* at every SIGUSR1; the file is there whole or not at all."""

    def write(number: int, frame: FrameType | None) -> None:
        # Python runs this between two steps of the loop's own thread.
        tasks = trio.lowlevel.current_statistics().tasks_living
        with open(f"{path}.new", "w") as file:
            json.dump({"tasks": tasks}, file)
        os.replace(f"{path}.new", path)

    signal.signal(signal.SIGUSR1, write)


if __name__ == "__main__":
    write_at_signal(sys.argv.pop(1))
    replay_command()
