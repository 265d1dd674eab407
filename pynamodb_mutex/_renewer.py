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
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pynamodb_mutex._clock import local_clock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Protocol

    class Renewed(Protocol):
        """What the renewer looks after."""

        @property
        def batch(self) -> object | None:
            """Those of the same may be renewed by one request; None: by none with others."""

        @property
        def early(self) -> float:
            """Seconds by which it may be renewed before it is due, if that spares a request."""

        def due(self) -> float:
            """Return the local time at which `tend` wants to be called; infinity for never again."""

        def tend(self, ahead: float = 0.0) -> tuple[float, bool]:
            """Do what is due so many seconds ahead, without I/O.

            Returns:
                The local time at which to be called again, infinity for never; and whether to send a
                renewal.
            """

        def send_renewal(self, *others: Any) -> None:
            """Send one renewal, or one with others. Called on a worker's thread; must not raise."""


_log = logging.getLogger("pynamodb_mutex")

MOST_TOGETHER = 25
"""Statements that DynamoDB takes in one request."""

WORKERS = 8
"""Threads that send renewals, at most."""

LINGER = 5.0
"""Seconds without work after which the threads end."""

LONGEST_SLEEP = 1.0
"""Seconds: a thread's wait does not count a suspension of the machine, the leases do."""

SHORTEST_SLEEP = 0.01
"""Seconds from one call of a member to the next, unless something happens to it in between.

Whatever time a member returns: one that is due again at once, and again, would take a whole core.
"""


_TAKEN_OUT = -math.inf
"""In place of the due time of a member that is being called."""


@contextmanager
def _going_on() -> Iterator[None]:
    """Log what is raised inside the block."""
    try:
        yield
    except Exception:  # noqa: BLE001 - one that cannot start a thread must not end all
        _log.exception("a renewal could not be sent")


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
        self._outbox: deque[list[Renewed]] = deque()
        self._workers = 0
        self._idle = 0

    def add(self, member: Renewed) -> None:
        """Look after a member from now on."""
        with self._changed:
            self._push(member, member.due())

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
                self._push(member, member.due())

    def recheck(self) -> None:
        """Ask every member again when it is due: the local clock may have stood still."""
        with self._changed:
            for member in list(self._due):
                self._push(member, member.due())

    def _valid(self, entry: tuple[float, int, Renewed]) -> bool:
        return self._due.get(entry[2]) == entry[0]

    def _put_back(self, member: Renewed, due: float) -> None:
        """Put a member that was taken out where it is due next, as it said itself."""
        with self._changed:
            # else it was removed, or asked again since: then the time at hand may be out of date
            if self._due.get(member) == _TAKEN_OUT:
                self._push(member, due)

    def _push(self, member: Renewed, due: float) -> None:
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
                first = self._pop()
                together = [] if first is None else [first, *self._soon_due(first, now)]
            # outside the lock, for members may call back
            self._tend(together, now)

    def _pop(self) -> Renewed | None:
        """Take out whoever is due first; None if its entry is void. The lock is held."""
        entry = heapq.heappop(self._heap)
        if not self._valid(entry):
            return None
        # so that the next push is not taken for this entry
        self._due[entry[2]] = _TAKEN_OUT
        return entry[2]

    def _soon_due(self, first: Renewed, now: float) -> list[Renewed]:
        """Take out those who are due soon after the first, if it may share a request."""
        soon: list[Renewed] = []
        until = -math.inf if first.batch is None else now + first.early
        while self._heap and self._heap[0][0] <= until:
            member = self._pop()
            if member is not None:
                soon.append(member)
        return soon

    def _tend(self, members: list[Renewed], now: float) -> None:
        """Let members that are due together do so, each batch by as few requests as it takes."""
        batches: dict[object, list[Renewed]] = {}
        for member in members:
            # of one that fails: not at once, and not never
            due, sends = now + LONGEST_SLEEP, False
            with _going_on():
                batch = member.batch
                shared = batch is not None and len(members) > 1
                due, sends = member.tend(member.early if shared else 0.0)
            if sends:
                batches.setdefault(batch if shared else member, []).append(member)
            self._put_back(member, max(due, now + SHORTEST_SLEEP))
        for together in batches.values():
            for start in range(0, len(together), MOST_TOGETHER):
                with _going_on():
                    self._post(together[start : start + MOST_TOGETHER])

    def _post(self, members: list[Renewed]) -> None:
        with self._posted:
            self._outbox.append(members)
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
                first, *others = self._outbox.popleft()
            first.send_renewal(*others)
