"""The rules of a claim that readers share: who may join it, and what an answer says about a reader's entry.

Readers share one claim: one token, one version, one end of the row, which only grows. Each has an entry with an end of its
own, by which it lives and dies. All is decided from values that are handed in.
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
"""Seconds from now at which a waiting writer's mark ends, always: by its end alone a late copy is recognised."""

MARK_LEFT = 3.0
"""Seconds of a mark below which a writer that waits sends it anew."""

Form = Literal["far", "near"]
"""How a join or a renewal moves the end of the row.

- ``far``: to its own end, which must be later
- ``near``: on by a tick, for the row ends later than the reader. What others do to the end cannot refuse it
"""


def cut(label: str) -> str:
    """Return a label as a row has it: its first 64 bytes."""
    return label.encode()[:64].decode(errors="ignore")


def to_bury(claim: Claim, now: float, bounds: Bounds | None) -> str | None:
    """Return the name of a dead reader that whoever joins is to remove; None if there are few readers, or all may live."""
    readers = claim.readers or {}
    if len(readers) < BURY_FROM or bounds is None:
        return None
    dead = (name for name, end in readers.items() if now >= bounds.passes(end + TICK))
    return next(dead, None)


def may_join(claim: Claim, now: float, bounds: Bounds | None, *, nested: bool) -> bool:
    """Return whether there is a claim to join, if no mark keeps the reader out.

    Args:
        claim: What the row says.
        now: Local time.
        bounds: Bounds of server time; None if no answer had a ``Date``: no entry can be dated then.
        nested: Whether the thread or task that asks is in the claim already: no number of readers keeps it out.
    """
    # also if all of its readers are dead; not if it has none, for it has ended
    if not (claim.readers and _is_unedited(claim)) or bounds is None:
        return False
    return nested or len(claim.readers) < MOST or to_bury(claim, now, bounds) is not None


def _is_unedited(claim: Claim) -> bool:
    """Return whether version and lease are such as our requests write."""
    # If they were edited by hand, no form of a request fits the row, however often it is sent.
    return claim.version > 0 and 0 < claim.lease == round(claim.lease, 3)


class SharedClaim(OwnClaim):
    """A reader's part of a claim that readers share. Its ``token`` is its own, ``expires_at`` the end of its own entry.

    Attributes:
        name: Name of its entry: its token, which no other one has, and its label.
        seen: The claim as an answer has shown it last; that of its token, without readers, as long as none has.
        asked: Local time before the first request was sent that may have made its entry.
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
        """Return whether a claim is the one that this reader has joined or begun, or is to join."""
        return claim.token == self.seen.token and self.version in {0, claim.version}

    def end_in(self, claim: Claim) -> float | None:
        """Return the end of this reader's entry in a claim; None if the claim is another one, or has no such entry."""
        return (claim.readers or {}).get(self.name) if self.is_of(claim) else None

    def form(self, end: float) -> Form:
        """Return the form of a request that gives this reader's entry an end, by the row as it is known."""
        return "far" if end > (self.seen.expires_at or 0.0) else "near"

    def propose(self, now: float, bounds: Bounds | None, lease: float) -> tuple[float, float]:
        """Return the end and the lease that a request proposes: see `OwnClaim.propose`."""
        again, self._again = self._again, None
        if again is None:
            return super().propose(now, bounds, lease)
        self.resent += 1
        return again

    def again(self, end: float, lease: float) -> None:
        """Let the next request propose what the last one did that was refused: a later end could be refused for its form again.

        A renewal counts from its own sending all the same: no late copy of the refused one is applied, for the row's end and
        lease only grow.

        Args:
            end: End that it proposed for the entry, in server time.
            lease: Lease that it proposed, in seconds.
        """
        # Not what was proposed last: suppose another thread has renewed meanwhile. Its end, proposed again, would be found in
        # the row as if it had been written now, while those that watch the row count from before.
        self._again = end, lease

    def acquired(self, claim: Claim, sent: float, bounds: Bounds | None) -> None:
        """Note that a row shows this reader's entry: see `OwnClaim.acquired`."""
        end, self.seen = self.end_in(claim), claim
        super().acquired(claim._replace(expires_at=end), sent, bounds)


Renewal = Literal["applied", "overtaken", "again", "gone", "lost"]
"""What became of a renewal: as `outcome.Renewal`, and ``gone``: the claim stands, and another reader took this one for dead."""


def renewal(own: SharedClaim, end: float, claim: Claim, *, applied: bool) -> Renewal:
    """Return what became of a reader's renewal.

    Args:
        own: The reader's claim.
        end: End that the renewal proposed for its entry, in server time.
        claim: What the row in the answer says.
        applied: Whether the answer says that it was applied.
    """
    stored = own.end_in(claim)
    if applied or stored == end:
        return "applied"
    if stored is None or not _is_unedited(claim):
        return "gone" if own.is_of(claim) and claim.expires_at is not None else "lost"
    return "overtaken" if stored > end else "again"
