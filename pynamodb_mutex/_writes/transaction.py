"""Writes of rows, sent alone or in one transaction, with the guards of their locks.

`write_alone` and `write_together` build the requests for the loop in `guarded_write`. `commit` does so for a `TransactWrite` of
PynamoDB's: it collects the caller's items and adds the guards and checks of their rows; if there are none, PynamoDB commits the
transaction. The parts of a write are in `row_write`.
"""

from __future__ import annotations

import itertools
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pynamodb.constants import ALL_OLD, CLIENT_REQUEST_TOKEN, ITEM, RETURN_CONSUMED_CAPACITY, TOTAL
from pynamodb.exceptions import PutError, TransactWriteError

from pynamodb_mutex._lock.dynamodb import pynamodb_private as private
from pynamodb_mutex._lock.dynamodb.store import Request
from pynamodb_mutex._lock.operations.effects import Outside
from pynamodb_mutex._lock.protocol.messages import shown
from pynamodb_mutex._writes.guarded_write import Guard, Refusal, write
from pynamodb_mutex._writes.row_write import (
    GuardedRow,
    GuardOnly,
    NobodyHolds,
    PlainRow,
    UnlockedRow,
    key_of,
    name_of,
)
from pynamodb_mutex.exceptions import MutexError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pynamodb.transactions import TransactWrite

    from pynamodb_mutex._lock.dynamodb.answers import Answer
    from pynamodb_mutex._lock.dynamodb.keys import RawItem
    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.held import HeldClaim
    from pynamodb_mutex._lock.operations.process_state import ProcessState
    from pynamodb_mutex._writes.row_write import Member


# PynamoDB requests it with each write, and its callers find it in the answer
_SAYS_CAPACITY = {RETURN_CONSUMED_CAPACITY: TOTAL}


class ProtectedItem(dict[str, Any]):
    """The item that a `TransactWrite` gets for a write of a row that can be locked.

    To PynamoDB it is an empty dict: each attempt builds its request from the members.

    Attributes:
        members: The write first, then its guards and checks in other rows.
        shows_row: Whether the caller requests the row if the condition does not hold.
    """

    def __init__(self, members: Sequence[Any], return_values: str | None = None) -> None:
        super().__init__()
        self.members = members
        self.shows_row = (return_values or "").upper() == ALL_OLD


def write_alone(
    process: ProcessState, member: GuardedRow | UnlockedRow | PlainRow, what: str
) -> Operation[Answer]:
    """Make one write as a request of its own.

    Args:
        process: State of the process.
        member: The write.
        what: Name of the call, for messages.

    Returns:
        The last answer, which shows the row.

    Raises:
        PynamoDBException: See `guarded_write.write`.
    """
    guards = [member.guard] if isinstance(member, GuardedRow) else []
    # Before the request is built: without its client a connection does not know its endpoint, nor server time there.
    if not member.store.connection.is_open:
        yield Outside(member.store.connection.open)
    if isinstance(member, UnlockedRow):
        yield from member.learn_time(process, PutError)

    def build() -> Request:
        kwargs = member.request(process.now) | _SAYS_CAPACITY
        if isinstance(member, UnlockedRow):
            member.sent = kwargs.get(ITEM)
        return Request(member.store, member.write.operation, kwargs)

    def refusal(answer: Answer) -> Refusal:
        if isinstance(member, GuardedRow):
            return Refusal([(member.guard, answer.item)], answer.refusal)
        if isinstance(member, UnlockedRow):
            return Refusal([], answer.refusal, [(member, answer.item)])
        return Refusal([], answer.refusal)

    # if the answer was lost, this is the refusal of the retry, which shows the row as the write has left it
    return (yield from write(process, guards, build, refusal, what))


def write_together(
    process: ProcessState,
    items: Sequence[Member | dict[str, Any]],
    what: str,
    request_token: str | None = None,
    options: Mapping[str, str] = MappingProxyType({}),
) -> Operation[dict[str, Any]]:
    """Make writes in one transaction.

    Args:
        process: State of the process.
        items: Items that are built for each attempt, at least one, and items that stay as the caller gave them.
        what: Name of the call, for messages.
        request_token: The caller's ClientRequestToken, for the first attempt; None if there is none.
        options: Other options of the caller's request.

    Returns:
        DynamoDB's answer; an empty dict if it was lost, and a row showed that the writes were applied.

    Raises:
        MutexError: If the rows are locked in two regions.
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
        # a row is judged by server time at its own store's endpoint, which is known once the connection is open
        if not isinstance(item, dict) and not item.store.connection.is_open:
            yield Outside(item.store.connection.open)
        if isinstance(item, UnlockedRow):
            yield from item.learn_time(process, TransactWriteError)
    stores = [item.store for item in items if not isinstance(item, dict)]
    # If there is a guard, not by a connection with Meta's timeouts: it may hang for longer than a lease.
    store = next((guard.claim.store for guard in guards.values()), stores[0])
    for guard in guards.values():
        # Suppose two rows are locked in two regions, and the caller writes both in the transaction() of one lock. In its region
        # the other row is missing, or another row has its name: DynamoDB would refuse the guard, and a held lock would count as
        # lost.
        here = guard.claim.store.connection
        if here.region != store.connection.region:
            raise _elsewhere(guard.claim.key, store.connection.where, f"locked in {here.where}")
    built: list[dict[str, Any]] | None = None
    token = ""

    # If there are guards, each attempt is built anew, with another ClientRequestToken, and the guards show which attempt was
    # applied. Without guards, the ClientRequestToken keeps a retry from being applied a second time: DynamoDB refuses it with
    # other content, so the same content is sent again until it is refused.
    def build() -> Request:
        nonlocal built, token, request_token
        if guards or built is None:
            built = [
                dict(item) if isinstance(item, dict) else {item.kind: item.request(process.now)}
                for item in items
            ]
            token, request_token = request_token or process.new_request_token(), None
        return store.transact(built, {**_SAYS_CAPACITY, **options, CLIENT_REQUEST_TOKEN: token})

    def refusal(answer: Answer) -> Refusal:
        nonlocal built
        built = None
        refused = answer.refused
        return Refusal(
            [(guard, refused[place]) for place, guard in guards.items() if place in refused],
            answer.refusal,
            [(other, refused[place]) for place, other in conditions.items() if place in refused],
        )

    answer = yield from write(process, list(guards.values()), build, refusal, what)
    return answer.data


def _refuse_two_on_one_row(items: Sequence[Member | dict[str, Any]]) -> None:
    """Raise TransactWriteError if a row that carries a claim has two operations: DynamoDB refuses that, but some engines do not."""
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
    process: ProcessState,
    transaction: TransactWrite,
    own: Sequence[GuardOnly] = (),
) -> Operation[dict[str, Any]] | None:
    """Return the operation that commits a transaction, if it needs a guard or check of the protocol.

    Args:
        process: State of the process.
        transaction: PynamoDB's transaction.
        own: Its own guards, which count even if their rows are not written in it.

    Returns:
        The operation, which returns DynamoDB's answer; None if PynamoDB is to commit the transaction itself.
    """
    items: list[Member | dict[str, Any]] = []
    additional: list[Member] = []
    for kind, item in private.items_of(transaction):
        if isinstance(item, ProtectedItem):
            items.append(item.members[0])
            additional += item.members[1:]
        else:
            items.append({kind: item})
    guards: dict[HeldClaim, Guard] = {}
    # The protocol's items come behind the caller's: an error gives its reasons by place, and the caller counts its own items.
    # Each claim guards the transaction once.
    for member in [*items, *additional, *own]:
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
        # Not a check that nobody holds a lock which guards this very transaction: our own claim would refuse it.
        if not (isinstance(item, NobodyHolds) and (item.store.model, item.row) in held)
    ]
    if all(isinstance(item, dict) for item in items):
        return None
    for member in own:
        guard = guards[member.guard.claim]
        guard.ends = guard.ends or member.guard.ends
    return _committing(process, transaction, items)


def _committing(
    process: ProcessState, transaction: TransactWrite, items: Sequence[Member | dict[str, Any]]
) -> Operation[dict[str, Any]]:
    token, options = private.request_token_of(transaction), private.options_of(transaction)
    try:
        return (yield from write_together(process, items, "transaction", token, options))
    except TransactWriteError as error:
        _hide_rows(error, transaction)
        raise


def refuse_other_connection(transaction: TransactWrite) -> None:
    """Raise if the caller gave a transaction a connection to another database than a row's model has.

    The library writes rows by its own connections, to the database of the model.

    Raises:
        MutexError: If it is another database.
        TransactWriteError: If the caller's connection cannot send anything.
    """
    callers = private.connection_of_transaction(transaction)
    protected = [
        item for _, item in private.items_of(transaction) if isinstance(item, ProtectedItem)
    ]
    for item in protected:
        for member in item.members:
            here = member.store.connection
            there = here.elsewhere(callers)
            if there:
                is_locked = isinstance(item.members[-1], (GuardedRow, GuardOnly))
                advice = ": give TransactWrite a connection to it, or use row_lock.transaction()"
                where = f"{'locked ' * is_locked}in {here.where}{advice}"
                raise _elsewhere(name_of(item.members[0].write.row), there, where)


def _elsewhere(key: str, there: str, here: str) -> MutexError:
    """Return the error for a transaction that goes to another database than a row in it."""
    return MutexError(f"the transaction goes to {there}, but {shown(key)} is {here}", key=key)


def _hide_rows(error: TransactWriteError, transaction: TransactWrite) -> None:
    """Remove from an error the rows that the protocol has requested, and the caller has not."""
    items = [item for _, item in private.items_of(transaction)]
    for reason, item in itertools.zip_longest(error.cancellation_reasons, items):
        asked_for = item is not None and (not isinstance(item, ProtectedItem) or item.shows_row)
        if reason is not None and not asked_for:
            reason.raw_item = None
