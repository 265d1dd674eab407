"""Claims: what a row says about its lock, who may take it over, and when our own claim ends.

Everything here is decided from values that are handed in: local times, bounds of server time, and rows
as an answer showed them.
"""

from __future__ import annotations

import enum
import math
import re
from typing import NamedTuple

from pynamodb_mutex._protocol.server_time import DRIFT, WATCH_GRACE, Bounds

SHORTEST_LEASE = 0.5
"""Seconds. Below it, server time known by whole seconds and a network's delays eat the lease."""

NO_SERVER_TIME = 253370764800.0
"""An end for holders that never saw a ``Date``: 9999-01-01. Others then judge by watching alone."""

TOO_SHORT = 0.5
"""Share of the lease below which what is left of a fresh claim is renewed before it is handed out."""

TICK = 0.001
"""Seconds by which a later end must at least differ. Stored ends are whole milliseconds."""

HIGHEST_VERSION = 2**63 - 1
"""Whoever compares fencing tokens may keep them in 64 bits."""

MOST_WAITING = 100
"""Who wait in line in a row. A write is paid for by the size of its row: 100 entries are 3 to 7 units."""

YEAR_10000 = 253402300800.0
"""The first second that no date can show. An end beyond it was never meant to be in seconds."""

FORCED_MARK = "forced-"
"""How the token begins that replaces that of a claim that was broken by force."""

_MADE = f"(?:{FORCED_MARK})?([0-9a-f]{{12}})7[0-9a-f]{{19,}}$"


class Loss(enum.Enum):
    """Why a lock was lost."""

    EXPIRED = "its lease ended before it was renewed"
    TAKEN = "another holder has taken it"
    FORCED = "its claim was broken by force"
    DELETED = "its row was deleted or overwritten"
    UNREACHABLE = "DynamoDB could not be reached until its lease ended"

    @property
    def can_be_won_back(self) -> bool:
        """Whether a renewal may win the lock back: no row has shown that it is another's."""
        return self in (Loss.EXPIRED, Loss.UNREACHABLE)


def new_token(server_now: float | None, random_bits: str) -> str:
    """Return a token that no other acquisition has, and that shows people when it was made.

    It begins as a version 7 UUID does (RFC 9562): milliseconds, zero if server time is not known, then
    random bits.

    Args:
        server_now: Server time, as far as it is known.
        random_bits: At least 80 of them, in hexadecimal digits.
    """
    return f"{int((server_now or 0.0) * 1000):012x}7{random_bits}"


def made_at(token: str | None) -> float | None:
    """Return the server time at which a token was made.

    None for one that is not `new_token`'s, or was made before server time was known. For people: nothing
    is decided by it.
    """
    made = re.match(_MADE, token or "")
    at = int(made[1], 16) / 1000 if made else 0.0
    return at if 0 < at < YEAR_10000 else None


class Claim(NamedTuple):
    """What a row says about its lock.

    Attributes:
        token: Of the last acquisition; None where there never was one.
        version: The fencing token.
        expires_at: End of the claim in server time; None in a tombstone.
        lease: Seconds the claim lives without being renewed.
        owner: A label for people.
        writes: Number of the last guarded write.
        abandoned_by: Label of the holder that this one took the lock from, or empty.
        free_since: Server time at which the last claim was ended, or the first in line last gave up, or a second or two
            after that; None if that never happened.
        waiting: The entries of those who wait in line, first come first: see `waiting_line`.
        fault: Why the row cannot be a lock's. It then shows no claim but, if it can be read, the token: to a
            holder it was overwritten, and nobody else may judge by it.
    """

    token: str | None = None
    version: int = 0
    expires_at: float | None = None
    lease: float = 0.0
    owner: str | None = None
    writes: int = 0
    abandoned_by: str = ""
    free_since: float | None = None
    waiting: tuple[str, ...] = ()
    fault: Exception | None = None

    def check(self) -> None:
        """Raise unless the row may be a lock's.

        Whoever decides by another's claim calls this first: a row that cannot be read would else pass for
        one that is free, and be written again and again by conditions that never hold.
        """
        if self.fault is not None:
            raise self.fault

    def is_held(self, received: float, bounds: Bounds | None) -> bool:
        """Say whether the claim was running when it was received, as far as server time is known."""
        self.check()
        ends = self.expires_at
        return ends is not None and (bounds is None or received < bounds.passes(ends))


class ObservedClaim:
    """A claim of another holder, under observation.

    A claim is dead when server time is surely past its end, or when it stayed unchanged for its
    whole lease, and WATCH_GRACE, on the local clock. Each rule is safe alone; the second needs no
    server time.

    Attributes:
        claim: As it was seen last; None if it never was.
        changed_hands: Whether another acquisition held it when it was seen the time before.
    """

    def __init__(self) -> None:
        self.claim: Claim | None = None
        self.changed_hands = False
        self._since = 0.0

    def see(self, claim: Claim, received: float) -> None:
        """Note the row as shown by an answer that was received at local time ``received``."""
        claim.check()
        seen = self.claim
        if seen is None or (claim.token, claim.expires_at) != (seen.token, seen.expires_at):
            self._since = received
        self.changed_hands = seen is not None and claim.token != seen.token
        self.claim = claim

    def matures(self) -> float:
        """Return the local time from which the unchanged claim is dead."""
        if self.claim is None or self.claim.expires_at is None or not self.claim.lease:
            return math.inf
        return self._since + (self.claim.lease + WATCH_GRACE) * (1 + DRIFT)

    def free_at(self, bounds: Bounds | None) -> float:
        """Return the local time from which the claim, if it stays as it is, may be taken over."""
        if self.claim is None:
            return math.inf
        if self.claim.expires_at is None:
            return -math.inf
        if bounds is None:
            return self.matures()
        return min(self.matures(), bounds.passes(self.claim.expires_at + TICK))


class Term:
    """For how long a holder may believe in its claim. Replaced as a whole, so that it is read without a lock.

    Attributes:
        ends: Local time at which the lease ends, counted from before the request that began it was sent.
        limit: Server time at which the belief ends at the latest: that in the row, or that from which a
            watcher may take the claim over.
    """

    __slots__ = ("ends", "limit")

    def __init__(self, ends: float = -math.inf, limit: float = 0.0) -> None:
        self.ends = ends
        self.limit = limit


NO_TERM = Term()


class OwnClaim:
    """Our own claim, from the request that made it to its end.

    Attributes:
        token: Ours alone.
        lease: Seconds.
        version: The fencing token, once it is known.
        expires_at: The latest end known to be in the row, in server time.
        proposed: The highest end ever proposed for it.
        writes: Number of the last guarded write known to be applied.
        term: For how long its holder may believe in it.
    """

    __slots__ = (
        "_reach",
        "_writes_proposed",
        "expires_at",
        "lease",
        "proposed",
        "term",
        "token",
        "version",
        "writes",
    )

    def __init__(self, token: str, lease: float) -> None:
        self.token = token
        self.lease = lease
        self.version = 0
        self.expires_at = 0.0
        self.proposed = 0.0
        self.writes = 0
        self.term = NO_TERM
        self._writes_proposed = 0
        self._reach = -math.inf

    def propose(self, now: float, bounds: Bounds | None, lease: float) -> tuple[float, float]:
        """Return what a request that is about to be sent asks for.

        Args:
            now: Local time.
            bounds: Of server time, if there was an answer yet.
            lease: Seconds, from now on.

        Returns:
            The end, later than any proposed before, and the lease to write with it: not shorter than
            what an earlier request, perhaps still on its way, would let this holder believe, for a
            watcher waits just as long as the row says.
        """
        # Renewal 1, for 60 s, is applied and answered: this holder believes for most of a minute. Renewal 2, for
        # 2 s, is applied and its answer is slow. With a lease of 2 s in the row, a watcher that has no server
        # time would take the lock over when the row has not changed for that long.
        lease = max(lease, (self._reach - now) / (1 - DRIFT))
        self._reach = max(self._reach, now + lease * (1 - DRIFT))
        end = NO_SERVER_TIME if bounds is None else bounds.nominal(now) + lease
        # ceil, not round: an end must not come out a fraction below the sum
        self.proposed = max(math.ceil(end * 1000) / 1000, next_end(self.proposed))
        return self.proposed, lease

    def acquired(self, claim: Claim, sent: float, bounds: Bounds | None) -> None:
        """Note that the row shows our acquisition.

        Args:
            claim: The row with our token.
            sent: Local time before the first request that may have put it there.
            bounds: Of server time, after the answer.
        """
        self.version = claim.version
        self.writes = self._writes_proposed = claim.writes
        self.renewed(claim.expires_at or 0.0, self.lease, sent, bounds)

    def renewed(self, end: float, lease: float, sent: float, bounds: Bounds | None) -> None:
        """Note that a renewal was applied: only that extends the belief.

        Args:
            end: The end that it wrote.
            lease: The lease that it wrote.
            sent: Local time before it was sent.
            bounds: Of server time, after the answer.
        """
        ends, limit = max(self.term.ends, sent + lease * (1 - DRIFT)), self.term.limit
        if end > self.expires_at:
            self.expires_at = end
            # a watcher may take it over from then on, should the end be further off
            watched = math.inf if bounds is None else bounds.lowest(sent) + lease + WATCH_GRACE
            limit = min(end, watched)
        self.term = Term(ends, limit)

    def ends(self, bounds: Bounds | None) -> float:
        """Return the local time at which the holder must stop believing.

        The earlier of lease after send, and the moment at which the upper bound of server time
        reaches the end that is in the row, or that at which a watcher may take it over.
        """
        term = self.term
        return term.ends if bounds is None else min(term.ends, bounds.reaches(term.limit))

    def saw(self, end: float | None) -> None:
        """Note an end that is in the row, so that the next one proposed is later."""
        self.proposed = max(self.proposed, end or 0.0)

    def next_write(self) -> int:
        """Return a number for a guarded write that was never proposed before."""
        self._writes_proposed += 1
        return self._writes_proposed


def next_end(end: float) -> float:
    """Return the next end that counts as later."""
    return round(end + TICK, 3)
