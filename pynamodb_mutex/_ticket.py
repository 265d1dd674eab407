"""A lock that goes on in another process: the ticket that carries it there, giving and taking."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from pynamodb_mutex import _events
from pynamodb_mutex._acquire import Acquisition
from pynamodb_mutex._claim import Loss, Tenure
from pynamodb_mutex._clock import local_clock
from pynamodb_mutex._keys import check_key, row_name
from pynamodb_mutex._messages import one_line, shown
from pynamodb_mutex._terms import check_lease, check_number
from pynamodb_mutex._waiting import AT_ONCE
from pynamodb_mutex.exceptions import (
    InvalidTicketError,
    MutexAlreadyHeldError,
    MutexError,
    MutexLostError,
    MutexNotHeldError,
)

if TYPE_CHECKING:
    from pynamodb.models import Model

    from pynamodb_mutex._answers import Answer
    from pynamodb_mutex._claim import Claim
    from pynamodb_mutex._hold import Hold
    from pynamodb_mutex._keys import RawItem
    from pynamodb_mutex._waiting import Steps
    from pynamodb_mutex._wanted import Wanted

_FORMAT = 1

_PATIENCE = 5.0
"""Seconds for which a renewal is repeated that is to be the last one here."""


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
            for name in filter(None, (model._hash_keyname, model._range_keyname)):
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


def detach(hold: Hold, lease: float | None, row: RawItem | None) -> str:
    """End the belief in an acquisition, renewed once more, and return a ticket for it.

    Raises:
        MutexError: If it cannot be detached, as `Mutex.detach` says.
        PynamoDBException: If DynamoDB refuses or cannot be reached: then nothing has changed here.
    """
    hold.check("detach")
    # a write under way would be refused once another has attached
    with hold.writing:
        hold.check("detach")
        _check_detachable(hold)
        # not told before that is over, for a receiver may write under the lock
        hold.renew_untold(lease, _PATIENCE)
        hold.leave("detach")
    hold.forget()
    if hold.cause is not None:
        # this process stood still since, and the lease has ended
        raise hold.lost_error("detach")
    _events.handed_over(hold)
    tenure, terms, store = hold.tenure, hold.terms, hold.store
    return Ticket(
        table=store.connection.table_name,
        region=store.region,
        key=terms.key,
        token=tenure.token,
        version=tenure.version,
        expires_at=tenure.expires_at,
        lease=terms.lease,
        row=row,
    ).write()


def _check_detachable(hold: Hold) -> None:
    key = hold.terms.key
    if hold.depth > 1:
        msg = f"detach: {shown(key)} is entered {hold.depth} times: only the last one detaches"
        raise MutexAlreadyHeldError(msg, key=key, owner=hold.wanted.owner)
    if hold.may_have_ended:
        msg = f"detach: {shown(key)} may have been given back by a write of unknown outcome"
        raise MutexNotHeldError(msg, key=key)
    if hold.group is not None:
        msg = f"detach: {shown(key)} was taken together with others, and is lost with them"
        raise MutexError(msg, key=key)


class Attachment(Acquisition):
    """Taking over the claim that a ticket names: by the write that takes a lock, on other terms."""

    def __init__(self, wanted: Wanted, ticket: Ticket) -> None:
        _, deadline = wanted.terms.patience(blocking=True, timeout=None)
        now = local_clock().now()
        super().__init__(wanted, min(deadline, now + wanted.terms.lease))
        self.effort.since = now
        self._ticket = ticket

    def attach(self) -> Steps[Hold]:
        """Send the write, in steps, until it is known to be applied, or refused.

        Raises:
            InvalidTicketError: If the ticket is for another table.
            MutexLostError: If it is not good any more.
            PynamoDBException: If DynamoDB refuses or cannot be reached.
        """
        yield AT_ONCE
        store, ticket = self.wanted.store, self._ticket
        learns_time = not store.knows_time(self.wanted.terms.lease)
        table, region = store.connection.table_name, store.region
        # no region: the request that follows says so
        elsewhere = region is not None and ticket.region not in {None, region}
        if ticket.table != table or elsewhere:
            msg = (
                f"the ticket is for {shown(ticket.key)} in {shown(ticket.table)} ({shown(ticket.region)}), "
                f"not in {shown(table)} ({shown(region)})"
            )
            raise InvalidTicketError(msg, key=ticket.key)
        if learns_time:
            # see `Acquisition.look`
            yield from self._read(consistent=False)
        hold = yield from self.take()
        if hold is None:
            raise self._lost(Loss.EXPIRED)
        return hold

    def _request(self, tenure: Tenure, values: dict[str, Any], now: float) -> Answer:
        store, ticket = self.wanted.store, self._ticket
        values |= {
            "mine": ticket.token,
            "version": str(ticket.version),
            "token": tenure.token,
            "now_low": store.now_low(now),
        }
        return store.write(store.rows.attach(data="data" in values), self.wanted.terms.row, values)

    def _see(self, answer: Answer) -> None:
        """Tell why the write was refused.

        Raises:
            MutexLostError: In any case.
        """
        giver = Tenure(self._ticket.token, self._ticket.lease)
        giver.version = self._ticket.version
        claim = answer.claim
        raise self._lost(Loss.EXPIRED if giver.is_mine(claim) else giver.loss(claim), claim)

    def _lost(self, loss: Loss, claim: Claim | None = None) -> MutexLostError:
        key = self._ticket.key
        return MutexLostError(
            f"attach: the ticket for {shown(key)} is not good any more: {loss.value}",
            loss=loss,
            key=key,
            owner=claim.owner if claim else None,
            expires_at=claim.expires_at if claim else None,
        )
