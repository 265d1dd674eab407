"""The schedule of renewals: what is due when, of all that the process holds."""

from __future__ import annotations

import heapq
import itertools
import math
from typing import TYPE_CHECKING

from pynamodb_mutex._operations.effects import Wakeup

if TYPE_CHECKING:
    from typing import Protocol

    class Scheduled(Protocol):
        """What is renewed, or at least loses its lease in time."""

        def due(self) -> float:
            """Return the local time at which something is to be done; infinity for never again."""

        def early(self) -> float:
            """Return the seconds by which it may be renewed before it is due, if that saves a request."""


_TAKEN_OUT = -math.inf
"""In place of the due time of a member that is being handled."""


class RenewalSchedule:
    """Members by the time at which they are due.

    Attributes:
        runs: Whether the renewal loop runs, or is about to.
        is_wanted: Whether it is needed, and does not run.
        wakes_at: Local time until which it waits. To wake it for every short lock would cost a tenth of what a
            cycle of acquire and release costs.
        wakeup: Ends its wait.
    """

    def __init__(self) -> None:
        self.runs = False
        self.is_wanted = False
        self.wakes_at = -math.inf
        self.wakeup = Wakeup()
        self._due: dict[Scheduled, float] = {}
        # an entry whose time is not its member's in _due is void
        self._heap: list[tuple[float, int, Scheduled]] = []
        self._serial = itertools.count()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is scheduled."""
        return not self._due

    def add(self, member: Scheduled) -> None:
        """Schedule a member from now on."""
        self._push(member, member.due())

    def remove(self, member: Scheduled) -> None:
        """Forget a member; what is under way for it goes on."""
        self._due.pop(member, None)
        # Most locks are released long before they are due: cut them out of the heap soon, for what
        # lives longer makes each garbage collection slower.
        if len(self._heap) > 2 * len(self._due) + 8:
            self._heap = [entry for entry in self._heap if self._is_valid(entry)]
            heapq.heapify(self._heap)

    def refresh(self, member: Scheduled) -> None:
        """Ask a member again when it is due, if it is still scheduled."""
        if member in self._due:
            self._push(member, member.due())

    def refresh_all(self) -> None:
        """Ask every member again when it is due: an answer has moved ends of leases nearer."""
        for member in list(self._due):
            self._push(member, member.due())

    def next_due(self) -> float:
        """Return the local time at which the next member is due, or before."""
        return self._heap[0][0] if self._heap else math.inf

    def take_due(self, now: float) -> Scheduled | None:
        """Take out a member that is due; None if none is. Give it back by `put_back`."""
        return self._take_before(now)

    def take_soon_due(self, first: Scheduled, now: float) -> list[Scheduled]:
        """Take out those that are due soon after the first, and so may share a request with it."""
        until = now + first.early()
        soon: list[Scheduled] = []
        while (member := self._take_before(until)) is not None:
            soon.append(member)
        return soon

    def put_back(self, member: Scheduled, due: float) -> None:
        """Put back a member that was taken out, at the time at which it is due next."""
        # else it was removed, or asked again since: then the time at hand may be out of date
        if self._due.get(member) == _TAKEN_OUT:
            self._push(member, due)

    def _take_before(self, until: float) -> Scheduled | None:
        while self._heap and self._heap[0][0] <= until:
            entry = heapq.heappop(self._heap)
            if self._is_valid(entry):
                # so that the next push is not mistaken for this entry
                self._due[entry[2]] = _TAKEN_OUT
                return entry[2]
        return None

    def _is_valid(self, entry: tuple[float, int, Scheduled]) -> bool:
        return self._due.get(entry[2]) == entry[0]

    def _push(self, member: Scheduled, due: float) -> None:
        if due == self._due.get(member):
            return
        if due == math.inf:
            self._due.pop(member, None)
            return
        if due < self.wakes_at:
            self.wakeup.ring()
        self._due[member] = due
        heapq.heappush(self._heap, (due, next(self._serial), member))
        self.is_wanted = not self.runs
