"""The clocks of this package, bound when the plugin is loaded: before conftest files and fixtures can replace them.

Programs that freeze or scale time (freezegun, fixtures that patch `time`) look for the functions of `time` in every
loaded module and replace them. The objects here call the same functions, but are others, so they are not found. The
date is that of loading plus what has passed since by the monotonic clock. What cannot be avoided is noticed (`Moment`):
functions that were replaced before this module was loaded, or in C, and libraries that are preloaded (libfaketime).
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

perf_counter_ns: Callable[[], int] = partial(time.perf_counter_ns)
monotonic: Callable[[], float] = partial(time.monotonic)
process_time: Callable[[], float] = partial(time.process_time)
process_time_ns: Callable[[], int] = partial(time.process_time_ns)
thread_time: Callable[[], float] = partial(time.thread_time)
sleep: Callable[[float], None] = partial(time.sleep)

_monotonic_ns: Callable[[], int] = partial(time.monotonic_ns)
_BEGAN_NS = time.time_ns() - time.monotonic_ns()
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_Seconds = partial(datetime.timedelta, 0)

_UPTIME = "/proc/uptime"
_TICK_S = 0.01
"""Of `/proc/uptime`."""
_TOLERATED = 0.02
"""Difference between two clocks, as a fraction, that is not reported."""


def time_ns() -> int:
    """Nanoseconds since 1970 (UTC), as `time.time_ns`."""
    return _BEGAN_NS + _monotonic_ns()


def utc_now() -> datetime.datetime:
    """The current date and time in UTC."""
    return _EPOCH + _Seconds(time_ns() / 1e9)


def today() -> datetime.date:
    """The current date in UTC, the same on all machines; tests replace this function."""
    return utc_now().date()


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment by the clock that steps are timed with, and by the kernel's own, which no patch in a process reaches."""

    before_s: float
    """By `perf_counter_ns`, just before the kernel was asked."""
    after_s: float
    """Just after that."""
    kernel_s: float | None
    """Since the system started; `None` where the system does not say (not Linux)."""

    @classmethod
    def now(cls) -> Moment:
        """Ask both clocks; takes some 20 µs."""
        before = perf_counter_ns()
        kernel = _uptime_s()
        return cls(before / 1e9, perf_counter_ns() / 1e9, kernel)

    def disagreement(self, since: Moment) -> str:
        """One line if the clocks do not agree about the time from `since` to this moment; empty if they do.

        >>> Moment(1.5, 1.5, 15.0).disagreement(Moment(1.0, 1.0, 10.0)).partition(":")[0]
        'time.perf_counter_ns counted 0.50 s of 5.00 s (/proc/uptime)'
        """
        if self.kernel_s is None or since.kernel_s is None:
            return ""
        kernel = self.kernel_s - since.kernel_s
        least, most = self.before_s - since.after_s, self.after_s - since.before_s
        slow = most < (kernel - _TICK_S) * (1 - _TOLERATED) - _TICK_S
        fast = least > (kernel + _TICK_S) * (1 + _TOLERATED) + _TICK_S
        if not (slow or fast):
            return ""
        preloaded = " (LD_PRELOAD is set)" if os.environ.get("LD_PRELOAD") else ""
        return (
            f"time.perf_counter_ns counted {least:.2f} s of {kernel:.2f} s ({_UPTIME}): a patch or a preloaded library"
            f"{preloaded} changes the clock of this process, or the machine was suspended. Measure without it"
        )


def _uptime_s() -> float | None:
    try:
        with open(_UPTIME, "rb") as file:
            return float(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return None
