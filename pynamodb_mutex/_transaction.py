"""Writes sent alone or together, in a TransactWrite, with the guards of the locks they are under."""

from __future__ import annotations

import itertools
import uuid
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pynamodb.constants import (
    ALL_OLD,
    CLIENT_REQUEST_TOKEN,
    RETURN_CONSUMED_CAPACITY,
    TOTAL,
    TRANSACT_CONDITION_CHECK,
    TRANSACT_DELETE,
    TRANSACT_PUT,
    TRANSACT_UPDATE,
)
from pynamodb.exceptions import PutError, TransactWriteError
from pynamodb.transactions import TransactWrite

from pynamodb_mutex._answers import Cancelled
from pynamodb_mutex._guard import Part, Refusal, guarded
from pynamodb_mutex._messages import shown
from pynamodb_mutex._row_writes import (
    Guarded,
    GuardOnly,
    NobodyHolds,
    Plain,
    Unlocked,
    key_of,
)
from pynamodb_mutex.exceptions import MutexError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pynamodb.models import Model

    from pynamodb_mutex._answers import Answer
    from pynamodb_mutex._hold import Hold
    from pynamodb_mutex._keys import RawItem
    from pynamodb_mutex._row_writes import Member


# as PynamoDB asks for it
_SAYS_CAPACITY = {RETURN_CONSUMED_CAPACITY: TOTAL}


class ProtectedItem(dict[str, Any]):
    """What a `TransactWrite` is given for a write of a row that can be locked.

    Attributes:
        members: The write, and what protects it in other rows.
        shows_row: Whether the caller wants to see the row whose condition does not hold.
    """

    def __init__(self, members: Sequence[Member], return_values: str | None = None) -> None:
        super().__init__()
        self.members = members
        self.shows_row = (return_values or "").upper() == ALL_OLD


def send_alone(member: Guarded | Unlocked | Plain, what: str) -> Answer:
    """Make one write; return the last answer, which shows the row.

    Raises:
        PynamoDBException: See `guarded`.
    """
    answer: Answer
    if isinstance(member, Unlocked):
        member.learn_time(PutError)

    def send() -> Refusal | None:
        nonlocal answer
        answer = member.store.send(member.write.operation, member.request() | _SAYS_CAPACITY)
        if answer.error is None:
            return None
        if isinstance(member, Guarded):
            return Refusal([(member.part, answer.item)], answer.error)
        if isinstance(member, Unlocked):
            shown = [(member, answer.item)]
            return Refusal([], answer.error, shown, True, answer.maybe_applied)
        return Refusal([], answer.error)

    guarded([member.part] if isinstance(member, Guarded) else [], send, what)
    return answer


def send_together(
    items: Sequence[Member | dict[str, Any]],
    what: str,
    request_token: str | None = None,
    options: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Make writes in one transaction, of which the protocol builds at least one.

    Args:
        items: What the protocol builds for each attempt, and what stays as the caller gave it.
        what: For messages.
        request_token: For the first attempt, if the caller has one.
        options: What else the caller wants in the request.

    Returns:
        DynamoDB's answer; nothing if it was lost, and a guard showed that the writes were applied.

    Raises:
        PynamoDBException: See `guarded`.
    """
    _refuse_two_on_one_row(items)
    parts = {
        place: item.part
        for place, item in enumerate(items)
        if isinstance(item, (Guarded, GuardOnly))
    }
    judges = {
        place: item for place, item in enumerate(items) if isinstance(item, (Unlocked, NobodyHolds))
    }
    for item in items:
        if isinstance(item, Unlocked):
            item.learn_time(TransactWriteError)
    stores = [item.store for item in items if not isinstance(item, dict)]
    # under a guard by a connection of the lock's own, which repeats nothing unknown to the guard
    store = next((each for each in stores if not each.repeats), stores[0])
    built: list[dict[str, Any]] | None = None
    own, token = request_token, ""
    answer: dict[str, Any] = {}

    def send() -> Refusal | None:
        nonlocal answer, built, own, token
        if parts or built is None:
            built = [
                dict(item) if isinstance(item, dict) else {item.kind: item.request()}
                for item in items
            ]
            token, own = own or str(uuid.uuid4()), None
        # guards tell repeats, each of which proposes something else; without, the token does
        request = {**_SAYS_CAPACITY, **options, CLIENT_REQUEST_TOKEN: token}
        cancelled = store.write_together(built, request)
        built = None
        if not isinstance(cancelled, Cancelled):
            answer = cancelled
            return None
        return Refusal(
            [
                (part, cancelled.items[place])
                for place, part in parts.items()
                if place in cancelled.items
            ],
            cancelled.error,
            [
                (judge, cancelled.items[place])
                for place, judge in judges.items()
                if place in cancelled.items
            ],
        )

    guarded(list(parts.values()), send, what)
    return answer


def _refuse_two_on_one_row(items: Sequence[Member | dict[str, Any]]) -> None:
    """Raise if a row that carries a claim has two operations: some engines would take them."""
    guards = [item for item in items if isinstance(item, (Guarded, GuardOnly))]
    for guard, item in itertools.product(guards, items):
        terms = guard.part.hold.terms
        table, row = _target(item)
        if (
            item is not guard
            and table == terms.model.Meta.table_name
            and all(row.get(name) == value for name, value in terms.row.items())
        ):
            raise TransactWriteError(f"{shown(terms.key)} has two operations in one transaction")


def _target(item: Member | dict[str, Any]) -> tuple[str, RawItem]:
    if isinstance(item, dict):
        (request,) = item.values()
        return request["TableName"], request.get("Key") or request["Item"]
    if isinstance(item, (GuardOnly, NobodyHolds)):
        return item.store.model.Meta.table_name, item.row
    return type(item.write.row).Meta.table_name, key_of(item.write.row)


def commit(
    transaction: TransactWrite, holds: Sequence[Hold] = (), *, unlock: bool = False
) -> dict[str, Any] | None:
    """Commit a transaction if the protocol has a part in it.

    Args:
        transaction: PynamoDB's.
        holds: Acquisitions under which it is to be applied, also if their rows are not written.
        unlock: Give their locks back with it.

    Returns:
        DynamoDB's answer; None if it is PynamoDB's to commit.

    Raises:
        MutexError: If it does not go to where a row stands that is under a lock.
        PynamoDBException: See `guarded`.
    """
    items: list[Member | dict[str, Any]] = []
    beside: list[Member] = []
    for kind, item in _given_to(transaction):
        if isinstance(item, ProtectedItem):
            items.append(item.members[0])
            beside += item.members[1:]
        else:
            items.append({kind: item})
    guards: dict[Hold, Part] = {}
    # after the caller's own, whose places the error's reasons have
    for member in [*items, *beside, *(GuardOnly(hold) for hold in holds)]:
        if isinstance(member, (Guarded, GuardOnly)):
            if isinstance(member, GuardOnly) and member.part.hold in guards:
                continue
            guards[member.part.hold] = member.part
        if member not in items:
            items.append(member)
    held = [(hold.store.model, hold.terms.row) for hold in guards]
    items = [
        item
        for item in items
        # nobody but we
        if not (isinstance(item, NobodyHolds) and (item.store.model, item.row) in held)
    ]
    if all(isinstance(item, dict) for item in items):
        return None
    for hold in holds:
        guards[hold].ends = guards[hold].ends or unlock
    token = transaction._client_request_token
    try:
        return send_together(items, "transaction", token, _options(transaction))
    except TransactWriteError as error:
        _hide_rows(error, transaction)
        raise


def _given_to(transaction: TransactWrite) -> list[tuple[str, dict[str, Any]]]:
    """Return what a transaction was given, each with its kind, in the order in which it is sent."""
    kinds = {
        TRANSACT_CONDITION_CHECK: transaction._condition_check_items,
        TRANSACT_DELETE: transaction._delete_items,
        TRANSACT_PUT: transaction._put_items,
        TRANSACT_UPDATE: transaction._update_items,
    }
    return [(kind, item) for kind, items in kinds.items() for item in items]


def _send_through_own_connection(transaction: TransactWrite) -> None:
    """Let writes go by the connection that a transaction was made with.

    Raises:
        MutexError: If it does not lead to where a row stands that is under a lock.
    """
    protected = [item for _, item in _given_to(transaction) if isinstance(item, ProtectedItem)]
    for member in itertools.chain.from_iterable(item.members for item in protected):
        store = member.store.through(transaction._connection)
        if not isinstance(member, (Guarded, GuardOnly)):
            member.store = store
        elif not store.reaches_the_same_as(member.store):
            key = member.part.hold.terms.key
            msg = (
                f"the transaction goes to {store.where}, but {shown(key)} is locked in {member.store.where}"
                f"{', or with other credentials' * (store.where == member.store.where)}: "
                f"give TransactWrite a connection to it, or use row_lock.transaction()"
            )
            raise MutexError(msg, key=key)


def _options(transaction: TransactWrite) -> dict[str, str]:
    """Return what a caller wants the answer to tell."""
    connection = transaction._connection
    options: dict[str, str] = {}
    if transaction._return_consumed_capacity is not None:
        options |= connection.get_consumed_capacity_map(transaction._return_consumed_capacity)
    if transaction._return_item_collection_metrics is not None:
        options |= connection.get_item_collection_map(transaction._return_item_collection_metrics)
    return options


def _hide_rows(error: TransactWriteError, transaction: TransactWrite) -> None:
    """Take out of an error the rows that only the protocol asked for."""
    given = [item for _, item in _given_to(transaction)]
    for reason, item in itertools.zip_longest(error.cancellation_reasons, given):
        asked_for = item is not None and (not isinstance(item, ProtectedItem) or item.shows_row)
        if reason is not None and not asked_for:
            reason.raw_item = None


def _commit(self: TransactWrite) -> Any:
    """Commit a `TransactWrite`, guarded if rows that can be locked are written in it."""
    _send_through_own_connection(self)
    answer = commit(self)
    if answer is None:
        return _plain_commit(self)
    update_local_versions(self)
    return answer


# PynamoDB offers no other way to hear how a transaction ended: which guard refused it, and that it was
# applied although its answer was lost.
_plain_commit = TransactWrite._commit
TransactWrite._commit = _commit  # type: ignore[method-assign]  # on purpose


def update_local_versions(transaction: TransactWrite) -> None:
    """Do what PynamoDB does with the instances of an applied transaction."""
    row: Model
    for row in transaction._models_for_version_attribute_update:
        row.update_local_version_attribute()  # type: ignore[no-untyped-call]  # PynamoDB's


class GuardedTransactWrite(TransactWrite):
    """A PynamoDB TransactWrite that is applied only under the given locks.

    A guard counts the write as well as checking the claim, at the price of a ConditionCheck: so a
    late duplicate is refused for ever, not for the ten minutes for which DynamoDB remembers a
    ClientRequestToken, and a write that was given up cannot land after the next one.
    """

    def __init__(self, holds: Sequence[Hold], *, unlock: bool = False) -> None:
        """Begin one.

        Raises:
            MutexNotHeldError: If one of the locks is not held here; MutexLostError if it is lost.
            MutexError: If one of them is used with ``delete_on_release``.
        """
        for hold in holds:
            hold.check_guardable("transaction")
        super().__init__(connection=holds[0].store.connection.connection)
        self._holds = holds
        self._unlock = unlock

    def _commit(self) -> Any:
        answer = commit(self, self._holds, unlock=self._unlock)
        update_local_versions(self)
        return answer
