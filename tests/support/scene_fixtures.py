"""The fixtures `scene` and `keys`.

Each test has a key of its own: on a real engine what an earlier test left behind may still come.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from group_scene import Keys
from scene import Scene, forget_holds, learn_time_anew

from dev.faultproxy import fault_proxy, through
from pynamodb_mutex import LockItem, Mutex
from pynamodb_mutex.testing import Engine


@pytest.fixture
def stage(engine: Engine) -> Iterator[Scene]:
    """An engine with a table and two clients."""

    class There(LockItem):
        class Meta:
            table_name = f"locks-{uuid.uuid4().hex}"

    There.create_table()
    with fault_proxy(engine) as proxy:
        # patient, for things may happen while it waits for an answer
        here = through(proxy, There, read_timeout=30)
        for client in (here, There):
            with Mutex.for_key("warm", model=client):
                pass
        yield Scene(engine, proxy, here, There)


@pytest.fixture
def scene(stage: Scene) -> Iterator[Scene]:
    """A key of its own for each test."""
    scene = Scene(stage.engine, stage.proxy, stage.here, stage.there)
    learn_time_anew(*(Mutex.for_key("warm", model=each) for each in (stage.here, stage.there)))
    stage.proxy.be_about(scene.key)
    yield scene
    forget_holds(stage.here, stage.there)
    stage.proxy.clear()


@pytest.fixture
def keys(scene: Scene) -> Keys:
    """Three keys of a test's own."""
    return Keys(scene)
