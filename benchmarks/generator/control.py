"""The control of an open loop: sleeps until the same times, and does nothing then.

`python -m benchmarks.generator.control`, with the same lines on stdin as a process that sends.  How
late it wakes is what the machine does to anybody at that moment.
"""

import json
import os
import sys
import time
from array import array
from pathlib import Path

from benchmarks.generator.child import Part, leave_garbage_alone, say
from benchmarks.generator.sender import Share
from benchmarks.generator.spec import spec_from_json


def main() -> int:
    """Sleep through the schedule, and write how many nanoseconds late each waking was."""
    given = json.loads(sys.stdin.readline())
    part = Part(**{**given, "share": Share(**given["share"])})
    if part.core is not None:
        os.sched_setaffinity(0, {part.core})
    due_ns = spec_from_json(part.spec).due_ns()
    lateness = array("q")
    leave_garbage_alone()
    say("ready")
    line = sys.stdin.readline()
    if not line:
        return 1
    started = int(line)
    for due in due_ns:
        left = started + due - time.monotonic_ns()
        if left > 0:
            time.sleep(left / 1e9)
        lateness.append(time.monotonic_ns() - started - due)
    Path(part.rows).write_bytes(lateness.tobytes())
    say("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
