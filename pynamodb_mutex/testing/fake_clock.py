"""A local clock that moves only when a test moves it."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from pynamodb_mutex._lock.runtime import clock

if TYPE_CHECKING:
    from typing_extensions import Self


class FakeClock(clock.LocalClock):
    """A context manager: inside its block the local clock of all locks in your process moves only by `advance`.

    Waiting threads wake when you have moved it far enough. The engine's own time continues: if you advance the clock, you
    simulate a process that was suspended or slow; if you do not, a process whose clock stood still. From then on your process
    does not report `~pynamodb_mutex.signals.clocks_disagree`.

    Example::

        from pynamodb_mutex import Mutex
        from pynamodb_mutex.testing import FakeClock

        with FakeClock() as clock:
            mutex = Mutex.for_key("report", lease=30, auto_renew=False)
            mutex.acquire()
            clock.advance(31)  # your process stood still
            print("you lost it", mutex.lost)
    """

    def __init__(self) -> None:
        """Start at the time of the real clock."""
        self._now = clock.LocalClock().now()
        self._moved = threading.Lock()
        self._waiting: list[tuple[float, threading.Lock]] = []
        self._is_over = False

    def __enter__(self) -> Self:
        self._is_over = False
        self._before = clock.replace_local_clock(self)
        # The real one, too: by it, what was learned while this one stood still is too late.
        self.by_hand = self._before.by_hand = True
        return self

    def __exit__(self, *_: object) -> None:
        # In this order: threads that are still waiting are woken, and must then read the real clock.
        clock.replace_local_clock(self._before)
        # Not by a time at which all is due: a thread that has just asked for the clock in use would read that time, and
        # compute with it what DynamoDB's time is, for the rest of the process.
        self._is_over = True
        self.advance(0.0)

    def now(self) -> float:
        """Return the time of this clock, in seconds since an arbitrary start."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward by a number of seconds, and wake the threads whose time has come."""
        with self._moved:
            self._now += seconds
            due = [lock for end, lock in self._waiting if self._is_over or end <= self._now]
        for lock in due:
            with suppress(RuntimeError):  # its thread has been woken already
                lock.release()

    def acquire(self, lock: threading.Lock, until: float) -> None:
        """Acquire a lock, or wait for it until a time of this clock.

        `advance` ends a wait by releasing the lock, as whoever wakes the thread sooner does.
        """
        entry = (until, lock)
        with self._moved:
            # `until` is a time, and not a number of seconds. Suppose a thread computes how many are left, the clock
            # is moved, and only then does the thread begin to wait: by a number of seconds it would wait too long.
            is_over = self._is_over or self._now >= until
            if not is_over:
                self._waiting.append(entry)
        if is_over:
            lock.acquire(blocking=False)
            return
        try:
            lock.acquire()
        finally:
            with self._moved:
                self._waiting.remove(entry)
