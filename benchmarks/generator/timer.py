"""A timer as exact as the kernel's.

Trio waits in epoll, whose timeout counts whole milliseconds and rounds up, so a plain sleep is half
a millisecond late on average: more than a fast server takes.  A timer descriptor is not rounded.
`os.timerfd_create` is of Python 3.13; until that is the oldest, libc is called.
"""

import ctypes
import os
import time
from struct import Struct
from typing import Self

import trio

_NONBLOCK, _CLOEXEC = os.O_NONBLOCK, os.O_CLOEXEC


#: libc's `struct itimerspec`: an interval (none), and when it first expires: s, ns each.
_SETTING = Struct("@4l")


class Timer:
    """Sleeps for one task at a time."""

    def __init__(self) -> None:
        """Make the descriptor.  Raises OSError."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.timerfd_create(time.CLOCK_MONOTONIC, _NONBLOCK | _CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)

    async def sleep_until(self, moment: float) -> None:
        """Sleep until *moment* of `trio.current_time()`; at once when that has passed."""
        left_ns = int((moment - trio.current_time()) * 1e9)
        if left_ns <= 0:
            await trio.lowlevel.checkpoint()
            return
        setting = _SETTING.pack(0, 0, *divmod(left_ns, 1_000_000_000))
        self._libc.timerfd_settime(self._descriptor, 0, setting, None)
        await trio.lowlevel.wait_readable(self._descriptor)
        os.read(self._descriptor, 8)
