"""When to poll, to retry, to renew and to hand over: the constants, each with its reason, and the sums made with them.

Times are local, in seconds. Callers hand in randomness, as a function like `random.uniform`. Nothing waits here: the
operations in `pynamodb_mutex._lock.operations` yield a `Wait` until these times. The polls of fair waiters are in
`waiting_line`; `pynamodb_mutex._lock.operations.local_queue` decides which waiter of a process polls.
"""

from __future__ import annotations

import math
from collections.abc import Callable

Uniform = Callable[[float, float], float]
"""A function like `random.uniform`."""

# -- polling ---------------------------------------------------------------------------------------

LONGEST_SILENCE = 2.0
"""Seconds for which the waiters of one process rely on the first in line to poll. If its request hangs or fails, so that it has
no answer by then, the others send requests of their own."""

LONGEST_BETWEEN_MARKS = 2.0
"""Longest wait between two polls of a waiter that marks the row, so that readers make way for it, in seconds."""

SHORTEST_WAIT = 0.01
"""Shortest wait between two requests for the same lock, in seconds, if the first one showed nothing new."""


def next_wait(previous: float, poll: tuple[float, float], uniform: Uniform) -> float:
    """Return the seconds to wait before the next poll: decorrelated jitter.

    After M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015. The cap limits the range from which the
    wait is drawn. If it limited the result, waits would pile up at the cap.

    ``previous`` is the wait before, 0 for none; ``poll`` has the shortest and the longest wait.
    """
    base, cap = poll
    return uniform(base, min(cap, 3 * max(base, previous)))


def poll_at_end(now: float, ends: float, poll: tuple[float, float], uniform: Uniform) -> float:
    """Return the local time at which to poll for a claim that ends at ``ends``.

    Many may wait for the same end, so their polls are spread over the shortest wait after it. If the end has passed,
    the poll is still SHORTEST_WAIT away: a waiter that is refused, or reads that the lock is held, does not spin.
    """
    return max(now + SHORTEST_WAIT, ends + uniform(0, poll[0]))


# -- retries ---------------------------------------------------------------------------------------

PATIENCE = 0.5
"""Seconds for which a transient failure is retried even if the caller does not wait for the lock."""

UNANSWERED_PATIENCE = 10.0
"""Most seconds for which requests to an endpoint that has never answered this process are retried.

A mistyped region or host is indistinguishable from a network that is down: without this limit, a caller without a timeout
would wait for ever.
"""

RELEASE_PATIENCE = 5.0
"""Seconds for which a release, a forced release, a fair waiter's leaving of the line, the last renewal before a detach,
or a write without a lock that meets a lock's request is retried. A lock that could not be released by then expires with its
lease."""

SCAN_PATIENCE = 30.0
"""Seconds for which the request for one page of a scan is retried."""

_FIRST_RETRY = 0.05
"""Longest wait before the first retry, in seconds. This limit doubles with each retry."""

_LONGEST_RETRY = 1.0
"""Longest wait before any retry, in seconds."""


class Retries:
    """The times of the attempts at one request. The waits between them grow exponentially, with full jitter.

    Args:
        now: Local time at which the first attempt is made.
        until: Local time after which nothing is retried; not before PATIENCE has passed.
        most: Most retries of failures other than conflicts, whatever the time; None if the time alone counts.
    """

    def __init__(self, now: float, until: float, most: int | None = None) -> None:
        self._begun = now
        self._left = most
        self._until = max(until, now + PATIENCE)
        self._wait = _FIRST_RETRY

    def next(
        self, now: float, uniform: Uniform, *, answered: bool, conflict: bool = False
    ) -> float | None:
        """Return the local time of the next attempt; None if it is too late for one.

        Args:
            now: Local time.
            uniform: Randomness.
            answered: Whether the endpoint has ever answered this process, as of this failure: another thread may have had an
                answer since the last failure.
            conflict: Whether the request met another request at the same row. ``most`` does not limit these: the user chose
                it without knowing that the library's requests meet a write without the lock.
        """
        until = self._until if answered else min(self._until, self._begun + UNANSWERED_PATIENCE)
        if self._left is not None and not conflict:
            until = math.inf if self._left > 0 else now
            self._left -= 1
        if now >= until:
            return None
        at = min(now + uniform(0, self._wait), until)
        self._wait = min(_LONGEST_RETRY, 2 * self._wait)
        return at


# -- renewal ---------------------------------------------------------------------------------------

RENEWALS_PER_LEASE = 3
"""Renewals that become due in one lease: if one fails, it is retried before the lease ends."""

MOST_RENEWALS_UNDER_WAY = 2
"""Most renewals of one lock under way at a time: a request that hangs is followed by another one, not by many."""


class RenewalPlan:
    """When to renew next, as planned from the end of the lease that was known then.

    An answer about any row may show that server time is further on than was known. A lease then ends earlier, by up to a
    second, which may be all of a short lease: a renewal that was planned for the later end would come after the end.

    Attributes:
        since: Local time before the last renewal was sent, or at which it failed.
        end: Local time at which the lease ends, as it was known then.
        at: Local time that was planned for the renewal; infinity for never.
    """

    __slots__ = ("at", "end", "since")

    def __init__(self, since: float, end: float, at: float) -> None:
        self.since = since
        self.end = end
        self.at = at

    def due(self, end: float) -> float:
        """Return the local time at which to renew, given the end of the lease, in local time, that is known now."""
        if end >= self.end:
            return self.at
        return min(self.at, _third_of_the_way(self.since, end))


NEVER = RenewalPlan(-math.inf, -math.inf, math.inf)
"""The plan of a claim without renewals: any end is after its end, so that it is never planned anew."""


def plan_renewal(sent: float, end: float) -> RenewalPlan:
    """Plan the renewal of a lease acquired or renewed at ``sent``: after a third of it, however short it turned out."""
    return RenewalPlan(sent, end, _third_of_the_way(sent, end))


def plan_after_sending(now: float, end: float, lease: float) -> RenewalPlan:
    """Plan the renewal after the one that is being sent now, without its answer: it may hang."""
    return RenewalPlan(now, end, now + lease / RENEWALS_PER_LEASE)


def plan_after_failure(now: float, end: float, lease: float, uniform: Uniform) -> RenewalPlan:
    """Plan the renewal after one that failed: after a random pause, at most a tenth of the lease, and at most 1 s."""
    pause = min(1.0, lease / 10)
    return RenewalPlan(now, end, now + uniform(pause / 2, pause))


def _third_of_the_way(since: float, end: float) -> float:
    return since + max(0.0, end - since) / RENEWALS_PER_LEASE


# -- hand-over -------------------------------------------------------------------------------------

FEWEST_HAND_OVERS = 16
"""Hand-overs in a row within the process, before the lock is released so that other processes get a chance."""

SHORTEST_RUN = 0.5
"""Seconds for which a process hands the lock over in a row even after FEWEST_HAND_OVERS: a rest after 16 short sections would
cost a third of their rate."""
