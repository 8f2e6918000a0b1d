"""A control of schedules: sleeps until evenly spaced moments, and does nothing then.

`python -m benchmarks.playing.sleeper RATE SECONDS` begins when its stdin ends, and prints how late
it woke, as JSON.  What it was late, the machine did.
"""

import gc
import json
import sys
import time

from benchmarks.measures import percentile


def main() -> int:
    """Sleep, and print the quantiles in milliseconds."""
    rate, seconds = map(float, sys.argv[1:3])
    gc.freeze()
    sys.stdin.read()
    late_ms = []
    started = time.monotonic()
    for number in range(round(rate * seconds)):
        due = started + number / rate
        time.sleep(max(0.0, due - time.monotonic()))
        late_ms.append((time.monotonic() - due) * 1e3)
    shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    print(json.dumps({name: percentile(late_ms, share) for name, share in shares.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
