"""The local clock. Only differences between its readings mean anything."""

from __future__ import annotations

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

    def acquire(self, lock: threading.Lock, until: float) -> None:
        """Acquire a lock of `threading`, or wait for it until a local time has come."""
        ahead = max(until - self.now(), 0.0)
        # beyond what `threading` counts, some hundred years, for ever
        lock.acquire(timeout=ahead if ahead < threading.TIMEOUT_MAX else -1)


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
