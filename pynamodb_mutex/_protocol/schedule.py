"""When to poll, to retry, to renew and to hand over: every constant with its reason.

Times are local, in seconds. Randomness is handed in, as a function like `random.uniform`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

Uniform = Callable[[float, float], float]
"""Returns a random number between two others."""

# -- polling ---------------------------------------------------------------------------------------

LONGEST_SILENCE = 2.0
"""Seconds for which the waiters of one process rely on the first of them while it has no answer: then
they send requests of their own."""

SHORTEST_WAIT = 0.01
"""Seconds between two requests for the same lock, at least, if the first showed nothing new."""


def next_wait(previous: float, poll: tuple[float, float], uniform: Uniform) -> float:
    """Return the seconds to wait before the next poll: decorrelated jitter.

    After M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015. The cap goes
    inside: clipped afterwards, waits would pile up at it.
    """
    base, cap = poll
    return uniform(base, min(cap, 3 * max(base, previous)))


def poll_at_end(now: float, ends: float, poll: tuple[float, float], uniform: Uniform) -> float:
    """Return when to poll for a claim that ends at ``ends``.

    Many wait for the same end: they poll neither all at that instant, nor again and again.
    """
    return max(now + SHORTEST_WAIT, ends + uniform(0, poll[0]))


# -- retries ---------------------------------------------------------------------------------------

PATIENCE = 0.5
"""Seconds for which a transient failure is retried even when the caller would not wait."""

UNANSWERED_PATIENCE = 10.0
"""Seconds for which requests to an endpoint that has never answered this process are retried, at most.

A mistyped region or host looks like a network that is down, and would be waited for for ever.
"""

RELEASE_PATIENCE = 5.0
"""Seconds for which a release, or the last renewal before a detach, is retried; after that the lock
expires with its lease. So it is for a write under no claim that meets another one at the same row."""

SCAN_PATIENCE = 30.0
"""Seconds for which a page of a scan is requested again."""

_FIRST_RETRY = 0.05
"""Seconds between two attempts, at most, at first ..."""

_LONGEST_RETRY = 1.0
"""... and in the end."""


class Retries:
    """The times of the attempts at one request: waits grow exponentially, with full jitter.

    Args:
        now: Local time at which the first attempt is made.
        until: Local time after which nothing is retried; PATIENCE is always granted.
    """

    __slots__ = ("_begun", "_until", "_wait")

    def __init__(self, now: float, until: float) -> None:
        self._begun = now
        self._until = max(until, now + PATIENCE)
        self._wait = _FIRST_RETRY

    def next(self, now: float, uniform: Uniform, *, answered: bool) -> float | None:
        """Return the local time of the next attempt; None if it is too late for one.

        Args:
            now: Local time.
            uniform: Randomness.
            answered: Whether the endpoint has ever answered. It is asked at each failure: meanwhile
                another thread's request may have been answered.
        """
        until = self._until if answered else min(self._until, self._begun + UNANSWERED_PATIENCE)
        if now >= until:
            return None
        at = min(now + uniform(0, self._wait), until)
        self._wait = min(_LONGEST_RETRY, 2 * self._wait)
        return at


# -- renewal ---------------------------------------------------------------------------------------

RENEWALS_PER_LEASE = 3
"""One may fail, and be retried, before the lease ends."""

MOST_RENEWALS_UNDER_WAY = 2
"""Of one lock at a time: a request that hangs is followed by another one, not by many."""

EARLY = 1 / 30
"""Of the lease: a tenth of the time from one renewal to the next. Locks that were once renewed together
are due together from then on."""

MOST_TOGETHER = 25
"""Statements that DynamoDB takes in one BatchExecuteStatement."""


class RenewalPlan:
    """When to renew next.

    An answer about any row may show that server time is further on than was known, so that a lease
    which was counted on ends earlier: up to a second, which is all of a short one. What was planned for
    the later end would then come after the end.

    Attributes:
        since: Local time before the last renewal was sent.
        end: Of the lease, as it was known then.
        at: The local time that was planned; infinity for never.
    """

    __slots__ = ("at", "end", "since")

    def __init__(self, since: float, end: float, at: float) -> None:
        self.since = since
        self.end = end
        self.at = at

    def due(self, end: float) -> float:
        """Return when to renew, given the lease's end as it is known now."""
        if end >= self.end:
            return self.at
        return min(self.at, _third_of_the_way(self.since, end))


NEVER = RenewalPlan(-math.inf, -math.inf, math.inf)


def plan_renewal(sent: float, end: float) -> RenewalPlan:
    """Plan the renewal of a lease that was acquired, or renewed, at ``sent``: early if it came out short."""
    return RenewalPlan(sent, end, _third_of_the_way(sent, end))


def plan_after_sending(now: float, end: float, lease: float) -> RenewalPlan:
    """Plan the renewal after one that is sent now: counted from this one, which may hang."""
    return RenewalPlan(now, end, now + lease / RENEWALS_PER_LEASE)


def plan_after_failure(now: float, end: float, lease: float, uniform: Uniform) -> RenewalPlan:
    """Plan the renewal after one that failed."""
    pause = min(1.0, lease / 10)
    return RenewalPlan(now, end, now + uniform(pause / 2, pause))


def _third_of_the_way(since: float, end: float) -> float:
    return since + max(0.0, end - since) / RENEWALS_PER_LEASE


# -- hand-over -------------------------------------------------------------------------------------

MOST_HAND_OVERS = 16
"""Hand-overs within the process in a row, before other processes get a chance."""
