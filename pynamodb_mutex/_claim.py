"""The claim protocol without I/O: what a row says, who may take it, when ours ends.

Everything here is decided from numbers handed in: local times, bounds of server time, and rows
as an answer showed them. Nothing here reads a clock or sends a request.
"""

from __future__ import annotations

import enum
import math
import os
import re
import time
import uuid
from typing import NamedTuple

from pynamodb_mutex._clock import DRIFT, WATCH_GRACE, Bounds

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

YEAR_10000 = 253402300800.0
"""The first second that no date can show. An end beyond it was never meant to be in seconds."""

FORCED_MARK = "forced-"
"""How a token begins that stands where a claim was broken."""

_MADE = re.compile(f"(?:{FORCED_MARK})?([0-9a-f]{{12}})7[0-9a-f]{{19,}}$")


class Loss(enum.Enum):
    """Why a lock was lost."""

    EXPIRED = "its lease ended before it was renewed"
    TAKEN = "another holder has taken it"
    FORCED = "its claim was broken by force"
    DELETED = "its row was deleted or overwritten"
    UNREACHABLE = "DynamoDB could not be reached until its lease ended"


def new_token(server_now: float | None) -> str:
    """Return a token that no other acquisition has, and that tells people when it was made.

    It begins as a version 7 UUID does (RFC 9562): milliseconds, zero if server time is not known, then
    random bits. The clock and the process are mixed in because copies of a virtual machine may draw the
    same random numbers.
    """
    made = f"{int((server_now or 0.0) * 1000):012x}7{uuid.uuid4().hex[13:]}"
    return f"{made}{time.monotonic_ns() & 0xFFFFFFFF:08x}{os.getpid():x}"


def forced_token(server_now: float | None) -> str:
    """Return a token for a row whose claim was broken by force."""
    return FORCED_MARK + new_token(server_now)


def made_at(token: str | None) -> float | None:
    """Return the server time at which a token was made.

    None for one that is not `new_token`'s, or was made before server time was known. For people: nothing
    is decided by it.
    """
    made = _MADE.match(token or "")
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


class Watch:
    """A claim of somebody else's, under observation.

    A claim is dead when server time is surely past its end, or when it stayed unchanged for its
    whole lease, and WATCH_GRACE, on the local clock. Each rule is safe alone; the second needs no
    server time.

    Attributes:
        claim: As it was seen last; None if it never was.
        changed_hands: Whether it was another acquisition's when it was seen before.
    """

    def __init__(self) -> None:
        self.claim: Claim | None = None
        self.changed_hands = False
        self._since = 0.0

    def see(self, claim: Claim, received: float) -> None:
        """Take note of the row as shown by an answer received at local time ``received``."""
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


class Tenure:
    """Our own claim, from the request that made it to its end.

    Attributes:
        token: Ours alone.
        lease: Seconds.
        version: The fencing token, once it is known.
        expires_at: The latest end known to stand in the row, in server time.
        proposed: The highest end ever proposed for it.
        writes: Number of the last guarded write known to be applied.
    """

    def __init__(self, token: str, lease: float) -> None:
        self.token = token
        self.lease = lease
        self.version = 0
        self.expires_at = 0.0
        self.proposed = 0.0
        self.writes = 0
        self._writes_proposed = 0
        self._ends = -math.inf
        self._limit = 0.0
        self._reach = -math.inf

    def propose(self, now: float, bounds: Bounds | None, lease: float) -> tuple[float, float]:
        """Return what a request about to be sent asks for.

        Args:
            now: Local time.
            bounds: Of server time, if there was an answer yet.
            lease: Seconds wanted from now on.

        Returns:
            The end, later than any asked for, and the lease to write beside it: not shorter than
            what an earlier request, perhaps still under way, would let this holder believe, for a
            watcher waits just as long as the row says.
        """
        lease = max(lease, (self._reach - now) / (1 - DRIFT))
        self._reach = max(self._reach, now + lease * (1 - DRIFT))
        end = NO_SERVER_TIME if bounds is None else bounds.nominal(now) + lease
        # ceil, not round: an end must not come out a fraction below the sum
        self.proposed = max(math.ceil(end * 1000) / 1000, self.after(self.proposed))
        return self.proposed, lease

    @staticmethod
    def after(end: float) -> float:
        """Return the next end that counts as later."""
        return round(end + TICK, 3)

    def acquired(self, claim: Claim, sent: float, bounds: Bounds | None) -> None:
        """Take note that the store shows our acquisition.

        Args:
            claim: The row with our token.
            sent: Local time before the first request that may have put it there.
            bounds: Of server time, after the answer.
        """
        self.version = claim.version
        self.writes = self._writes_proposed = claim.writes
        self.renewed(claim.expires_at or 0.0, self.lease, sent, bounds)

    def renewed(self, end: float, lease: float, sent: float, bounds: Bounds | None) -> None:
        """Take note that a renewal was applied: only that extends the local end.

        Args:
            end: The end that it wrote.
            lease: The lease that it wrote.
            sent: Local time before it was sent.
            bounds: Of server time, after the answer.
        """
        self._ends = max(self._ends, sent + lease * (1 - DRIFT))
        if end > self.expires_at:
            self.expires_at = end
            # who watches may take it from then on, should the end be further off
            watched = math.inf if bounds is None else bounds.lowest(sent) + lease + WATCH_GRACE
            self._limit = min(end, watched)

    def is_mine(self, claim: Claim) -> bool:
        """Say whether a row carries this acquisition: token and version, and a claim."""
        return (
            claim.token == self.token
            and claim.version == self.version
            and claim.expires_at is not None
        )

    def loss(self, claim: Claim) -> Loss:
        """Say what happened to this acquisition, whose claim the row no longer carries."""
        if claim.token is None or claim.fault is not None:
            return Loss.DELETED
        # our token without a claim: somebody took the claim out by hand
        cleared = claim.token == self.token and claim.version == self.version
        return Loss.FORCED if cleared or claim.token.startswith(FORCED_MARK) else Loss.TAKEN

    def ends(self, bounds: Bounds | None) -> float:
        """Return the local time at which the holder must stop believing.

        The earlier of lease after send, and the moment at which the upper bound of server time
        reaches the end that stands in the row, or that at which a watcher may take it.
        """
        if bounds is None:
            return self._ends
        return min(self._ends, bounds.reaches(self._limit))

    def next_write(self) -> int:
        """Return a number for a guarded write that was never proposed before."""
        self._writes_proposed += 1
        return self._writes_proposed
