"""Several locks, all or none, for tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from pynamodb_mutex._await import on_thread
from pynamodb_mutex._awaited import AsyncTransaction, Awaited
from pynamodb_mutex._mutex_group import MutexGroup
from pynamodb_mutex._row_group import LockedRows, RowLocks
from pynamodb_mutex._waiting import AT_ONCE

if TYPE_CHECKING:
    from typing_extensions import Self

    from pynamodb_mutex._claim import Loss
    from pynamodb_mutex._waiting import Alarm, Steps
    from pynamodb_mutex.mutex import Mutex
    from pynamodb_mutex.rows import RowLockMixin

M = TypeVar("M", bound="RowLockMixin")
L = TypeVar("L", bound="MutexGroup | RowLocks[Any]")


class _AsyncGroup(Awaited[L]):
    """Several locks that are taken together, for tasks."""

    @property
    def held(self) -> bool:
        """Whether all the locks are held here, now, by the local clock. No I/O."""
        return self._lock.held

    @property
    def remaining(self) -> float:
        """Seconds until the first lease ends, by the local clock; 0 if the locks are not held."""
        return self._lock.remaining

    @property
    def deadline(self) -> float:
        """When the protected work must be over: see `~pynamodb_mutex.aio.AsyncMutex.deadline`."""
        return self._lock.deadline

    @property
    def lost(self) -> bool:
        """Whether the locks were held here and lost before they were given back. No I/O."""
        return self._lock.lost

    @property
    def loss(self) -> Loss | None:
        """Why they were lost; None if they were not."""
        return self._lock.loss

    def __repr__(self) -> str:
        """Say what is known, without asking."""
        return f"<{type(self).__name__} of {self._lock!r}>"

    def __bool__(self) -> NoReturn:
        """Refuse: what would be asked is not clear."""
        msg = f"{type(self).__name__} has no truth value: use .held, or the result of .acquire()"
        raise TypeError(msg)


class AsyncMutexGroup(_AsyncGroup[MutexGroup]):
    """The locks of several keys, all or none, for tasks: see `~pynamodb_mutex.groups.MutexGroup`."""

    _made_by = "AsyncMutex.for_keys([...])"

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, in the order in which they were given, each once."""
        return self._lock.keys

    @property
    def members(self) -> tuple[Mutex, ...]:
        """What each lock knows of itself: see `~pynamodb_mutex.groups.MutexGroup.members`."""
        return self._lock.members

    @property
    def fencing_tokens(self) -> dict[str, int]:
        """Numbers of the last acquisition by key: see `~pynamodb_mutex.groups.MutexGroup.fencing_tokens`."""
        return self._lock.fencing_tokens

    async def __aenter__(self) -> Self:
        """Take the locks.

        Raises:
            MutexTimeoutError: If they were not all free within the timeout.
        """
        await super().__aenter__()
        return self

    async def locked(self) -> bool:
        """Whether anyone holds any of the locks, by one consistent read of all."""
        return await on_thread(self._lock.locked)

    def transaction(self) -> AsyncTransaction:
        """Return a TransactWrite for ``async with``, guarded by all the locks."""
        return AsyncTransaction(self._lock.transaction())


class AsyncRowLocks(_AsyncGroup["RowLocks[M]"], Generic[M]):
    """The locks of several rows, all or none, for tasks; entering it gives the rows: see `locked_all`."""

    _made_by = "pynamodb_mutex.aio.locked_all(Model, [...])"

    async def __aenter__(self) -> LockedRows[M]:
        """Take the locks, read the rows, and return them.

        Raises:
            MutexTimeoutError: If they were not all free within the timeout.
            pynamodb.exceptions.DoesNotExist: If one of the rows is missing; nothing is created.
        """
        rows: LockedRows[M] = await super().__aenter__()
        return rows

    def _entering(self, alarm: Alarm) -> Steps[LockedRows[M]]:
        rows = yield from self._lock._entering(alarm)
        yield AT_ONCE
        try:
            # looked at by a task, they must not have to be read first
            rows[0]
        except BaseException as error:
            self._lock.__exit__(type(error), error, error.__traceback__)
            raise
        return rows

    def transaction(self, *, unlock: bool = True) -> AsyncTransaction:
        """Return a TransactWrite for ``async with``, under all the locks: see `~pynamodb_mutex.groups.RowLocks.transaction`."""
        return AsyncTransaction(self._lock.transaction(unlock=unlock))
