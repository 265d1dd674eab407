"""Detaching a lock here and attaching it in another process, by a ticket.

`detach` renews the claim once more, leaves it in its row, perhaps to end sooner, and writes its token and version into the
ticket. `Attachment` replaces that claim with its own, by the acquiring write with another condition. From then on the ticket is
used up, and DynamoDB refuses late requests of the detaching process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamodb_mutex._attach.requests import TicketTemplates
from pynamodb_mutex._attach.ticket import Ticket
from pynamodb_mutex._lock.operations.acquire import Acquisition
from pynamodb_mutex._lock.operations.effects import Outside
from pynamodb_mutex._lock.operations.release import leave
from pynamodb_mutex._lock.operations.renew import renew_quietly
from pynamodb_mutex._lock.operations.retry import send
from pynamodb_mutex._lock.protocol.claim import OwnClaim, date_of
from pynamodb_mutex._lock.protocol.messages import shown
from pynamodb_mutex._lock.protocol.outcome import is_mine, loss_of
from pynamodb_mutex._lock.protocol.schedule import RELEASE_PATIENCE
from pynamodb_mutex._writes.guarded_write import begin_writing, end_writing
from pynamodb_mutex.exceptions import (
    InvalidTicketError,
    Loss,
    MutexAlreadyHeldError,
    MutexError,
    MutexLostError,
    MutexNotHeldError,
)

if TYPE_CHECKING:
    from pynamodb_mutex._lock.dynamodb.answers import Answer
    from pynamodb_mutex._lock.dynamodb.keys import RawItem
    from pynamodb_mutex._lock.dynamodb.store import Request
    from pynamodb_mutex._lock.operations.contender import Contender
    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.held import HeldClaim
    from pynamodb_mutex._lock.protocol.claim import Claim


def detach(claim: HeldClaim, lease: float | None, row: RawItem | None) -> Operation[str]:
    """Renew a claim once more, end its acquisition here, and return a ticket for it.

    Args:
        claim: The claim.
        lease: Seconds for which the ticket is valid; None for the mutex's lease.
        row: The primary key of the user's row that is locked; None for a lock that is not a row's.

    Raises:
        MutexError: If it cannot be detached, as `Mutex.detach` says.
        PynamoDBException: If DynamoDB refuses or cannot be reached: then nothing has changed here.
    """
    claim.check("detach")
    # Suppose a guarded write of another thread is under way, the lock is detached, another process attaches, and the write
    # arrives: DynamoDB would refuse it. So wait for the write. It may have released the lock, or found it lost: hence the
    # second check.
    writer = claim.process.runner
    try:
        yield from begin_writing([claim], writer, "detach")
        claim.check("detach")
        _check_detachable(claim)
        # While the lock is still held: if this fails, the caller goes on as its holder.
        yield from renew_quietly(claim.whole, lease, RELEASE_PATIENCE)
        # again: a signal handler may have entered the lock while the renewal was under way
        _check_detachable(claim)
        leave(claim, "detach")
    finally:
        end_writing([claim], writer)
    claim.leave_queue()
    claim.emit_handed_over(None)
    own, store, connection = claim.own, claim.store, claim.store.connection
    if lease is not None and lease < claim.ends - claim.process.now:
        # The renewal has shortened nothing, because until its answer this process was the holder. Now nobody believes in the
        # claim, and a waiter that watches it begins anew with the shorter lease. If this fails, the key is locked for longer.
        claim.own = OwnClaim(own.token, lease)  # it has not proposed a later end
        claim.own.version = own.version
        values = claim.propose_renewal(lease).values
        try:
            yield from send(
                store.update(store.of(TicketTemplates).end_sooner, claim.options.row, values)
            )
        except BaseException:
            # after Ctrl-C, or the cancellation of a task, nobody gets the ticket
            yield from claim.contender.disown(own)
            raise
    return Ticket(
        table=connection.table_name,
        region=connection.region,
        key=claim.options.key,
        token=own.token,
        version=own.version,
        expires_at=claim.own.proposed,
        lease=claim.lease,
        row=row,
        # the hash key comes first in a row's key
        range_key=None if claim.options.range_key is None else [*claim.options.row.values()][1],
    ).write()


def _check_detachable(claim: HeldClaim) -> None:
    key = claim.key
    if claim.depth > 1:
        msg = f"detach: {shown(key)} was acquired {claim.depth} times: release it until one is left"
        raise MutexAlreadyHeldError(msg, key=key, owner=claim.contender.owner)
    if claim.belief.state == "in doubt":
        msg = f"detach: {shown(key)} may have been released by a write of unknown outcome"
        raise MutexNotHeldError(msg, key=key)
    if claim.group is not None:
        msg = f"detach: {shown(key)} was taken together with others, and is lost with them"
        raise MutexError(msg, key=key)


class Attachment(Acquisition):
    """The acquisition by which a process continues to hold the lock that a ticket names.

    It takes the claim over by the acquiring write, on condition that the ticket's claim is in the row and has not surely expired.
    """

    def __init__(self, contender: Contender, ticket: Ticket) -> None:
        timeout = contender.options.seconds_to_wait(blocking=True, timeout=None)
        # The default timeout is infinite, but the ticket's claim ends, as a rule a lease after the detach.
        super().__init__(contender, min(timeout, contender.options.lease))
        self._ticket = ticket

    def _in_line(self) -> Operation[HeldClaim]:
        """Send the write until it is known whether it is applied or refused.

        Raises:
            InvalidTicketError: If the ticket is for another table or region.
            MutexLostError: If the ticket is no longer valid.
            PynamoDBException: If DynamoDB refuses or cannot be reached.
        """
        contender, ticket = self.contender, self._ticket
        if not contender.store.connection.is_open:
            # only the client knows its region, for the comparison with the ticket's
            yield Outside(contender.store.connection.open)
        learns_time = not contender.store.knows_time(contender.options.lease, self.process.now)
        table, region = contender.store.connection.table_name, contender.store.connection.region
        # if the client has no region, the request that follows raises the error for that
        elsewhere = region is not None and ticket.region not in {None, region}
        if ticket.table != table or elsewhere:
            msg = (
                f"the ticket is for {shown(ticket.key)} in {shown(ticket.table)} ({shown(ticket.region)}), "
                f"not in {shown(table)} ({shown(region)})"
            )
            raise InvalidTicketError(msg, key=ticket.key)
        if learns_time:
            # Without server time others could not judge the new claim by its end, and after an idle time the end would have
            # passed already; nor could the condition show that the ticket's claim has expired. Any answer shows the time, so the
            # read need not be consistent.
            yield from self._read(consistent=False)
        claim = yield from self.take()
        if claim is None:
            # The write was applied, but little of the new lease was left when its answer came, and it was not renewed.
            raise self._lost(Loss.EXPIRED)
        return claim

    _try = _in_line

    def _request(self, own: OwnClaim, values: dict[str, Any], now: float) -> Request:
        store, ticket = self.contender.store, self._ticket
        values |= {
            "mine": ticket.token,
            "version": str(ticket.version),
            "token": own.token,
            "now_low": store.now_low(now),
        }
        template = store.of(TicketTemplates).attach(values)
        return store.update(template, self.contender.options.row, values)

    def _see_answer(self, answer: Answer) -> None:
        """Raise the error for a write that was refused.

        Raises:
            MutexLostError: Always.
        """
        giver = OwnClaim(self._ticket.token, self._ticket.lease)
        giver.version = self._ticket.version
        claim = answer.claim
        # if the row still has the ticket's claim, DynamoDB refused the write because the claim's end has passed
        raise self._lost(Loss.EXPIRED if is_mine(giver, claim) else loss_of(giver, claim), claim)

    def _lost(self, loss: Loss, claim: Claim | None = None) -> MutexLostError:
        key = self._ticket.key
        return MutexLostError(
            f"attach: the ticket for {shown(key)} is not good any more: {loss.value}",
            loss=loss,
            key=key,
            owner=claim.owner if claim else None,
            expires_at=date_of(claim.expires_at) if claim else None,
        )
