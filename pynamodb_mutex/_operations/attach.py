"""Detach and attach: a lock that goes on in another process, and the ticket that carries it there."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from pynamodb_mutex._dynamodb.keys import check_key, row_name
from pynamodb_mutex._dynamodb.pynamodb_private import hash_key_name, range_key_name
from pynamodb_mutex._operations.acquire import Acquisition
from pynamodb_mutex._operations.effects import Open
from pynamodb_mutex._operations.guarded_write import end_turn_to_write, turn_to_write
from pynamodb_mutex._operations.held import State
from pynamodb_mutex._operations.options import check_lease, check_number
from pynamodb_mutex._operations.release import leave
from pynamodb_mutex._operations.renew import renew_quietly
from pynamodb_mutex._protocol.claim import Loss, OwnClaim
from pynamodb_mutex._protocol.messages import one_line, shown
from pynamodb_mutex._protocol.outcome import is_mine, loss_of
from pynamodb_mutex._protocol.schedule import RELEASE_PATIENCE
from pynamodb_mutex.exceptions import (
    InvalidTicketError,
    MutexAlreadyHeldError,
    MutexError,
    MutexLostError,
    MutexNotHeldError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamodb.models import Model

    from pynamodb_mutex._dynamodb.answers import Answer
    from pynamodb_mutex._dynamodb.keys import RawItem
    from pynamodb_mutex._dynamodb.store import Request
    from pynamodb_mutex._operations.contender import Contender
    from pynamodb_mutex._operations.effects import Operation
    from pynamodb_mutex._operations.held import HeldClaim
    from pynamodb_mutex._protocol.claim import Claim

_FORMAT = 1


class Ticket(NamedTuple):
    """What a process must know to go on with a lock.

    Attributes:
        table: In which the claim stands.
        region: Of the table; None if it is not known.
        key: Of the lock.
        token: Of the acquisition that was detached.
        version: Its fencing token.
        expires_at: End of its claim in server time, for people: what counts stands in the row.
        lease: Seconds, of the giver's mutex.
        row: The primary key of the user's row that is locked, if it is one.
    """

    table: str
    region: str | None
    key: str
    token: str
    version: int
    expires_at: float
    lease: float
    row: RawItem | None

    def write(self) -> str:
        """Return it as JSON; in ASCII, for not every queue takes all characters."""
        fields = {name: value for name, value in self._asdict().items() if value is not None}
        return json.dumps({"format": _FORMAT, **fields}, separators=(",", ":"), default=_base64)

    def row_key(self, model: type[Model]) -> RawItem:
        """Return the primary key of the user's row.

        Raises:
            InvalidTicketError: If the ticket is not for a row of the model.
        """
        given: Any = self.row
        raw: RawItem = {}
        try:
            for name in filter(None, (hash_key_name(model), range_key_name(model))):
                attribute = model.get_attributes()[name]
                kind = attribute.attr_type
                value = _str(given[attribute.attr_name][kind])
                raw[attribute.attr_name] = {kind: base64.b64decode(value) if kind == "B" else value}
            fits = row_name(model, raw) == self.key
        except (LookupError, TypeError, ValueError, ArithmeticError):
            fits = False
        if not fits:
            msg = f"the ticket for {shown(self.key)} is not one for a row of {model.__name__}"
            raise InvalidTicketError(msg, key=self.key)
        return raw


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def parse_ticket(text: str) -> Ticket:
    """Read a ticket.

    Raises:
        InvalidTicketError: If it is none, or of a format that is not known here.
    """
    try:
        fields = json.loads(text)
        ticket = _read(fields) if fields["format"] == _FORMAT else None
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        msg = f"this is no ticket: {type(error).__name__}: {one_line(error)}"
        raise InvalidTicketError(msg) from error
    if ticket is None:
        msg = f"a ticket of format {shown(fields['format'])}; known here: {_FORMAT}"
        raise InvalidTicketError(msg)
    return ticket


def _read(fields: dict[str, Any]) -> Ticket:
    return Ticket(
        table=_str(fields["table"]),
        region=_str(fields["region"]) if "region" in fields else None,
        key=check_key(fields["key"]),
        token=_str(fields["token"]),
        version=_int(fields["version"]),
        expires_at=check_number("expires_at", fields["expires_at"]),
        lease=check_lease(fields["lease"]),
        row=fields.get("row"),
    )


def _int(value: object) -> int:
    # no conversion: a ticket that was altered to version + 0.5 would pass for the claim's own
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"an int is expected, not {shown(value)}"
        raise TypeError(msg)
    return value


def _str(value: object) -> str:
    if not isinstance(value, str):
        msg = f"a str is expected, not {shown(value)}"
        raise TypeError(msg)
    return value


def detach(claim: HeldClaim, lease: float | None, row: RawItem | None) -> Operation[str]:
    """End an acquisition here, renewed once more, and return a ticket for it.

    Raises:
        MutexError: If it cannot be detached, as `Mutex.detach` says.
        PynamoDBException: If DynamoDB refuses or cannot be reached: then nothing has changed here.
    """
    claim.check("detach")
    # a write under way would be refused once another has attached
    yield from turn_to_write([claim])
    try:
        claim.check("detach")
        _check_detachable(claim)
        yield from renew_quietly(claim.together, lease, RELEASE_PATIENCE)
        leave(claim, "detach")
    finally:
        end_turn_to_write([claim])
    claim.leave_queue()
    claim.emit_handed_over(None)
    own, connection = claim.own, claim.store.connection
    return Ticket(
        table=connection.table_name,
        region=connection.region,
        key=claim.key,
        token=own.token,
        version=own.version,
        expires_at=own.expires_at,
        lease=claim.lease,
        row=row,
    ).write()


def _check_detachable(claim: HeldClaim) -> None:
    key = claim.key
    if claim.depth > 1:
        msg = f"detach: {shown(key)} is entered {claim.depth} times: only the last one detaches"
        raise MutexAlreadyHeldError(msg, key=key, owner=claim.contender.owner)
    if claim.belief.state is State.IN_DOUBT:
        msg = f"detach: {shown(key)} may have been released by a write of unknown outcome"
        raise MutexNotHeldError(msg, key=key)
    if claim.together.is_group:
        msg = f"detach: {shown(key)} was taken together with others, and is lost with them"
        raise MutexError(msg, key=key)


class Attachment(Acquisition):
    """Taking over the claim that a ticket names: by the write that acquires a lock, on another condition."""

    def __init__(self, contender: Contender, ticket: Ticket) -> None:
        patience = contender.options.patience(blocking=True, timeout=None)
        super().__init__(contender, min(patience, contender.options.lease))
        self._ticket = ticket

    def attach(self, note: Callable[[HeldClaim], object]) -> Operation[HeldClaim]:
        """Send the write until it is known to be applied, or refused; and report it.

        Args:
            note: Called with the claim before it is reported.

        Raises:
            InvalidTicketError: If the ticket is for another table.
            MutexLostError: If it is not good any more.
            PynamoDBException: If DynamoDB refuses or cannot be reached.
        """
        self.begin()
        try:
            claim = yield from self._attach()
            note(claim)
            yield from self.announce(claim)
        except BaseException as error:
            self._emit_not_acquired(error)
            raise
        return claim

    def _attach(self) -> Operation[HeldClaim]:
        contender, ticket = self.contender, self._ticket
        if not contender.store.connection.is_open:
            # the ticket says in which region it is good, and the client in which region this is
            yield Open(contender.store)
        learns_time = not contender.store.knows_time(contender.options.lease, self.shared.now)
        table, region = contender.store.connection.table_name, contender.store.connection.region
        # no region: the request that follows says so
        elsewhere = region is not None and ticket.region not in {None, region}
        if ticket.table != table or elsewhere:
            msg = (
                f"the ticket is for {shown(ticket.key)} in {shown(ticket.table)} ({shown(ticket.region)}), "
                f"not in {shown(table)} ({shown(region)})"
            )
            raise InvalidTicketError(msg, key=ticket.key)
        if learns_time:
            # see `Acquisition.poll`
            yield from self._read(consistent=False)
        claim = yield from self.take()
        if claim is None:
            raise self._lost(Loss.EXPIRED)
        return claim

    def _request(self, own: OwnClaim, values: dict[str, Any], now: float) -> Request:
        store, ticket = self.contender.store, self._ticket
        values |= {
            "mine": ticket.token,
            "version": str(ticket.version),
            "token": own.token,
            "now_low": store.now_low(now),
        }
        template = store.requests.attach(data="data" in values)
        return store.update(template, self.contender.options.row, values)

    def _see(self, answer: Answer) -> None:
        """Say why the write was refused.

        Raises:
            MutexLostError: In any case.
        """
        giver = OwnClaim(self._ticket.token, self._ticket.lease)
        giver.version = self._ticket.version
        claim = answer.claim
        raise self._lost(Loss.EXPIRED if is_mine(giver, claim) else loss_of(giver, claim), claim)

    def _lost(self, loss: Loss, claim: Claim | None = None) -> MutexLostError:
        key = self._ticket.key
        return MutexLostError(
            f"attach: the ticket for {shown(key)} is not good any more: {loss.value}",
            loss=loss,
            key=key,
            owner=claim.owner if claim else None,
            expires_at=claim.expires_at if claim else None,
        )
