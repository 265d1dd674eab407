"""The rules of a claim that readers share: who may join it, and the meaning of an answer for a reader's entry.

Readers share one claim: one token, one version, one end of the row, which only grows. Each reader has an entry with its own end:
after it the reader counts as dead. All functions decide from their arguments.
"""

from __future__ import annotations

import math
from typing import Literal

from pynamodb_mutex._lock.protocol.claim import TICK, Claim, OwnClaim
from pynamodb_mutex._lock.protocol.server_time import Bounds

MOST = 100
"""Most readers at a time, living and dead. A write is billed by the size of its row: with 100 it takes 7 to 11 units."""

BURY_FROM = 50
"""Entries from which a reader that joins removes a dead one."""

MARK = 5.0
"""Seconds from now until a waiting writer's mark ends. Always the same: a late copy is recognised by its end alone."""

MARK_LEFT = 3.0
"""Seconds of a mark below which a writer that waits sends it anew."""

Form = Literal["far", "near"]
"""How a join or a renewal moves the end of the row.

- ``far``: to the reader's own end, which must be later than the row's
- ``near``: by a tick, because the row ends later than the reader. No other reader's move of the end makes DynamoDB refuse it
"""


def cut(label: str) -> str:
    """Return the first 64 bytes of a label, as a row stores it."""
    return label.encode()[:64].decode(errors="ignore")


def to_bury(claim: Claim, now: float, bounds: Bounds | None) -> str | None:
    """Return the name of a dead reader, for the next join to remove; None if there are few readers, or all may live."""
    readers = claim.readers or {}
    if len(readers) < BURY_FROM or bounds is None:
        return None
    dead = (name for name, end in readers.items() if now >= bounds.passes(end + TICK))
    return next(dead, None)


def may_join(claim: Claim, now: float, bounds: Bounds | None, *, nested: bool) -> bool:
    """Return whether there is a claim to join, if no mark keeps the reader out.

    Args:
        claim: The claim in the row.
        now: Local time.
        bounds: Bounds of server time; None if no answer had a ``Date``: then no entry can have an end.
        nested: Whether the thread or task that asks is in the claim already: no number of readers keeps it out.
    """
    # even if all of its readers are dead; not if it has none, because then it has ended
    if not (claim.readers and _is_unedited(claim)) or bounds is None:
        return False
    return nested or len(claim.readers) < MOST or to_bury(claim, now, bounds) is not None


def _is_unedited(claim: Claim) -> bool:
    """Return whether our requests can have written version and lease."""
    # If somebody edited them by hand, no form of a request fits the row, however often we send it.
    return claim.version > 0 and 0 < claim.lease == round(claim.lease, 3)


class SharedClaim(OwnClaim):
    """A reader's part of a claim that readers share. Its ``token`` is its own, ``expires_at`` the end of its own entry.

    Attributes:
        name: Name of its entry: its token, which no other reader has, and its label.
        seen: The claim as the last answer showed it; before the first answer, a claim with its token and no readers.
        asked: Local time before the first request that may have made its entry was sent.
        resent: Number of requests that proposed an end again: see `again`.
    """

    __slots__ = ("_again", "asked", "name", "resent", "seen")

    def __init__(self, token: str, lease: float, label: str) -> None:
        super().__init__(token, lease)
        self.name = f"{token} {cut(label)}"
        self.seen = Claim(token=token)
        self.asked = math.inf
        self.resent = 0
        self._again: tuple[float, float] | None = None

    def is_of(self, claim: Claim) -> bool:
        """Return whether this reader has joined or begun this claim, or is about to join it."""
        return claim.token == self.seen.token and self.version in {0, claim.version}

    def end_in(self, claim: Claim) -> float | None:
        """Return the end of this reader's entry in a claim; None if it is another claim, or has no such entry."""
        return (claim.readers or {}).get(self.name) if self.is_of(claim) else None

    def form(self, end: float) -> Form:
        """Return the form of a request that gives this reader's entry an end, for the last row that was seen."""
        return "far" if end > (self.seen.expires_at or 0.0) else "near"

    def propose(self, now: float, bounds: Bounds | None, lease: float) -> tuple[float, float]:
        """Return the end and the lease that a request proposes: see `OwnClaim.propose`."""
        again, self._again = self._again, None
        if again is None:
            return super().propose(now, bounds, lease)
        self.resent += 1
        return again

    def again(self, end: float, lease: float) -> None:
        """Let the next request repeat the end and the lease of the refused one: DynamoDB could refuse a later end for its form.

        The lease still counts from the sending of the next request: no late copy of the refused request is applied, because the
        row's end and lease only grow.

        Args:
            end: End that it proposed for the entry, in server time.
            lease: Lease that it proposed, in seconds.
        """
        # Not the last proposal: suppose another thread has renewed meanwhile. If its end were proposed again, the row would have
        # it already, as if this request had written it now, but waiters that watch the row count from before.
        self._again = end, lease

    def acquired(self, claim: Claim, sent: float, bounds: Bounds | None) -> None:
        """Note that a row shows this reader's entry: see `OwnClaim.acquired`."""
        end, self.seen = self.end_in(claim), claim
        super().acquired(claim._replace(expires_at=end), sent, bounds)


Renewal = Literal["applied", "overtaken", "again", "gone", "lost"]
"""The outcome of a renewal: as `outcome.Renewal`; ``gone``: the claim stands, but another reader took this one for dead."""


def renewal(own: SharedClaim, end: float, claim: Claim, *, applied: bool) -> Renewal:
    """Return the outcome of a reader's renewal that proposed ``end``, from the claim in the answer."""
    stored = own.end_in(claim)
    if applied or stored == end:
        return "applied"
    if stored is None or not _is_unedited(claim):
        return "gone" if own.is_of(claim) and claim.expires_at is not None else "lost"
    return "overtaken" if stored > end else "again"
