"""The tables of a run: locks, rows that carry a lock, plain rows that a Mutex guards, and controls without a guard.

Each lock has a row of the same name, which its holder writes under its guard, and a control, which the holder writes
without one. What the controls lose shows that the faults would do harm.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.models import Model

from pynamodb_mutex import LockItem, RowLockMixin

MUTEXES = ("m0", "m1")
ROWS = ("r0", "r1")
SEMAPHORE = "s0"
PERMITS = ("s0#permit-1", "s0#permit-2")
KEYS = (*MUTEXES, *PERMITS)
"""Keys of the lock table. For each there is a plain row of the same name, which its holder writes."""

START = "start"

PATIENT = 30.0
"""Read timeout of the harness itself, in seconds: a store that has just started is slow."""


class Tables(NamedTuple):
    """The models of one client.

    Attributes:
        locks: Model of the lock table.
        row: Model of rows that carry their lock.
        plain: Model of the same table without lock attributes, for rows that a Mutex guards and for controls.
    """

    locks: type[LockItem]
    row: type[RowLockMixin]
    plain: type[Model]


class Written(Model):
    """Attributes that each write leaves in a row, by which the checker recognises it and the value that it replaced.

    Attributes:
        last: The value of the last write, which no other write has.
        read: The value that its writer had read.
        count: Number of writes, counted by the writers.
        ticks: Number of writes, counted by the store.
        by: Token of the writer's acquisition.
        fence: Fencing token of the writer's acquisition.
    """

    name = UnicodeAttribute(hash_key=True)
    last = UnicodeAttribute(default=START)
    read = UnicodeAttribute(default="")
    count = NumberAttribute(default=0)
    # by an addition in the store, unlike `count`: it shows a write that was applied twice
    ticks = NumberAttribute(default=0)
    by = UnicodeAttribute(default="")
    fence = NumberAttribute(default=0)


def tables(prefix: str, url: str, *, read_timeout: float = 1.0) -> Tables:
    """Return the models of a client that sends its requests to a URL."""

    class Locks(LockItem):
        class Meta:
            table_name = f"{prefix}-locks"
            host = url
            connect_timeout_seconds = 1.0
            read_timeout_seconds = read_timeout

    class RowsMeta:
        table_name = f"{prefix}-rows"
        host = url
        billing_mode = "PAY_PER_REQUEST"
        connect_timeout_seconds = 1.0
        read_timeout_seconds = read_timeout
        max_retry_attempts = 0

    class Row(RowLockMixin, Written):
        _connection = None

        class Meta(RowsMeta):
            pass

    class Plain(Written):
        _connection = None

        class Meta(RowsMeta):
            pass

    return Tables(Locks, Row, Plain)


def lock_of(row: dict[str, Any]) -> str | None:
    """Return the lock whose claim a row carries; None for a plain row or a control."""
    if row["table"] == "locks" or (row["table"] == "rows" and row["key"].startswith("r")):
        return str(row["key"])
    return None


def control_of(row: str) -> str:
    """Return the name of a row's control."""
    return f"control-{row}"


def create(made: Tables) -> list[dict[str, Any]]:
    """Create the tables and their rows; return the rows in the form of the history."""
    made.locks.create_table()
    made.row.create_table(wait=True)
    shown = []
    for name in (*KEYS, *ROWS):
        for each in (name, control_of(name)):
            made.plain(each).save()
            shown.append({"table": "rows", "key": each, "last": START, "count": 0, "ticks": 0})
    return shown


def as_they_stand(made: Tables, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows that `create` made, as they are now."""
    shown = []
    for row in rows:
        there = made.plain.get(row["key"], consistent_read=True).attribute_values
        shown.append(row | {name: there[name] for name in ("last", "count", "ticks")})
    return shown
