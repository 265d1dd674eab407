"""Writes of rows, sent alone or in one transaction, with the guards of the locks that they are under."""

from __future__ import annotations

import itertools
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pynamodb.constants import (
    ALL_OLD,
    CLIENT_REQUEST_TOKEN,
    RETURN_CONSUMED_CAPACITY,
    TOTAL,
)
from pynamodb.exceptions import PutError, TransactWriteError

from pynamodb_mutex._dynamodb.pynamodb_private import (
    connection_of_transaction,
    items_of,
    options_of,
    request_token_of,
)
from pynamodb_mutex._dynamodb.store import Request
from pynamodb_mutex._operations.effects import Open
from pynamodb_mutex._operations.guarded_write import Guard, Refusal, write
from pynamodb_mutex._operations.row_write import (
    GuardedRow,
    GuardOnly,
    NobodyHolds,
    PlainRow,
    UnlockedRow,
    key_of,
)
from pynamodb_mutex._protocol.messages import shown
from pynamodb_mutex.exceptions import MutexError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pynamodb.transactions import TransactWrite

    from pynamodb_mutex._dynamodb.answers import Answer
    from pynamodb_mutex._dynamodb.keys import RawItem
    from pynamodb_mutex._operations.effects import Operation
    from pynamodb_mutex._operations.held import HeldClaim
    from pynamodb_mutex._operations.row_write import Member
    from pynamodb_mutex._operations.shared import Shared


# as PynamoDB asks for it
_SAYS_CAPACITY = {RETURN_CONSUMED_CAPACITY: TOTAL}


class ProtectedItem(dict[str, Any]):
    """What a `TransactWrite` is given for a write of a row that can be locked.

    Attributes:
        members: The write, and what protects it in other rows.
        shows_row: Whether the caller requests the row whose condition does not hold.
    """

    def __init__(self, members: Sequence[Member], return_values: str | None = None) -> None:
        super().__init__()
        self.members = members
        self.shows_row = (return_values or "").upper() == ALL_OLD


def write_alone(
    shared: Shared, member: GuardedRow | UnlockedRow | PlainRow, what: str
) -> Operation[Answer]:
    """Make one write; return the last answer, which shows the row.

    Raises:
        PynamoDBException: See `guarded_write.write`.
    """
    guards = [member.guard] if isinstance(member, GuardedRow) else []
    if not member.store.connection.is_open:
        yield Open(member.store)
    if isinstance(member, UnlockedRow):
        yield from member.learn_time(shared, PutError)
    last: list[Answer] = []

    def build() -> Request:
        kwargs = member.request(shared.now) | _SAYS_CAPACITY
        return Request(member.store, member.write.operation, kwargs)

    def refusal(answer: Answer) -> Refusal:
        last[:] = [answer]
        if isinstance(member, GuardedRow):
            return Refusal([(member.guard, answer.item)], answer.refusal)
        if isinstance(member, UnlockedRow):
            rows = [(member, answer.item)]
            return Refusal([], answer.refusal, rows, answer.maybe_applied)
        return Refusal([], answer.refusal)

    answer = yield from write(shared, guards, build, refusal, what)
    return answer or last[0]


def write_together(
    shared: Shared,
    items: Sequence[Member | dict[str, Any]],
    what: str,
    request_token: str | None = None,
    options: Mapping[str, str] = MappingProxyType({}),
) -> Operation[dict[str, Any]]:
    """Make writes in one transaction, of which the protocol builds at least one.

    Args:
        shared: What the locks of the process share.
        items: What the protocol builds for each attempt, and what stays as the caller gave it.
        what: For messages.
        request_token: For the first attempt, if the caller has one.
        options: Other options of the caller's request.

    Returns:
        DynamoDB's answer; nothing if it was lost, and a guard showed that the writes were applied.

    Raises:
        PynamoDBException: See `guarded_write.write`.
    """
    _refuse_two_on_one_row(items)
    guards = {
        place: item.guard
        for place, item in enumerate(items)
        if isinstance(item, (GuardedRow, GuardOnly))
    }
    conditions = {
        place: item
        for place, item in enumerate(items)
        if isinstance(item, (UnlockedRow, NobodyHolds))
    }
    for item in items:
        # what judges a row compares it with the time of its own endpoint
        if not isinstance(item, dict) and not item.store.connection.is_open:
            yield Open(item.store)
        if isinstance(item, UnlockedRow):
            yield from item.learn_time(shared, TransactWriteError)
    stores = [item.store for item in items if not isinstance(item, dict)]
    # under a guard by a connection of the lock's own, which retries nothing that the guard does not know of
    store = next((each for each in stores if not each.connection.retries), stores[0])
    transaction = _Attempts(shared, items, request_token, is_guarded=bool(guards))

    def build() -> Request:
        built, token = transaction.build()
        request = {**_SAYS_CAPACITY, **options, CLIENT_REQUEST_TOKEN: token}
        return store.transact(built, request)

    def refusal(answer: Answer) -> Refusal:
        transaction.refused()
        refused = answer.refused
        return Refusal(
            [(guard, refused[place]) for place, guard in guards.items() if place in refused],
            answer.refusal,
            [(other, refused[place]) for place, other in conditions.items() if place in refused],
            answer.maybe_applied,
        )

    answer = yield from write(shared, list(guards.values()), build, refusal, what)
    return {} if answer is None else answer.data


class _Attempts:
    """The transaction as it is built for each attempt.

    Under guards each attempt proposes something else, and the guards show which was applied. Without, it is the
    ClientRequestToken that keeps a retry from being applied twice: then only a refusal makes it anew.
    """

    def __init__(
        self,
        shared: Shared,
        items: Sequence[Member | dict[str, Any]],
        request_token: str | None,
        *,
        is_guarded: bool,
    ) -> None:
        self._shared = shared
        self._items = items
        self._is_guarded = is_guarded
        self._built: list[dict[str, Any]] | None = None
        self._own_token = request_token
        self._token = ""

    def build(self) -> tuple[list[dict[str, Any]], str]:
        """Return the items and the token of an attempt that is about to be sent."""
        if self._is_guarded or self._built is None:
            self._built = [
                dict(item)
                if isinstance(item, dict)
                else {item.kind: item.request(self._shared.now)}
                for item in self._items
            ]
            self._token, self._own_token = self._own_token or self._shared.new_request_token(), None
        return self._built, self._token

    def refused(self) -> None:
        """Build it anew for the next attempt."""
        self._built = None


def _refuse_two_on_one_row(items: Sequence[Member | dict[str, Any]]) -> None:
    """Raise if a row that carries a claim has two operations: some engines would take them."""
    guards = [item for item in items if isinstance(item, (GuardedRow, GuardOnly))]
    for guard, item in itertools.product(guards, items):
        options = guard.guard.claim.options
        table, row = _target(item)
        if (
            item is not guard
            and table == options.model.Meta.table_name
            and all(row.get(name) == value for name, value in options.row.items())
        ):
            raise TransactWriteError(f"{shown(options.key)} has two operations in one transaction")


def _target(item: Member | dict[str, Any]) -> tuple[str, RawItem]:
    if isinstance(item, dict):
        (request,) = item.values()
        return request["TableName"], request.get("Key") or request["Item"]
    if isinstance(item, (GuardOnly, NobodyHolds)):
        return item.store.model.Meta.table_name, item.row
    return type(item.write.row).Meta.table_name, key_of(item.write.row)


def commit(
    shared: Shared,
    transaction: TransactWrite,
    claims: Sequence[HeldClaim] = (),
    *,
    unlock: bool = False,
) -> Operation[dict[str, Any]] | None:
    """Commit a transaction if the protocol has a part in it.

    Args:
        shared: What the locks of the process share.
        transaction: PynamoDB's.
        claims: Under which it is to be applied, also if their rows are not written.
        unlock: Release their locks with it.

    Returns:
        The operation that commits it, and returns DynamoDB's answer; None if it is PynamoDB's to commit.
    """
    items: list[Member | dict[str, Any]] = []
    additional: list[Member] = []
    for kind, item in items_of(transaction):
        if isinstance(item, ProtectedItem):
            items.append(item.members[0])
            additional += item.members[1:]
        else:
            items.append({kind: item})
    guards: dict[HeldClaim, Guard] = {}
    # after the caller's own, whose places the error's reasons have
    for member in [*items, *additional, *(GuardOnly(claim) for claim in claims)]:
        if isinstance(member, (GuardedRow, GuardOnly)):
            if isinstance(member, GuardOnly) and member.guard.claim in guards:
                continue
            guards[member.guard.claim] = member.guard
        if member not in items:
            items.append(member)
    held = [(claim.store.model, claim.options.row) for claim in guards]
    items = [
        item
        for item in items
        # nobody but we
        if not (isinstance(item, NobodyHolds) and (item.store.model, item.row) in held)
    ]
    if all(isinstance(item, dict) for item in items):
        return None
    for claim in claims:
        guards[claim].ends = guards[claim].ends or unlock
    return _committing(shared, transaction, items)


def _committing(
    shared: Shared, transaction: TransactWrite, items: Sequence[Member | dict[str, Any]]
) -> Operation[dict[str, Any]]:
    token, options = request_token_of(transaction), options_of(transaction)
    try:
        return (yield from write_together(shared, items, "transaction", token, options))
    except TransactWriteError as error:
        _hide_rows(error, transaction)
        raise


def send_through_own_connection(transaction: TransactWrite) -> None:
    """Let writes be sent by the connection that a transaction was made with.

    Raises:
        MutexError: If it does not reach the row that is under a lock.
        TransactWriteError: If it cannot send at all.
    """
    protected = [item for _, item in items_of(transaction) if isinstance(item, ProtectedItem)]
    for member in itertools.chain.from_iterable(item.members for item in protected):
        store = member.store.through(connection_of_transaction(transaction))
        if not isinstance(member, (GuardedRow, GuardOnly)):
            member.store = store
        elif not store.connection.reaches_the_same_as(member.store.connection):
            key, own, other = member.guard.claim.key, member.store.connection, store.connection
            msg = (
                f"the transaction goes to {other.where}, but {shown(key)} is locked in {own.where}"
                f"{', or with other credentials' * (other.where == own.where)}: "
                f"give TransactWrite a connection to it, or use row_lock.transaction()"
            )
            raise MutexError(msg, key=key)


def _hide_rows(error: TransactWriteError, transaction: TransactWrite) -> None:
    """Remove from an error the rows that only the protocol asked for."""
    items = [item for _, item in items_of(transaction)]
    for reason, item in itertools.zip_longest(error.cancellation_reasons, items):
        asked_for = item is not None and (not isinstance(item, ProtectedItem) or item.shows_row)
        if reason is not None and not asked_for:
            reason.raw_item = None
