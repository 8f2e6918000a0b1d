"""A timer as exact as the kernel's.

Trio waits in epoll, whose timeout counts whole milliseconds and rounds up, so a plain sleep is half
a millisecond late on average, and up to a whole one.  A timer descriptor is not rounded.  Where
there is none (another system than Linux, no descriptor left, a clock that is not the real one) a
plain sleep has to do.
`os.timerfd_create` is of Python 3.13; until that is the oldest, libc is called.
"""

import ctypes
import math
import os
import time
from struct import Struct
from typing import Self

import trio

_NONBLOCK, _CLOEXEC = os.O_NONBLOCK, os.O_CLOEXEC

#: libc's `struct itimerspec`: an interval (none), and when it first expires: s, ns each.
_SETTING = Struct("@4l")

#: From here on half a millisecond is nothing, and the numbers stay small enough for the kernel.
_LONGEST_SECONDS = 3600.0


class ExactTimer:
    """Sleeps for one task at a time."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        try:
            create = self._libc.timerfd_create
        except AttributeError:
            self._descriptor = -1
        else:
            self._descriptor = create(time.CLOCK_MONOTONIC, _NONBLOCK | _CLOEXEC)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the descriptor."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    async def sleep_until(self, moment: float) -> None:
        """Sleep until *moment* of `trio.current_time()`; only a checkpoint when that has passed."""
        left_seconds = moment - trio.current_time()
        if left_seconds <= 0:
            await trio.lowlevel.checkpoint()
        elif self._descriptor < 0 or not _is_real_time(moment, left_seconds):
            await trio.sleep_until(moment)
        else:
            setting = _SETTING.pack(0, 0, *divmod(int(left_seconds * 1e9) + 1, 1_000_000_000))
            self._libc.timerfd_settime(self._descriptor, 0, setting, None)
            await trio.lowlevel.wait_readable(self._descriptor)
            os.read(self._descriptor, 8)


def _is_real_time(moment: float, left_seconds: float) -> bool:
    """Tell whether the loop's clock goes as the kernel's does: a test's stands still or jumps."""
    if left_seconds > _LONGEST_SECONDS:
        return False
    there = trio.lowlevel.current_clock().deadline_to_sleep_time(moment)
    return math.isclose(there, left_seconds, rel_tol=0.01, abs_tol=0.001)
