"""The local clock: the only source of local time; tests and the simulation replace it.

Only differences between its readings mean anything. No decision of the protocol reads a wall clock: server time is in
`pynamodb_mutex._lock.protocol.server_time`.
"""

from __future__ import annotations

import threading
import time
from functools import partial

_SUSPEND_AWARE = getattr(time, "CLOCK_BOOTTIME", None)


class LocalClock:
    """A clock that only runs forward, and counts suspension of the machine where the system can (CLOCK_BOOTTIME).

    Attributes:
        by_hand: Whether a test moves, or has moved, the time of this process: then answers contradict each other about the
            time, and no other clock is to blame.
    """

    by_hand = False

    now = staticmethod(
        time.monotonic if _SUSPEND_AWARE is None else partial(time.clock_gettime, _SUSPEND_AWARE)
    )
    """Returns seconds since an arbitrary start. A C function, not a Python method: each step of an operation calls it."""

    def acquire(self, lock: threading.Lock, until: float) -> None:
        """Acquire a lock of `threading`, or give up at a local time.

        It may return too early or too late: `threading` counts no suspension. ``until`` is infinity for never.
        """
        ahead = max(until - self.now(), 0.0)
        # `threading` raises for a timeout beyond TIMEOUT_MAX, some hundred years: wait for ever instead
        lock.acquire(timeout=ahead if ahead < threading.TIMEOUT_MAX else -1)


_clock = LocalClock()


def local_clock() -> LocalClock:
    return _clock


def replace_local_clock(clock: LocalClock) -> LocalClock:
    """Use another clock from now on, for tests; return the one that was in use."""
    global _clock
    before, _clock = _clock, clock
    return before


def read_clock() -> float:
    """Return the local time, in seconds, by the clock that is in use."""
    return _clock.now()
