"""How a float32 of the wire is written as JSON.

Python keeps it as a double, whose own shortest form is of no use: 0.7 sent as float32 would read
0.699999988079071.
"""

import math
import struct
from functools import lru_cache

_FLOAT32 = struct.Struct("<f")

#: Nine significant digits tell every float32 from all others.
_MOST_DIGITS = 9


def float32_json(value: float) -> str:
    """Return the shortest JSON number that reads back as the float32 *value*.

    Reading back means as readers of JSON do it: to a double, then to float32.  Of two numbers of
    the same length the nearer one is taken.  What JSON has no number for is a string: "NaN",
    "inf", "-inf".
    """
    if value == 0.0:
        return repr(value)  # the cache would take -0.0 for 0.0
    if not math.isfinite(value):
        return '"NaN"' if math.isnan(value) else f'"{value}"'
    return _shortest(value)


@lru_cache(maxsize=4096)
def _shortest(value: float) -> str:
    packed = _FLOAT32.pack(value)
    candidates = [value]
    if abs(math.frexp(value)[0]) == 0.5:
        # At a power of two the neighbour below is nearer than the one above.  The number in the
        # middle of all that read back as *value* may then round to fewer digits than itself.
        candidates.append(value * (1 + 2.0**-26))
    for digits in range(1, _MOST_DIGITS):
        for candidate in candidates:
            near = float(f"{candidate:.{digits}g}")
            try:
                if _FLOAT32.pack(near) == packed:
                    return repr(near)
            except OverflowError:
                continue  # rounded up, beyond the largest float32
    return repr(float(f"{value:.{_MOST_DIGITS}g}"))
