"""Server time without trust in wall clocks: a lower and an upper bound of it at each local time.

`ServerTime` learns the bounds of one endpoint's time from its answers; `Bounds` computes with them. The method is the
intersection of intervals known from Marzullo's algorithm (K. Marzullo, 1984), reduced to one source, DynamoDB's
``Date`` header: server time at some instant between sending and receiving was within [Date, Date + 1).
Ends of claims are in server time. `claim` has the conclusions of holders and waiters from ends and bounds.
"""

from __future__ import annotations

import math

MOST_UNDATED = 3
"""Answers without a ``Date`` after which a process expects none any more: a proxy may remove it."""

GRAIN = 1.0
"""Resolution of ``Date``, in seconds."""

DRIFT = 0.01
"""Greatest error of the rate of a local clock: 0.01 is one percent."""

HOST_SKEW = 0.1
"""Greatest difference between the clocks of DynamoDB's own hosts, in seconds."""

_ROUNDING = 1e-6
"""Seconds by which arithmetic with times of this size may come out too high."""

HEADROOM = 1.3
"""Seconds beyond the lower bound of server time from which a new end is counted, at least: see `Bounds.nominal`.

With exactly GRAIN, the next answer may show the upper bound almost a grain higher and cut the holder's lease by as much. The
0.3 s more make leases of a second dependable. A waiter may know server time less well, by GRAIN + HOST_SKEW: with that,
HEADROOM stays below the 2.5 s after the lease within which a dead holder's lock is free.
"""

WATCH_GRACE = GRAIN + HEADROOM
"""Seconds beyond the lease for which an unchanged claim must be watched before it is dead by watching alone.

After it the claim has ended by server time, too. Suppose it were shorter: the holder's clock stands still, a watcher takes
the claim over, the holder learns server time from an answer about another row and, since the claim's end is still ahead, goes
on believing.
"""

_NOTABLE = 0.01
"""Smallest rise of the upper bound, in seconds, after which the process plans its renewals anew."""


class Bounds:
    """A lower and an upper bound of server time, each known at one local time and carried on by the local clock.

    Immutable: replaced as a whole.

    Attributes:
        lower: Server time that was reached or passed at ``lower_at``.
        lower_at: Local time at which an answer was received.
        upper: Server time that was not reached yet at ``upper_at``.
        upper_at: Local time at which a request was sent.
    """

    __slots__ = ("lower", "lower_at", "upper", "upper_at")

    def __init__(self, lower: float, lower_at: float, upper: float, upper_at: float) -> None:
        self.lower = lower
        self.lower_at = lower_at
        self.upper = upper
        self.upper_at = upper_at

    def lowest(self, now: float) -> float:
        """Return the lower bound at a local time, widened for drift."""
        elapsed = now - self.lower_at
        return self.lower + elapsed - DRIFT * abs(elapsed)

    def highest(self, now: float) -> float:
        """Return the upper bound at a local time, widened for drift."""
        elapsed = now - self.upper_at
        return self.upper + elapsed + DRIFT * abs(elapsed)

    def estimate(self, now: float) -> float:
        """Return server time as the latest answer showed it, carried on by the local clock.

        It may be a second behind, or ahead by the time of the answer's round trip, and it drifts with the local clock. It is
        not widened for that drift: processes that were idle for different times would then disagree by more than their clocks
        do. No end and no takeover is decided by it.
        """
        return self.upper - GRAIN + now - self.upper_at

    def nominal(self, now: float) -> float:
        """Return the server time from which a new end is counted: late enough for its holder, and never too late.

        If the holder dies, waiters wait for that end. So the result is at most HEADROOM beyond server time or, if the round
        trip of the latest answer was slow, GRAIN and that round trip. For this, both bounds are carried on as slowly as server
        time may run. Suppose they ran at the local clock's own rate: a process that was idle for a day, or has renewed for
        days, would be beyond server time by all that its clock has gained.
        An end that turns out too early costs its holder time, never safety: see `suffices`. However slow the answers
        were, the result is at most WATCH_GRACE beyond the lower bound: a watcher relies on that.
        """
        lowest, elapsed = self.lowest(now), now - self.upper_at
        upper = self.upper + elapsed - DRIFT * abs(elapsed)
        return min(max(upper, lowest + HEADROOM), lowest + WATCH_GRACE)

    def suffices(self, lease: float, now: float) -> bool:
        """Return whether an end counted from `nominal` leaves its holder about half of a lease, or more.

        It does not if local clock and server time may have drifted apart by more than half of the lease since the last answer.
        Then an acquisition reads the row first.
        """
        # twice, because `nominal` counts 1 - DRIFT for each second, while server time may have run at 1 + DRIFT
        return 2 * DRIFT * (now - self.upper_at) <= lease / 2

    def reaches(self, instant: float) -> float:
        """Return the local time until which server time is surely before ``instant``.

        If the upper bound was past the instant from the start, return some earlier local time.
        """
        ahead = instant - self.upper
        return self.upper_at + (ahead / (1 + DRIFT) if ahead > 0 else ahead)

    def passes(self, instant: float) -> float:
        """Return the local time from which server time is surely past ``instant`` on each of DynamoDB's hosts.

        If the lower bound was past it from the start, return some earlier local time.
        """
        ahead = instant + HOST_SKEW - self.lower
        return self.lower_at + (ahead / (1 - DRIFT) if ahead > 0 else ahead)


class ServerTime:
    """The knowledge of this process about one endpoint's time.

    Attributes:
        bounds: Bounds of its time, replaced as a whole; None as long as no answer had a ``Date``.
        answered: Number of DynamoDB's answers from this endpoint, errors included. As long as it is 0, the region or the host
            may be mistyped.
        contradictions: Number of answers, since the last report, that show two hosts' clocks more than HOST_SKEW apart.
        behind: Greatest such difference, in seconds: the clocks differ by this or more.
        silent_until: Local time before which there is no other report.
    """

    def __init__(self) -> None:
        self.bounds: Bounds | None = None
        self.answered = 0
        self.contradictions = 0
        self.behind = 0.0
        self.silent_until = -math.inf

    @property
    def may_be_learned(self) -> bool:
        """Whether no answer had a ``Date`` yet, and the next one may well have one."""
        return self.bounds is None and self.answered < MOST_UNDATED

    def learn(self, date: float, sent: float, received: float) -> bool:
        """Learn from an answer.

        The lower bound is the best of all answers: it stays true whatever time the local clock missed.
        The upper bound comes from one answer alone: the answer to the request that was sent last. If the local clock stood
        still, every older upper bound is too low, and an answer that was on its way meanwhile proves nothing.

        Args:
            date: The answer's ``Date``, in seconds since the epoch.
            sent: Local time before its request was sent.
            received: Local time after the answer was received.

        Returns:
            Whether the upper bound rose, so that leases end earlier than was known: the local clock stood still, or DynamoDB
            gave the earlier answer late within the second of its ``Date``, and this answer early within its own.
        """
        # The server read its clock between `sent` and `received`. So at `sent` server time was not yet date + GRAIN, which
        # gives the upper bound, and at `received` it was date or later, which gives the lower bound.
        old = self.bounds
        if old is None:
            self.bounds = Bounds(date, received, date + GRAIN, sent)
            return False
        # The host that gave this answer is behind the host that gave the old lower bound, by more than this. If the local clock
        # stood still meanwhile, the old bound is too low, and accuses nobody. But the request must have been sent after the old
        # bound was learned. Suppose A is sent, the machine is suspended and its clock stands still, B is sent and answered, and
        # then A's answer is read: by the local clock A was sent only just before B's answer came.
        behind = old.lowest(sent) - (date + GRAIN)
        if behind > HOST_SKEW + _ROUNDING and sent > old.lower_at:
            self.contradictions += 1
            self.behind = max(behind, self.behind)
        if behind >= 0.0 or old.lowest(received) < date:
            # Contradicted: by the old bound, server time was past this answer's second before its request was sent, so the old
            # bound is wrong (the server's clock was set back). Or improved: the old bound is true, and this one is closer.
            lower, lower_at = date, received
        else:
            lower, lower_at = old.lower, old.lower_at
        # Suppose the machine is suspended while an answer is on its way, and its local clock stands still meanwhile.
        # After it has resumed it sends a request whose answer shows the true time; then it reads the old answer, with a `Date`
        # from before the suspension. An upper bound from that would let a holder believe again in a claim that others have
        # taken. So only the answer to the request that was sent last counts.
        if sent < old.upper_at:
            self.bounds = Bounds(lower, lower_at, old.upper, old.upper_at)
            return False
        self.bounds = Bounds(lower, lower_at, date + GRAIN, sent)
        return date + GRAIN > old.highest(sent) + _NOTABLE
