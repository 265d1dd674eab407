"""What an answer says about our attempt. The one place that decides it.

Each request may be applied and its answer lost, be applied late, or be repeated. So a refusal does not
mean that nothing was applied: the row in it shows what became of the attempts, as far as it can be known.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from pynamodb_mutex._protocol.claim import FORCED_MARK, Claim, Loss, OwnClaim


def shows_acquisition(own: OwnClaim, claim: Claim) -> bool:
    """Say whether a row shows that an acquisition of ours was applied: by this attempt, or an earlier one."""
    return claim.token == own.token and claim.expires_at is not None


def is_mine(own: OwnClaim, claim: Claim) -> bool:
    """Say whether a row carries our acquisition: token and version, and a claim."""
    return (
        claim.token == own.token and claim.version == own.version and claim.expires_at is not None
    )


def loss_of(own: OwnClaim, claim: Claim) -> Loss:
    """Say what happened to our acquisition, whose claim the row no longer carries."""
    if claim.token is None or claim.fault is not None:
        return Loss.DELETED
    # our token without a claim: somebody removed the claim by hand
    cleared = claim.token == own.token and claim.version == own.version
    return Loss.FORCED if cleared or claim.token.startswith(FORCED_MARK) else Loss.TAKEN


class Renewal(enum.Enum):
    """What became of a renewal."""

    APPLIED = enum.auto()
    OVERTAKEN = enum.auto()
    """A renewal that was sent later came first; its own answer shows what it brought."""
    AGAIN = enum.auto()
    """The row has an end beyond all that were proposed: send one that is later still."""
    LOST = enum.auto()


def renewal(own: OwnClaim, end: float, claim: Claim, *, applied: bool) -> Renewal:
    """Say what became of a renewal.

    A's renewal is delayed, B takes the expired claim, A's renewal arrives: its condition (token, version,
    and an end before the new one) refuses it, and the row shows B's token. A refusal that shows our claim
    with the end that only this request proposed is the answer to a copy of it: the first was applied.

    Args:
        own: Our claim.
        end: The end that the renewal proposed.
        claim: What the row shows.
        applied: Whether its condition held.
    """
    stored = claim.expires_at or 0.0
    if applied or (is_mine(own, claim) and stored == end):
        return Renewal.APPLIED
    if not is_mine(own, claim):
        return Renewal.LOST
    return Renewal.AGAIN if stored > own.proposed else Renewal.OVERTAKEN


def was_lost_before_release(own: OwnClaim, claim: Claim, *, maybe_applied: bool) -> bool:
    """Say whether a lock had been lost before the request that releases it was applied, and refused.

    As long as no attempt may have been applied, a refusal shows that the lock was lost, whatever the
    lease says. Afterwards the missing claim may be that attempt's own doing: then the lock counts as
    released, for its lease was still running when the first attempt was sent.
    """
    # whoever broke our claim by force, and found it standing, raised the version by one
    broken = loss_of(own, claim) is Loss.FORCED and claim.version == own.version + 1
    return broken or not maybe_applied


class Verdict(enum.Enum):
    """What a row shows that refused a guarded write, or a write without the lock."""

    APPLIED = enum.auto()
    """An earlier attempt was applied."""
    GONE = enum.auto()
    """The row that is to be deleted does not exist."""
    AGAIN = enum.auto()
    """What was known is out of date: send it again."""
    LOST = enum.auto()
    """The claim is not ours any more."""
    REFUSED = enum.auto()
    """The claim is ours: another condition refused."""


class GuardedWrite:
    """What one claim's part in a guarded write proposes.

    Attributes:
        number: Of the write, never proposed before under this claim.
        end: The end of the claim that it writes; None if it leaves it alone.
        deletes: Whether it deletes the row that carries the claim.
    """

    __slots__ = ("deletes", "end", "number")

    def __init__(self, number: int, end: float | None = None, deletes: bool = False) -> None:
        self.number = number
        self.end = end
        self.deletes = deletes


def guarded_write(
    own: OwnClaim, write: GuardedWrite, claim: Claim, *, row_is_gone: bool, may_delete: bool
) -> Verdict:
    """Say what a row shows that refused a guarded write. Notes an earlier write that had been applied.

    Args:
        own: Our claim.
        write: What was proposed last.
        claim: What the row shows.
        row_is_gone: Whether there is no row.
        may_delete: Whether an earlier attempt may have deleted it, while nobody else can have the lock.
    """
    # Not `is_mine`: a write that unlocks has removed the claim, and left token, version and number.
    ours = claim.token == own.token and claim.version == own.version
    if ours and claim.writes == write.number:
        return Verdict.APPLIED
    if write.deletes and row_is_gone and may_delete:
        return Verdict.GONE
    if not is_mine(own, claim):
        return Verdict.LOST
    if claim.writes != own.writes:
        # Write 1 (known 0, next 1) was applied, its answer was lost, and its caller got an error. Write 2 (known 0,
        # next 2) is refused although the lock is ours. Sent again as (known 1, next 2) it is applied, and a
        # late copy of write 1, which still says "known 0", is refused for ever.
        own.writes = claim.writes
        return Verdict.AGAIN
    if write.end is not None and write.end <= (claim.expires_at or 0.0):
        # it met a renewal that was sent later
        own.saw(claim.expires_at)
        return Verdict.AGAIN
    return Verdict.REFUSED


def of_all(verdicts: Iterable[Verdict], parts: int) -> Verdict:
    """Say what became of a write under several claims, from the verdicts on those that refused it.

    It is applied as a whole or not at all, so one row that shows it as applied shows it for all, even if
    another holder has taken one of the locks since.

    Args:
        verdicts: On the rows that refused it.
        parts: How many claims it was under.
    """
    several = list(verdicts)
    found = set(several)
    # a row that is gone proves nothing next to a guard that still holds
    all_gone = found == {Verdict.GONE} and len(several) == parts
    if Verdict.APPLIED in found or all_gone:
        return Verdict.APPLIED
    if found & {Verdict.LOST, Verdict.GONE}:
        return Verdict.LOST
    return Verdict.AGAIN if Verdict.AGAIN in found else Verdict.REFUSED
