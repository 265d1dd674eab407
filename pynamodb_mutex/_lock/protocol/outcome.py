"""What an answer says about our attempts at a write: applied, overtaken, to be sent again, or lost.

Each request may be applied and its answer lost, be applied late, or be repeated. So a refusal does not
mean that nothing was applied: the row in it shows what became of the attempts, as far as that can be known.
This module is the one place that decides it. The operations in `pynamodb_mutex._lock.operations` send the requests, count
the attempts (`retry.Attempts`) and act on the verdict.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pynamodb_mutex._lock.protocol.claim import FORCED_MARK, Claim, OwnClaim
from pynamodb_mutex.exceptions import Loss


def shows_acquisition(own: OwnClaim, claim: Claim) -> bool:
    """Return whether a row shows that our acquisition was applied, by this attempt or an earlier one."""
    # Our token in a tombstone is no acquisition: the claim was made and has ended since.
    return claim.token == own.token and claim.expires_at is not None


def _is_ours(own: OwnClaim, claim: Claim) -> bool:
    """Return whether our acquisition is the last one that a row shows, whether or not its claim stands."""
    # The token alone is not enough. Suppose A's lease ends; B acquires the lock and releases it. A late copy of A's
    # acquiring write finds B's tombstone, which is free and has another token, and is applied: the row has A's token
    # again, with a higher version. By the token alone A's next renewal would succeed, and A go on as if B had never
    # held the lock.
    return claim.token == own.token and claim.version == own.version


def is_mine(own: OwnClaim, claim: Claim) -> bool:
    """Return whether a row carries our claim: our token, our version, and an end."""
    return _is_ours(own, claim) and claim.expires_at is not None


def loss_of(own: OwnClaim, claim: Claim) -> Loss:
    """Return how our claim was lost, from a row that no longer carries it."""
    # no row, or one that is no lock's any more
    if claim.token is None or claim.fault is not None:
        return Loss.DELETED
    # Our token and version without a claim: somebody removed the claim by hand. With a claim, a copy of this process has
    # written under it.
    cleared = _is_ours(own, claim) and claim.expires_at is None
    return Loss.FORCED if cleared or claim.token.startswith(FORCED_MARK) else Loss.TAKEN


Renewal = Literal["applied", "overtaken", "again", "lost"]
"""What became of a renewal.

- ``applied``: it set the end of the claim
- ``overtaken``: it was not applied, as one that was sent later came first. That one's own answer shows what it set
- ``again``: it was not applied, as the row has an end beyond all that were proposed: propose one that is later still
- ``lost``: the row does not carry our claim any more
"""


def renewal(own: OwnClaim, end: float, claim: Claim, *, applied: bool) -> Renewal:
    """Return what became of a renewal.

    Suppose A's renewal is delayed, B takes the expired claim, A's renewal arrives: its condition (token, version, and
    an end before the new one) refuses it, and the row shows B's token. A refusal that shows our claim with the end
    that only this request proposed is the answer to a second copy of it: the first one was applied.

    Args:
        own: Our claim.
        end: End that the renewal proposed, in server time.
        claim: What the row in the answer says.
        applied: Whether the answer says that it was applied.
    """
    stored = claim.expires_at or 0.0
    if applied or (is_mine(own, claim) and stored == end):
        return "applied"
    if not is_mine(own, claim):
        return "lost"
    return "again" if stored > own.proposed else "overtaken"


def was_lost_before_release(own: OwnClaim, claim: Claim, *, maybe_applied: bool) -> bool:
    """Return whether a lock whose release was refused had been lost before the release.

    As long as no attempt may have been applied, a refusal shows that the lock was lost, whatever the
    lease says. Once one may have been applied, the claim may be missing because of that attempt: then the lock counts
    as released, for its lease was still running when the first attempt was sent.

    Args:
        own: Our claim.
        claim: What the row that refused the release says.
        maybe_applied: Whether an attempt at the release may have been applied before.
    """
    # Force needs a claim to break, and raises the version by one. So a forced token with the version after ours shows
    # that force broke our claim, which stood until then, and that no attempt of ours was applied. After a release,
    # force could only break the claim of somebody who acquired the lock with a higher version first.
    broken = loss_of(own, claim) is Loss.FORCED and claim.version == own.version + 1
    return broken or not maybe_applied


def shows_release(own: OwnClaim, claim: Claim, reserved_as: str, *, deletes: bool) -> bool:
    """Return whether a row that refused a release shows that an earlier copy of that same request was applied.

    A proxy may send one request twice, and return the second answer.

    Args:
        own: Our claim.
        claim: What the row that refused the release says.
        reserved_as: Token of the claim that a release before ``hold_at_least`` leaves; empty if it leaves none.
        deletes: Whether it deletes the row, and with it all that shows whose release it was.
    """
    # No other request writes that token.
    if reserved_as and claim.token == reserved_as:
        return True
    if deletes:
        return False
    # The row is as a release leaves it, or the next holder found it so: whoever takes over a claim that stands notes its
    # owner.
    as_left = _is_ours(own, claim) and claim.expires_at is None
    is_next = loss_of(own, claim) is Loss.TAKEN and claim.version == own.version + 1
    return as_left or (is_next and not claim.abandoned_by)


Verdict = Literal["applied", "gone", "again", "lost", "not applied", "refused"]
"""What a row that refused a guarded write, or a write without the lock, shows about it.

- ``applied``: an earlier attempt was applied
- ``gone``: the row that was to be deleted does not exist: an earlier attempt may have deleted it
- ``again``: the write was built from a number or an end that is out of date: build it anew and send it again
- ``lost``: the claim is not ours any more, or another copy of this process writes under it; whether the write was applied
  is unknown
- ``not applied``: the claim is not ours any more, and the write was not applied
- ``refused``: the claim is ours and as we know it: another condition of the write did not hold
"""


class GuardedWrite:
    """The part of a guarded write that concerns one claim.

    Attributes:
        number: Number of the write, never proposed before under this claim.
        end: End of the claim that it writes, in server time; None if it leaves the end alone.
        deletes: Whether it deletes the row that carries the claim.
    """

    def __init__(self, number: int, end: float | None = None, deletes: bool = False) -> None:
        self.number = number
        self.end = end
        self.deletes = deletes


def guarded_write(
    own: OwnClaim, write: GuardedWrite, claim: Claim, *, row_is_gone: bool, may_delete: bool
) -> Verdict:
    """Return what a row that refused a guarded write shows about it.

    If the verdict is AGAIN, the number or the end that the row shows is noted in ``own``, for the next attempt.

    Args:
        own: Our claim.
        write: What the last attempt proposed.
        claim: What the row says.
        row_is_gone: Whether there is no row.
        may_delete: Whether an earlier attempt may have deleted the row, and our lease still runs, so that nobody else
            can have had the lock since.
    """
    # Before anything else, and whosever the claim is now: a write that unlocks has removed it, and another may have
    # acquired the lock since. The number stays until the next guarded write or write without the lock.
    if claim.writes == write.number:
        return "applied"
    if write.deletes and row_is_gone and may_delete:
        return "gone"
    is_known = own.has_numbered(claim)
    if not is_mine(own, claim) or not is_known:
        # This write would have replaced a number that we know. No late copy of it will do so either. A number that we do
        # not know is that of a later holder's write or, under our claim, that of another copy of this process.
        return "not applied" if is_known else "lost"
    if claim.writes != own.writes:
        # Suppose write 1 (known 0, next 1) was applied, its answer was lost, and its caller got an error. Write 2
        # (known 0, next 2) is refused although the lock is ours. Sent again as (known 1, next 2) it is applied, and a
        # late copy of write 1, which requires "known 0", is refused for ever.
        own.writes = claim.writes
        return "again"
    if write.end is not None and write.end <= (claim.expires_at or 0.0):
        # A renewal that was sent after this attempt was applied before it. The write carries the whole row, and the end
        # of the claim with it: applied, it would move the end back, and another could take the lock while this holder
        # still believes in its renewal. So it proposes a later end at the next attempt.
        own.outbid(claim.expires_at)
        return "again"
    return "refused"


def of_all(verdicts: Iterable[Verdict], parts: int) -> Verdict:
    """Return what became of a write under several claims, given the verdicts on the rows that refused it.

    It is applied as a whole or not at all. So one row that shows it as applied shows it for all, even if
    another holder has taken one of the locks since.

    Args:
        verdicts: The verdicts on the rows that refused it.
        parts: Number of claims that the write was made under.
    """
    several = list(verdicts)
    found = set(several)
    # Our earlier attempt would have deleted all the rows. If one is gone while another's guard still holds, somebody
    # else has deleted it.
    all_gone = found == {"gone"} and len(several) == parts
    if "applied" in found or all_gone:
        return "applied"
    lost = found & {"lost", "gone", "not applied"}
    if lost:
        # one row that shows it as not applied shows it for all
        return "not applied" if found - {"lost", "gone"} else "lost"
    return "again" if "again" in found else "refused"
