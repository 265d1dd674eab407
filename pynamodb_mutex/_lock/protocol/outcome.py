"""The meaning of an answer for our attempts at a write: applied, overtaken, to be sent again, or lost.

Each request may be applied and its answer lost, be applied late, or be repeated. So a refusal does not mean that nothing was
applied: the row in it shows the outcome of the attempts, as far as anybody can know it. Only this module decides that. The
operations in `pynamodb_mutex._lock.operations` send the requests, count the attempts (`retry.Attempts`) and act on the verdict.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pynamodb_mutex._lock.protocol.claim import FORCED_MARK, Claim, OwnClaim
from pynamodb_mutex.exceptions import Loss


def shows_acquisition(own: OwnClaim, claim: Claim) -> bool:
    """Return whether a row shows that our acquisition was applied, by this attempt or an earlier attempt."""
    # Our token in a tombstone is no acquisition: the claim was made and has ended since.
    return claim.token == own.token and claim.expires_at is not None


def _is_ours(own: OwnClaim, claim: Claim) -> bool:
    """Return whether our acquisition is the last one that a row shows, whether or not its claim stands."""
    # The token alone is not enough. Suppose A's lease ends; B acquires the lock and releases it. A late copy of A's
    # acquiring write finds B's tombstone, which is free and has another token, and is applied: the row has A's token again,
    # with a higher version. If only the token counted, A's next renewal would succeed, and A would go on as if B had never
    # held the lock.
    return claim.token == own.token and claim.version == own.version


def is_mine(own: OwnClaim, claim: Claim) -> bool:
    """Return whether a row carries our claim: our token, our version, and an end."""
    return _is_ours(own, claim) and claim.expires_at is not None


def loss_of(own: OwnClaim, claim: Claim) -> Loss:
    """Return how our claim was lost, from a row that no longer carries it."""
    # there is no row, or it is not a lock's any more
    if claim.token is None or claim.fault is not None:
        return Loss.DELETED
    # If the row has our token and version and no claim, somebody removed the claim by hand. If it has a claim, a copy of this
    # process has written under it.
    cleared = _is_ours(own, claim) and claim.expires_at is None
    return Loss.FORCED if cleared or claim.token.startswith(FORCED_MARK) else Loss.TAKEN


Renewal = Literal["applied", "overtaken", "again", "lost"]
"""The outcome of a renewal.

- ``applied``: it set the end of the claim
- ``overtaken``: it was not applied, because a later renewal came first; the answer to the later one shows the end that it set
- ``again``: it was not applied, because the row has an end beyond all that we proposed: propose a later end
- ``lost``: the row does not carry our claim any more
"""


def renewal(own: OwnClaim, end: float, claim: Claim, *, applied: bool) -> Renewal:
    """Return the outcome of a renewal that proposed ``end``, from the claim in the answer.

    Suppose A's renewal is delayed, B takes the expired claim, A's renewal arrives: its condition (token, version, and an end
    before the new one) refuses it, and the row shows B's token. If a refusal shows our claim with the end that only this
    request proposed, it is the answer to a second copy of the request: the first copy was applied.
    """
    stored = claim.expires_at or 0.0
    if applied or (is_mine(own, claim) and stored == end):
        return "applied"
    if not is_mine(own, claim):
        return "lost"
    return "again" if stored > own.proposed else "overtaken"


def was_lost_before_release(own: OwnClaim, claim: Claim, *, maybe_applied: bool) -> bool:
    """Return whether a lock whose release was refused had been lost before the release.

    As long as no earlier attempt may have been applied, a refusal shows that the lock was lost, even if the lease still runs.
    Once an attempt may have been applied, the claim may be missing because of it: then the lock counts as released, because
    its lease was still running when the first attempt was sent.
    """
    # Force needs a claim to break, and raises the version by one. So a forced token with the version after ours shows
    # that force broke our claim, which stood until then, and that no attempt of ours was applied. After a release,
    # force could only break the claim of a later holder, whose version is higher already.
    broken = loss_of(own, claim) is Loss.FORCED and claim.version == own.version + 1
    return broken or not maybe_applied


def shows_release(own: OwnClaim, claim: Claim, reserved_as: str, *, deletes: bool) -> bool:
    """Return whether a row that refused a release shows that an earlier copy of that same request was applied.

    A proxy may send one request twice, and return the second answer.

    Args:
        own: Our claim.
        claim: The claim in the row that refused the release.
        reserved_as: Token of the claim that a release before ``hold_at_least`` leaves; empty if it leaves none.
        deletes: Whether the release deletes the row, and with it all signs of whose release it was.
    """
    # No other request writes that token.
    if reserved_as and claim.token == reserved_as:
        return True
    if deletes:
        return False
    # The row is as a release leaves it, or the next holder found it so: a holder that takes over a standing claim notes the
    # owner of that claim.
    as_left = _is_ours(own, claim) and claim.expires_at is None
    is_next = loss_of(own, claim) is Loss.TAKEN and claim.version == own.version + 1
    return as_left or (is_next and not claim.abandoned_by)


Verdict = Literal["applied", "gone", "again", "lost", "not applied", "refused"]
"""The outcome of a guarded write, or of a write without the lock, from the row that refused it.

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
    """Return the outcome of a guarded write from the row that refused it.

    If the verdict is "again", note the number or the end in the row in ``own``, for the next attempt.

    Args:
        own: Our claim.
        write: The values that the last attempt proposed.
        claim: The claim in the row.
        row_is_gone: Whether there is no row.
        may_delete: Whether an earlier attempt may have deleted the row, and our lease still runs, so that nobody else
            can have had the lock since.
    """
    # Before anything else, whoever holds the claim now: a write that unlocks has removed it, and another may have acquired the
    # lock since. The number stays until the next guarded write or write without the lock.
    if claim.writes == write.number:
        return "applied"
    if write.deletes and row_is_gone and may_delete:
        return "gone"
    is_known = own.has_numbered(claim)
    if not is_mine(own, claim) or not is_known:
        # This write would have replaced a number that we know, so neither it nor a late copy of it is applied. A number that we
        # do not know comes from a later holder's write or, under our claim, from another copy of this process.
        return "not applied" if is_known else "lost"
    if claim.writes != own.writes:
        # Suppose write 1 (known 0, next 1) was applied, its answer was lost, and its caller got an error. Write 2
        # (known 0, next 2) is refused although the lock is ours. If we send it again as (known 1, next 2), it is applied, and a
        # late copy of write 1, which requires "known 0", is refused for ever.
        own.writes = claim.writes
        return "again"
    if write.end is not None and write.end <= (claim.expires_at or 0.0):
        # A renewal that was sent after this attempt was applied before it. The write carries the whole row, and the end of the
        # claim with it: if it were applied, it would move the end back, and another could take the lock while this holder
        # still believes in its renewal. So the next attempt proposes a later end.
        own.outbid(claim.expires_at)
        return "again"
    return "refused"


def of_all(verdicts: Iterable[Verdict], parts: int) -> Verdict:
    """Return the outcome of a write under ``parts`` claims, from the verdicts on the rows that refused it.

    It is applied as a whole or not at all. So if one row shows it as applied, it was applied to all, even if another holder
    has taken one of the locks since.
    """
    several = list(verdicts)
    found = set(several)
    # Our earlier attempt would have deleted all the rows. If one row is gone while the guard of another still holds, somebody
    # else has deleted it.
    all_gone = found == {"gone"} and len(several) == parts
    if "applied" in found or all_gone:
        return "applied"
    lost = found & {"lost", "gone", "not applied"}
    if lost:
        # if one row shows it as not applied, it was applied to none
        return "not applied" if found - {"lost", "gone"} else "lost"
    return "again" if "again" in found else "refused"
