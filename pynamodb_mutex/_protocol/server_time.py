"""Server time without trust in wall clocks: bounds of it, over local time.

The method is the intersection of intervals known from
Marzullo's algorithm (K. Marzullo, 1984), reduced to one source, DynamoDB's ``Date`` header:
server time at some instant between sending and receiving was within [Date, Date + 1).
"""

from __future__ import annotations

from typing import NamedTuple

GRAIN = 1.0
"""Seconds: ``Date`` counts whole ones."""

DRIFT = 0.01
"""How far the rate of a local clock may be off."""

HOST_SKEW = 0.1
"""Seconds by which DynamoDB's own hosts may disagree."""

HEADROOM = 1.3
"""Seconds a proposed end lies beyond the lower bound of server time, at least.

With exactly GRAIN, the next answer may show the upper bound almost a grain higher and cut the
holder's lease by as much. The 0.3 s above it make leases of a second dependable, and together
with a taker's GRAIN + HOST_SKEW they stay below the 2.5 s within which a dead holder's lock is free.
"""

WATCH_GRACE = GRAIN + HEADROOM
"""Seconds that who watches an unchanged claim waits beyond its lease.

So that its end in server time has passed by then too. Otherwise a holder whose clock stood still
could learn server time from an answer about another row and, with that end still ahead, go on
believing in a claim that a watcher has taken.
"""

_NOTABLE = 0.01


class Bounds(NamedTuple):
    """Server time between two lines over local time.

    Attributes:
        lower: Server time was at least this ...
        lower_at: ... at this local time.
        upper: Server time was below this ...
        upper_at: ... at this local time.
    """

    lower: float
    lower_at: float
    upper: float
    upper_at: float

    def lowest(self, now: float) -> float:
        """Return the lower bound at local time ``now``, widened for drift."""
        elapsed = now - self.lower_at
        return self.lower + elapsed - DRIFT * abs(elapsed)

    def highest(self, now: float) -> float:
        """Return the upper bound at local time ``now``, widened for drift."""
        elapsed = now - self.upper_at
        return self.upper + elapsed + DRIFT * abs(elapsed)

    def estimate(self, now: float) -> float:
        """Return server time as the latest answer showed it, carried on by the local clock.

        At most a second behind, or the answer's way there and back ahead, and as far off as the local
        clock has drifted since: not widened for that, or processes that were idle for different times
        would disagree by more than their clocks do. No end and no takeover is decided by it.
        """
        return self.upper - GRAIN + now - self.upper_at

    def nominal(self, now: float) -> float:
        """Return what a new end is counted from: late enough for its holder, and never too late.

        Whoever comes after the holder's death waits for that end, so this is no more than HEADROOM beyond
        server time, or GRAIN and the way of the latest answer there and back, if that was longer. Both
        bounds are therefore carried on as slowly as server time may run: by the local clock's own rate,
        a process that was idle for a day, or has renewed for days, would be beyond it by all that its
        clock has gained. An end that turns out too early costs its holder time, never safety: see `suffices`.
        However slow the answers were, it is never more than WATCH_GRACE beyond the lower bound.
        """
        lowest, elapsed = self.lowest(now), now - self.upper_at
        upper = self.upper + elapsed - DRIFT * abs(elapsed)
        return min(max(upper, lowest + HEADROOM), lowest + WATCH_GRACE)

    def suffices(self, lease: float, now: float) -> bool:
        """Say whether an end counted from `nominal` leaves its holder about half of a lease, or more.

        Not after a time without an answer in which local clock and server time may have come apart by
        more: each of the two by DRIFT.
        """
        return 2 * DRIFT * (now - self.upper_at) <= lease / 2

    def reaches(self, instant: float) -> float:
        """Return the local time until which server time is surely before ``instant``."""
        ahead = instant - self.upper
        return self.upper_at + (ahead / (1 + DRIFT) if ahead > 0 else ahead)

    def passes(self, instant: float) -> float:
        """Return the local time from which server time, on each of its hosts, is past ``instant``."""
        ahead = instant + HOST_SKEW - self.lower
        return self.lower_at + (ahead / (1 - DRIFT) if ahead > 0 else ahead)


class ServerTime:
    """What this process knows of one endpoint's time.

    Attributes:
        bounds: Of its time; None as long as no answer had a ``Date``.
        answered: Whether DynamoDB has answered there at all, if only by an error. Until it has, it may be
            that there is nothing, for the region or the host is mistyped.
    """

    def __init__(self) -> None:
        self.bounds: Bounds | None = None
        self.answered = False

    def observe(self, date: float, sent: float, received: float) -> bool:
        """Learn from an answer.

        The lower bound is the best of all answers: it stays true whatever the local clock missed.
        The upper bound is that of the answer whose request was sent last, alone: a clock that stood
        still makes every older one too low, and an answer already on its way then proves nothing.

        Args:
            date: The answer's ``Date``, in seconds since the epoch.
            sent: Local time before its request was sent.
            received: Local time after it was received.

        Returns:
            Whether the upper bound rose, so that ends of leases have come nearer: because the local
            clock stood still, or because the last answer came late within its second.
        """
        old = self.bounds
        if old is None:
            self.bounds = Bounds(date, received, date + GRAIN, sent)
            return False
        if old.lowest(sent) >= date + GRAIN or old.lowest(received) < date:
            # contradicted (drop what was believed), or improved
            lower, lower_at = date, received
        else:
            lower, lower_at = old.lower, old.lower_at
        # The machine is suspended while an answer is on its way, and its local clock stands still meanwhile. After it
        # has resumed it sends a request whose answer shows the true time; then the old answer is read, with
        # a `Date` from before the suspension. As an upper bound that would let a holder believe again in a
        # claim that others have taken. So the answer to the latest request alone counts.
        if sent < old.upper_at:
            self.bounds = Bounds(lower, lower_at, old.upper, old.upper_at)
            return False
        self.bounds = Bounds(lower, lower_at, date + GRAIN, sent)
        return date + GRAIN > old.highest(sent) + _NOTABLE
