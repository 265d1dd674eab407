"""Two clients of one row, one of which has a bad network; and fixtures that make them."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.models import Model
from row_tables import meta
from scene import forget_holds, held

from dev.faultproxy import FaultProxy, fault_proxy, through
from pynamodb_mutex import LockItem, RowLock, RowLockMixin
from pynamodb_mutex._dynamodb import connection as _connection
from pynamodb_mutex.groups import RowLocks
from pynamodb_mutex.testing import Engine, expire

TRANSACT = "TransactWriteItems"
OPS = {"save": "PutItem", "update": "update", "delete": "DeleteItem"}

_serial = itertools.count(1)


class OldAccount(Model):
    """A row as a program has it that knows nothing of row locks."""

    name = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=0)
    last = UnicodeAttribute(null=True)


class Account(RowLockMixin, OldAccount):
    """What the clients derive from."""


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
        return self.here.locked(self.key, **{"timeout": 20, **options})

    def locked(self, **options: Any) -> Account:
        """Take the lock for the client with the bad network; return the row."""
        return held(self.lock(**options)).row

    def other(self, **options: Any) -> RowLock[Account]:
        """Return a lock of the other client."""
        return self.there.locked(self.key, **{"owner": "other", "timeout": 20, **options})

    def taken(self, **options: Any) -> RowLock[Account]:
        """Take the lock for the other client."""
        return held(self.other(**options))

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
        scene.proxy.start_anew()

    def locks(self, **options: Any) -> RowLocks[Account]:
        """The locks of all, by the client with the bad network."""
        return self.scene.here.locked_all(self.keys, **{"timeout": 20, **options})

    def taken(self, place: int, **options: Any) -> RowLock[Account]:
        """Take one for the other client."""
        others = {"owner": "other", "timeout": 20}
        return held(self.scene.there.locked(self.keys[place], **others | options))

    def force(self, place: int) -> None:
        """Break one."""
        assert self.scene.there.locked(self.keys[place]).force_release()

    def forced_and_taken(self, place: int) -> RowLock[Account]:
        """Break one, and take it for the other client."""
        self.force(place)
        return self.taken(place)

    @property
    def balances(self) -> list[int]:
        """What stands in the rows."""
        return [self.scene.there.get(key, consistent_read=True).balance for key in self.keys]

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


def save(row: Account, last: str = "mine", **options: Any) -> Any:
    """Add 1 to the balance as it was read, and save the row."""
    row.balance, row.last = row.balance + 1, last
    return row.save(**options)


def update(row: Account, last: str = "mine", **options: Any) -> Any:
    """Add 1 to the balance in the row."""
    actions = [type(row).balance.add(1), type(row).last.set(last)]
    return row.update(actions, **options)


def delete(row: Account, **options: Any) -> Any:
    """Delete the row."""
    return row.delete(**options)


every_write = pytest.mark.parametrize("write", [save, update, delete])
save_or_update = pytest.mark.parametrize("write", [save, update])


@contextmanager
def _scene(engine: Engine, *, in_table: bool) -> Iterator[RowScene]:
    accounts = meta()

    class Locks(LockItem):
        class Meta:
            table_name = f"locks-{uuid.uuid4().hex}"

    class There(Account):
        Meta = accounts
        lock_model = Locks if in_table else None

    class Old(OldAccount):
        class Meta:
            table_name = accounts.table_name

    There.create_table(wait=True)
    if in_table:
        Locks.create_table()
    with fault_proxy(engine) as proxy, pytest.MonkeyPatch.context() as patch:
        # patient, for things may happen while it waits for an answer
        patch.setattr(_connection, "READ_TIMEOUT", 30.0)
        here = through(proxy, There, read_timeout=30)
        if in_table:
            here.lock_model = through(proxy, Locks, read_timeout=30)
        Old("warm").save()
        for client in (here, There):
            with client.locked("warm") as row:
                row.save()
            row.save()
        scene = RowScene(engine, proxy, here, There, Old, in_table, f"row-{next(_serial)}")
        Old(scene.key).save()
        proxy.start_anew()
        yield scene
        clients = (here, There)
        forget_holds(*clients, *(c.lock_model for c in clients if c.lock_model is not None))
        proxy.clear()


@pytest.fixture
def row_scene(engine: Engine) -> Iterator[RowScene]:
    """A row with its lock in it."""
    with _scene(engine, in_table=False) as scene:
        yield scene


@pytest.fixture
def table_scene(engine: Engine) -> Iterator[RowScene]:
    """A row with its lock in a lock table."""
    with _scene(engine, in_table=True) as scene:
        yield scene


@pytest.fixture(params=["row", "table"])
def any_scene(request: pytest.FixtureRequest, engine: Engine) -> Iterator[RowScene]:
    """A row with its lock in it, or in a lock table."""
    with _scene(engine, in_table=request.param == "table") as scene:
        yield scene


@pytest.fixture
def rows(any_scene: RowScene) -> Rows:
    """Three rows, each with its lock in it or in a lock table."""
    return Rows(any_scene)
