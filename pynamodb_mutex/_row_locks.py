"""Row locks as users see them: `RowLock` for one row, `RowLocks` for several, and the rows that they return.

`RowLockMixin` in `rows` makes them, and guards the rows' own ``save``, ``update`` and ``delete``. The lock is in the
row itself or, if the model has a ``lock_model``, in a row of the lock table (`options_of_row`). In the first case the
request that acquires one lock also reads the row; otherwise the rows are read by a request of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from pynamodb.models import Model

from pynamodb_mutex._lock.dynamodb.keys import row_name
from pynamodb_mutex._lock.handles import refusing
from pynamodb_mutex._lock.operations.options import made
from pynamodb_mutex._lock.operations.retry import retrying
from pynamodb_mutex._lock.protocol.messages import shown, shown_all
from pynamodb_mutex._lock.runtime.process import current_process
from pynamodb_mutex._lock.runtime.run_on_thread import execute
from pynamodb_mutex._several.acquire_all import read_rows
from pynamodb_mutex._several.handles import LockGroup
from pynamodb_mutex._writes.row_write import key_of, same
from pynamodb_mutex._writes.transact_write import GuardedTransactWrite
from pynamodb_mutex.mutex import Mutex, options_of

if TYPE_CHECKING:
    from pynamodb.transactions import TransactWrite
    from typing_extensions import Unpack

    from pynamodb_mutex._attach.ticket import Ticket
    from pynamodb_mutex._lock.dynamodb.keys import RawItem
    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.held import HeldClaim
    from pynamodb_mutex._lock.operations.options import LockOptions
    from pynamodb_mutex._lock.operations.planning import Held
    from pynamodb_mutex.mutex import Options

M = TypeVar("M", bound=Model)
N = TypeVar("N", bound=Model)


class RowLock(Mutex, Generic[M]):
    """The lock of one row, which you get by `RowLockMixin.locked`. ``with`` returns the row as of the lock.

    ``data`` and ``save_data`` need a ``lock_model``.
    """

    _made_by = "locked(...) of the row's model"
    _makers = frozenset({"attach"})

    def __init__(self, options: LockOptions, model: type[M], raw_key: RawItem) -> None:
        """Use `RowLockMixin.locked`."""
        super().__init__(options)
        self._model = model
        self._raw_key: RawItem = raw_key

    @property
    def row(self) -> M:
        """The row under the lock, as the request that acquired the lock read it.

        With a ``lock_model`` your first access reads the row by a request of its own.

        Raises:
            MutexNotHeldError: You never acquired the lock.
            pynamodb.exceptions.DoesNotExist: The row is missing, and its model has a ``lock_model``.
        """
        return self._row_of(self._current("row"))

    def _row_of(self, claim: HeldClaim) -> M:
        """Return the instance that represents the row under an acquisition, made at the first call."""
        if claim.row is None:
            item = self._item_of(claim) or execute(current_process(), self._reading())
            # Another thread may have read the row meanwhile. Both get the same instance: see `LockedRows.bound`.
            if claim.row is None:
                self.bind(claim, item)
        row: M = claim.row
        return row

    @staticmethod
    def _item_of(claim: HeldClaim) -> RawItem | None:
        """Return the row as the acquiring request read it.

        None if that request did not read it: the lock is in the lock table, or a transaction acquired it, which returns no
        rows.
        """
        return claim.item if claim.store.layout.must_exist and claim.item else None

    def bind(self, claim: HeldClaim, item: RawItem) -> None:
        """Make the instance that represents the row under an acquisition, from the row as it was read."""
        row: Any = self._model.from_raw_data(item)
        row._row_lock, row._row_claim = self, claim
        # last: another thread that finds the instance here must find it under its lock
        claim.row = row

    @classmethod
    def attach(  # type: ignore[override]  # a row lock is of the row's model
        cls, ticket: str, *, model: type[N], **options: Unpack[Options]
    ) -> RowLock[N]:
        """Continue to hold a row lock that another process detached: see `Mutex.attach <pynamodb_mutex.Mutex.attach>`.

        Your first ``with`` returns the row as the attaching request read it.

        Args:
            ticket: The text that `detach <pynamodb_mutex.Mutex.detach>` returned. You can use it once.
            model: The row's model.
            **options: The options of `RowLockMixin.locked <pynamodb_mutex.RowLockMixin.locked>`.

        Raises:
            InvalidTicketError: The text is not a ticket, or a ticket for another model. Other errors as for `Mutex.attach
                <pynamodb_mutex.Mutex.attach>`.
        """
        mutex: Any = super()  # for type checkers its model is a lock table
        lock: RowLock[N] = mutex.attach(ticket, model=model, **options)
        return lock

    @classmethod
    def _for_ticket(cls, ticket: Ticket, model: Any, **options: Unpack[Options]) -> RowLock[Any]:
        raw_key = ticket.row_key(model)
        own: Options = {"lease": ticket.lease, **options}
        return made(RowLock, options_of_row(model, raw_key, own), model, raw_key)

    def _reading(self) -> Operation[RawItem]:
        """Read the row."""
        process = current_process()
        # Consistent. Suppose A writes the row and releases, B acquires, and an eventually consistent read shows B the
        # row from before A's write. B would compute from it, and A's write would be lost.
        read = process.store(self._model).read(self._raw_key, consistent=True)
        answer = yield from retrying(process, lambda: read, 0.0)
        if not answer.item:
            raise self._model.DoesNotExist(f"{shown(self.key)}: there is no such row")
        return answer.item

    def __enter__(self) -> M:  # type: ignore[override]  # returns the row; .row_lock is this
        """Acquire the lock and return the row.

        Raises:
            MutexTimeoutError: The lock was not free within your timeout.
            pynamodb.exceptions.DoesNotExist: The row is missing; nothing is created.
        """
        claim = self._enter()
        # Python calls no __exit__ for a block that was not entered: if anything fails from here on, release the lock
        try:
            return self._row_of(claim)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise

    def _another(self) -> Mutex:
        return made(type(self), self._options, self._model, self._raw_key)


# not in the class: see `Lock`
RowLock.__aenter__ = RowLock.__aexit__ = refusing(  # type: ignore[attr-defined]  # see above
    "threads: use 'with', or the model's alocked(...)"
)


class RowLocks(LockGroup, Generic[M]):
    """The locks of several rows, which you get by `RowLockMixin.locked_all <pynamodb_mutex.RowLockMixin.locked_all>`.

    You acquire, renew and release them together: all or none. ``with`` returns the rows. If you lose one lock, you lose all.
    """

    _made_by = "locked_all([...]) of the rows' model"

    _locks: list[RowLock[Any]]

    def __init__(self, locks: list[RowLock[Any]]) -> None:
        """Use `RowLockMixin.locked_all`."""
        names = [lock.key for lock in locks]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            msg = f"rows can be locked but once at a time: {shown_all(sorted(twice))}"
            raise ValueError(msg)
        for lock in locks:
            lock._options.check_several()
        super().__init__(locks)

    def __enter__(self) -> LockedRows[M]:
        """Acquire the locks and return the rows. Your first access to a row reads all of them.

        Raises:
            MutexTimeoutError: The locks were not all free within your timeout.
            pynamodb.exceptions.DoesNotExist: A row is missing; nothing is created.
        """
        return self._rows_of(self._enter())

    def transaction(self, *, unlock: bool = True) -> TransactWrite:
        """Return a TransactWrite that DynamoDB applies only while you hold all the locks.

        You can write any instance with the key of a locked row in it, not only the rows that you have read.

        Args:
            unlock: Release all the locks in the same request.

        Raises:
            MutexError: As for `MutexGroup.transaction <pynamodb_mutex.groups.MutexGroup.transaction>`, also at the end of its
                ``with`` block: MutexLostError, MutexNotHeldError and others.
        """
        held = self._current("transaction")
        # without locks that a write of a single row has released already
        return _RowsTransactWrite(self._rows_of(held), held.unreleased, unlock=unlock)

    def _another(self) -> RowLocks[M]:
        return made(type(self), [lock._another() for lock in self._locks])

    def _rows_of(self, held: Held) -> LockedRows[M]:
        """Return the rows under an acquisition, in the order of this object's keys."""
        # By object: with reentrant locks, another object with the keys in another order may have acquired them.
        if held.rows is None:
            held.rows = {}
        rows: LockedRows[M] | None = held.rows.get(self)
        if rows is None:
            rows = held.rows[self] = LockedRows(self, self._locks, self._in_order(held))
        return rows


# not in the class: see `Lock`
RowLocks.__aenter__ = RowLocks.__aexit__ = refusing(  # type: ignore[attr-defined]  # see above
    "threads: use 'with', or the model's alocked_all(...)"
)


class LockedRows(Sequence[M]):
    """The rows under several locks: a sequence. Your first access to a row reads all of them, by one request."""

    def __init__(
        self, locks: RowLocks[M], members: Sequence[RowLock[Any]], claims: Sequence[HeldClaim]
    ) -> None:
        self._locks = locks
        self._members = members
        self._claims = claims

    def transaction(self, *, unlock: bool = True) -> TransactWrite:
        """Return a TransactWrite that DynamoDB applies only while you hold all the locks.

        See `RowLocks.transaction <pynamodb_mutex.groups.RowLocks.transaction>`.
        """
        return self._locks.transaction(unlock=unlock)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._members)

    @overload
    def __getitem__(self, place: int) -> M: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[M]: ...
    def __getitem__(self, place: int | slice) -> M | Sequence[M]:
        """Return a row, in the order of the keys.

        Raises:
            pynamodb.exceptions.DoesNotExist: With a ``lock_model``, if it is missing.
        """
        items = execute(current_process(), self.reading())
        return self.bound(items)[place]

    def bind(self, row: Any) -> None:
        """Put an instance that the caller constructed under the lock of the row that has its key."""
        for member, claim in self._pairs():
            # an instance that is under an acquisition stays under it
            of_one_table = member._model.Meta.table_name == type(row).Meta.table_name
            if of_one_table and same(member._raw_key, key_of(row)) and row._row_claim is None:
                row._row_lock, row._row_claim = member, claim

    def _pairs(self) -> Iterable[tuple[RowLock[Any], HeldClaim]]:
        return zip(self._members, self._claims, strict=True)

    def reading(self) -> Operation[dict[HeldClaim, RawItem]]:
        """Read all rows that were not read yet, by one consistent request; return them by claim.

        Raises:
            pynamodb.exceptions.DoesNotExist: If one is missing.
        """
        unread = [(member, claim) for member, claim in self._pairs() if claim.row is None]
        if not unread:
            return {}
        process = current_process()
        keys = [(member._model, member._raw_key) for member, _ in unread]
        store = process.store(unread[0][0]._model)
        items = yield from read_rows(process, store, keys, 0.0, consistent=True)
        found: dict[HeldClaim, RawItem] = {}
        for (member, claim), item in zip(unread, items, strict=True):
            # a missing row is read once more, by itself, for the error
            found[claim] = item or (yield from member._reading())
        return found

    def bound(self, items: dict[HeldClaim, RawItem]) -> list[M]:
        """Return all the rows, in the order of the keys.

        Args:
            items: The rows that `reading` has read.
        """
        for member, claim in self._pairs():
            # Another thread may have read the row meanwhile. Both get the same instance: if each had its own, a version attribute
            # that one thread's write increments would be out of date in the other.
            if claim in items and claim.row is None:
                member.bind(claim, items[claim])
        return [claim.row for claim in self._claims]


class _RowsTransactWrite(GuardedTransactWrite):
    """A transaction under row locks: if the caller writes an instance in it, it puts the instance under its row's lock."""

    def __init__(self, rows: LockedRows[Any], claims: Sequence[HeldClaim], *, unlock: bool) -> None:
        super().__init__(claims, unlock=unlock)
        self._locked_rows = rows

    def save(self, model: Model, *args: Any, **kwargs: Any) -> None:
        self._bind(model)
        super().save(model, *args, **kwargs)

    def update(self, model: Model, *args: Any, **kwargs: Any) -> None:
        self._bind(model)
        super().update(model, *args, **kwargs)

    def delete(self, model: Model, *args: Any, **kwargs: Any) -> None:
        self._bind(model)
        super().delete(model, *args, **kwargs)

    def _bind(self, model: Model) -> None:
        if hasattr(model, "_row_claim"):
            self._locked_rows.bind(model)


def options_of_row(model: type[Model], raw_key: RawItem, options: Options) -> LockOptions:
    """Return the options of a row's lock, which is in the row itself or, with a ``lock_model``, in the lock table.

    Raises:
        TypeError: For an option of a wrong type, one that needs a ``lock_model``, or ``hold_at_least``.
        ValueError: For a value that `Mutex.for_key` would refuse.
    """
    name = row_name(model, raw_key)
    for option in ("hold_at_least", "shared"):
        if options.get(option):
            msg = f"{option} is for the locks of keys, not for that of {shown(name)}: a write of the row may release it"
            raise TypeError(msg)
    lock_model = model.lock_model  # type: ignore[attr-defined]  # it is a RowLockMixin
    if lock_model is not None:
        return options_of(name, options, model=lock_model)
    for option in ("data", "delete_on_release", "fair", "attributes", "must_exist"):
        if options.get(option):
            msg = f"{option} needs a lock_model: the lock of {shown(name)} stands in the row itself"
            raise TypeError(msg)
    # any key will do for the check of the options; key, row and model are then set to the user's row
    return options_of(name[:64], options).replace(key=name, row=raw_key, model=model)
