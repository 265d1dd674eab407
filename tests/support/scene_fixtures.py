"""The fixtures `pool`, `proxy`, `here`, `scene` and `keys`, with `heard`, `clock` and `on_lost`, and `subject` and `written`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from group_scene import Keys
from hearing import Heard, OnLost, hearing
from scene import Scene, forget_holds
from subjects import OF_KEYS, OF_ROWS, SUBJECTS, Subject, WrittenByKey, WrittenByRow

from dev.faultproxy import FaultProxy, fault_proxy, through
from pynamodb_mutex import LockItem, Mutex
from pynamodb_mutex.testing import Engine, FakeClock


@pytest.fixture
def pool(engine: Engine) -> Iterator[ThreadPoolExecutor]:
    """As many threads as are needed."""
    with ThreadPoolExecutor(40) as pool:
        yield pool


@pytest.fixture
def proxy(engine: Engine) -> Iterator[FaultProxy]:
    """A proxy in front of the engine."""
    with fault_proxy(engine) as proxy:
        yield proxy


@pytest.fixture
def here(proxy: FaultProxy, table: type[LockItem]) -> type[LockItem]:
    """A client of the lock table whose requests go through the proxy."""
    return through(proxy, table)


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
    """One key, and clients that know the endpoint and server time."""
    stage.proxy.start_anew()
    yield stage
    forget_holds(stage.here, stage.there)
    stage.proxy.clear()


@pytest.fixture
def keys(scene: Scene) -> Keys:
    """Three keys of a test's own."""
    return Keys(scene)


@pytest.fixture
def heard(scene: Scene) -> Iterator[Heard]:
    """The signals of the scene's key."""
    with hearing(scene.key) as heard:
        yield heard


@pytest.fixture
def clock(engine: Engine) -> Iterator[FakeClock]:
    """The local clock, moved by hand."""
    with FakeClock() as clock:
        yield clock


@pytest.fixture
def on_lost(engine: Engine) -> OnLost:
    """A callback that notes its calls."""
    return OnLost()


def _scene_for(name, request):
    fixture = "table_scene" if "table" in name else "row_scene" if "row" in name else "scene"
    return request.getfixturevalue(fixture)


@pytest.fixture(params=SUBJECTS)
def subject(request, engine):
    """A lock of each kind in turn; with `parametrize(..., indirect=True)`, of some kinds."""
    return Subject(request.param, _scene_for(request.param, request))


@pytest.fixture(params=[*OF_KEYS, *OF_ROWS])
def written(request, engine):
    """What is written under a lock, in each way in turn; or in some, as with `subject`."""
    made = WrittenByKey if request.param in OF_KEYS else WrittenByRow
    return made(request.param, _scene_for(request.param, request))
