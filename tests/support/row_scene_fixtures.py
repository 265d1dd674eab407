"""The fixtures `any_scene`, `row_scene` and `table_scene` of the tests of row locks."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from row_scene import Account, OldAccount, Rows, RowScene
from scene import forget_holds

from dev.faultproxy import fault_proxy, through
from pynamodb_mutex import LockItem
from pynamodb_mutex._dynamodb import connection as _connection
from pynamodb_mutex.testing import Engine

_serial = itertools.count(1)


@contextmanager
def _scene(engine: Engine, *, in_table: bool) -> Iterator[RowScene]:
    name = f"accounts-{uuid.uuid4().hex}"

    class Locks(LockItem):
        class Meta:
            table_name = f"locks-{uuid.uuid4().hex}"

    class There(Account):
        class Meta:
            table_name = name
            billing_mode = "PAY_PER_REQUEST"

        lock_model = Locks if in_table else None

    class Old(OldAccount):
        class Meta:
            table_name = name

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
    made = Rows(any_scene)
    any_scene.proxy.start_anew()
    return made
