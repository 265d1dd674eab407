"""Writes sent alone or together, in a TransactWrite, with the guards of the locks they are under."""

from __future__ import annotations

import itertools
import uuid
from typing import TYPE_CHECKING, Any

from pynamodb.constants import (
    TRANSACT_CONDITION_CHECK,
    TRANSACT_DELETE,
    TRANSACT_PUT,
    TRANSACT_UPDATE,
)
from pynamodb.exceptions import TransactWriteError
from pynamodb.transactions import TransactWrite

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

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pynamodb.models import Model

    from pynamodb_mutex._hold import Hold
    from pynamodb_mutex._keys import RawItem
    from pynamodb_mutex._row_writes import Member


class ProtectedItem(dict[str, Any]):
    """What a `TransactWrite` is given for a write of a row that can be locked.

    Attributes:
        members: The write, and what protects it in other rows.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        super().__init__()
        self.members = members


def send_alone(member: Guarded | Unlocked | Plain, what: str) -> RawItem:
    """Make one write; return the row as the last answer shows it.

    Raises:
        PynamoDBException: See `guarded`.
    """
    shown: RawItem = {}
    if isinstance(member, Unlocked):
        member.learn_time()

    def send() -> Refusal | None:
        nonlocal shown
        answer = member.store.send(member.write.operation, member.request())
        shown = answer.item
        if answer.error is None:
            return None
        if isinstance(member, Guarded):
            return Refusal([(member.part, answer.item)], answer.error)
        if isinstance(member, Unlocked):
            return Refusal([], answer.error, [(member, answer.item)], blind=True)
        return Refusal([], answer.error)

    guarded([member.part] if isinstance(member, Guarded) else [], send, what)
    return shown


def send_together(
    items: Sequence[Member | dict[str, Any]], what: str, request_token: str | None = None
) -> None:
    """Make writes in one transaction, of which the protocol builds at least one.

    Args:
        items: What the protocol builds for each attempt, and what stays as the caller gave it.
        what: For messages.
        request_token: For the first attempt, if the caller has one.

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
            item.learn_time()
    store = next(item.store for item in items if not isinstance(item, dict))
    built: list[dict[str, Any]] | None = None
    own, token = request_token, ""

    def send() -> Refusal | None:
        nonlocal built, own, token
        if parts or built is None:
            built = [
                dict(item) if isinstance(item, dict) else {item.kind: item.request()}
                for item in items
            ]
            token, own = own or str(uuid.uuid4()), None
        # guards tell repeats, each of which proposes something else; without, the token does
        cancelled = store.transact(built, token)
        built = None
        if cancelled is None:
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


def commit(transaction: TransactWrite, holds: Sequence[Hold] = (), *, unlock: bool = False) -> bool:
    """Commit a transaction if the protocol has a part in it.

    Args:
        transaction: PynamoDB's.
        holds: Acquisitions under which it is to be applied, also if their rows are not written.
        unlock: Give their locks back with it.

    Returns:
        Whether it was; else it is PynamoDB's to commit.

    Raises:
        PynamoDBException: See `guarded`.
    """
    kinds = {
        TRANSACT_CONDITION_CHECK: transaction._condition_check_items,
        TRANSACT_DELETE: transaction._delete_items,
        TRANSACT_PUT: transaction._put_items,
        TRANSACT_UPDATE: transaction._update_items,
    }
    items: list[Member | dict[str, Any]] = []
    beside: list[Member] = []
    for kind, given in kinds.items():
        for item in given:
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
    held = [(hold.store, hold.terms.row) for hold in guards]
    items = [
        item
        for item in items
        # nobody but we
        if not (isinstance(item, NobodyHolds) and (item.store, item.row) in held)
    ]
    if all(isinstance(item, dict) for item in items):
        return False
    for hold in holds:
        guards[hold].ends = guards[hold].ends or unlock
    send_together(items, "transaction", transaction._client_request_token)
    return True


def _commit(self: TransactWrite) -> Any:
    """Commit a `TransactWrite`, guarded if rows that can be locked are written in it."""
    if not commit(self):
        return _plain_commit(self)
    update_local_versions(self)
    return {}


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

    def _commit(self) -> None:
        commit(self, self._holds, unlock=self._unlock)
        update_local_versions(self)
