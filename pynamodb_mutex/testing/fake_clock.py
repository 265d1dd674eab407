"""A local clock that moves only when a test moves it."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

from pynamodb_mutex._runtime import clock

if TYPE_CHECKING:
    from typing_extensions import Self


class FakeClock(clock.LocalClock):
    """A local clock that moves only by `advance`; a context manager.

    All locks of the process use it inside the block. Waiting threads wake when it has been moved far
    enough. The engine's own time continues: `advance` simulates a process that was suspended or slow, and
    not advancing simulates one whose clock stood still.
    """

    def __init__(self) -> None:
        """Start at the time of the real clock."""
        self._now = clock.LocalClock().now()
        self._moved = threading.Condition()
        self._waiting: list[tuple[float, threading.Condition]] = []

    def __enter__(self) -> Self:
        self._before = clock.replace_local_clock(self)
        return self

    def __exit__(self, *_: object) -> None:
        clock.replace_local_clock(self._before)
        self.advance(math.inf)

    def now(self) -> float:
        """Return the time of this clock, in seconds since an arbitrary start."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward by a number of seconds, and wake the threads whose time has come."""
        with self._moved:
            self._now += seconds
            due = [condition for end, condition in self._waiting if end <= self._now]
        for condition in due:
            with condition:
                condition.notify_all()

    def wait(self, condition: threading.Condition, until: float) -> None:
        """Wait on a condition that is held, until it is notified or the clock is moved far enough."""
        with self._moved:
            # Until a time, not for a number of seconds: a thread that reads how many are left, and for which
            # the clock is moved before it waits here, would sleep for as much longer.
            if self._now >= until:
                return
            self._waiting.append((until, condition))
        try:
            condition.wait()
        finally:
            with self._moved:
                self._waiting.remove((until, condition))
