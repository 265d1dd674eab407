"""The critical sections of a worker: acquire, read, write and release, one class for each way of locking.

`worker` chooses one at random, and records what it is answered. The rows and the controls are described in `tables`.
"""

from __future__ import annotations

import random
from typing import Any

from dev.chaos.tables import SEMAPHORE, Tables, Written, control_of
from pynamodb_mutex import Mutex, Semaphore

POLL = (0.02, 0.2)


class Section:
    """One critical section: a worker acquires locks, reads rows, writes them, and releases the locks.

    Args:
        tables: The models of the client.
        names: The names of the rows, which are those of the locks too.
        **options: Options of the locks.

    Attributes:
        way: Name of this way of locking.
        names: Names of the rows that are locked.
        locks: Token and fencing token of each lock that was acquired, by name.
        rows: The rows as they were read, by name.
        controls: The unguarded controls as they were read, by name of the row.
        released: Whether the worker has released the locks.
    """

    way = ""

    def __init__(self, tables: Tables, names: list[str], **options: Any) -> None:
        self.tables, self.names = tables, names
        self.options = {"poll": POLL, **options}
        self.locks: dict[str, tuple[str, int]] = {}
        self.rows: dict[str, Any] = {}
        self.controls: dict[str, Written] = {}
        self.released = False

    def acquire(self) -> bool:
        """Acquire the locks; return whether that succeeded within the timeout."""
        self.lock = self.make_lock()
        taken = self.lock.acquire()
        if taken:
            self.names = self.names_held
            holds = zip(self.names, self.single_locks, strict=True)
            self.locks = {name: (lock.token, lock.fencing_token) for name, lock in holds}
        return taken

    def make_lock(self) -> Any:
        raise NotImplementedError

    @property
    def names_held(self) -> list[str]:
        """Names of the locks that were acquired, among those that were asked for."""
        return self.names

    @property
    def single_locks(self) -> list[Any]:
        """The handle of each lock that is held, in the order of the names."""
        return [self.lock]

    def read(self) -> None:
        """Read the rows, and their controls."""
        self.controls = {
            name: self.tables.plain.get(control_of(name), consistent_read=True)
            for name in self.names
        }

    def write(self, values: dict[str, str], chance: random.Random) -> None:
        raise NotImplementedError

    def release(self) -> None:
        self.lock.release()

    @property
    def held(self) -> bool:
        return not self.released and self.lock.held

    def write_controls(self, values: dict[str, str]) -> None:
        """Write the controls without a guard, as a program that trusts the lock alone would."""
        for name, value in values.items():
            control = self.controls[name]
            control.read, control.last = control.last, value
            control.count, control.ticks = control.count + 1, control.ticks + 1
            control.by, control.fence = self.locks[name]
            control.save()

    def changes(self, name: str, value: str) -> list[Any]:
        """Return the changes of a guarded write to a row, as update actions."""
        row, made = self.rows[name], type(self.rows[name])
        token, fence = self.locks[name]
        return [
            made.last.set(value),
            made.read.set(row.last),
            made.count.set(row.count + 1),
            made.ticks.add(1),
            made.by.set(token),
            made.fence.set(fence),
        ]

    def change(self, name: str, value: str) -> None:
        """Make the same changes in the instance."""
        row = self.rows[name]
        row.read, row.last = row.last, value
        row.count, row.ticks = row.count + 1, row.ticks + 1
        row.by, row.fence = self.locks[name]


class KeysSection(Section):
    """Several keys at once; the plain rows of the same names are written in one transaction."""

    way = "keys"

    def make_lock(self) -> Any:
        return Mutex.for_keys(self.names, model=self.tables.locks, **self.options)

    @property
    def single_locks(self) -> list[Any]:
        return list(self.lock.members)

    def read(self) -> None:
        self.rows = {name: self.tables.plain.get(name, consistent_read=True) for name in self.names}
        super().read()

    def write(self, values: dict[str, str], chance: random.Random) -> None:
        with self.lock.transaction() as transaction:
            for name, value in values.items():
                row, fence = self.rows[name], self.locks[name][1]
                # The usual comparison of fencing tokens, which is not enough. The broken variant "fence-at-write" has
                # nothing else.
                newer = type(row).fence <= fence
                transaction.update(row, self.changes(name, value), condition=newer)
        for name, value in values.items():
            self.change(name, value)


class MutexSection(KeysSection):
    """A Mutex; the plain row of the same name is written in the mutex's transaction."""

    way = "mutex"

    def make_lock(self) -> Any:
        # Some are fair. The others take the lock past them, and those that are killed stand in line until they are
        # passed.
        fair = random.random() < 1 / 4
        return Mutex.for_key(self.names[0], model=self.tables.locks, fair=fair, **self.options)

    @property
    def single_locks(self) -> list[Any]:
        return [self.lock]


class PermitSection(MutexSection):
    """A permit of a semaphore; the plain row of the permit that was acquired is written."""

    way = "permit"

    def make_lock(self) -> Any:
        permits = len(self.names)
        return Semaphore.for_key(
            SEMAPHORE, permits=permits, model=self.tables.locks, **self.options
        )

    @property
    def names_held(self) -> list[str]:
        return [self.lock.key]


class RowSection(Section):
    """A row lock; the row is written in one of the four ways to write a locked row."""

    way = "row"

    def make_lock(self) -> Any:
        return self.tables.row.locked(self.names[0], **self.options)

    def read(self) -> None:
        self.rows = {self.names[0]: self.lock.row}
        super().read()

    def write(self, values: dict[str, str], chance: random.Random) -> None:
        ((name, value),) = values.items()
        row, way = self.rows[name], chance.randrange(4)
        if way == 0:
            row.update(self.changes(name, value))
            return
        before = dict(row.attribute_values)
        self.change(name, value)
        try:
            if way == 1:
                with self.lock.transaction() as transaction:
                    transaction.save(row)
            else:
                row.save(unlock=way == 2)
        except BaseException:
            row.attribute_values.update(before)
            raise


class ManySection(Section):
    """Several row locks at once; all the rows are written in one transaction."""

    way = "many"

    def make_lock(self) -> Any:
        return self.tables.row.locked_all(self.names, **self.options)

    @property
    def single_locks(self) -> list[Any]:
        return list(self.lock._locks)

    def read(self) -> None:
        self.rows = dict(
            zip(self.names, self.lock._rows_of(self.lock._current("rows")), strict=True)
        )
        super().read()

    def write(self, values: dict[str, str], chance: random.Random) -> None:
        with self.lock.transaction(unlock=chance.random() < 1 / 3) as transaction:
            for name, value in values.items():
                transaction.update(self.rows[name], self.changes(name, value))
        for name, value in values.items():
            self.change(name, value)


WAYS: dict[str, type[Section]] = {
    each.way: each
    for each in (
        MutexSection,
        KeysSection,
        PermitSection,
        RowSection,
        ManySection,
    )
}
