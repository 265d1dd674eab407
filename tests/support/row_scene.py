"""Two clients of one row, one of which has a bad network. The fixtures are in row_scene_fixtures.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.models import Model

from dev.faultproxy import FaultProxy, Late, Reply
from pynamodb_mutex import LockItem, RowLock, RowLockMixin
from pynamodb_mutex.groups import RowLocks
from pynamodb_mutex.testing import Engine, expire

TRANSACT = "TransactWriteItems"


class Account(RowLockMixin, Model):
    """What the clients derive from."""

    name = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=0)
    last = UnicodeAttribute(null=True)


class OldAccount(Model):
    """The same as a program has it that knows nothing of row locks."""

    name = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=0)
    last = UnicodeAttribute(null=True)


@dataclass
class RowScene:
    """One row.

    Attributes:
        engine: What answers in the end.
        proxy: Between `here` and the engine.
        here: A client whose network is bad.
        there: Another client, whose network is not.
        old: Yet another, which knows nothing of locks.
        in_table: Whether the locks stand in a lock table, and guarded writes are transactions.
        key: Of the row.
    """

    engine: Engine
    proxy: FaultProxy
    here: type[Account]
    there: type[Account]
    old: type[OldAccount]
    in_table: bool
    key: str

    def lock(self, **options: Any) -> RowLock[Account]:
        """Return a lock of the client with the bad network."""
        return self.here.locked(self.key, **options)

    def locked(self, **options: Any) -> Account:
        """Take the lock for the client with the bad network; return the row."""
        lock = self.lock(**options)
        assert lock.acquire(timeout=20)
        return lock.row

    def other(self, **options: Any) -> RowLock[Account]:
        """Return a lock of the other client."""
        return self.there.locked(self.key, **{"owner": "other", "timeout": 20, **options})

    def taken(self, **options: Any) -> RowLock[Account]:
        """Take the lock for the other client."""
        other = self.other(**options)
        assert other.acquire()
        return other

    def force(self) -> bool:
        """Break the claim, by the other client."""
        return self.other().force_release()

    def forced_and_taken(self) -> RowLock[Account]:
        """Break the claim, and take the lock for the other client."""
        assert self.force()
        return self.taken()

    def expire(self) -> None:
        """Let the claim's end have passed long ago."""
        expire(self.key, self.there)

    def set_claim(self, *actions: Any) -> None:
        """Change the claim in the row by hand."""
        self.there._get_connection().update_item(self.key, actions=list(actions))

    def overwrite(self) -> None:
        """Save the row by a program that knows nothing of locks."""
        self.old(self.key, balance=1000, last="old").save()

    @property
    def locks(self) -> type[LockItem]:
        """The lock table, as the other client has it."""
        assert self.there.lock_model is not None
        return self.there.lock_model

    @property
    def raw(self) -> dict[str, Any]:
        """All that stands in the row; nothing if there is none."""
        return self.there._get_connection().get_item(self.key, consistent_read=True).get("Item", {})

    @property
    def row(self) -> Account:
        """The row as it stands, read by the other client without a lock."""
        return self.there.get(self.key, consistent_read=True)

    @property
    def gone(self) -> bool:
        """Whether there is no row."""
        return not self.raw

    @property
    def claim(self) -> dict[str, Any]:
        """What stands in the row that carries the claim."""
        if not self.in_table:
            return {k.removeprefix("lock_"): v for k, v in self.raw.items() if k[:5] == "lock_"}
        connection = self.locks._get_connection()
        return connection.get_item(self.lock().key, consistent_read=True).get("Item", {})

    @property
    def everything(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The row and the claim, to compare."""
        return self.raw, self.claim

    @property
    def is_free(self) -> bool:
        """Whether nobody holds the lock."""
        return "expires_at" not in self.claim

    @property
    def writes(self) -> int:
        """Number of the last guarded write."""
        return int(self.claim["writes"]["N"])

    @property
    def version(self) -> int:
        """The fencing token."""
        return int(self.claim["version"]["N"])

    def op(self, what: str) -> str:
        """Name the request that writes the row under its lock."""
        return TRANSACT if self.in_table else OPS[what]

    def applied(self, *kinds: str) -> list[bool]:
        """Say which requests of these kinds were applied."""
        return [seen.applied for seen in self.proxy.of(*kinds)]


class Rows:
    """Three rows, by the clients of a scene."""

    def __init__(self, scene: RowScene) -> None:
        self.scene = scene
        self.keys = [f"{scene.key}-{name}" for name in "abc"]
        for key in self.keys:
            scene.old(key).save()

    def locks(self, **options: Any) -> RowLocks[Account]:
        """The locks of all, by the client with the bad network."""
        return self.scene.here.locked_all(self.keys, **{"timeout": 20, **options})

    def taken(self, place: int) -> Any:
        """Take one for the other client."""
        other = self.scene.there.locked(self.keys[place], owner="other", timeout=20)
        assert other.acquire()
        return other

    def force(self, place: int) -> None:
        """Break one."""
        assert self.scene.there.locked(self.keys[place]).force_release()

    def forced_and_taken(self, place: int) -> Any:
        """Break one, and take it for the other client."""
        self.force(place)
        return self.taken(place)

    def stored(self) -> list[Account]:
        """The rows as they stand."""
        return [self.scene.there.get(key, consistent_read=True) for key in self.keys]

    @property
    def balances(self) -> list[int]:
        return [row.balance for row in self.stored()]

    def free(self) -> list[bool]:
        """Say which are free."""
        return [not self.scene.there.locked(key).locked() for key in self.keys]


def add_to_all(rows: Any, **options: bool) -> None:
    """Add 1 to each balance by update, in one transaction."""
    with rows.transaction(**options) as transaction:
        for row in rows:
            transaction.update(row, [type(row).balance.add(1)])


def add_unread(rows: Rows, locked: Any, **options: bool) -> None:
    """The same, of instances that were not read."""
    model = rows.scene.here
    with locked.transaction(**options) as transaction:
        for key in rows.keys:
            transaction.update(model(key), [model.balance.add(1)])


OPS = {"save": "PutItem", "update": "update", "delete": "DeleteItem"}


def save(row: Account, last: str = "mine", **options: Any) -> Any:
    """Add 1 to the balance as it was read, and save the row."""
    row.balance, row.last = row.balance + 1, last
    return row.save(**options)


def update(row: Account, last: str = "mine", **options: Any) -> Any:
    """Add 1 to the balance in the row."""
    actions = [type(row).balance.add(1), type(row).last.set(last)]
    return row.update(actions, **options)


def delete(row: Account, last: str = "", **options: Any) -> Any:
    """Delete the row."""
    return row.delete(**options)


every_write = pytest.mark.parametrize("write", [save, update, delete])
save_or_update = pytest.mark.parametrize("write", [save, update])


def assert_refused(reply: Reply) -> None:
    """See that an answer is that of a condition that did not hold."""
    assert reply.error in {"ConditionalCheckFailedException", "TransactionCanceledException"}


def arrives_in_vain(scene: RowScene, kept: Late) -> None:
    """Let a kept request reach the engine, and see that it changes nothing."""
    before = scene.everything
    reply = kept.apply()
    # an engine that remembers a transaction says that it was applied before
    assert reply.status == 200 or reply.error is not None
    if scene.op("save") != TRANSACT:
        assert_refused(reply)
    assert scene.everything == before
