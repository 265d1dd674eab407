"""The critical sections of a worker: acquire, read, write and release, one class for each way of locking; and their tables.

Each lock has a row of the same name, which its holder writes under its guard.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.models import Model

from pynamodb_mutex import LockItem, Mutex, RowLockMixin, Semaphore

MUTEXES = ("m0", "m1")
ROWS = ("r0", "r1")
SEMAPHORE = "s0"
PERMITS = ("s0#permit-1", "s0#permit-2")
KEYS = (*MUTEXES, *PERMITS)
"""Keys of the lock table. For each there is a plain row of the same name, which its holder writes."""


class Tables(NamedTuple):
    """The models of one client.

    Attributes:
        locks: Model of the lock table.
        row: Model of rows that carry their lock.
        plain: Model of the same table without lock attributes, for rows that a Mutex guards.
    """

    locks: type[LockItem]
    row: type[RowLockMixin]
    plain: type[Model]


class Written(Model):
    """A row that is written.

    Attributes:
        last: The value of the last write, which no other write has.
        ticks: Number of writes, counted by the store where it can: it shows a write that was applied twice.
        fence: Fencing token of the writer's acquisition.
    """

    name = UnicodeAttribute(hash_key=True)
    last = UnicodeAttribute(default="start")
    ticks = NumberAttribute(default=0)
    fence = NumberAttribute(default=0)

    def state(self) -> str:
        """Return what the history has of the row."""
        return f"{self.last}/{self.ticks}"


def tables(prefix: str, url: str, *, read_timeout: float = 1.0) -> Tables:
    """Return the models of a client that sends its requests to a URL."""

    class Shared:
        host = url
        connect_timeout_seconds = 1.0
        read_timeout_seconds = read_timeout

    class RowsMeta(Shared):
        table_name = f"{prefix}-rows"
        billing_mode = "PAY_PER_REQUEST"
        max_retry_attempts = 0

    class Locks(LockItem):
        class Meta(Shared):
            table_name = f"{prefix}-locks"

    class Row(RowLockMixin, Written):
        _connection = None

        class Meta(RowsMeta):
            pass

    class Plain(Written):
        _connection = None

        class Meta(RowsMeta):
            pass

    return Tables(Locks, Row, Plain)


class Section:
    """One critical section: a worker acquires locks, reads rows, writes them, and releases the locks.

    Args:
        tables: The models of the client.
        names: The names of the rows, which are those of the locks too.
        **options: Options of the locks.

    Attributes:
        names: Names of the rows that are locked.
        locks: Token and fencing token of each lock that was acquired, by name.
        rows: The rows as they were read, by name.
    """

    is_shared = False

    def __init__(self, tables: Tables, names: list[str], **options: Any) -> None:
        self.tables, self.names = tables, names
        self.options = {"poll": (0.02, 0.2), **options}
        self.locks: dict[str, dict[str, Any]] = {}
        self.rows: dict[str, Any] = {}

    def acquire(self) -> bool:
        """Acquire the locks; return whether that succeeded within the timeout."""
        self.lock = self.make_lock()
        taken = self.lock.acquire()
        if taken:
            held = self.held_locks()
            self.names = list(held)
            for name, lock in held.items():
                found = {"token": lock.token, "fence": lock.fencing_token}
                self.locks[name] = {**found, "shared": self.is_shared}
        return taken

    def make_lock(self) -> Any:
        raise NotImplementedError

    def held_locks(self) -> dict[str, Any]:
        """Return the handle of each lock that is held, by name."""
        return {self.names[0]: self.lock}

    def read(self) -> None:
        """Read the rows."""
        raise NotImplementedError

    def write(self, values: dict[str, str], chance: random.Random) -> None:
        raise NotImplementedError

    def changes(self, name: str, value: str) -> list[Any]:
        """Return the changes of a guarded write to a row, as update actions."""
        made, fence = type(self.rows[name]), self.locks[name]["fence"]
        return [made.last.set(value), made.ticks.add(1), made.fence.set(fence)]

    def change(self, name: str, value: str) -> None:
        """Make the same changes in the instance."""
        row = self.rows[name]
        row.last, row.ticks, row.fence = value, row.ticks + 1, self.locks[name]["fence"]


class KeysSection(Section):
    """Several keys at once; the plain rows of the same names are written in one transaction."""

    def make_lock(self) -> Any:
        return Mutex.for_keys(self.names, model=self.tables.locks, **self.options)

    def held_locks(self) -> dict[str, Any]:
        return dict(zip(self.names, self.lock.members, strict=True))

    def read(self) -> None:
        self.rows = {name: self.tables.plain.get(name, consistent_read=True) for name in self.names}

    def write(self, values: dict[str, str], chance: random.Random) -> None:
        with self.lock.transaction() as transaction:
            for name, value in values.items():
                row = self.rows[name]
                # The usual comparison of fencing tokens, which is not enough. The broken variant "fence-at-write" has
                # nothing else.
                newer = type(row).fence <= self.locks[name]["fence"]
                transaction.update(row, self.changes(name, value), condition=newer)
        for name, value in values.items():
            self.change(name, value)


class MutexSection(KeysSection):
    """A Mutex; the plain row of the same name is written in the mutex's transaction."""

    def make_lock(self) -> Any:
        # Some are fair. The others take the lock past them, and those that are killed stand in line until they are
        # passed.
        fair = random.random() < 1 / 4
        return Mutex.for_key(self.names[0], model=self.tables.locks, fair=fair, **self.options)

    def held_locks(self) -> dict[str, Any]:
        return {self.lock.key: self.lock}


class SharedSection(MutexSection):
    """A Mutex that others share; in place of each write it looks whether somebody has written meanwhile."""

    is_shared = True

    def make_lock(self) -> Any:
        return Mutex.for_key(self.names[0], model=self.tables.locks, shared=True, **self.options)

    def write(self, values: dict[str, str], chance: random.Random) -> None:
        before = {name: row.state() for name, row in self.rows.items()}
        self.read()
        after = {name: row.state() for name, row in self.rows.items()}
        if self.lock.held and after != before:
            raise AssertionError(f"written while it was shared: {before}, {after}")


class PermitSection(MutexSection):
    """A permit of a semaphore; the plain row of the permit that was acquired is written."""

    def make_lock(self) -> Any:
        permits = len(self.names)
        return Semaphore.for_key(
            SEMAPHORE, permits=permits, model=self.tables.locks, **self.options
        )


class RowSection(Section):
    """A row lock; the row is written in one of the four ways to write a locked row."""

    def make_lock(self) -> Any:
        return self.tables.row.locked(self.names[0], **self.options)

    def read(self) -> None:
        self.rows = {self.names[0]: self.lock.row}

    def write(self, values: dict[str, str], chance: random.Random) -> None:
        ((name, value),) = values.items()
        row, way = (
            self.rows[name],
            chance.choice(("transaction", "save", "unlock", *["update"] * 3)),
        )
        if way == "update":
            row.update(self.changes(name, value))
            return
        self.change(name, value)
        if way == "transaction":
            with self.lock.transaction() as transaction:
                transaction.save(row)
        else:
            row.save(unlock=way == "unlock")


class ManySection(Section):
    """Several row locks at once; all the rows are written in one transaction."""

    def make_lock(self) -> Any:
        return self.tables.row.locked_all(self.names, **self.options)

    def held_locks(self) -> dict[str, Any]:
        return dict(zip(self.names, self.lock._locks, strict=True))

    def read(self) -> None:
        rows = self.lock._rows_of(self.lock._current("rows"))
        self.rows = dict(zip(self.names, rows, strict=True))

    def write(self, values: dict[str, str], chance: random.Random) -> None:
        with self.lock.transaction(unlock=chance.random() < 1 / 3) as transaction:
            for name, value in values.items():
                transaction.update(self.rows[name], self.changes(name, value))
        for name, value in values.items():
            self.change(name, value)


WAYS: tuple[tuple[type[Section], tuple[str, ...], int], ...] = (
    *[(MutexSection, MUTEXES, 1)] * 2,
    *[(SharedSection, MUTEXES, 1)] * 3,
    (KeysSection, MUTEXES, 2),
    *[(PermitSection, PERMITS, 2)] * 2,
    *[(RowSection, ROWS, 1)] * 4,
    (ManySection, ROWS, 2),
)
"""The ways of locking, with the names to choose from and how many of them; some are chosen more often."""
