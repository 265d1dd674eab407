"""Several locks at once: all or none."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, overload

from pynamodb_mutex._clock import local_clock
from pynamodb_mutex._group import GroupAcquisition, release_all
from pynamodb_mutex._process import current_process, store_for
from pynamodb_mutex._repeat import persist
from pynamodb_mutex._row_lock import RowLock
from pynamodb_mutex._row_writes import key_of, same
from pynamodb_mutex._terms import FOREVER, check_at_least, check_timeout
from pynamodb_mutex._transaction import GuardedTransactWrite
from pynamodb_mutex._wanted import Wanted
from pynamodb_mutex.exceptions import (
    MutexAlreadyHeldError,
    MutexNotHeldError,
    MutexTimeoutError,
    add_note,
    describe_holder,
)

if TYPE_CHECKING:
    from types import TracebackType

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action
    from pynamodb.models import Model
    from pynamodb.transactions import TransactWrite

    from pynamodb_mutex._claim import Loss
    from pynamodb_mutex._hold import Hold
    from pynamodb_mutex._keys import RawItem
    from pynamodb_mutex.mutex import Mutex
    from pynamodb_mutex.rows import RowLockMixin

M = TypeVar("M", bound="RowLockMixin")

MOST = 100
"""Operations that DynamoDB takes in one transaction."""


class RowLocks(Generic[M]):
    """The locks of several rows, taken and given back together: all or none, in one request each.

    Entering it gives the rows, read when they are first looked at. Losing one lock is losing all. For
    one thread at a time.
    """

    def __init__(self, locks: Sequence[RowLock[Any]]) -> None:
        """Use `RowLockMixin.locked_all`."""
        if not 1 <= len(locks) <= MOST:
            msg = f"1 to {MOST} rows can be locked at once, not {len(locks)}"
            raise ValueError(msg)
        names = [lock.key for lock in locks]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            msg = f"rows can be locked but once at a time: {', '.join(sorted(twice))}"
            raise ValueError(msg)
        self._locks = locks
        self._holds: list[Hold] = []
        self._rows = LockedRows[M](self, locks, [])

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Take all the locks, or none.

        Args:
            blocking: Wait for them.
            timeout: Seconds to wait, -1 for ever; that of the first lock by default.

        Returns:
            Whether they were taken; False only if the store said that another holds one.

        Raises:
            MutexAlreadyHeldError: If they are held by this object.
            ValueError: For a timeout with ``blocking=False``, or a negative one other than -1.
            pynamodb.exceptions.DoesNotExist: If one of the rows is missing.
            pynamodb.exceptions.TransactWriteError: If DynamoDB refuses the request at all, or could
                not be reached, or was throttling, until the timeout. GetError if that met a look at a
                lock that is held.
        """
        return self._acquire(blocking, timeout) is None

    def _acquire(self, blocking: bool, timeout: float | None) -> GroupAcquisition | None:
        if not blocking and timeout is not None and timeout != FOREVER:
            msg = "can't specify a timeout for a non-blocking call"
            raise ValueError(msg)
        if self._holds and all(hold.stands for hold in self._holds):
            msg = f"{self._names} are already held by this object"
            raise MutexAlreadyHeldError(msg, key=self._locks[0].key)
        default = self._locks[0]._terms.timeout
        seconds = default if timeout is None else check_timeout(timeout)
        process = current_process()
        told = _Once(self._locks)
        wanted = [
            Wanted(lock._terms, process.store(lock._terms.model), process, told.teller(lock))
            for lock in self._locks
        ]
        waits = blocking and seconds != 0
        forever = waits and seconds == FOREVER
        deadline = math.inf if forever else local_clock().now() + seconds * waits
        acquisition = GroupAcquisition(wanted, deadline)
        holds = acquisition.run(blocking=waits)
        if holds is None:
            return acquisition
        self._holds = holds
        for lock, hold in zip(self._locks, holds, strict=True):
            lock._latest = hold
        self._rows = LockedRows(self, self._locks, holds)
        return None

    def release(self) -> None:
        """Give the locks back.

        Raises:
            MutexLostError: If one had been lost; the others are given back.
            MutexNotHeldError: If they are not held here.
            pynamodb.exceptions.PynamoDBException: If DynamoDB cannot be reached; the locks then end
                with their leases.
        """
        release_all(self._unfinished("release"))

    def __enter__(self) -> LockedRows[M]:
        """Take the locks and return the rows.

        Raises:
            MutexTimeoutError: If they were not free within the timeout.
            pynamodb.exceptions.DoesNotExist: If one of the rows is missing; nothing is created.
        """
        failed = self._acquire(True, None)
        if failed is not None:
            raise self._timeout_error(failed)
        return self._rows

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give back what was not given back before. The body's own exception is never replaced."""
        if all(hold.finished for hold in self._holds):
            return
        try:
            self.release()
        except Exception as failure:
            if error is None:
                raise
            add_note(error, f"and the locks could not be given back: {failure}")

    def transaction(self, *, unlock: bool = True) -> TransactWrite:
        """Return a TransactWrite that is applied only while all the locks are held.

        What is written in it of the locked rows need not be the instances that were read: any of
        the same key will do.

        Args:
            unlock: Give the locks back in the same request.

        Raises:
            MutexLostError: If they are lost already. Leaving its ``with`` block raises it too.
            MutexNotHeldError: If they are not held here.
        """
        holds = self._unfinished("transaction")
        for hold in holds:
            hold.check("transaction")
        return _RowsTransactWrite(self._rows, holds, unlock=unlock)

    def ensure_held(self, at_least: float = 0.0) -> None:
        """Raise unless all the locks are held, and renew first those of which less is left.

        Args:
            at_least: Seconds that must be left of each lease.

        Raises:
            MutexLostError: If they are lost.
            MutexNotHeldError: If they are not held here.
        """
        for hold in self._unfinished("ensure_held"):
            check_at_least(at_least, hold.terms.lease)
            hold.ensure(at_least)

    @property
    def held(self) -> bool:
        """Whether all the locks are held here, now, by the local clock. No I/O."""
        return bool(self._holds) and all(hold.held for hold in self._holds)

    @property
    def remaining(self) -> float:
        """Seconds until the first lease ends; 0 if the locks are not held."""
        return min((hold.remaining for hold in self._holds), default=0.0)

    @property
    def lost(self) -> bool:
        """Whether the locks were held here and lost before they were given back."""
        return self.loss is not None

    @property
    def loss(self) -> Loss | None:
        """Why they were lost; None if they were not."""
        return next((hold.loss for hold in self._holds if hold.loss is not None), None)

    def __repr__(self) -> str:
        """Say what is known, without asking."""
        state = f"held, {self.remaining:.1f} s left" if self.held else "not held"
        return f"<RowLocks {self._names}: {state}>"

    def __bool__(self) -> NoReturn:
        """Refuse: what would be asked is not clear."""
        msg = "RowLocks has no truth value: use .held, or the result of .acquire()"
        raise TypeError(msg)

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: an acquisition belongs to one process."""
        msg = "RowLocks cannot be pickled: make it where it is used"
        raise TypeError(msg)

    @property
    def _names(self) -> str:
        return ", ".join(lock.key for lock in self._locks)

    def _unfinished(self, what: str) -> list[Hold]:
        holds = [hold for hold in self._holds if not hold.finished]
        if not holds:
            msg = f"{what}: {self._names} are not held"
            raise MutexNotHeldError(msg, key=self._locks[0].key)
        return holds

    def _timeout_error(self, failed: GroupAcquisition) -> MutexTimeoutError:
        key, claim = failed.in_the_way
        return MutexTimeoutError(
            f"{self._names} were not all free within {self._locks[0]._terms.timeout} s: "
            f"{key} is {describe_holder(claim.owner, claim.expires_at)}",
            key=key,
            owner=claim.owner,
            expires_at=claim.expires_at,
        )


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
        keys: dict[str, list[RawItem]] = {}
        for member, _ in unread:
            keys.setdefault(member._model.Meta.table_name, []).append(member._raw_key)
        store = store_for(unread[0][0]._model)
        found = persist(lambda: store.read_all(keys), 0.0)
        for member, hold in unread:
            for item in found.get(member._model.Meta.table_name, []):
                if all(same(item.get(name), value) for name, value in member._raw_key.items()):
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


class _Once:
    """Tells the loss of the first lock that was lost, for with it all are."""

    def __init__(self, locks: Sequence[RowLock[Any]]) -> None:
        self._left = list(locks)

    def teller(self, lock: RowLock[Any]) -> Any:
        """Return what tells the caller that a lock was lost."""
        on_lost = lock._terms.on_lost
        return None if on_lost is None else functools.partial(self._tell, on_lost, lock)

    def _tell(self, on_lost: Any, lock: Mutex) -> None:
        if self._left:
            self._left.clear()
            on_lost(lock)
