"""The tables of a run: locks, rows that carry a lock, plain rows, and controls that nothing guards."""

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
"""Of the lock table. Next to each stands a plain row, which its holder writes."""

START = "start"

PATIENT = 30.0
"""Seconds that the harness itself waits for an answer: a store that has just started is slow."""


class Tables(NamedTuple):
    """The models of one client.

    Attributes:
        locks: The lock table.
        row: Of rows that carry their lock.
        plain: Of the same table, without lock attributes: rows that a Mutex guards, and controls.
    """

    locks: type[LockItem]
    row: type[RowLockMixin]
    plain: type[Model]


class Written(Model):
    """What each write leaves in a row: itself, and what its writer had read."""

    name = UnicodeAttribute(hash_key=True)
    last = UnicodeAttribute(default=START)
    read = UnicodeAttribute(default="")
    count = NumberAttribute(default=0)
    # counts in the store how often a write was applied
    ticks = NumberAttribute(default=0)
    by = UnicodeAttribute(default="")
    fence = NumberAttribute(default=0)


def tables(prefix: str, url: str, *, read_timeout: float = 1.0) -> Tables:
    """Return a client's models; ``url`` is where its requests go."""

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
    """Name the lock whose claim stands in a row."""
    if row["table"] == "locks" or (row["table"] == "rows" and row["key"].startswith("r")):
        return str(row["key"])
    return None


def control_of(row: str) -> str:
    return f"control-{row}"


def create(made: Tables) -> list[dict[str, Any]]:
    """Create the tables and their rows; return the rows as the history shows them."""
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
