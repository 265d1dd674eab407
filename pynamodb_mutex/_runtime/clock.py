"""The local clock. Only differences between its readings mean anything."""

from __future__ import annotations

import math
import threading
import time

_SUSPEND_AWARE = getattr(time, "CLOCK_BOOTTIME", None)


class LocalClock:
    """The local clock: it only runs forward, and counts suspension where the system can."""

    def now(self) -> float:
        """Return seconds since an arbitrary start."""
        if _SUSPEND_AWARE is None:
            return time.monotonic()
        return time.clock_gettime(_SUSPEND_AWARE)

    def wait(self, condition: threading.Condition, until: float) -> None:
        """Wait on a condition that is held, until it is notified or a local time has come."""
        ahead = until - self.now()
        if ahead > 0:
            condition.wait(None if ahead == math.inf else ahead)


_clock = LocalClock()


def local_clock() -> LocalClock:
    """Return the clock in use."""
    return _clock


def replace_local_clock(clock: LocalClock) -> LocalClock:
    """Put another clock in use, for tests, and return the one before."""
    global _clock
    before, _clock = _clock, clock
    return before


def read_clock() -> float:
    """Return the local time by the clock in use."""
    return _clock.now()
