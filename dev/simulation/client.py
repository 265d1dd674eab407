"""A client of a random schedule: a thread of a process, or several tasks, that lock keys and rows in random ways.

Each way to lock is a method; here are those that need a particular place or order. `any_lock` has those in which every
public call is made of a lock of any kind, and `once` those that call `once`.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pynamodb.connection import Connection
from pynamodb.exceptions import DoesNotExist, PynamoDBException
from pynamodb.transactions import TransactWrite

import pynamodb_mutex
from dev.simulation.any_lock import AnyLock
from dev.simulation.models import Account, Ledger, Lock, Order, Shard
from dev.simulation.once import OnceCalls
from dev.simulation.promises import PERMITS
from dev.simulation.shared import SharedCalls
from dev.simulation.threads import run_tasks
from dev.simulation.world import Process
from pynamodb_mutex import (
    Hints,
    Mutex,
    MutexLostError,
    MutexNotHeldError,
    MutexTimeoutError,
    RowLockedError,
    Semaphore,
)
from pynamodb_mutex._lock.runtime.callers import caller
from pynamodb_mutex.aio import AsyncMutex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dev.simulation.judge import Judge
    from dev.simulation.network import Exchange

H = TypeVar("H")

_COPIED = {"duplicated", "redoubled", "repeated", "slow_twice"}
"""Kinds of faults by which the network sends a request twice."""

GAPS = 2
"""Number of times at which all are idle, in a schedule in which they are."""


class Client(AnyLock, OnceCalls, SharedCalls):
    """A client thread of a process, or several tasks on its event loop, that lock in the ways of the schedule.

    Each method ``lock_...`` acquires a lock in one way, works under it, and releases it.
    """

    def __init__(self, schedule: Any, process: Process) -> None:
        self._schedule = schedule
        self._process = process
        self._world = schedule.world
        self._rng = schedule._rng
        self._kept: list[tuple[Mutex, dict[str, Any]]] = []
        self._fair = Hints() if schedule.has_hints(process) else True

    # -- running ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Lock as often as the size says, as a thread."""
        size = self._schedule.size
        for _ in range(size.sections):
            with self._failures():
                if size.gap and self._rng.random() < 0.4 and self._world.now < GAPS * size.gap:
                    # in true time, or days of drift would keep apart those who are to meet
                    idle = size.gap - self._world.now % size.gap
                    self._world.sleep(idle * self._process.rate)
                self._world.sleep(self._rng.random() * 2)
                if size.outages and self._rng.random() < size.outages:
                    self._hold_for_long()
                    continue
                way = self._rng.choice(size.ways)
                self._schedule._count(way)
                self.share(way) if size.is_shared else getattr(self, way)()

    def run_tasks(self) -> None:
        """Lock as often as the size says, as each of a few tasks of an event loop; some tasks are cancelled."""
        with self._failures():
            run_tasks(self._world, self._gather())

    async def _gather(self) -> None:
        tasks = [asyncio.ensure_future(self._task()) for _ in range(self._rng.choice((1, 2, 3)))]
        for task in tasks:
            if self._rng.random() < 0.2:
                loop = asyncio.get_running_loop()
                loop.call_later(self._rng.random() * 20, task.cancel)
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            if task.cancelled():
                self._schedule._count("cancelled")
            elif (error := task.exception()) is not None:
                raise error

    async def _task(self) -> None:
        for _ in range(self._schedule.size.sections):
            with self._failures():
                await asyncio.sleep(self._rng.random() * 2)
                if self._schedule.size.is_of_once:
                    await self._task_once()
                    continue
                if self._schedule.size.is_shared:
                    await self._task_share()
                    continue
                if "lock_otherwise" in self._schedule.size.ways and self._rng.random() < 0.7:
                    await self._lock_in_any_way(in_task=True)
                    continue
                options = {**self._options(in_task=True), **self._in_row()}
                options["fair"] = "lock_fair" in self._schedule.size.ways and self._fair
                mutex = AsyncMutex.for_key(self._key(), model=Lock, **options)
                self._using(mutex, options)
                if not await mutex.acquire():
                    self._schedule.judge.timed_out()
                    continue
                try:
                    await asyncio.sleep(self._rng.random() * 3)
                    if self._rng.random() < 0.5:
                        number = self._number()
                        with self._reporting(mutex, number):
                            await mutex.save_data(number)
                finally:
                    await mutex.release()

    @contextmanager
    def _failures(self) -> Iterator[None]:
        count, is_released = self._schedule._count, False
        try:
            yield
            # what ends a call of `once` is caught inside
            is_released = not self._schedule.size.is_of_once
        except KeyboardInterrupt:
            count("interrupted")
        except MutexLostError:
            count("lost")
        except MutexNotHeldError:
            count("released by another thread")
        except (MutexTimeoutError, RowLockedError) as error:
            count("held by others")
            if isinstance(error, MutexTimeoutError):
                self._schedule.judge.timed_out()
        except DoesNotExist:
            self._schedule.judge.was_missing()
        except PynamoDBException:
            count("failed")
        finally:
            self._schedule.judge.section_ends(is_released=is_released)

    def _using(self, handle: H, options: dict[str, Any]) -> H:
        """Have the judge ask a handle from now on to the end of the section."""
        self._schedule.judge.watch(handle, options)
        return handle

    @contextmanager
    def _locking(self, make: Callable[..., Any], name: Any, **more: Any) -> Iterator[Any]:
        """Lock something in a block, with random options and these."""
        options = {**self._options(), **self._in_row(is_one=make == Mutex.for_key), **more}
        with self._using(make(name, model=Lock, **options), options) as lock:
            yield lock

    # -- ways to lock -------------------------------------------------------------------------------

    def _key(self) -> str:
        return self._rng.choice(self._schedule._keys)

    def _row(self) -> str:
        return self._rng.choice(self._schedule._rows)

    def _options(self, *, in_task: bool = False) -> dict[str, Any]:
        rng = self._rng
        options: dict[str, Any] = {
            "lease": rng.choice((1.0, 3.0, 10.0, 30.0)),
            "timeout": rng.choice((0, 2.0, 30.0, 300.0)),
            "auto_renew": rng.random() < 0.7,
            "max_hold": rng.choice((None, None, None, 40.0)),
            "poll": rng.choice(((0.05, 1.0), (0.2, 5.0))),
        }
        if rng.random() < 0.3 and not in_task:
            for name in ("on_lost", "on_danger"):
                options[name] = partial(self._note_report, name)
        return options

    def _in_row(self, *, is_one: bool = True) -> dict[str, Any]:
        """Return some of the options about the row of a lock table; with `is_one` those for one key alone, too."""
        chance = self._schedule.chance
        # by the last part the judge knows whose signals are about it
        owner = f"somebody of {caller().label}"
        drawn = {"owner": owner, "attributes": {"purpose": str(chance.random())}}
        # where a release with data hands a lock over, that of the next holder is written
        is_written = "lock_and_record" not in self._schedule.size.ways
        drawn |= {"must_exist": is_one, "data": chance.random() if is_written else None}
        return {name: value for name, value in drawn.items() if chance.random() < 0.15}

    def _note_report(self, name: str, handle: Any) -> None:
        self._schedule._count(name)
        self._schedule.judge.reported(name, handle)

    def lock_one(self) -> None:
        """Lock one key; sometimes entered twice, sometimes deleted on release, sometimes by a Mutex used before."""
        rng = self._rng
        if self._kept and rng.random() < 0.3:
            mutex, options = rng.choice(self._kept)
        else:
            special = rng.choice(({}, {}, {"reentrant": True}, {"delete_on_release": True}))
            # where rows are deleted, fencing tokens may fall
            key = "deleted" if "delete_on_release" in special else self._key()
            options = {**self._options(), **self._in_row(is_one=key != "deleted"), **special}
            mutex = Mutex.for_key(key, model=Lock, **options)
            self._kept.append((mutex, options))
        with self._using(mutex, options):
            if mutex._options.reentrant:
                token = mutex.token
                with mutex:
                    self._work(mutex)
                self._schedule.judge.inner_ended(mutex, token)
            self._work(mutex, guarded=not mutex._options.delete_on_release)
            if rng.random() < 0.15:
                self._detach(mutex)

    def _hold_for_long(self) -> None:
        """Hold one key until after `max_hold`, or for some leases and mostly cut off from DynamoDB."""
        rng, lease = self._rng, self._rng.choice((3.0, 10.0, 30.0))
        longest = rng.choice((None, None, None, 5.0))
        options = {**self._options(), "lease": lease, "auto_renew": True, "max_hold": longest}
        options |= {name: partial(self._note_report, name) for name in ("on_lost", "on_danger")}
        with self._using(Mutex.for_key(self._key(), model=Lock, **options), options):
            if longest is None and self._world.now < self._schedule.size.seconds:
                self._schedule.cut_off(self._process, 3 * lease)
            self._world.sleep(3 * lease * rng.random())

    def lock_kept(self) -> None:
        """Lock one key, or all at once, for a time that is longer than the work as a rule."""
        options = {**self._options(), "hold_at_least": self._rng.choice((1.0, 5.0, 20.0))}
        options["fair"] = self._rng.random() < 0.3 and self._fair
        if not options["fair"] and self._rng.random() < 0.2:
            lock: Any = Mutex.for_keys(self._schedule._keys, model=Lock, **options)
        else:
            lock = Mutex.for_key(self._key(), model=Lock, **options)
        with self._using(lock, options):
            self._pause()

    def lock_and_record(self) -> None:
        """Lock one key, write its payload with renewals and other writes, and with the release."""
        rng, hold = self._rng, self._rng.choice((None, None, 5.0))
        with self._locking(Mutex.for_key, self._key(), hold_at_least=hold) as mutex:
            for _ in range(rng.randrange(4)):
                number = self._number()
                with self._reporting(mutex, number):
                    if rng.random() < 0.6:
                        mutex.renew(rng.choice((None, 2.0)), data=number)
                    else:
                        mutex.save_data(number)
                self._pause()
            number, before = self._number(), len(self._world.network.log)
            try:
                with self._reporting(mutex, number):
                    mutex.release(data=number)
            finally:
                # a release that is sent again may count as made, or as lost, though it was not
                sent = self._sent_since(before)
                if len(sent) > 1 or any(each.met in _COPIED for each in sent):
                    self._schedule._reported[number] = None

    def lock_by_force(self) -> None:
        """Lock one key or row, and break the claim of whoever holds it."""
        options = {**self._options(), "fair": self._rng.random() < 0.3 and self._fair}
        mutex = Mutex.for_key(self._key(), model=Lock, **options)
        if self._rng.random() < 0.3:
            del options["fair"]
            mutex = self._rng.choice((Account, Ledger)).locked(self._row(), **options)
        self._using(mutex, options)
        if not mutex.acquire(**self._in_call(options), force=self._rng.random() < 0.7):
            self._schedule.judge.timed_out()
        else:
            try:
                is_guarded = mutex._options.model is Lock and mutex.key in self._schedule._keys
                self._work(mutex, guarded=is_guarded)
            finally:
                mutex.release()

    def lock_fair(self) -> None:
        """Lock in the order of arrival: one key, one whose row is deleted on release, or a row of another table."""
        rng, options = self._rng, {**self._options(), "fair": True}
        kind = rng.choice(("key", "key", "deleted", "row"))
        if kind == "row":
            with self._using(Ledger.locked(self._row(), **options), options) as row:
                self._pause()
                self._write(row)
            return
        is_deleted = kind == "deleted"
        key = "deleted" if is_deleted else self._key()
        options |= {"delete_on_release": is_deleted, "fair": self._fair}
        options |= self._in_row(is_one=not is_deleted)
        with self._using(Mutex.for_key(key, model=Lock, **options), options) as mutex:
            self._work(mutex, guarded=not is_deleted)

    def _detach(self, mutex: Mutex) -> None:
        """Detach a lock; whoever draws its ticket takes it over."""
        self._schedule.judge.detached.add(mutex.token)
        self._schedule._tickets.append(mutex.detach(self._rng.choice((None, 1.0))))

    def lock_attached(self) -> None:
        """Take over a lock that some process has detached; without a ticket, lock one key."""
        tickets = self._schedule._tickets
        if tickets:
            ticket = tickets.pop(self._rng.randrange(len(tickets)))
            with self._using(Mutex.attach(ticket, model=Lock), {}) as mutex:
                self._schedule._count("attached")
                self._work(mutex)
        else:
            self.lock_one()

    def keep_free(self, key: str, model: Any, part: str | None, seconds: float) -> None:
        """Hold a key as an operator, who keeps work away from it, and give it back some time later."""
        options = {"lease": 60.0, "timeout": 2.0, "auto_renew": False, "poll": (0.2, 5.0)}
        mutex = Mutex.for_key(key, range_key=part, model=model, **options)
        with self._failures():
            with self._using(mutex, options):
                self._schedule.judge.detached.add(mutex.token)
                ticket = mutex.detach()
            self._world.sleep(seconds)
            self._using(Mutex.attach(ticket, model=model), {}).release()

    def lock_several(self) -> None:
        """Lock all keys at once."""
        with self._locking(Mutex.for_keys, self._schedule._keys) as group:
            self._work(self._rng.choice(group.members))
            if self._rng.random() < 0.3:
                self._order(group, self._rng.choice(self._schedule._rows), None)

    def lock_until_all_is_released(self) -> None:
        """Lock one key, perhaps entered twice, or a row, until a thread of the process releases all that it holds."""
        model = self._schedule.chance.choice((None, None, None, Account, Ledger))
        if model is not None:
            options = self._options()
            with self._using(model.locked(self._row(), **options), options) as row:
                self._process.start_thread("handler", partial(self._release_all, row.row_lock))
                self._pause()
            return
        is_nested = self._schedule.chance.random() < 0.3
        with self._locking(Mutex.for_key, self._key(), reentrant=is_nested) as mutex:
            self._work(mutex)
            with mutex if is_nested else nullcontext():
                self._process.start_thread("handler", partial(self._release_all, mutex))
                self._pause()

    def _release_all(self, mutex: Any = None) -> None:
        """Release all that the process holds, as a handler of a signal does; runs of `once` go on."""
        self._schedule.judge.releases_all(self._process)
        report = dict(pynamodb_mutex.release_all(timeout=5.0))
        if mutex is not None and mutex.held and mutex.key not in report:
            self._schedule.judge.fail(f"I5: {mutex.key} was left out, and not reported")

    def lock_any(self) -> None:
        """Lock whichever key is free first, or whichever of two range keys."""
        if self._schedule.chance.random() < 0.3:
            key, options = self._key(), self._options()
            keys = [Mutex.for_key(key, range_key=part, model=Shard, **options) for part in "ab"]
            asked = {name: options[name] for name in ("timeout", "poll", "lease")}
            lock = Mutex.any_of(keys, model=Shard, **asked)
            with self._using(lock, options):
                self._work(lock)
            return
        with self._locking(Mutex.any_of, self._schedule._keys) as mutex:
            self._work(mutex)

    def lock_shard(self) -> None:
        """Lock a key under one of two range keys, or under both at once; sometimes break such a lock by force."""
        rng, key = self._rng, self._key()
        parts = ("a", "b") if rng.random() < 0.2 else (rng.choice("ab"),)
        if rng.random() < 0.1:
            Shard.force_release(key, parts[0])
        options = self._options()
        locks = [Mutex.for_key(key, range_key=part, model=Shard, **options) for part in parts]
        lock: Any = locks[0]
        if len(locks) > 1:
            lock = Mutex.for_keys(locks, model=Lock)
            del options["timeout"]  # those of the group are its own
        with self._using(lock, options):
            self._work(rng.choice(locks))
            if len(locks) == 1 and rng.random() < 0.15:
                self._schedule.judge.detached.add(locks[0].token)
                self._using(Mutex.attach(locks[0].detach(), model=Shard), {}).release()

    def lock_semaphore(self) -> None:
        """Acquire one of two permits of a semaphore."""
        with self._locking(partial(Semaphore.for_key, permits=PERMITS), "s") as permit:
            self._work(permit)

    def lock_row(self) -> None:
        """Lock a row that carries its claim, or one whose claim is in the lock table."""
        model: Any = self._rng.choice((Account, Ledger))
        name, options = self._row(), self._options()
        with self._using(model.locked(name, **options), options) as row:
            self._pause()
            if self._rng.random() < 0.8:
                self._write(row)
                if self._rng.random() < 0.5 and row.row_lock.held:
                    self._write(row)

    def lock_rows(self) -> None:
        """Lock all rows at once, and write them in one transaction."""
        model: Any = self._rng.choice((Account, Ledger))
        options = self._options()
        with self._using(model.locked_all(self._schedule._rows, **options), options) as rows:
            self._pause()
            numbers = [self._number() for _ in rows]
            for row, number in zip(rows, numbers, strict=True):
                self._schedule.judge.writes_under(row.row_lock, number)
            writes = TransactWrite(
                connection=Connection(region="simulated", host="http://simulated")
            )
            with self._reporting(None, *numbers), writes as transaction:
                for row, number in zip(rows, numbers, strict=True):
                    row.count, row.data = int(row.count) + 1, number
                    transaction.save(row)

    def lock_none(self) -> None:
        """Write a row without its lock; the write is refused while another holds it."""
        row = self._rng.choice((Account, Ledger))(self._row())
        number = self._number()
        with self._without_a_lock(number):
            row.update([type(row).data.set(number), type(row).count.add(1)])

    @contextmanager
    def _without_a_lock(self, number: str) -> Iterator[None]:
        """Write a row without its lock, and note what the library reports of the write."""
        before = len(self._world.network.log)
        # Without a claim and a number of guarded writes nothing distinguishes a copy of the request from a new one.
        self._schedule.judge.unlocked.add(number)
        try:
            with self._reporting(None, number):
                yield
        except RowLockedError:
            if any(each.met in _COPIED for each in self._sent_since(before)):
                # The request was refused, and its copy may be applied later, when nobody holds the row any more; or a
                # proxy has repeated it, and the copy was refused. No condition can prevent that, so the outcome is
                # unknown.
                self._schedule._reported[number] = None
            raise

    def _sent_since(self, number: int) -> list[Exchange]:
        """Return the requests of this thread, of all those that were sent after so many."""
        log = self._world.network.log[number:]
        return [each for each in log if each.thread is self._world.thread]

    def lock_order(self) -> None:
        """Lock a key, and write a row without a lock in a transaction that the lock guards."""
        name = self._row()
        with self._locking(Mutex.for_key, f"order-{name}") as mutex:
            self._order(mutex, name, Order)

    def _order(self, lock: Any, name: str, model: Any) -> None:
        """Read a row, and write it in a transaction that a lock guards; without a model, commit the guard alone."""
        if model is None:
            # These locks are not that of the row, so a write of it would collide with one under its lock. The
            # transaction has the guard alone.
            with lock.transaction():
                self._pause()
            return
        row = model.get(name, consistent_read=True)
        self._pause()
        number = self._number()
        with self._reporting(lock, number), lock.transaction() as writes:
            row.count, row.data = int(row.count) + 1, number
            writes.save(row)

    def lock_in_child(self) -> None:
        """Lock a key, and fork: the child must not take the lock for its own."""
        with self._locking(Mutex.for_key, self._key()) as mutex:
            self._fork(mutex)
            self._work(mutex)

    def _fork(self, mutex: Mutex) -> None:
        # another process, for which the state of this one is inherited: see `Process.inherited`
        child = Process(self._world, f"{self._process.name}'")
        child.start_thread("child", partial(_as_a_child, self._schedule.judge, mutex))

    # -- work under a lock --------------------------------------------------------------------------

    def _pause(self) -> None:
        self._world.sleep(self._rng.choice((0.0, 0.05, 1.0, 10.0)) * self._rng.random())

    def _work(self, mutex: Mutex, *, guarded: bool = True) -> None:
        """Wait, write, renew and ensure the lease, in random order; sometimes for longer than the lease."""
        rng = self._rng
        for _ in range(rng.randrange(4)):
            what = rng.choice(("wait", "wait", "save", "renew", "ensure"))
            if what == "wait":
                longest = rng.choice((0.05, 1.0, mutex._options.lease))
                self._world.sleep(longest * rng.random() * 1.5)
            elif what == "renew":
                mutex.renew()
            elif what == "ensure":
                begun, at_least = self._world.now, mutex._options.lease * rng.random() * 0.9
                mutex.ensure_held(at_least)
                self._schedule.judge.ensured(mutex, at_least, begun)
            elif guarded:
                number = self._number()
                with self._reporting(mutex, number):
                    mutex.save_data(number)

    def _write(self, row: Any) -> None:
        """Write a locked row, by save or update; sometimes the same request releases the lock."""
        number = self._number()
        condition, unlock = self._condition(row, number), self._rng.random() < 0.3
        with self._reporting(row.row_lock, number):
            if self._rng.random() < 0.5:
                row.count, row.data = int(row.count) + 1, number
                row.save(condition, unlock=unlock)
            else:
                model = type(row)
                row.update([model.data.set(number), model.count.add(1)], condition, unlock=unlock)

    def _condition(self, row: Any, number: str) -> Any:
        """Return a condition of a write of a locked row: none, one that holds, or, seldom, one that never does."""
        count = self._schedule.chance.choice([None] * 6 + [int(row.count)] * 3 + [-1])
        self._schedule.judge.wanted[number] = count
        return None if count is None else type(row).count == count

    def _number(self) -> str:
        """Return the number of a new write, by which the judge recognises it."""
        return str(next(self._schedule._numbers))

    @contextmanager
    def _reporting(self, handle: Any, *numbers: str) -> Iterator[None]:
        """Note what the library reports of writes: True for applied, False for not applied, None for unknown.

        Args:
            handle: The lock under which they are made; None for none.
            *numbers: Their numbers.
        """
        reported = self._schedule._reported
        if handle is not None:
            self._schedule.judge.writes_under(handle, *numbers)
        # unknown until it is reported, and after any other error, such as an interruption
        reported.update(dict.fromkeys(numbers))
        try:
            yield
        except PynamoDBException as error:
            # without the lock it may have been applied before, and only its repetition refused
            is_refused = handle is not None and "ConditionalCheckFailed" in str(error.cause)
            said = getattr(error, "applied", False if is_refused else None)
            reported.update(dict.fromkeys(numbers, said))
            self._schedule.judge.asked["I2 refused"] += is_refused
            raise
        reported.update(dict.fromkeys(numbers, True))
        self._schedule._count("written")


def _as_a_child(judge: Judge, mutex: Mutex) -> None:
    """Try in a forked child what only the holder may do; report it if that works."""
    judge.watch(mutex, {})
    try:
        mutex.release()
    except MutexNotHeldError:
        return
    finally:
        judge.section_ends(is_released=False)
    judge.fail("I5: a forked child released its parent's lock")


WAYS = [name for name in {**vars(Client), **vars(AnyLock)} if name.startswith("lock_")]
"""Names of the methods by which a client locks."""
