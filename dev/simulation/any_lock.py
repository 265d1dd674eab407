"""Locks of every kind, of which clients make every public call: in a block or not, decorated, shared, and by tickets.

`AnyLock` has the ways, which `client.Client` inherits. A step under a lock is the same for a thread and for a task: what
a lock for tasks returns is awaited, and what a lock for threads returns is its result.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from pynamodb.exceptions import DoesNotExist

import pynamodb_mutex
from dev.simulation.calls import done, finish, read_some
from dev.simulation.models import Account, Ledger, Lock, Shard, Slot
from dev.simulation.promises import PERMITS
from pynamodb_mutex import LockItem, Mutex, RowLock, RowLockMixin, Semaphore
from pynamodb_mutex.aio import (
    AsyncLockedRows,
    AsyncMutex,
    AsyncRowLock,
    AsyncSemaphore,
    AsyncTransaction,
)
from pynamodb_mutex.groups import AnyOf, LockedRows

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Callable

    from dev.simulation.world import Process, World


class AnyLock:
    """Ways in which a client uses locks of any kind."""

    _schedule: Any
    _process: Process
    _world: World
    _rng: random.Random

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Everything else is the client's."""

    # -- ways to lock -------------------------------------------------------------------------------

    def lock_otherwise(self) -> None:
        """Lock something of any kind, take it over by a ticket, or read what is held."""
        if self._rng.random() < 0.1:
            self._look_around()
        else:
            finish(self._lock_in_any_way(in_task=False))

    def lock_shared(self) -> None:
        """Lock by the object that the threads of the process share; a helper of the holder may use it, too."""
        shared = self._schedule.shared
        if self._process not in shared:
            shared[self._process] = self._any_lock(in_task=False)
        lock, options = shared[self._process]
        with self._using(lock, options):
            if self._rng.random() < 0.5:
                self._process.start_thread("helper", partial(self._help, lock))
            finish(self._use(lock))

    def _help(self, lock: Any) -> None:
        with self._failures():
            finish(self._use(lock))

    def lock_and_delete(self) -> None:
        """Delete a row under its lock, or write or delete it without; what is missing is made anew."""
        model = self._rng.choice((Account, Ledger, Slot))
        key = self._row_key(model)
        if self._rng.random() < 0.4:
            options = self._options()
            with self._using(model.locked(*key, **options), options) as row:
                self._pause()
                row.delete()
            return
        number = self._number()
        try:
            row = model.get(*key, consistent_read=True)
        except DoesNotExist:
            row = model(*key, count=1, data=number)
            condition = model.name.does_not_exist()
        else:
            condition = model.count == row.count
            if self._rng.random() < 0.3:
                row.delete(condition)
                return
            row.count, row.data = int(row.count) + 1, number
        with self._without_a_lock(number):
            row.save(condition)

    # -- locks of any kind --------------------------------------------------------------------------

    async def _lock_in_any_way(self, *, in_task: bool) -> None:
        rng, (lock, options) = self._rng, self._any_lock(in_task=in_task)
        how = rng.choice(("block", "block", "acquired", "decorated", "attached"))
        if how == "decorated":
            with self._schedule.judge.unwatched():
                await done(self._decorated(lock, in_task=in_task)(self._key()))
        elif how == "acquired":
            if not await done(self._using(lock, options).acquire(**self._in_call(options))):
                self._schedule.judge.timed_out()
            else:
                try:
                    await self._use(lock)
                finally:
                    await done(lock.release())
        else:
            if how == "attached" and self._schedule.passes:
                lock, options = await self._attached(in_task=in_task), {}
            async with _entered(self._using(lock, options), in_task=in_task) as held:
                await self._use(lock)
                if isinstance(held, (LockedRows, AsyncLockedRows, RowLockMixin)):
                    await self._write_any(held, in_task=in_task)

    def _any_lock(self, *, in_task: bool) -> tuple[Any, dict[str, Any]]:
        """Return a lock of a random kind, not yet held, and its options."""
        rng, options = self._rng, self._options(in_task=in_task)
        keys, rows = self._schedule._keys, self._schedule._rows
        mutex: Any = AsyncMutex if in_task else Mutex
        semaphore: Any = AsyncSemaphore if in_task else Semaphore
        model = rng.choice((Account, Ledger, Slot))
        if in_task:
            options["cancel_on_loss"] = self._schedule.chance.random() < 0.3
            locked, locked_all = model.alocked, model.alocked_all
        else:
            locked, locked_all = model.locked, model.locked_all
        # The others have theirs in their rows: by another table they would be locks of the same name.
        where = {"lock_model": Lock} if model is Ledger else {}
        makers: tuple[Callable[..., Any], ...] = (
            partial(mutex.for_key, self._key(), model=Lock),
            partial(mutex.for_key, self._key(), range_key="a", model=Shard),
            partial(mutex.for_row, model, *self._row_key(model), **where),
            partial(mutex.for_keys, keys, model=Lock),
            partial(
                mutex.any_of if in_task else rng.choice((Mutex, AnyOf)).any_of, keys, model=Lock
            ),
            partial(semaphore.for_key, "s", permits=PERMITS, model=Lock),
            partial(locked, *self._row_key(model)),
            partial(locked_all, [(row, "a") for row in rows] if model is Slot else rows),
        )
        return rng.choice(makers)(**options), options

    def _in_call(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return what a call of ``acquire`` is given, and put the timeout that this makes into the options."""
        drawn = self._schedule.chance.choice((*[options["timeout"]] * 3, 0, 5.0))
        is_own, options["timeout"] = drawn == options["timeout"], drawn
        return {} if is_own else {"timeout": drawn} if drawn else {"blocking": False}

    def _row_key(self, model: type[Any]) -> tuple[str, ...]:
        return (self._row(), "a") if model is Slot else (self._row(),)

    def _decorated(self, lock: Any, *, in_task: bool) -> Any:
        """Return a function that is decorated, by a lock or by a template of its key."""

        def work(key: str) -> None:
            self._pause()

        async def work_as_task(key: str) -> None:
            await asyncio.sleep(self._rng.random())

        if self._rng.random() < 0.5:
            on_locked: Any = self._rng.choice(("wait", "skip"))
            options = {"model": Lock, "timeout": 30.0, "on_locked": on_locked}
            options |= self._schedule.chance.choice([{}] * 4 + [{"model": Shard, "range_key": "a"}])
            lock = pynamodb_mutex.synchronized("{key}", **options)
        return lock(work_as_task if in_task else work)

    async def _attached(self, *, in_task: bool) -> Any:
        """Take over a lock by a ticket; one in three stays, so that it is used again."""
        passes, taken = self._schedule.passes, self._schedule.taken
        place = self._rng.randrange(len(passes))
        is_kept = self._rng.random() < 0.3
        kind, ticket, model = passes[place] if is_kept else passes.pop(place)
        if in_task:
            kind = AsyncRowLock if kind is RowLock else AsyncMutex
        more = {"cancel_on_loss": True} if in_task else {}
        lock = await done(kind.attach(ticket, model=model, **more))
        taken[ticket] += 1
        if taken[ticket] > 1:
            self._schedule.judge.fail("I5: a ticket was good twice")
        return lock

    def _look_around(self) -> None:
        """Read what is held, as an operator does."""
        model = self._rng.choice((Lock, Shard, Account, Slot))
        key = self._key() if issubclass(model, LockItem) and self._rng.random() < 0.5 else None
        for item in model.held() if key is None else model.held(key):
            read_some(self._rng, item)

    # -- steps under a lock -------------------------------------------------------------------------

    async def _use(self, lock: Any) -> None:
        """Make random calls of a lock."""
        for _ in range(self._rng.randrange(5)):
            await done(self._rng.choice(_STEPS)(self, lock, self._rng.random()))

    def _wait(self, lock: Any, chance: float) -> Any:
        seconds = self._rng.choice((0.05, 1.0, 10.0)) * chance
        if hasattr(lock, "_lock") or isinstance(lock, AsyncLockedRows):
            return asyncio.sleep(seconds)
        return self._world.sleep(seconds)

    async def _ensure(self, lock: Any, at_least: float) -> None:
        """Ensure that a lock is held, and that so much of its lease is left."""
        begun = self._world.now
        await done(lock.ensure_held(at_least))
        self._schedule.judge.ensured(lock, at_least, begun)

    async def _ask_row(self, lock: Any, _: float) -> None:
        """Ask whether somebody holds a lock; whoever holds it meanwhile knows the answer."""
        judge = self._schedule.judge
        stood = judge.stands(lock)
        is_locked = await done(lock.locked())
        # any of several keys is locked if all of them are
        if stood and not isinstance(getattr(lock, "_lock", lock), AnyOf):
            judge.said_locked(lock, is_locked=is_locked)

    async def _save(self, lock: Any, chance: float) -> None:
        """Write a payload or none, by one of the calls that do."""
        if not hasattr(lock, "save_data") or not issubclass(lock._options.model, LockItem):
            return
        number = self._number()
        with self._reporting(lock, number):
            await done(lock.renew(data=number) if chance < 0.4 else lock.save_data(number))
        if self._rng.random() < 0.5:
            await done(lock.save_data(None))

    async def _commit(self, lock: Any, _: float) -> None:
        """Commit a transaction that has the guard alone."""
        transaction = lock.transaction()
        async with _entered(transaction, in_task=isinstance(transaction, AsyncTransaction)):
            pass

    async def _release(self, lock: Any, chance: float) -> None:
        if chance < 0.3:
            self._schedule.judge.releases(lock)
            await done(lock.release())

    async def _force(self, lock: Any, chance: float) -> None:
        if chance < 0.2 and hasattr(lock, "force_release"):
            with suppress(TypeError):  # of any of several keys
                await done(lock.force_release())

    async def _detach_any(self, lock: Any, chance: float) -> None:
        """Detach the lock; whoever draws its ticket takes it over."""
        if chance < 0.3 and hasattr(lock, "detach") and lock.held:
            rows = getattr(getattr(lock, "_lock", lock), "_model", None)
            kind, model = (Mutex, lock._options.model) if rows is None else (RowLock, rows)
            self._schedule.judge.detached.add(lock.token)
            ticket = await done(lock.detach(self._rng.choice((None, 1.0))))
            self._schedule.passes.append((kind, ticket, model))

    async def _write_any(self, held: Any, *, in_task: bool) -> None:
        """Write locked rows, each in some way, or commit the guard of all."""
        if isinstance(held, RowLockMixin):
            await self._write_in_any_way(held, in_task=in_task)
            return
        for number in range(len(held)):
            await self._write_in_any_way(held[number], in_task=in_task)
        transaction = held.transaction(unlock=self._rng.random() < 0.5)
        async with _entered(transaction, in_task=in_task):
            await done(self._wait(held, self._rng.random()))

    async def _write_in_any_way(self, row: Any, *, in_task: bool) -> None:
        """Write a locked row: by a request of its own, or by a transaction."""
        rng = self._rng
        read_some(rng, row)
        if rng.random() < 0.5:
            await (self._write_in_task(row) if in_task else done(self._write(row)))
            return
        read = row.arefresh if in_task else row.refresh
        await done(read(consistent_read=self._schedule.chance.random() < 0.5))
        transaction = row.row_lock.transaction()
        transaction = AsyncTransaction(transaction) if in_task else transaction
        if rng.random() < 0.1:
            async with _entered(transaction, in_task=in_task) as writes:
                writes.delete(row, type(row).count == row.count)
            return
        number, model = self._number(), type(row)
        condition = self._condition(row, number)
        with self._reporting(row.row_lock, number):
            async with _entered(transaction, in_task=in_task) as writes:
                if rng.random() < 0.5:
                    row.count, row.data = int(row.count) + 1, number
                    writes.save(row, condition)
                else:
                    writes.update(row, [model.data.set(number), model.count.add(1)], condition)

    async def _write_in_task(self, row: Any) -> None:
        """Write a locked row in a task, as `_write` does in a thread, or delete it."""
        if self._rng.random() < 0.1:
            await row.adelete(type(row).count == row.count)
            return
        number, model = self._number(), type(row)
        condition, unlock = self._condition(row, number), self._rng.random() < 0.3
        with self._reporting(row.row_lock, number):
            if self._rng.random() < 0.5:
                row.count, row.data = int(row.count) + 1, number
                await row.asave(condition, unlock=unlock)
            else:
                actions = [model.data.set(number), model.count.add(1)]
                await row.aupdate(actions, condition, unlock=unlock)


_STEPS: tuple[Callable[[AnyLock, Any, float], Any], ...] = (
    lambda client, lock, _: read_some(client._rng, lock),
    lambda client, lock, _: read_some(client._rng, lock),
    lambda _, lock, chance: lock.renew(None if chance < 0.5 else chance * 40),
    lambda client, lock, chance: client._ensure(lock, chance),
    AnyLock._ask_row,
    AnyLock._release,
    AnyLock._wait,
    AnyLock._wait,
    AnyLock._save,
    AnyLock._save,
    AnyLock._commit,
    AnyLock._force,
    AnyLock._detach_any,
)
"""What clients do with a lock, and a random number from 0 to 1; for a lock for tasks, something to be awaited."""


@asynccontextmanager
async def _entered(lock: Any, *, in_task: bool) -> AsyncIterator[Any]:
    """Enter a block of a lock or transaction, for threads or for tasks."""
    if in_task:
        async with lock as held:
            yield held
    else:
        with lock as held:
            yield held
