"""The parts of a write of a user's row: the write itself, and the protocol's additions to it.

A write under the row's lock gets a guard, which refuses it once the lock is lost. A write without the lock gets a condition that
nobody else holds the row. If the lock is in the row, both are part of the row's own request; if it is in a lock table, they are
in another item of the same transaction. A request is built anew for each attempt.

`transaction` sends the parts, alone or in a transaction; `guarded_write` retries and judges them.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pynamodb.constants import (
    ALL_NEW,
    ITEM,
    KEY,
    TRANSACT_CONDITION_CHECK,
    TRANSACT_DELETE,
    TRANSACT_PUT,
    TRANSACT_UPDATE,
)
from pynamodb.exceptions import GetError

from pynamodb_mutex._lock.dynamodb import pynamodb_private as private
from pynamodb_mutex._lock.dynamodb.keys import key_of as lock_key_of
from pynamodb_mutex._lock.dynamodb.keys import row_key, row_name
from pynamodb_mutex._lock.dynamodb.layout import operands
from pynamodb_mutex._lock.operations.retry import learn_time
from pynamodb_mutex._lock.protocol.claim import TICK, date_of
from pynamodb_mutex._lock.protocol.messages import shown
from pynamodb_mutex._lock.protocol.outcome import Verdict
from pynamodb_mutex._writes.guarded_write import Guard
from pynamodb_mutex._writes.requests import WriteTemplates, carried, counted, guarding, tombstone
from pynamodb_mutex.exceptions import MutexNotHeldError, RowLockedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pynamodb.exceptions import PynamoDBException
    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action
    from pynamodb.models import Model

    from pynamodb_mutex._lock.dynamodb.keys import RawItem
    from pynamodb_mutex._lock.dynamodb.store import Store
    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.held import HeldClaim
    from pynamodb_mutex._lock.operations.process_state import ProcessState
    from pynamodb_mutex._lock.protocol.claim import Claim

_OPERATIONS = {
    TRANSACT_PUT: "PutItem",
    TRANSACT_UPDATE: "UpdateItem",
    TRANSACT_DELETE: "DeleteItem",
}


def both(one: Condition | None, other: Condition | None) -> Condition | None:
    """Return the condition that two conditions hold; None stands for a condition that always holds."""
    if one is None or other is None:
        return other if one is None else one
    both: Condition = one & other
    return both


class RowWrite:
    """A caller's write of one row, as the caller gave it.

    Args:
        row: The model's instance.
        kind: Name of a put, an update or a delete in a transaction.
        condition: The caller's condition; None if there is none.
        actions: The caller's actions of an update.
        versioned: Whether to add the condition of the model's VersionAttribute, if it has one.

    Attributes:
        row: The model's instance.
        kind: Name of the write in a transaction.
        operation: Name of the write as a request of its own.
    """

    def __init__(
        self,
        row: Model,
        kind: str,
        condition: Condition | None,
        actions: Sequence[Action] | None = None,
        *,
        versioned: bool = True,
    ) -> None:
        self.row = row
        self.kind = kind
        self.operation = _OPERATIONS[kind]
        attributes: RawItem | None = None
        own_actions = None if actions is None else list(actions)
        if kind == TRANSACT_PUT:
            attributes = row.serialize(null_check=True)
        # Here, and not for each attempt: it also adds the next value of the VersionAttribute to the write.
        version = private.version_condition(row, attributes, own_actions)
        self._condition = both(condition, version if versioned else None)
        self._attributes = attributes
        self._actions = own_actions

    def request(
        self,
        also: Condition | None,
        *,
        attributes: RawItem | None = None,
        actions: Sequence[Action] = (),
    ) -> dict[str, Any]:
        """Return the request, with the protocol's additions.

        Args:
            also: A condition in addition to the caller's; None for none.
            attributes: Attributes that a put writes in addition to, or in place of, the instance's.
            actions: Actions of an update in addition to the caller's.
        """
        condition = both(self._condition, also)
        connection = private.connection_of(type(self.row))
        hash_key, range_key = private.serialized_key(self.row)
        parts: dict[str, Any] = {"key": KEY}
        if self._attributes is not None:
            parts = {"key": ITEM, "attributes": {**self._attributes, **(attributes or {})}}
        if self._actions is not None:
            parts |= {"actions": [*self._actions, *actions], "return_values": ALL_NEW}
        return connection.get_operation_kwargs(
            hash_key,
            range_key=range_key,
            condition=condition,
            return_values_on_condition_failure=None if condition is None else "ALL_OLD",
            **parts,
        )

    def done(self, raw: RawItem | None) -> None:
        """Bring the instance up to date after the write was applied.

        Args:
            raw: The row after the write; None or empty if it is not known.
        """
        if self.kind == TRANSACT_UPDATE and raw:
            self.row.deserialize(raw)
        if self.kind == TRANSACT_PUT:
            self.row.update_local_version_attribute()  # type: ignore[no-untyped-call]  # PynamoDB's


class GuardedRow:
    """A write of a row under a lock whose claim is in that row: the guard is part of the request."""

    def __init__(self, write: RowWrite, claim: HeldClaim, *, unlock: bool = False) -> None:
        self.kind = write.kind
        self.write = write
        self.store = claim.store
        self.guard = Guard(
            claim,
            ends=unlock,
            carries=write.kind == TRANSACT_PUT,
            deletes=write.kind == TRANSACT_DELETE,
        )

    def request(self, _: float) -> dict[str, Any]:
        """Return the request for an attempt that is about to be sent."""
        guard, layout = self.guard, self.store.layout
        values = guard.values()
        value = operands(values)
        condition = guarding(layout, value)
        if self.write.kind == TRANSACT_PUT:
            # A put replaces the whole row, and so it writes the claim and its end as well. Suppose the save is sent and
            # delayed, a renewal moves the end later, the save arrives: without this condition it would move the end back. If
            # DynamoDB refuses the save, it is sent again with a later end.
            if guard.renews:
                condition &= layout.ends_before(value)
            attributes = carried(layout, values, ended=guard.ends)
            return self.write.request(condition, attributes=attributes)
        if self.write.kind == TRANSACT_UPDATE:
            actions = [counted(layout, value), *(layout.ending() if guard.ends else [])]
            return self.write.request(condition, actions=actions)
        return self.write.request(condition)


class UnlockedRow:
    """A write without the lock of a row that carries its lock: refused while anybody holds it, if the model enforces locks.

    A put carries no claim, but a fencing token above the stored one: without it the next holder's token might be lower.

    Attributes:
        sent: The row as the last attempt at a put would write it. None in a transaction: DynamoDB recognises its retries by the
            ClientRequestToken, so if it refuses one, no earlier attempt has been applied.
    """

    def __init__(self, write: RowWrite, store: Store, *, enforced: bool) -> None:
        self.kind = write.kind
        self.write = write
        self.store = store
        self._enforced = enforced
        self.sent: RawItem | None = None
        self._version = 0
        self._low = "0"

    def learn_time(
        self, process: ProcessState, failure: type[PynamoDBException]
    ) -> Operation[None]:
        """Read the row if server time is not known yet, and the write makes a fencing token from it.

        Without server time the token would start from 1, below those of a row of the same key that was deleted. An
        update or a delete makes no fencing token.

        Raises:
            PynamoDBException: A ``failure``, if the row cannot be read.
        """
        if self.kind != TRANSACT_PUT or self.store.bounds is not None:
            return
        try:
            yield from learn_time(process, self.store, key_of(self.write.row))
        except GetError as error:
            # the caller made a write, not a read
            raise failure(error.msg, error.cause) from error.cause

    def request(self, now: float) -> dict[str, Any]:
        """Return the request for an attempt that is about to be sent."""
        layout = self.store.layout
        # The same fencing token in each attempt. Suppose the first attempt is applied, its answer is lost, and the retry is
        # refused because the stored token is not below its own: `judge` then finds the row exactly as it was sent.
        if not self._version:
            # Not counted from the instance's `lock_version`: the user may have assigned anything to it, and a fencing token above
            # the highest would keep everybody from locking the row.
            self._version = self.store.next_version(now)
        self._low = self.store.now_low(now)
        value = operands({"now_low": self._low, "new_version": str(self._version)})
        also = layout.not_held(value) if self._enforced else None
        if self.kind == TRANSACT_PUT:
            also = both(also, layout.version_below(value))
            return self.write.request(also, attributes=tombstone(layout, self._version))
        if self.kind == TRANSACT_UPDATE and self._enforced:
            # End a claim that has expired. Suppose its holder was suspended, this update is applied, the holder resumes and sends
            # a guarded write, computed from the row before this update: with the claim and number still in the row, DynamoDB
            # would apply it. A put or a delete removes the claim anyway.
            return self.write.request(also, actions=layout.ending())
        return self.write.request(also)

    def judge(
        self, raw: RawItem, error: PynamoDBException, now: float, *, maybe_applied: bool
    ) -> Verdict:
        """Return the outcome of this write, from the row that refused it.

        Raises:
            RowLockedError: If another holds the row.
            InvalidRowError: If its lock attributes cannot be right.
            PynamoDBException: ``error``, if another condition refused it, such as the caller's.
        """
        claim = self.store.layout.claim(raw)
        is_put = self.kind == TRANSACT_PUT
        # Only if an earlier attempt may have written it. Suppose two new processes save the same job in the same second, on
        # condition that it does not exist. Both know server time only to the second, so their fencing tokens may be equal as
        # well: the process that is refused would take the other's row for its own, and both would do the job.
        if maybe_applied and is_put and same(raw, self.sent):
            return "applied"
        if is_put or self._enforced:
            # other writes have no condition on the lock's attributes
            claim.check()
        if self._enforced:
            refuse_if_alive(claim, self.store, self.write.row, now, maybe_applied=maybe_applied)
            if claim.expires_at is not None and float(self._low) <= claim.expires_at:
                # The bounds of server time in the condition did not show yet that the claim has expired. The present ones do.
                return "again"
        if is_put and claim.version >= self._version:
            # The stored fencing token is not below ours, such as that of a save by another process: count on from it.
            self._version = claim.version + 1
            return "again"
        raise error


class PlainRow:
    """A write of a row as the caller gave it. If the protocol protects it, another item of the transaction does so."""

    def __init__(self, write: RowWrite, store: Store) -> None:
        self.kind = write.kind
        self.write = write
        self.store = store

    def request(self, _: float) -> dict[str, Any]:
        """Return the request."""
        return self.write.request(None)


class GuardOnly:
    """The guard of a transaction, on a row that the caller does not write: as a rule a lock's row in a lock table."""

    kind = TRANSACT_UPDATE

    def __init__(self, claim: HeldClaim, *, unlock: bool = False) -> None:
        self.store = claim.store
        self.row = claim.options.row
        self.guard = Guard(claim, ends=unlock)

    def request(self, _: float) -> dict[str, Any]:
        """Return the request for an attempt that is about to be sent."""
        requests = self.store.of(WriteTemplates)
        template = requests.guard_and_end if self.guard.ends else requests.guard
        return template.fill(self.row, self.guard.values())


class NobodyHolds:
    """The check, in the transaction of a write without the lock, that nobody holds the row's lock in the lock table.

    If it finds an expired claim, it ends the claim: otherwise the holder might resume and write, computed from the row before this
    write.
    """

    def __init__(self, row: Model, store: Store) -> None:
        self.store = store
        self._protected = row
        self.row = lock_key_of(store.model, name_of(row))
        self._dead: Claim | None = None

    @property
    def kind(self) -> str:
        """Name of this item in the transaction."""
        return TRANSACT_CONDITION_CHECK if self._dead is None else TRANSACT_UPDATE

    def request(self, now: float) -> dict[str, Any]:
        """Return the request for an attempt that is about to be sent."""
        requests = self.store.of(WriteTemplates)
        if self._dead is None:
            # a check, because an update would create the row of a lock that was never acquired
            return requests.free.fill(self.row, {})
        values = self.store.ending(now, self._dead.expires_at) | {
            "mine": self._dead.token,
            "now_low": self.store.now_low(now),
        }
        return requests.end_dead.fill(self.row, values)

    def judge(
        self, raw: RawItem, error: PynamoDBException, now: float, *, maybe_applied: bool
    ) -> Verdict:
        """Return the outcome of this check, from the lock's row, which refused it.

        Raises:
            RowLockedError: If another holds the lock.
            InvalidRowError: If it cannot be a lock's row.
            PynamoDBException: ``error``, if it shows no claim that could have refused the check.
        """
        claim = self.store.layout.claim(raw)
        claim.check()
        if self._dead is None and claim.expires_at is None:
            # An engine or a proxy does not show the row: without this, the check would be sent again and again, without a pause.
            raise error
        refuse_if_alive(claim, self.store, self._protected, now, maybe_applied=maybe_applied)
        # None if DynamoDB refused the update that ends a claim because the holder has released the lock meanwhile
        self._dead = None if claim.expires_at is None else claim
        return "again"


Member = GuardedRow | UnlockedRow | PlainRow | GuardOnly | NobodyHolds
"""A part of a write: an item of a transaction, or a request of its own."""


def refuse_if_alive(
    claim: Claim, store: Store, row: Model, now: float, *, maybe_applied: bool
) -> None:
    """Raise RowLockedError, for a write of ``row``, unless there is no claim, or it has surely expired."""
    bounds = store.bounds
    if claim.expires_at is not None and (
        bounds is None or now < bounds.passes(claim.expires_at + TICK)
    ):
        raise _locked_error(row, claim, maybe_applied=maybe_applied)


def _locked_error(row: Model, claim: Claim, *, maybe_applied: bool) -> RowLockedError:
    """Return the error for a write without the lock while another holds it."""
    key = name_of(row)
    before = ", and may have been, by an attempt whose answer was lost" if maybe_applied else ""
    return RowLockedError(
        f"{shown(key)} cannot be written without its lock{before}: {claim.described}",
        applied=None if maybe_applied else False,
        key=key,
        owner=claim.owner,
        expires_at=date_of(claim.expires_at),
    )


def key_of(row: Model) -> RawItem:
    """Return the primary key of an instance."""
    names = (private.hash_key_name(type(row)), private.range_key_name(type(row)))
    return row_key(type(row), *(getattr(row, name) for name in names if name is not None))


def name_of(row: Model) -> str:
    """Return the name of an instance's row."""
    return row_name(type(row), key_of(row))


def same(one: Any, other: Any) -> bool:
    """Return whether DynamoDB takes attribute values for equal: numbers by value, sets in any order."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return bool(one == other)
    if one.keys() != other.keys():
        return False
    return all(_same_typed(kind, one[kind], other[kind]) for kind in one)


def _same_typed(kind: str, one: Any, other: Any) -> bool:
    if kind == "N" and isinstance(one, str):
        return Decimal(one) == Decimal(other)
    if kind in {"SS", "BS"} and isinstance(one, list):
        return set(one) == set(other)
    if kind == "NS" and isinstance(one, list):
        return set(map(Decimal, one)) == set(map(Decimal, other))
    if kind == "L" and isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return same(one, other)


def checked(actions: Any) -> Any:
    """Return the actions of an update; raise TypeError if they are not actions."""
    if not isinstance(actions, list) or not actions:
        raise TypeError("the value of `actions` is expected to be a non-empty list")
    return actions


def checking(claim: HeldClaim, what: str) -> Operation[bool]:
    """Return whether a row is under its lock; raise if the lock was lost, or was released after the row was read under it.

    An operation, so that it runs inside the monitor: it may find that the lease has ended, and then changes the claim's state.
    It decides in one step: if another thread releases the lock after it, the write has a guard, and DynamoDB refuses it. If a
    second step asked again, it would find the claim released, and the write would go out without a guard.

    Raises:
        MutexLostError: If it was lost.
        MutexNotHeldError: See `refuse_if_released`.
    """
    claim.note_end()
    if claim.belief.loss is not None:
        raise claim.lost_error(what)
    refuse_if_released(claim, what)
    return not claim.is_released
    yield  # an operation without an effect


def refuse_if_released(claim: HeldClaim, what: str) -> None:
    """Raise MutexNotHeldError if a released lock had a block, or if its holder may not know of the release.

    The row was read under the lock. Suppose the block has started a thread or task, or its task was cancelled while a thread goes
    on; the lock is released, another holder writes the row, and then that thread saves it: a write without a guard would silently
    undo the other holder's.
    """
    held = claim.whole
    if not claim.is_released or (held.open_blocks is None and not held.is_unaware):
        return
    why = "at the end of its block: lock the row again, or refresh() the instance"
    if held.open_blocks or held.is_unaware:
        why = "before, in its block, as by unlock=True or by a write whose answer was lost: end the block, or lock the row again"
    msg = f"{what}: the lock of {shown(claim.key)} was released {why}"
    raise MutexNotHeldError(msg, key=claim.key)
