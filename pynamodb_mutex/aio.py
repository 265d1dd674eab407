"""The library's locks for asyncio.

Each object here contains one of the locks for threads, and runs its operations for a task. Requests are sent on at
most 48 threads; waiting uses none. Works under any asyncio event loop, such as uvloop.

The docstrings say only what differs for tasks. Cancellation is handled in `pynamodb_mutex._tasks`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from pynamodb.models import Model

from pynamodb_mutex._attach.ticket import parse_ticket
from pynamodb_mutex._lock.handles import HandleOfOne, refusing
from pynamodb_mutex._lock.operations.release import release
from pynamodb_mutex._row_locks import RowLock, RowLocks
from pynamodb_mutex._tasks.handles import AsyncLock, AsyncTransaction, to_be_awaited
from pynamodb_mutex.groups import Semaphore
from pynamodb_mutex.models import LockItem
from pynamodb_mutex.mutex import Mutex, MutexGroup

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from typing_extensions import Self, Unpack

    from pynamodb_mutex._async_runs import AsyncOnce
    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.held import HeldClaim
    from pynamodb_mutex.mutex import CommonOptions

    class AsyncOptions(CommonOptions, total=False):
        """The options of `AsyncMutex.for_key`, except the lock table and ``cancel_on_loss``."""

        on_lost: Callable[[Any], object] | None
        on_danger: Callable[[Any], object] | None


M = TypeVar("M", bound=Model)
N = TypeVar("N", bound=Model)

__all__ = [
    "AsyncLockedRows",
    "AsyncMutex",
    "AsyncMutexGroup",
    "AsyncOnce",
    "AsyncRowLock",
    "AsyncRowLocks",
    "AsyncSemaphore",
    "AsyncTransaction",
]


def __getattr__(name: str) -> Any:
    """Import `AsyncOnce` when it is first used."""
    if name != "AsyncOnce":
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from pynamodb_mutex._async_runs import AsyncOnce  # noqa: PLC0415 - seldom needed

    return AsyncOnce


def __dir__() -> list[str]:
    """Return the names of `__all__`, also `AsyncOnce`, which is imported later."""
    return __all__


def _listed(keys: Any) -> Any:
    """Return keys that can be iterated more than once; anything else is checked later."""
    return list(keys) if isinstance(keys, Iterator) else keys


class AsyncMutex(AsyncLock[Any], HandleOfOne):
    """A `~pynamodb_mutex.Mutex` for tasks.

    Use it like `asyncio.Lock`; ``async with`` returns the mutex. Your tasks may share a mutex, as threads may share a
    ``Mutex``. Properties such as ``held`` send no request, and you do not await them.

    You may cancel a task in any call: it then holds nothing and waits in no queue. The library first completes and undoes a
    request that the task has sent, which takes a few seconds if DynamoDB hangs.

    Not guaranteed: the points that ``Mutex`` does not guarantee.
    """

    _makers = frozenset({"for_key", "for_row", "for_keys", "any_of", "attach"})

    _inside: ClassVar[type[Mutex]] = Mutex
    """Class of the lock for threads that this contains."""

    @classmethod
    def for_key(
        cls,
        key: str,
        *,
        range_key: Any = None,
        model: type[LockItem] = LockItem,
        cancel_on_loss: bool = False,
        **options: Unpack[AsyncOptions],
    ) -> Self:
        """Return a mutex for a key. You do not hold it yet, and this sends no request.

        Args:
            key: 1 to 2048 bytes of UTF-8.
            range_key: The range key of the lock's row: see `Mutex.for_key <pynamodb_mutex.Mutex.for_key>`.
            model: The lock table.
            cancel_on_loss: Cancel the task that holds the lock when it loses the lock. If an ``async with`` block ends by this
                cancellation, it raises MutexLostError.
            **options: The options of `Mutex.for_key <pynamodb_mutex.Mutex.for_key>`. The library calls your ``on_lost`` and
                ``on_danger`` with this object, on a thread of its own; it runs your coroutine function on the event loop of the
                last task that used this object. ``reentrant`` applies to the same task.

        Raises:
            InvalidKeyError: DynamoDB would not accept the key.
            TypeError: An option has a wrong type.
            ValueError: `Mutex.for_key <pynamodb_mutex.Mutex.for_key>` would refuse a duration.

        Example::

            import asyncio

            from pynamodb_mutex.aio import AsyncMutex

            async def main():
                async with AsyncMutex.for_key("invoice-42", timeout=10) as mutex:
                    print("you hold it", mutex.held)

            asyncio.run(main())
        """
        cls._called("for_key", options)
        make = functools.partial(Mutex.for_key, key, range_key=range_key, model=model)
        return cls._made(make, cancel_on_loss, options)

    @classmethod
    def for_row(
        cls,
        model: type[Model],
        hash_key: Any,
        range_key: Any = None,
        *,
        lock_model: type[LockItem] = LockItem,
        cancel_on_loss: bool = False,
        **options: Unpack[AsyncOptions],
    ) -> Self:
        """Return a mutex in the lock table, named after a row: see `~pynamodb_mutex.Mutex.for_row` and `for_key`."""
        cls._called("for_row", options)
        make = functools.partial(Mutex.for_row, model, hash_key, range_key, lock_model=lock_model)
        return cls._made(make, cancel_on_loss, options)

    @classmethod
    def any_of(
        cls,
        keys: Iterable[str | Mutex],
        *,
        model: type[LockItem] = LockItem,
        cancel_on_loss: bool = False,
        **options: Unpack[AsyncOptions],
    ) -> Self:
        """Return a mutex on the first of several keys that is free: see `~pynamodb_mutex.Mutex.any_of`."""
        cls._called("any_of", options)
        make = functools.partial(Mutex.any_of, _listed(keys), model=model)
        return cls._made(make, cancel_on_loss, options)

    @classmethod
    def for_keys(
        cls,
        keys: Iterable[str | Mutex],
        *,
        model: type[LockItem] = LockItem,
        cancel_on_loss: bool = False,
        **options: Unpack[AsyncOptions],
    ) -> AsyncMutexGroup:
        """Return the locks of several keys, which you acquire together: see `~pynamodb_mutex.Mutex.for_keys`."""
        cls._called("for_keys", options)
        make = functools.partial(Mutex.for_keys, _listed(keys), model=model)
        return AsyncMutexGroup._made(make, cancel_on_loss, options)

    @property
    def position(self) -> int | None:
        """Number of waiters before you in line at your latest ``acquire``: see `pynamodb_mutex.Mutex.position`."""
        position: int | None = self._lock.position
        return position

    @to_be_awaited
    async def acquire(
        self,
        blocking: bool = True,
        timeout: float | timedelta | None = None,
        *,
        force: bool = False,
    ) -> bool:
        """Acquire the lock: see `~pynamodb_mutex.Mutex.acquire`. If your task is cancelled, it holds nothing."""
        return await self._acquire(blocking, timeout, force)

    @classmethod
    async def attach(
        cls,
        ticket: str,
        *,
        model: type[LockItem] = LockItem,
        cancel_on_loss: bool = False,
        **options: Unpack[AsyncOptions],
    ) -> Self:
        """Continue to hold a lock that another process or task detached: see `~pynamodb_mutex.Mutex.attach`."""
        return await cls._attached(ticket, model, cancel_on_loss, options)

    @classmethod
    async def _attached(
        cls, ticket: str, model: Any, cancel_on_loss: bool, options: AsyncOptions
    ) -> Self:
        cls._called("attach", options)
        read = parse_ticket(ticket)
        make = functools.partial(cls._inside._for_ticket, read, model)
        mutex = cls._made(make, cancel_on_loss, options)
        # If the task is cancelled after the write was applied, the lock is released: the ticket is used up, so nobody
        # else could release it.
        claim: HeldClaim = await mutex._run(mutex._lock._attaching(read, blocks=False), release)
        mutex._begin(claim)
        return mutex

    async def __aenter__(self) -> Self:
        """Acquire the lock; after `attach`, use that acquisition.

        Raises:
            MutexTimeoutError: The lock was not free within your timeout.
            MutexLostError: You have lost the attached lock.
        """
        await self._enter()
        return self

    async def _enter(self) -> Any:
        attached = self._lock._to_enter
        if attached is not None:
            # The block uses the acquisition of `attach`, and records this task as its holder. The record that `attach`
            # made must go: nobody would end it, and a loss after the block would cancel the task.
            self._end_holding(attached)
        return await super()._enter()

    async def detach(self, lease: float | timedelta | None = None) -> str:
        """End the acquisition here, and return a ticket for it: see `~pynamodb_mutex.Mutex.detach`.

        If your task is cancelled before this returns, the library releases the lock, for nobody has the ticket.
        """
        held = self._mine()
        ticket: str = await self._run(self._lock._detaching(lease), self._taking_back)
        self._end_holding(held)
        return ticket

    def _taking_back(self, ticket: str) -> Operation[None]:
        """Release the lock that a ticket, which the caller will never get, keeps locked.

        The claim is nobody's in this process any more: only attaching makes it one that can be released.
        """
        read = parse_ticket(ticket)
        model = getattr(self._lock, "_model", self._options.model)
        lock: Any = self._inside._for_ticket(read, model)
        claim = yield from lock._attaching(read, blocks=False)
        yield from release(claim)

    async def release(self, *, data: Any = None) -> None:
        """Release the lock: see `~pynamodb_mutex.Mutex.release`. If your task is cancelled, it releases first."""
        await self._release(None if data is None else self._lock._payload("release", data))

    async def renew(self, lease: float | timedelta | None = None, *, data: Any = None) -> None:
        """Renew now: see `~pynamodb_mutex.Mutex.renew`."""
        await self._run(self._lock._renewing(lease, data))

    async def save_data(self, data: Any) -> None:
        """Write the payload into the row, guarded: see `~pynamodb_mutex.Mutex.save_data`."""
        await self._run(self._lock._saving_data(data))

    async def force_release(self) -> bool:
        """Break the claim that is on this key now, and no later claim: see `~pynamodb_mutex.Mutex.force_release`."""
        broken: bool = await self._run(self._lock._forcing())
        return broken

    def transaction(self) -> AsyncTransaction:
        """Return a TransactWrite for ``async with``, guarded by the lock: see `~pynamodb_mutex.Mutex.transaction`."""
        return AsyncTransaction(self._lock.transaction())


class AsyncSemaphore(AsyncMutex):
    """A `~pynamodb_mutex.Semaphore` for tasks: limits the number of holders, in all of your processes together."""

    _makers = frozenset({"for_key"})

    @classmethod
    def for_key(  # type: ignore[override]  # the number of permits has no default
        cls,
        key: str,
        *,
        permits: int,
        model: type[LockItem] = LockItem,
        cancel_on_loss: bool = False,
        **options: Unpack[AsyncOptions],
    ) -> Self:
        """Return a semaphore for a key: see `~pynamodb_mutex.Semaphore.for_key`. Sends no request."""
        cls._called("for_key", options)
        make = functools.partial(Semaphore.for_key, key, permits=permits, model=model)
        return cls._made(make, cancel_on_loss, options)

    @property
    def permit(self) -> int | None:
        """Number of your permit, from 1; None without an acquisition."""
        permit: int | None = self._lock.permit
        return permit


class AsyncRowLock(AsyncMutex, Generic[M]):
    """The lock of one row, for tasks; ``async with`` returns the row: see `~pynamodb_mutex.RowLockMixin.alocked`."""

    _made_by = "alocked(...) of the row's model"
    _makers = frozenset({"attach"})

    _inside = RowLock

    @classmethod
    async def attach(  # type: ignore[override]  # a row lock is of the row's model
        cls,
        ticket: str,
        *,
        model: type[N],
        cancel_on_loss: bool = False,
        **options: Unpack[AsyncOptions],
    ) -> AsyncRowLock[N]:
        """Continue to hold a row lock that another process or task detached: see `~pynamodb_mutex.RowLock.attach`."""
        lock: AsyncRowLock[Any] = await cls._attached(ticket, model, cancel_on_loss, options)
        return lock

    async def __aenter__(self) -> M:  # type: ignore[override]  # returns the row; .row_lock is this
        """Acquire the lock and return the row.

        Raises:
            MutexTimeoutError: The lock was not free within your timeout.
            pynamodb.exceptions.DoesNotExist: The row is missing; nothing is created.
        """
        claim = await self._enter()
        # __aexit__ does not run for a block that was not entered: what fails from here on must release the lock
        try:
            lock = self._lock
            if claim.row is None:
                lock.bind(claim, lock._item_of(claim) or await self._run(lock._reading()))
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        row: M = claim.row
        return row


# not in the class: see `~pynamodb_mutex._lock.handles.Lock`
AsyncRowLock.__enter__ = AsyncRowLock.__exit__ = refusing(  # type: ignore[attr-defined]  # see above
    "tasks: use 'async with', or the model's locked(...)"
)


class AsyncMutexGroup(AsyncLock[MutexGroup]):
    """The locks of several keys, all or none, for tasks: see `~pynamodb_mutex.groups.MutexGroup`."""

    _made_by = "AsyncMutex.for_keys([...])"

    @property
    def keys(self) -> tuple[str, ...]:
        """Your keys, in the order in which you gave them, each once."""
        return self._lock.keys

    @property
    def members(self) -> tuple[Mutex, ...]:
        """A Mutex for each lock: see `~pynamodb_mutex.groups.MutexGroup.members`."""
        return self._lock.members

    @property
    def fencing_tokens(self) -> dict[str, int]:
        """The fencing tokens by key: see `~pynamodb_mutex.groups.MutexGroup.fencing_tokens`."""
        return self._lock.fencing_tokens

    async def __aenter__(self) -> Self:
        """Acquire the locks.

        Raises:
            MutexTimeoutError: The locks were not all free within your timeout.
        """
        await self._enter()
        return self

    def transaction(self) -> AsyncTransaction:
        """Return a TransactWrite for ``async with``, guarded by all the locks."""
        return AsyncTransaction(self._lock.transaction())


class AsyncRowLocks(AsyncLock[RowLocks[M]], Generic[M]):
    """The locks of several rows, all or none, for tasks: see `~pynamodb_mutex.RowLockMixin.alocked_all`."""

    _made_by = "alocked_all([...]) of the rows' model"

    async def __aenter__(self) -> AsyncLockedRows[M]:
        """Acquire the locks, read the rows, and return them.

        Raises:
            MutexTimeoutError: The locks were not all free within your timeout.
            pynamodb.exceptions.DoesNotExist: A row is missing; nothing is created.
        """
        held = await self._enter()
        try:
            rows = self._lock._rows_of(held)
            # Read now, though a `RowLocks` reads at the first access: that would block the event loop in the block.
            made = AsyncLockedRows(rows.bound(await self._run(rows.reading())))
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        made._locks = self
        return made

    def transaction(self, *, unlock: bool = True) -> AsyncTransaction:
        """Return a TransactWrite for ``async with``, guarded by all the locks.

        See `~pynamodb_mutex.groups.RowLocks.transaction`.
        """
        return AsyncTransaction(self._lock.transaction(unlock=unlock))


# not in the class: see above
AsyncRowLocks.__enter__ = AsyncRowLocks.__exit__ = refusing(  # type: ignore[attr-defined]  # see above
    "tasks: use 'async with', or the model's locked_all(...)"
)


class AsyncLockedRows(tuple[M, ...]):  # noqa: SLOT001 - a tuple's subclass has no slots
    """The rows under the locks of an `AsyncRowLocks`, in the order of the keys."""

    _locks: AsyncRowLocks[M]

    def transaction(self, *, unlock: bool = True) -> AsyncTransaction:
        """Return a TransactWrite for ``async with``: see `AsyncRowLocks.transaction`."""
        return self._locks.transaction(unlock=unlock)
