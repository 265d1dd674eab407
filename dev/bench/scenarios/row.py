"""Scenario: lock a row, read it, change it, write it, and release the lock.

This library locks the row itself. With the others, the lock is a row of another table, and boto3 reads and writes
the row. The floor is boto3 without any lock.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import boto3

from dev.bench import FLOOR, LATENCY, OURS, Setting, in_turns, median_ratio
from dev.bench.libraries import Library, made
from dev.bench.tables import Table, named, table, times
from dev.bench.wire import Wire, wired

UNLOCKED = "boto3, no lock at all"
TABLE = "bench-rows"


def measure(setting: Setting) -> dict[str, Any]:
    rounds, turns = (2, 2) if setting.quick else (8, 12)
    names = [UNLOCKED, *(name for name in setting.libraries if name != FLOOR)]
    with wired(setting.engine_url, LATENCY) as wire:
        rows = boto3.resource("dynamodb").Table(TABLE)
        blocks = in_turns(names, rounds, partial(_block, rows, wire, turns))
    return {
        "libraries": {name: _summary(found, blocks[UNLOCKED]) for name, found in blocks.items()},
        "latency_ms": 1000 * LATENCY,
    }


def _ours(pk: str) -> Callable[[], None]:
    """Return a function that makes one turn with this library."""
    from pynamodb.attributes import NumberAttribute, UnicodeAttribute
    from pynamodb.models import Model

    from pynamodb_mutex import RowLockMixin

    class Account(RowLockMixin, Model):
        class Meta:
            table_name = TABLE

        pk = UnicodeAttribute(hash_key=True)
        balance = NumberAttribute()

    def turn() -> None:
        with Account.locked(pk) as account:
            account.balance -= 1
            account.save(unlock=True)

    return turn


def _theirs(pk: str, library: Library | None, rows: Any) -> Callable[[], None]:
    """Return a function that makes one turn with boto3, under a lock of a library unless that is None."""

    def work() -> None:
        item = rows.get_item(Key={"pk": pk}, ConsistentRead=True)["Item"]
        item["balance"] -= 1
        rows.put_item(Item=item)

    def locked() -> None:
        lock = library.take("row")
        work()
        library.release(lock)

    return work if library is None else locked


def _block(rows: Any, wire: Wire, turns: int, name: str, _: int) -> dict[str, float]:
    rows.put_item(Item={"pk": name, "balance": 100})
    library = None if name == UNLOCKED else made(name)
    try:
        turn = _ours(name) if name == OURS else _theirs(name, library, rows)
        turn()  # opens the connection
        return wire.cost(turn, turns)
    finally:
        if library is not None:
            library.close()


def _summary(own: list[dict[str, float]], floor: list[dict[str, float]]) -> dict[str, float]:
    return {
        **{key: own[-1][key] for key in ("requests", "wcu", "rcu")},
        "ms": 1000 * median(each["wall"] for each in own),
        "ratio": median_ratio(own, floor, "wall"),
    }


def tables(found: dict[str, Any]) -> list[Table]:
    return [
        table(
            "A row that is read and written under its lock", ["Lock, read, write, unlock"],
            [
                ("Requests", "requests"), ("WCU", "wcu"), ("RCU", "rcu"), ("Wall, ms", "ms"),
                ("Of no lock's", lambda each: times(each["ratio"])),
            ],
            named(found["libraries"]),
            f"For a row of less than 1 KB, at {found['latency_ms']:g} ms. Ours is the lock of the row itself;"
            " the others acquire their lock, read and write the row with boto3, and release the lock.",
        )
    ]  # fmt: skip
