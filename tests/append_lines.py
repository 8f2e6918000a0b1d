"""A process that appends numbered lines to a file and says which ones are in it.

    python append_lines.py PATH NAME COUNT LENGTH PAUSE_MS

Eight tasks share the work, each with a pause behind its line; SIGTERM ends them early.  A number
is printed when its `append` has returned, so a number on the output is a line in the file,
whatever happens to the process afterwards.
"""

import itertools
import json
import os
import signal
import sys
from collections.abc import Iterator

import trio

from replay.journal import Journal
from replay.worker.capture import end_torn_line


def numbered_line(name: str, number: int, length: int) -> bytes:
    """Return a line of *length* bytes that says whose it is."""
    line = json.dumps({"writer": name, "number": number, "pad": ""}).encode()
    return line[:-2] + b"x" * (length - len(line) - 1) + b'"}\n'


async def append_numbers(
    journal: Journal, name: str, numbers: Iterator[int], length: int, pause_ms: int
) -> None:
    for number in numbers:
        await journal.append(numbered_line(name, number, length))
        os.write(sys.stdout.fileno(), b"%d\n" % number)
        await trio.sleep(pause_ms / 1000)


async def main(path: str, name: str, count: int, length: int, pause_ms: int) -> None:
    """Append *count* lines of *length* bytes."""
    stopped = trio.Event()
    numbers = itertools.takewhile(lambda _: not stopped.is_set(), range(count))
    async with Journal.open(path, begin=end_torn_line) as journal, trio.open_nursery() as stopping:
        stopping.start_soon(set_at_sigterm, stopped)
        async with trio.open_nursery() as writers:
            for _ in range(8):
                writers.start_soon(append_numbers, journal, name, numbers, length, pause_ms)
        stopping.cancel_scope.cancel()


async def set_at_sigterm(stopped: trio.Event) -> None:
    """Set *stopped* when the process is asked to end."""
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            stopped.set()


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:3], *map(int, sys.argv[3:]))
