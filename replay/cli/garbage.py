"""When a process that serves looks for garbage: in what is new often, in all that there is seldom.

A full collection looks at every object that is not frozen.  With the contents of a KV cache that
takes up to 70 ms, in which no token leaves, and by default it comes whenever there is a quarter
more.  Counting references frees nearly everything here; what is left are a few cycles, of which
most are still young.
"""

import gc

#: A full collection for so many of the middle ones: one for 1.4 million objects that were added.
MIDDLE_COLLECTIONS = 200


def collect_seldom() -> None:
    """Take what is there by now as there to stay.  It is for the program, not for the library."""
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, MIDDLE_COLLECTIONS)
    gc.collect()
    gc.freeze()
