"""Renewals in the background: one thread that knows when, and a few that send.

The scheduling thread never waits for the network, so that a slow or hung request delays neither
another lock's renewal nor the news of a loss.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
from collections import deque
from typing import TYPE_CHECKING

from pynamodb_mutex._clock import local_clock

if TYPE_CHECKING:
    from typing import Protocol

    class Renewed(Protocol):
        """What the renewer looks after."""

        def due(self) -> float:
            """Return the local time at which `tend` wants to be called; infinity for never again."""

        def tend(self) -> bool:
            """Do what is due, without I/O; return whether a renewal should be sent."""

        def send_renewal(self) -> None:
            """Send one renewal. Called on a worker's thread; must not raise."""


_log = logging.getLogger("pynamodb_mutex")

WORKERS = 8
"""Threads that send renewals, at most."""

LINGER = 5.0
"""Seconds without work after which the threads end."""

LONGEST_SLEEP = 1.0
"""Seconds: a thread's wait does not count a suspension of the machine, the leases do."""


class Renewer:
    """Calls whatever is registered when it is due."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[Renewed, float] = {}
        # an entry whose time is not its member's in _due is void
        self._heap: list[tuple[float, int, Renewed]] = []
        self._serial = itertools.count()
        self._scheduler: threading.Thread | None = None
        self._wakes_at = -math.inf
        self._posted = threading.Condition()
        self._outbox: deque[Renewed] = deque()
        self._workers = 0
        self._idle = 0

    def add(self, member: Renewed) -> None:
        """Look after a member from now on."""
        with self._changed:
            self._push(member)

    def remove(self, member: Renewed) -> None:
        """Forget a member; what is under way for it goes on."""
        with self._changed:
            self._due.pop(member, None)
            # most locks are released long before they are due: cut them out of the heap soon, for what
            # lives longer makes each garbage collection slower
            if len(self._heap) > 2 * len(self._due) + 8:
                self._heap = [entry for entry in self._heap if self._valid(entry)]
                heapq.heapify(self._heap)

    def refresh(self, member: Renewed) -> None:
        """Ask a member again when it is due, if it is still looked after."""
        with self._changed:
            if member in self._due:
                self._push(member)

    def recheck(self) -> None:
        """Ask every member again when it is due: the local clock may have stood still."""
        with self._changed:
            for member in list(self._due):
                self._push(member)

    def _valid(self, entry: tuple[float, int, Renewed]) -> bool:
        return self._due.get(entry[2]) == entry[0]

    def _push(self, member: Renewed) -> None:
        due = member.due()
        if due == self._due.get(member):
            return
        if due == math.inf:
            self._due.pop(member, None)
            return
        self._due[member] = due
        heapq.heappush(self._heap, (due, next(self._serial), member))
        if self._scheduler is None:
            self._scheduler = threading.Thread(
                target=self._schedule, name="pynamodb-mutex-renewer", daemon=True
            )
            self._scheduler.start()
        elif due < self._wakes_at:
            self._changed.notify()

    def _schedule(self) -> None:
        idle_since = local_clock().now()
        while True:
            with self._changed:
                clock = local_clock()
                now = clock.now()
                if self._due:
                    idle_since = now
                elif now - idle_since >= LINGER:
                    self._heap.clear()
                    self._scheduler = None
                    return
                if not self._heap or self._heap[0][0] > now:
                    due = self._heap[0][0] if self._heap else math.inf
                    self._wakes_at = min(due, now + LONGEST_SLEEP)
                    clock.wait(self._changed, self._wakes_at - now)
                    self._wakes_at = -math.inf
                    continue
                entry = heapq.heappop(self._heap)
                if not self._valid(entry):
                    continue
                member = entry[2]
                # so that the next push is not taken for this entry
                self._due[member] = -math.inf
            # outside the lock, for the member may call back
            try:
                if member.tend():
                    self._post(member)
            except Exception:  # noqa: BLE001 - one that cannot start a thread must not end all
                _log.exception("a renewal could not be sent")
            self.refresh(member)

    def _post(self, member: Renewed) -> None:
        with self._posted:
            self._outbox.append(member)
            if self._idle >= len(self._outbox):
                self._posted.notify()
                return
            if self._workers == WORKERS:
                return
            # within the lock, and counted when it runs: it may fail to start
            threading.Thread(target=self._work, name="pynamodb-mutex-worker", daemon=True).start()
            self._workers += 1

    def _work(self) -> None:
        while True:
            with self._posted:
                self._idle += 1
                if not self._outbox:
                    self._posted.wait(LINGER)
                self._idle -= 1
                if not self._outbox:
                    self._workers -= 1
                    return
                member = self._outbox.popleft()
            member.send_renewal()
