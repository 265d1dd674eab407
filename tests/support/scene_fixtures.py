"""The fixtures `scene` and `keys`.

The table and its clients are made once for a test file and each test has a key of its own, for a
botocore client costs more than most of these tests.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from group_scene import Keys
from scene import Scene, forget_holds, learn_time_anew

from dev.faultproxy import fault_proxy, through
from pynamodb_mutex import LockItem, Mutex
from pynamodb_mutex.testing import use


@pytest.fixture(scope="module", params=["embedded", "local"])
def stage(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """Each engine in turn, with a table and two clients for all tests of a file."""

    class There(LockItem):
        class Meta:
            table_name = f"locks-{uuid.uuid4().hex}"

    with use(request.getfixturevalue(f"{request.param}_engine")) as engine:
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
