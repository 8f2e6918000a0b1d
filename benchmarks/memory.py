"""The most memory that this process has held.

`getrusage` is no use for that: its number outlives exec, so that it may be what the parent held
when it started this process.
"""

import re
from pathlib import Path


def peak_rss_bytes() -> int:
    """Return the highest resident memory of this process since its program began."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
