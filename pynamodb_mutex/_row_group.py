"""Several rows, all or none: what `RowLockMixin.locked_all` returns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from pynamodb_mutex._group import read_rows
from pynamodb_mutex._lock_group import LockGroup
from pynamodb_mutex._messages import shown_all
from pynamodb_mutex._process import store_for
from pynamodb_mutex._repeat import persist
from pynamodb_mutex._row_lock import RowLock
from pynamodb_mutex._row_writes import key_of, same
from pynamodb_mutex._transaction import GuardedTransactWrite
from pynamodb_mutex._waiting import Alarm, all_steps

if TYPE_CHECKING:
    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action
    from pynamodb.models import Model
    from pynamodb.transactions import TransactWrite

    from pynamodb_mutex._group_hold import GroupHold
    from pynamodb_mutex._hold import Hold
    from pynamodb_mutex._waiting import Steps
    from pynamodb_mutex.rows import RowLockMixin

M = TypeVar("M", bound="RowLockMixin")


class RowLocks(LockGroup, Generic[M]):
    """The locks of several rows, taken, renewed and given back together: all or none.

    Entering it gives the rows, read when they are first looked at. Losing one lock is losing all.
    """

    _made_by = "locked_all([...]) of the rows' model"

    _locks: Sequence[RowLock[Any]]

    def __init__(self, locks: Sequence[RowLock[Any]]) -> None:
        """Use `RowLockMixin.locked_all`."""
        names = [lock.key for lock in locks]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            msg = f"rows can be locked but once at a time: {shown_all(sorted(twice))}"
            raise ValueError(msg)
        super().__init__(locks)

    def __enter__(self) -> LockedRows[M]:
        """Take the locks and return the rows.

        Raises:
            MutexTimeoutError: If they were not free within the timeout.
            pynamodb.exceptions.DoesNotExist: If one of the rows is missing; nothing is created.
        """
        alarm = Alarm()
        return all_steps(self._entering(alarm), alarm)

    def _entering(self, alarm: Alarm) -> Steps[LockedRows[M]]:
        yield from super()._entering(alarm)
        return self._rows

    def transaction(self, *, unlock: bool = True) -> TransactWrite:
        """Return a TransactWrite that is applied only while all the locks are held.

        What is written in it of the locked rows need not be the instances that were read: any of
        the same key will do.

        Args:
            unlock: Give the locks back in the same request.

        Raises:
            MutexLostError: If they are lost already. Leaving its ``with`` block raises it too.
            MutexNotHeldError: If they are not held here.
            MutexError: If one of them is used with ``delete_on_release``, for then nothing can be guarded.
        """
        group = self._current("transaction")
        return _RowsTransactWrite(self._rows_of(group), group.holds, unlock=unlock)

    @property
    def _rows(self) -> LockedRows[M]:
        return self._rows_of(self._current("rows"))

    def _rows_of(self, group: GroupHold) -> LockedRows[M]:
        rows: LockedRows[M] | None = group.rows.get(self)
        if rows is None:
            rows = group.rows[self] = LockedRows(self, self._locks, self._in_order(group))
        return rows


class LockedRows(Sequence[M]):
    """The rows under several locks, read by one request when the first of them is looked at."""

    def __init__(
        self, locks: RowLocks[M], members: Sequence[RowLock[Any]], holds: Sequence[Hold]
    ) -> None:
        self._locks = locks
        self._members = members
        self._holds = holds

    def transaction(self, *, unlock: bool = True) -> TransactWrite:
        """Return a TransactWrite under all the locks: see `RowLocks.transaction`."""
        return self._locks.transaction(unlock=unlock)

    def __len__(self) -> int:
        """Return how many rows there are."""
        return len(self._members)

    @overload
    def __getitem__(self, place: int) -> M: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[M]: ...
    def __getitem__(self, place: int | slice) -> M | Sequence[M]:
        """Return a row, in the order of the keys.

        Raises:
            pynamodb.exceptions.DoesNotExist: If it is missing, under a lock in a lock table.
        """
        self._read()
        rows = [member._row_of(hold) for member, hold in self._pairs()]
        return rows[place]

    def bind(self, row: RowLockMixin) -> None:
        """Let an instance that was made by hand stand for the locked row of its key."""
        for member, hold in self._pairs():
            of_one_table = member._model.Meta.table_name == type(row).Meta.table_name
            if of_one_table and same(member._raw_key, key_of(row)) and row._row_hold is None:
                row._row_lock, row._row_hold = member, hold

    def _pairs(self) -> Iterable[tuple[RowLock[Any], Hold]]:
        return zip(self._members, self._holds, strict=True)

    def _read(self) -> None:
        """Read all the rows at once."""
        unread = [(member, hold) for member, hold in self._pairs() if hold.row is None]
        if not unread:
            return
        keys = [(member._model, member._raw_key) for member, _ in unread]
        store = store_for(unread[0][0]._model)
        items = persist(lambda: read_rows(store, keys, consistent=True), 0.0)
        for (member, hold), item in zip(unread, items, strict=True):
            if item:
                member.bind(hold, item)


class _RowsTransactWrite(GuardedTransactWrite):
    def __init__(self, rows: LockedRows[Any], holds: Sequence[Hold], *, unlock: bool) -> None:
        super().__init__(holds, unlock=unlock)
        self._locked_rows = rows

    def save(
        self, model: Model, condition: Condition | None = None, return_values: str | None = None
    ) -> None:
        self._bind(model)
        super().save(model, condition, return_values)

    def update(
        self,
        model: Model,
        actions: list[Action],
        condition: Condition | None = None,
        return_values: str | None = None,
        *,
        add_version_condition: bool = True,
    ) -> None:
        self._bind(model)
        version = add_version_condition
        super().update(model, actions, condition, return_values, add_version_condition=version)

    def delete(
        self,
        model: Model,
        condition: Condition | None = None,
        *,
        add_version_condition: bool = True,
    ) -> None:
        self._bind(model)
        super().delete(model, condition, add_version_condition=add_version_condition)

    def _bind(self, model: Model) -> None:
        if hasattr(model, "_row_hold"):
            self._locked_rows.bind(model)  # type: ignore[arg-type]  # a RowLockMixin
