"""When a process that serves looks for garbage."""

import subprocess
import sys

PROGRAM = """
import gc
from replay.cli.garbage import MIDDLE_COLLECTIONS, collect_seldom

class Ring:
    pass

def ring():
    one = Ring()
    one.itself = one

young, middle, _ = gc.get_threshold()
ring()
collect_seldom()
assert gc.get_threshold() == (young, middle, MIDDLE_COLLECTIONS)
assert not any(isinstance(each, Ring) for each in gc.get_objects())
assert len(gc.get_objects()) < 100 < gc.get_freeze_count()
full = gc.get_stats()[2]["collections"]
kept = []
for _ in range(200_000):
    ring()
    kept.append([])
assert gc.get_stats()[2]["collections"] == full
assert sum(isinstance(each, Ring) for each in gc.get_objects()) <= young * middle
"""


def test_what_is_there_stays_and_only_what_is_new_is_looked_at() -> None:
    """In a process of its own, since it is about the whole process."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
