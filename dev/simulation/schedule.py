"""Random schedules: processes whose threads and tasks lock keys and rows, and faults meanwhile, all from one seed.

A schedule has two parts. For some time clients lock in random ways, while requests meet faults and processes crash,
stop, freeze, are interrupted or cut off. Then the faults end, and everybody must finish. The judge watches all of it,
and `Schedule` checks at the end that no lock, entry or renewal remains, and that what callers learned of their writes is true.

`play` plays a schedule, and `shrink` looks for a smaller one with the same violation. See `world` for how it is played,
`judge` for the invariants, and `explore` for all schedules of a small world.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import re
from collections import Counter
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from unittest.mock import patch

from pynamodb.connection import Connection
from pynamodb.exceptions import PynamoDBException
from pynamodb.transactions import TransactWrite

import pynamodb_mutex
from dev.simulation.any_lock import AnyLock
from dev.simulation.judge import Judge, Watched, line_of
from dev.simulation.models import ROWS, Account, Ledger, Lock, Order, Shard, create_tables
from dev.simulation.network import Faults, Network
from dev.simulation.once import ONCE_WAYS, PREFIX, OnceCalls, Receipt
from dev.simulation.once_judge import OnceJudge
from dev.simulation.threads import installed, run_tasks
from dev.simulation.world import EPOCH, Process, ViolationError, World
from pynamodb_mutex import (
    LockItem,
    Mutex,
    MutexClosedError,
    MutexLostError,
    MutexNotHeldError,
    MutexTimeoutError,
    RowLockedError,
    Semaphore,
    signals,
)
from pynamodb_mutex._dynamodb.store import SHORTEST_RETENTION
from pynamodb_mutex._operations.hints import NEXT
from pynamodb_mutex._protocol.waiting_line import address_of, id_of
from pynamodb_mutex.aio import AsyncMutex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

H = TypeVar("H")

QUIET = 900.0
"""Seconds after the last fault within which all clients must have finished. No lock, entry or renewal may remain then."""


HOUR, DAY = 3600.0, 86400.0

IDLE = 60.0
"""Seconds without a request after which nobody is at work."""

GAPS = 2
"""Number of times at which all are idle, in a schedule in which they are."""


class Size(NamedTuple):
    """How much happens in a schedule.

    Attributes:
        processes: Number of processes at the beginning.
        threads: Largest number of client threads in a process.
        sections: Number of locks that each thread or task acquires, one after the other.
        keys: Number of keys that they lock.
        rows: Number of rows in each of the users' tables that they lock.
        ways: Ways in which they lock: names of methods of `Client`.
        faults: Share of requests that meets each kind of fault.
        strikes: Number of faults of processes and rows, such as crashes and deletions.
        seconds: Seconds during which there are faults.
        hints: Share of the processes whose fair waiters are called by hints; the others are as of an older version.
        astray: Share of the hints that meet a fault. If there are any, hints are forged, too.
        gap: Seconds after which all work again that have been idle since; 0 for no such time. The TTL deletes rows then.
        jumps: Number of jumps of local clocks.
    """

    processes: int
    threads: int
    sections: int
    keys: int
    rows: int
    ways: tuple[str, ...]
    faults: dict[str, float]
    strikes: int
    seconds: float
    hints: float = 0.0
    astray: float = 0.0
    gap: float = 0.0
    jumps: int = 0

    @property
    def is_of_once(self) -> bool:
        """Whether clients call `once`, in place of locking."""
        return not set(ONCE_WAYS).isdisjoint(self.ways)

    @classmethod
    def at_random(cls, rng: random.Random, ways: Sequence[str] = ()) -> Size:
        """Return a random size, in which clients lock in some of these ways; by default in all that there are."""
        # Often all clients lock in one or two ways. With all ways at once they rarely meet at the same lock.
        ways = ways or WAYS
        ways = rng.sample(ways, rng.choice((1, 2, len(ways))))
        return cls(
            processes=rng.choice((1, 2, 2, 3, 5, 8)),
            threads=rng.choice((1, 1, 2, 3)),
            sections=rng.randrange(2, 8),
            keys=rng.choice((1, 1, 2, 4)),
            rows=rng.choice((1, ROWS)),
            ways=tuple(ways),
            faults=Faults.at_random(rng).shares,
            strikes=rng.randrange(1, 6) if rng.random() < 0.7 else 0,
            seconds=rng.choice((20.0, 60.0, 200.0)),
            # last: all else is then as it was for a seed before there were hints
            hints=rng.choice((0.0, 0.0, 0.5, 1.0)),
            astray=rng.choice((0.0, 0.1, 0.5)),
            gap=rng.choice((0.0,) * 6 + (2 * HOUR, 10 * DAY)),
            # a run of `once` may forget a result too early when the clock of its process has jumped
            jumps=0 if ways[0] in ONCE_WAYS else rng.choice((0,) * 6 + (1, 3)),
        )

    def smaller(self) -> Iterator[Size]:
        """Return the sizes in which one value is smaller than here; roughly the much smaller ones first."""
        for name in ("processes", "threads", "sections", "keys", "rows"):
            count = getattr(self, name)
            for less in {1, count // 2, count - 1} - {0, count}:
                yield self._replace(**{name: less})
        if self.strikes:
            yield self._replace(strikes=0)
            yield self._replace(strikes=self.strikes - 1)
        for kind in self.faults:
            yield self._replace(faults={k: v for k, v in self.faults.items() if k != kind})
        for way in self.ways if len(self.ways) > 1 else ():
            yield self._replace(ways=tuple(each for each in self.ways if each != way))
        if self.seconds > 20:
            yield self._replace(seconds=20.0)
        if self.hints:
            yield self._replace(hints=0.0, astray=0.0)
        for name in ("astray", "gap", "jumps"):
            if getattr(self, name):
                yield self._replace(**{name: 0})


class Schedule:
    """A schedule that is ready to be played.

    Args:
        seed: Seed of all random choices.
        size: How much happens; by default a random size that the seed determines.
        keep_trace: Whether to keep a trace, one line for each event.

    Attributes:
        size: How much happens.
        world: The world in which it is played.
        judge: The judge that watches it.
        counts: Number of times that clients did each thing, and that each strike came.
    """

    def __init__(self, seed: int, size: Size | None = None, *, keep_trace: bool = False) -> None:
        self.world = World(seed, keep_trace=keep_trace)
        Network(self.world)
        self._rng = self.world.rng
        create_tables(self.world.tables)
        # Drawn from a generator of its own. So a seed plays the same schedule whether its size is drawn here or handed
        # in, as when a violation is played again with the size that was printed for it.
        size = self.size = Size.at_random(random.Random(seed)) if size is None else size
        self._model: type[LockItem] = Receipt if size.is_of_once else Lock
        self.judge = (OnceJudge if size.is_of_once else Judge)(
            self.world,
            {
                "locks": Watched(""),
                "shards": Watched(""),
                "accounts": Watched("lock_"),
                "ledger": Watched(None, ("locks", "ledger/")),
                "slots": Watched("lock_", is_enforced=False),
                "orders": Watched(None, ("locks", "order-")),
                "receipts": Watched(""),
            },
        )
        self.counts: dict[str, int] = {}
        self._numbers = itertools.count(1)
        self._names = itertools.count()
        self._tickets: list[str] = []
        # tickets of locks of any kind, with what takes them and what it takes, and how often each was good
        self.passes: list[tuple[Any, str, Any]] = []
        self.taken: Counter[str] = Counter()
        # one object for each process, which its threads share
        self.shared: dict[Process, Any] = {}
        self._reported: dict[str, bool | None] = {}
        self._keys = [f"{PREFIX * size.is_of_once}k{number}" for number in range(size.keys)]
        self._rows = [f"r{number}" for number in range(size.rows)]

    def play(self) -> None:
        """Play the schedule to its end, and check what is left.

        Raises:
            ViolationError: If the judge, or the check at the end, has reported a violation.
        """
        world, rng, size = self.world, self._rng, self.size
        for _ in range(size.processes):
            world.after(rng.random() * 5, self._start_process)
        world.network.faults = Faults(**size.faults)
        end = size.seconds + GAPS * size.gap
        for _ in range(size.strikes):
            world.after(rng.random() * size.seconds + self._some_gaps(), self._strike)
        for _ in range(size.jumps):
            world.after(rng.random() * size.seconds + self._some_gaps(), self._jump)
        for number in range(GAPS if size.gap else 0):
            # while nobody works yet, and when some do
            world.at((number + 1) * size.gap + rng.choice((0.0, 5.0)), self._expire_all)
        late = {"very_late", "redoubled"} & size.faults.keys()
        if size.is_of_once and not size.gap and not late:
            world.after(0.0, self._expire_early)
        world.network.datagrams.astray = size.astray
        if size.hints and size.astray:
            world.after(0.0, partial(self._forge, random.Random(f"{world.seed} forger")))
        world.run(end)
        # From here on nothing goes wrong any more, so whoever does not finish would never finish. Outages end by
        # themselves; requests that are late still arrive.
        world.network.faults = Faults()
        world.network.datagrams.astray = 0.0
        world.network.partitioned.clear()
        for process in world.processes:
            self._allow_threads(process)
        world.run(end + QUIET)
        self._check_end()

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def note_outcome(self, _: object, *, outcome: str, **__: object) -> None:
        """Count the outcome of a call of `once`, as its signal gives it."""
        self._count(f"once: {outcome}")

    # -- processes, and faults of processes and rows ------------------------------------------------

    def _start_process(self) -> None:
        process = Process(self.world, f"p{next(self._names)}")
        self.world.note(process.name, "starts")
        for number in range(self._rng.randint(1, self.size.threads)):
            client = Client(self, process)
            call = client.run_tasks if self._rng.random() < 0.2 else client.run
            process.start_thread(f"t{number}", call)

    def _some_gaps(self) -> float:
        """Return the time from the beginning to a random time at which all have been idle; 0 if they never are."""
        return self._rng.randint(0, GAPS) * self.size.gap if self.size.gap else 0.0

    def _jump(self) -> None:
        """Move the clock of a random process forward."""
        if self.world.processes:
            process = self._rng.choice(self.world.processes)
            self._count("jump")
            process.jump(self._rng.choice((0.5, 5.0, 60.0)) * self._rng.random())

    def _strike(self) -> None:
        """Cause one random fault of a random process, or of a row."""
        world, rng = self.world, self._rng
        if not world.processes:
            return
        process = rng.choice(world.processes)
        # by hand nobody deletes a row of `once`: then nothing is promised
        what = rng.choice(
            [name for name in self._strikes if name != "delete" or not self.size.is_of_once]
        )
        self._count(what)
        self._strikes[what](self, process)

    def _crash(self, process: Process) -> None:
        process.crash()
        self.world.after(self._rng.random() * 10, self._start_process)

    def _stop(self, process: Process, *, freeze: bool = False) -> None:
        process.stop(self._rng.choice((0.5, 5.0, 40.0)) * self._rng.random(), freeze=freeze)

    def _interrupt(self, process: Process) -> None:
        clients = [thread for thread in process.threads_running if thread.name.startswith("t")]
        if clients:
            self.judge.interrupted(process)
            self._rng.choice(clients).interrupt(KeyboardInterrupt())

    def _force(self, process: Process) -> None:
        key = self._rng.choice(self._keys)
        process.start_thread("operator", partial(_quietly, partial(self._model.force_release, key)))

    def _close(self, process: Process) -> None:
        """Close a key, and open it some time later."""
        key = self._rng.choice([*self._keys, "deleted"])
        for seconds, call in (
            (0.0, partial(self._model.close, key, "closed by a schedule")),
            (self._rng.random() * 30, partial(self._model.open, key)),
        ):
            operator = partial(process.start_thread, "operator", partial(_quietly, call))
            self.world.after(seconds, operator)

    def _delete(self, _: Process) -> None:
        self._delete_row(self._rng.choice(self._keys), "a person")

    def _expire(self, _: Process) -> None:
        """Delete a row as the TTL does, if its ``ttl`` has passed; DynamoDB may do so at once or much later."""
        self._expire_row(self._rng.choice(self._keys))

    def _expire_row(self, key: str, early: float = 0.0) -> None:
        row = self.judge.row(self._model.Meta.table_name, key)
        if EPOCH + self.world.now >= float(row.get("ttl", {"N": "inf"})["N"]) - early:
            self._count("expired")
            self._delete_row(key, "the TTL")

    def _expire_all(self) -> None:
        """Delete all rows whose ``ttl`` has passed."""
        for row in self.world.tables.rows(self._model.Meta.table_name):
            self._expire_row(row["key"]["S"])

    def _expire_early(self) -> None:
        """Delete rows of `once` as the TTL would if they were kept for half a minute, no hour, after their end.

        Not for less, and not where requests are late by minutes: a late copy of a request must not find a row that was
        made anew.
        """
        if {"very_late", "redoubled"}.isdisjoint(self.size.faults):
            for key in self._keys:
                self._expire_row(key, SHORTEST_RETENTION - 30)
            self.world.after(self._rng.random() * 10, self._expire_early)

    def _delete_row(self, key: str, who: str) -> None:
        self.world.note("", f"{who} deletes {key}")
        self.judge.deletes = who
        table = self._model.Meta.table_name
        self.world.tables.apply("DeleteItem", {"TableName": table, "Key": {"key": {"S": key}}})
        self.judge.deletes = None

    def has_hints(self, process: Process) -> bool:
        """Return whether a process is of a version that has hints, and uses them."""
        # a generator of its own for each: nothing else changes with it
        chance = random.Random(f"{self.world.seed} hints {process.name}")
        return chance.random() < self.size.hints

    def _forge(self, rng: random.Random) -> None:
        """Send hints to somebody who stands in line, as whoever can read the rows may do."""
        rows = (self.judge.row(self._model.Meta.table_name, key) for key in self._keys)
        entries = [entry for row in rows for entry in line_of(row) if address_of(entry)]
        if entries:
            entry, other = rng.choice(entries), rng.choice(entries)
            text = rng.choice((id_of(entry), id_of(entry) + NEXT, id_of(other), "\xff", ""))
            for _ in range(rng.choice((1, 1, 20))):
                self.world.network.datagrams.send(
                    text.encode("latin-1"), address_of(entry) or ("", 0), is_forged=True
                )
        if self.world.now < self.size.seconds:
            self.world.after(rng.random() * 2, partial(self._forge, rng))

    def _cut_off(self, process: Process) -> None:
        cut_off = self.world.network.partitioned
        cut_off.add(process)
        self.world.after(self._rng.random() * 30, partial(cut_off.discard, process))

    def _refuse_threads(self, process: Process) -> None:
        self.world.note(process.name, "refuses threads")
        process.refuses_threads = True
        self.world.after(self._rng.random() * 30, partial(self._allow_threads, process))

    def _allow_threads(self, process: Process) -> None:
        if process.refuses_threads:
            self.world.note(process.name, "starts threads again")
            process.refuses_threads = False
            self.judge.disturbed(process)

    _strikes: dict[str, Callable[[Schedule, Process], None]] = {  # noqa: RUF012 - never changed
        "crash": _crash,
        "stop": _stop,
        "freeze": partial(_stop, freeze=True),  # type: ignore[dict-item]  # mypy takes _stop for a method
        "interrupt": _interrupt,
        "force": _force,
        "close": _close,
        "delete": _delete,
        "expire": _expire,
        "cut off": _cut_off,
        "refuse threads": _refuse_threads,
    }

    # -- the end of a schedule ----------------------------------------------------------------------

    def _check_end(self) -> None:
        """Check that all clients have finished, nothing is left, and each write was reported as it was applied."""
        world, judge = self.world, self.judge
        for process in world.processes:
            left = {
                "threads": [thread.name for thread in process.threads_running],
                "queues": [
                    (key, queue.holder, queue.turns, queue.watchers)
                    for (_, key), queue in process.queues.items()
                ],
                "holders": [claim for claims in process._holders.values() for claim in claims],
                "renewals": [] if process.schedule.is_empty else [process.schedule._due],
            }
            for what, kept in left.items():
                if kept:
                    judge.fail(f"{process.name} has {what} left: {kept}")
        for key in self._keys:
            judge.check_left((self._model.Meta.table_name, (key,)))
        if isinstance(judge, OnceJudge):
            judge.check_end()
        # None is a write of unknown outcome, of which anything may be true. One without a lock, or to a
        # row that somebody has deleted since, that was reported as applied may have been applied twice, by a copy that
        # nothing recognises.
        often = judge.unlocked | judge.forgotten
        for number, applied in self._reported.items():
            times = judge.writes.get(number, 0)
            if applied is True and ((times != 1 and number not in often) or not times):
                judge.fail(f"I2: the write {number} was reported as applied, and was not")
            if applied is False and times:
                judge.fail(f"I2: the write {number} was reported as not applied, and was")
        # the judge's reports are raised where the world runs
        world.run(world.now)


class Client(AnyLock, OnceCalls):
    """A client thread of a process, or several tasks on its event loop, that lock in the ways of the schedule.

    Each method ``lock_...`` acquires a lock in one way, works under it, and releases it.
    """

    def __init__(self, schedule: Schedule, process: Process) -> None:
        self._schedule = schedule
        self._process = process
        self._world = schedule.world
        self._rng = schedule._rng
        self._kept: list[tuple[Mutex, dict[str, Any]]] = []
        self._has_hints = schedule.has_hints(process)

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
                way = self._rng.choice(self._schedule.size.ways)
                self._schedule._count(way)
                getattr(self, way)()

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
                if "lock_otherwise" in self._schedule.size.ways and self._rng.random() < 0.7:
                    await self.task_otherwise()
                    continue
                options = self._options()
                options.pop("on_lost", None)
                options.pop("on_danger", None)
                options["fair"] = fair = "lock_fair" in self._schedule.size.ways
                options["hints"] = fair and self._has_hints
                mutex = AsyncMutex.for_key(self._key(), model=Lock, **options)
                self._using(mutex, options)
                if not await mutex.acquire():
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
        except (MutexTimeoutError, RowLockedError):
            count("held by others")
        except MutexClosedError:
            count("closed")
        except PynamoDBException:
            count("failed")
        finally:
            self._schedule.judge.section_ends(is_released=is_released)

    def _using(self, handle: H, options: dict[str, Any]) -> H:
        """Have the judge ask a handle from now on to the end of the section."""
        self._schedule.judge.watch(handle, options)
        return handle

    # -- ways to lock -------------------------------------------------------------------------------

    def _key(self) -> str:
        return self._rng.choice(self._schedule._keys)

    def _row(self) -> str:
        return self._rng.choice(self._schedule._rows)

    def _options(self) -> dict[str, Any]:
        rng = self._rng
        options: dict[str, Any] = {
            "lease": rng.choice((1.0, 3.0, 10.0, 30.0)),
            "timeout": rng.choice((0, 2.0, 30.0, 300.0)),
            "auto_renew": rng.random() < 0.7,
            "max_hold": rng.choice((None, None, None, 40.0)),
            "poll": rng.choice(((0.05, 1.0), (0.2, 5.0))),
        }
        if rng.random() < 0.3:
            for name in ("on_lost", "on_danger"):
                options[name] = partial(self._note_report, name)
        return options

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
            options = {**self._options(), **special}
            mutex = Mutex.for_key(key, model=Lock, **options)
            self._kept.append((mutex, options))
        with self._using(mutex, options):
            if mutex._options.reentrant:
                with mutex:
                    self._work(mutex)
            self._work(mutex, guarded=not mutex._options.delete_on_release)
            if rng.random() < 0.15:
                self._detach(mutex)

    def lock_kept(self) -> None:
        """Lock one key, or all at once, for a time that is longer than the work as a rule."""
        options = {**self._options(), "hold_at_least": self._rng.choice((1.0, 5.0, 20.0))}
        options["fair"] = fair = self._rng.random() < 0.3
        options["hints"] = fair and self._has_hints
        if not fair and self._rng.random() < 0.2:
            del options["hints"]
            group = Mutex.for_keys(self._schedule._keys, model=Lock, **options)
            with self._using(group, options):
                self._pause()
            return
        with self._using(Mutex.for_key(self._key(), model=Lock, **options), options):
            self._pause()

    def lock_and_record(self) -> None:
        """Lock one key, write its payload with renewals and other writes, and with the release."""
        rng, hold = self._rng, self._rng.choice((None, None, 5.0))
        key, options = self._key(), {**self._options(), "hold_at_least": hold}
        with self._using(Mutex.for_key(key, model=Lock, **options), options) as mutex:
            for _ in range(rng.randrange(4)):
                number = self._number()
                with self._reporting(mutex, number):
                    if rng.random() < 0.6:
                        mutex.renew(rng.choice((None, 2.0)), data=number)
                    else:
                        mutex.save_data(number)
                self._pause()
            number = self._number()
            self._schedule.judge.writes_under(mutex, number)
            mutex.release(data=number)

    def lock_by_force(self) -> None:
        """Lock one key or row, and break the claim of whoever holds it."""
        options = {**self._options(), "fair": self._rng.random() < 0.3}
        hints = options["fair"] and self._has_hints
        mutex = Mutex.for_key(self._key(), model=Lock, hints=hints, **options)
        if self._rng.random() < 0.3:
            del options["fair"]
            mutex = self._rng.choice((Account, Ledger)).locked(self._row(), **options)
        self._using(mutex, options)
        if mutex.acquire(force=self._rng.random() < 0.7):
            try:
                self._work(
                    mutex,
                    guarded=mutex._options.model is Lock and mutex.key in self._schedule._keys,
                )
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
        options |= {"delete_on_release": is_deleted, "hints": self._has_hints}
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

    def lock_several(self) -> None:
        """Lock all keys at once."""
        options = self._options()
        group = Mutex.for_keys(self._schedule._keys, model=Lock, **options)
        with self._using(group, options):
            self._work(self._rng.choice(group.members))
            if self._rng.random() < 0.3:
                self._order(group, self._rng.choice(self._schedule._rows), None)

    def lock_until_all_is_released(self) -> None:
        """Lock one key, until a thread of the process releases all that it holds."""
        key, options = self._key(), self._options()
        with self._using(Mutex.for_key(key, model=Lock, **options), options) as mutex:
            self._work(mutex)
            self._process.start_thread("handler", partial(self._release_all, mutex))
            self._pause()

    def _release_all(self, mutex: Mutex) -> None:
        self._schedule.judge.releases_all(self._process)
        report = dict(pynamodb_mutex.release_all(timeout=5.0))
        if mutex.held and mutex.key not in report:
            self._schedule.judge.fail(f"I5: {mutex.key} was left out, and not reported")

    def lock_any(self) -> None:
        """Lock whichever key is free first."""
        options = self._options()
        mutex = Mutex.any_of(self._schedule._keys, model=Lock, **options)
        with self._using(mutex, options):
            self._work(mutex)

    def lock_shard(self) -> None:
        """Lock a key under one of two range keys, or under both at once; sometimes break such a lock by force."""
        rng, key = self._rng, self._key()
        parts = ("a", "b") if rng.random() < 0.2 else (rng.choice("ab"),)
        if rng.random() < 0.1:
            Shard.force_release(key, parts[0])
        options = self._options()
        locks = [Mutex.for_key(key, range_key=part, model=Shard, **options) for part in parts]
        lock: Any = Mutex.for_keys(locks, model=Lock) if len(locks) > 1 else locks[0]
        with self._using(lock, options):
            self._work(rng.choice(locks))
            if len(locks) == 1 and rng.random() < 0.15:
                self._schedule.judge.detached.add(locks[0].token)
                self._using(Mutex.attach(locks[0].detach(), model=Shard), {}).release()

    def lock_semaphore(self) -> None:
        """Acquire one of two permits of a semaphore."""
        options = self._options()
        permit = Semaphore.for_key("s", permits=2, model=Lock, **options)
        with self._using(permit, options):
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
            writes = TransactWrite(connection=_connection())
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
        log = self._world.network.log
        before = len(log)
        # Without a claim and a number of guarded writes nothing distinguishes a copy of the request from a new one.
        self._schedule.judge.unlocked.add(number)
        try:
            with self._reporting(None, number):
                yield
        except RowLockedError:
            sent = [each for each in log[before:] if each.thread is self._world.thread]
            copied = {"duplicated", "redoubled", "repeated"}
            if any(each.fault is not None and each.fault.kind in copied for each in sent):
                # The request was refused, and its copy may be applied later, when nobody holds the row any more; or a
                # proxy has repeated it, and the copy was refused. No condition can prevent that, so the outcome is
                # unknown.
                self._schedule._reported[number] = None
            raise

    def lock_order(self) -> None:
        """Lock a key, and write a row without a lock in a transaction that the lock guards."""
        name = self._row()
        options = self._options()
        with self._using(Mutex.for_key(f"order-{name}", model=Lock, **options), options) as mutex:
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
        key, options = self._key(), self._options()
        with self._using(Mutex.for_key(key, model=Lock, **options), options) as mutex:
            # another process, for which the state of this one is inherited: see `Process.inherited`
            child = Process(self._world, f"{self._process.name}'")
            child.start_thread("child", partial(_as_a_child, self._schedule.judge, mutex))
            self._work(mutex)

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
                mutex.ensure_held(mutex._options.lease * rng.random() * 0.9)
            elif guarded:
                number = self._number()
                with self._reporting(mutex, number):
                    mutex.save_data(number)

    def _write(self, row: Any) -> None:
        """Write a locked row, by save or update; sometimes the same request releases the lock."""
        number = self._number()
        unlock = self._rng.random() < 0.3
        with self._reporting(row.row_lock, number):
            if self._rng.random() < 0.5:
                row.count, row.data = int(row.count) + 1, number
                row.save(unlock=unlock)
            else:
                model = type(row)
                row.update([model.data.set(number), model.count.add(1)], unlock=unlock)

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
        except (MutexLostError, RowLockedError) as error:
            reported.update(dict.fromkeys(numbers, error.applied))
            raise
        reported.update(dict.fromkeys(numbers, True))
        self._schedule._count("written")


def _connection() -> Connection:
    return Connection(region="simulated", host="http://simulated")


def _quietly(call: Callable[[], object]) -> None:
    """Make a call; a failed request is no violation."""
    with suppress(PynamoDBException):
        call()


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


class Played(NamedTuple):
    """The outcome of a schedule.

    Attributes:
        size: How much happened.
        violation: The first violation, in words; None if there was none.
        requests: Number of requests that were sent.
        acquisitions: Number of acquisitions in which a process has believed.
        seconds: Virtual time from the first request to the last one, of which a longer pause than `IDLE` counts as that.
        counts: Number of times that clients did each thing, and that each strike came.
        asked: Number of times that the judge asked each rule.
        trace: One line for each event, if a trace was kept; else empty.
    """

    size: Size
    violation: str | None
    requests: int
    acquisitions: int
    seconds: float
    counts: dict[str, int]
    asked: dict[str, int]
    trace: list[str]


def play(seed: int, size: Size | None = None, *, keep_trace: bool = False) -> Played:
    """Play the schedule of a seed, and return its outcome; a violation is part of that, and not raised."""
    schedule = Schedule(seed, size, keep_trace=keep_trace)
    world = schedule.world
    trace = [] if world.trace is None else world.trace
    violation = None
    # a row is kept for at least an hour
    retention = 0.0 if 0 < schedule.size.gap < 7 * DAY else Lock.retention
    with (
        installed(world),
        patch.object(Lock, "retention", retention),
        signals.once_called.connected_to(schedule.note_outcome),
    ):
        try:
            schedule.play()
        except ViolationError as error:
            violation = str(error)
    if isinstance(schedule.judge, OnceJudge):
        schedule.counts.update(schedule.judge.counts)
    return Played(
        schedule.size,
        violation,
        world.network.requests,
        schedule.judge.acquisitions,
        sum(min(after.sent - before.sent, IDLE) for before, after in pairwise(world.network.log)),
        schedule.counts,
        schedule.judge.asked,
        trace,
    )


def shrink(seed: int, size: Size, violation: str) -> tuple[int, Size]:
    """Return the seed and size of a smaller schedule with the same kind of violation; the same ones if none is found.

    A seed plays an entirely different schedule with another size, so a few seeds are tried with each.
    """
    kind = kind_of(violation)
    found = True
    while found:
        found = False
        for smaller, other in itertools.product(size.smaller(), range(_TRIES)):
            again = play(seed + other, smaller).violation
            if again is not None and kind_of(again) == kind:
                seed, size, found = seed + other, smaller, True
                break
    return seed, size


_TRIES = 10
"""Number of seeds that `shrink` tries with each smaller size."""


def kind_of(violation: str) -> str:
    """Return the kind of a violation: its text without names, numbers and times, which differ between schedules."""
    return re.sub(r"'[^']*'|0x\w+|[\d.]+|p\d+", "", violation.partition(": ")[2])[:40]
