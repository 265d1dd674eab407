"""Several claims that are held, renewed and given back together, by one transaction each."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from pynamodb.constants import TRANSACT_DELETE, TRANSACT_UPDATE

from pynamodb_mutex._release import Ending, given_back, release_request
from pynamodb_mutex._renewing import Renewing
from pynamodb_mutex._repeat import Transient, persist
from pynamodb_mutex.exceptions import MutexLostError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pynamodb_mutex._answers import Cancelled
    from pynamodb_mutex._claim import Loss
    from pynamodb_mutex._hold import Hold


class GroupHold(Renewing):
    """The acquisitions of several locks that were taken by one transaction.

    Each is a `Hold` like any other. What one of them knows of a loss or asks of a renewal is for all
    that are not given back. When one is lost, the claims of the others are left as they are, to be
    given back or to end: whoever works under them may not know yet, and nobody else should begin.

    Attributes:
        members: All of them.
        rows: What stands for the rows under the locks, for each object that entered.
    """

    def __init__(self, members: Sequence[Hold], sent: float) -> None:
        super().__init__(members[0].wanted.process)
        self.members = members
        self.rows: dict[object, Any] = {}
        for hold in members:
            hold.group = self
        self.plan(sent)

    @property
    def holds(self) -> Sequence[Hold]:
        """Those that are not given back, first the one whose loss was seen (see `Renewing`)."""
        holds = [hold for hold in self.members if not hold.finished]
        return sorted(holds, key=lambda hold: hold.taker is None)

    @property
    def finished(self) -> bool:
        """Whether all were given back."""
        return not self.holds

    @property
    def ends(self) -> float:
        """Local time at which the first of the leases ends."""
        return min(hold.ends for hold in self.holds or self.members)

    @property
    def over(self) -> bool:
        """Whether it is known to have ended, or is another process's."""
        holds = self.holds
        return not holds or any(hold.over for hold in holds)

    @property
    def stands(self) -> bool:
        """Whether no claim is known to have ended, though a write may have given it back."""
        holds = self.holds
        return bool(holds) and all(hold.stands for hold in holds)

    @property
    def remaining(self) -> float:
        """Seconds for which the holder may still believe in all of them."""
        return min(hold.remaining for hold in self.members)

    @property
    def loss(self) -> Loss | None:
        """Why they were lost; None if they were not."""
        return next((hold.loss for hold in self.members if hold.loss is not None), None)

    @property
    def why(self) -> str:
        """Why they were lost, in words."""
        return next((hold.why for hold in self.members if hold.cause is not None), "")

    def renew_once(self, lease: float | None) -> Sequence[Hold]:
        """Send a renewal of all, again only if it met a later one (see `Renewing`)."""
        while True:
            # a write under way that gives one back tells what becomes of it
            holds = [hold for hold in self.holds if not hold.is_ending]
            if not holds:
                return ()
            renewals = [
                hold.propose_renewal(hold.terms.lease if lease is None else lease) for hold in holds
            ]
            items = [
                hold.store.rows.renew.fill(hold.terms.row, hold.mine() | renewal.values)
                for hold, renewal in zip(holds, renewals, strict=True)
            ]
            cancelled = holds[0].store.transact(
                [{TRANSACT_UPDATE: item} for item in items], str(uuid.uuid4())
            )
            self._unreachable = False
            refused = {} if cancelled is None else cancelled.items
            claims = {at: holds[at].store.rows.claim(item) for at, item in refused.items()}
            mine = {at for at, claim in claims.items() if holds[at].tenure.is_mine(claim)}
            # an end that only this request proposed shows that it was applied, and so as a whole
            if not claims or any(claims[at].expires_at == renewals[at].end for at in mine):
                for hold, renewal in zip(holds, renewals, strict=True):
                    hold.extend(renewal)
                return holds
            for at, claim in claims.items():
                if at in mine:
                    holds[at].saw_end(claim)
                else:
                    holds[at].renewal_refused(claim)
            if self.over:
                return ()

    def release(self) -> None:
        """Give the locks back, by one transaction as a rule.

        Raises:
            MutexLostError: If one had been lost; the others are given back.
            MutexNotHeldError: If one is not held here.
            PynamoDBException: If DynamoDB refuses or cannot be reached.
        """
        holds = self.holds
        lost: MutexLostError | None = None
        try:
            for hold in holds:
                hold.check("release")
        except MutexLostError as error:
            # with one all were lost, but claims of others may still stand
            lost = error
        runs_until = min(hold.ends for hold in holds)
        left = [hold for hold in holds if hold.leave()]
        endings = [Ending(hold, runs_until) for hold in left]
        with given_back(endings):
            if endings and (lost is not None or not _release_together(endings)):
                lost = _release_singly(endings) or lost
        if lost is not None:
            raise lost


def _release_together(endings: Sequence[Ending]) -> bool:
    """Send the transaction; return whether it was applied."""

    def attempt() -> Cancelled | None:
        items = [_release_item(ending.hold) for ending in endings]
        try:
            return endings[0].hold.store.transact(items, str(uuid.uuid4()))
        except Transient as failure:
            for ending in endings:
                ending.may_be_applied = ending.may_be_applied or failure.maybe_applied
            raise

    return persist(attempt, endings[0].until, endings[0].hold) is None


def _release_item(hold: Hold) -> dict[str, Any]:
    store, row = hold.store, hold.terms.row
    if hold.terms.delete_on_release:
        return {TRANSACT_DELETE: store.rows.delete.fill(row, hold.mine())}
    values = hold.mine() | {"ttl": store.ttl_from_now()}
    return {TRANSACT_UPDATE: store.rows.release.fill(row, values)}


def _release_singly(endings: Sequence[Ending]) -> MutexLostError | None:
    """Release each for itself; return the error of the first that had been lost."""
    lost: MutexLostError | None = None
    for ending in endings:
        try:
            ending.send(release_request(ending.hold))
        except MutexLostError as error:
            lost = lost or error
    return lost
