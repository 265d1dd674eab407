"""The fixtures `any_scene`, `row_scene` and `table_scene` of the tests of row locks.

As in scene_fixtures.py the tables and their clients are made once for a test file.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from row_scene import Account, OldAccount, Rows, RowScene
from scene import forget_holds, learn_time_anew

from dev.faultproxy import fault_proxy, through
from pynamodb_mutex import LockItem
from pynamodb_mutex._dynamodb import connection as _connection
from pynamodb_mutex.testing import Engine


@contextmanager
def _stage(engine: Engine, *, in_table: bool) -> Iterator[RowScene]:
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
        yield RowScene(engine, proxy, here, There, Old, in_table)


_serial = itertools.count(1)

@pytest.fixture
def stage_in_row(engine: Engine) -> Iterator[RowScene]:
    """An engine, with locks in the rows."""
    with _stage(engine, in_table=False) as stage:
        yield stage


@pytest.fixture(params=["row", "table"])
def stage_anywhere(request: pytest.FixtureRequest, engine: Engine) -> Iterator[RowScene]:
    """An engine, with locks in the rows, and with locks in a lock table."""
    with _stage(engine, in_table=request.param == "table") as stage:
        yield stage


@pytest.fixture
def stage_in_table(engine: Engine) -> Iterator[RowScene]:
    """An engine, with locks in a lock table."""
    with _stage(engine, in_table=True) as stage:
        yield stage


@contextmanager
def _scene(stage: RowScene) -> Iterator[RowScene]:
    scene = replace(stage, key=f"row-{next(_serial)}")
    stage.old(scene.key).save()
    learn_time_anew(*(client.locked("warm") for client in (stage.here, stage.there)))
    stage.proxy.be_about(scene.key)
    yield scene
    clients = (stage.here, stage.there)
    forget_holds(*clients, *(c.lock_model for c in clients if c.lock_model is not None))
    stage.proxy.clear()


@pytest.fixture
def row_scene(stage_in_row: RowScene) -> Iterator[RowScene]:
    """A row of its own for each test, with its lock in it."""
    with _scene(stage_in_row) as scene:
        yield scene


@pytest.fixture
def table_scene(stage_in_table: RowScene) -> Iterator[RowScene]:
    """A row of its own for each test, with its lock in a lock table."""
    with _scene(stage_in_table) as scene:
        yield scene


@pytest.fixture
def any_scene(stage_anywhere: RowScene) -> Iterator[RowScene]:
    """A row of its own for each test, with its lock in it or in a lock table."""
    with _scene(stage_anywhere) as scene:
        yield scene


@pytest.fixture
def rows(any_scene: RowScene) -> Rows:
    """Three rows, each with its lock in it or in a lock table."""
    made = Rows(any_scene)
    any_scene.proxy.start_anew()
    return made
