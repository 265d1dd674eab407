"""Renewals in the background: one thread that knows when, and a few that send.

The scheduling thread never waits for the network, so that a slow or hung request delays neither
another lock's renewal nor the news of a loss; unless the system refuses every thread that could send.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from functools import partial
from typing import TYPE_CHECKING

from pynamodb_mutex._clock import local_clock
from pynamodb_mutex._threads import LINGER, Workers, going_on

if TYPE_CHECKING:
    from typing import Any, Protocol

    from pynamodb_mutex._threads import Threads

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


MOST_TOGETHER = 25
"""Statements that DynamoDB takes in one request."""

WORKERS = 8
"""Threads that send renewals, at most."""

LONGEST_SLEEP = 1.0
"""Seconds: a thread's wait does not count a suspension of the machine, the leases do."""

RETRY = 0.1
"""Seconds from one try to the next to start a thread that the system refuses."""

SHORTEST_SLEEP = 0.01
"""Seconds from one call of a member to the next, unless something happens to it in between.

Whatever time a member returns: one that is due again at once, and again, would take a whole core.
"""


_TAKEN_OUT = -math.inf
"""In place of the due time of a member that is being called."""


class Renewer:
    """Calls whatever is registered when it is due.

    Args:
        threads: Starts the threads.
    """

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._workers = Workers(threads, "pynamodb-mutex-worker", WORKERS)
        self._changed = threading.Condition()
        self._due: dict[Renewed, float] = {}
        # an entry whose time is not its member's in _due is void
        self._heap: list[tuple[float, int, Renewed]] = []
        self._serial = itertools.count()
        # or is about to, once the system gives a thread for it
        self._schedules = False
        self._wakes_at = -math.inf

    def add(self, member: Renewed) -> None:
        """Look after a member from now on."""
        with self._changed:
            self._push(member, member.due())
        self._threads.start()

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
        self._threads.start()

    def recheck(self) -> None:
        """Ask every member again when it is due: an answer has moved ends of leases nearer."""
        with self._changed:
            for member in list(self._due):
                self._push(member, member.due())
        self._threads.start()

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
        if not self._schedules:
            self._threads.put("pynamodb-mutex-renewer", self._schedule)
            self._schedules = True
        elif due < self._wakes_at:
            self._changed.notify()

    def _schedule(self) -> None:
        idle_since = local_clock().now()
        while True:
            # what the system refuses a thread for is tried again as long as this one lives
            self._threads.start()
            self._workers.help_out()
            refusing = self._threads.refusing
            with self._changed:
                clock = local_clock()
                now = clock.now()
                if self._due or refusing:
                    idle_since = now
                elif now - idle_since >= LINGER:
                    self._heap.clear()
                    self._schedules = False
                    return
                if not self._heap or self._heap[0][0] > now:
                    due = self._heap[0][0] if self._heap else math.inf
                    self._wakes_at = min(due, now + (RETRY if refusing else LONGEST_SLEEP))
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
            with going_on("what was due could not be done"):
                batch = member.batch
                shared = batch is not None and len(members) > 1
                due, sends = member.tend(member.early if shared else 0.0)
            if sends:
                batches.setdefault(batch if shared else member, []).append(member)
            self._put_back(member, max(due, now + SHORTEST_SLEEP))
        for together in batches.values():
            for start in range(0, len(together), MOST_TOGETHER):
                first, *others = together[start : start + MOST_TOGETHER]
                self._workers.post(partial(first.send_renewal, *others))
