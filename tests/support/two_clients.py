"""Two clients of one lock: `here`, whose network fails as a test says, and `there`.

The fixture `scene` has them for the lock of a key, `keys` for three keys; `row_scene` and `table_scene` for a row with its claim
in it or in a lock table, `any_scene` for both in turn, and `rows` for three rows.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from row_models import Account, OldAccount, meta
from sent_requests import TRANSACT
from this_process import QueueFor, current_process, forget_holds, scheduled, store_for
from waits import until

from dev.faultproxy import FaultProxy, fault_proxy, through
from pynamodb_mutex import LockItem, Mutex, RowLock
from pynamodb_mutex._lock.dynamodb import connection as _connection
from pynamodb_mutex._lock.protocol.claim import Claim
from pynamodb_mutex.aio import AsyncMutex
from pynamodb_mutex.groups import MutexGroup, RowLocks
from pynamodb_mutex.testing import Engine, FakeClock, expire

_serial = itertools.count(1)


class Elsewhere(LockItem):
    """LockItem with another connection and another local queue, as in another process."""

    class Meta(LockItem.Meta):
        pass


def held(lock: Any) -> Any:
    """Acquire a lock; return it."""
    assert lock.acquire()
    return lock


def on_thread(call: Any, *args: Any) -> Any:
    """Call on a thread of its own; return what it returns."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call, *args).result()


def place_of(number: int, lock: Any) -> int:
    """Return the how-many-eth guarded write under a lock has a number; 0 if it was made before the lock was acquired."""
    numbers = lock._current("the test").own._numbers
    return numbers.index(number) + 1 if number in numbers else 0


class Acquiring:
    """A thread that acquires a lock."""

    def __init__(self, mutex: Mutex) -> None:
        self.mutex = mutex
        self.acquired: bool | None = None
        thread = threading.Thread(target=self._acquire, daemon=True)
        self.join, self.is_alive = thread.join, thread.is_alive
        thread.start()

    def _acquire(self) -> None:
        self.acquired = self.mutex.acquire(timeout=60)


# -- the lock of one key or row --------------------------------------------------------------------


class Claims:
    """What the client `there` does to a lock, and what the rows with its claims contain.

    Attributes:
        other: Returns a lock of the client `there`, on the last row of `places`.
        proxy: Between `here` and the engine.
        places: Model of `there` and key of each row that is compared; the last one has the claim that is taken
            or broken.
    """

    def taken(self, **options):
        """Acquire it by the other client."""
        return held(self.other(**options))

    def force(self):
        """Force its release by the other client."""
        assert self.other().force_release()
        return True

    def forced_and_taken(self):
        """Force its release, and acquire it by the other client."""
        self.force()
        return self.taken()

    def expire(self):
        """Move the ends of the claims into the past."""
        for at, claim in enumerate(self.claims):
            if "expires_at" in claim:
                self._change(at, lambda attribute: [attribute("expires_at").set(1.0)])

    def expired_and_taken(self):
        """Move the ends into the past, and acquire it by the other client."""
        self.expire()
        return self.taken()

    def clear(self):
        """Remove the claim from the row by hand, and nothing else."""
        self._change(-1, lambda a: [a("expires_at").remove(), a("owner").remove()])

    def delete(self):
        """Delete the row."""
        model, key = self.places[-1]
        model._get_connection().delete_item(key)

    def _change(self, at, actions):
        model, key = self.places[at]
        prefix = "" if "token" in model.get_attributes() else "lock_"
        actions = actions(lambda name: getattr(model, prefix + name))
        model._get_connection().update_item(key, actions=actions)

    def applied(self, *kinds):
        """Return for each request of these kinds whether it was applied."""
        return [seen.applied for seen in self.proxy.of(*kinds)]

    @property
    def everything(self):
        """The rows as they are stored."""
        return [
            model._get_connection().get_item(key, consistent_read=True).get("Item", {})
            for model, key in self.places
        ]

    @property
    def gone(self):
        """Whether there is no row."""
        return not self.everything[-1]

    @property
    def claims(self):
        """The rows as they are stored, without the prefix of a claim's attributes."""
        return [{k.removeprefix("lock_"): v for k, v in row.items()} for row in self.everything]

    @property
    def claim(self):
        """The claim that is taken or broken, without what users write into its row."""
        own = {"data", "name", "balance", "last"}
        return {k: v for k, v in self.claims[-1].items() if k not in own}

    @property
    def is_free(self):
        """Whether no row has a claim."""
        return not any("expires_at" in claim for claim in self.claims)

    @property
    def ends(self):
        """The ends of the claims."""
        return [float(claim["expires_at"]["N"]) for claim in self.claims]


@dataclass
class Scene(Claims):
    """Two clients, and the lock of one key.

    Attributes:
        engine: Answers the requests of both.
        proxy: Between `here` and the engine.
        here: The client whose network fails.
        there: The other client.
        key: The key.
    """

    engine: Engine
    proxy: FaultProxy
    here: type[LockItem]
    there: type[LockItem]
    key: str = field(default_factory=lambda: f"key-{next(_serial)}")

    @property
    def places(self) -> list[tuple[type[LockItem], str]]:
        return [(self.there, self.key)]

    def mutex(self, **options) -> Mutex:
        """Return a mutex of `here`."""
        return Mutex.for_key(self.key, **{"model": self.here, **options})

    def async_mutex(self, **options) -> AsyncMutex:
        """Return an asynchronous mutex of `here`."""
        return AsyncMutex.for_key(self.key, **{"model": self.here, **options})

    def other(self, **options) -> Mutex:
        """Return a mutex of `there`, not renewed: a test that moves the clock is about the first client."""
        others = {"model": self.there, "owner": "other", "timeout": 20, "auto_renew": False}
        return self.mutex(**others | options)

    def waiting(self, **options) -> Acquiring:
        """Let a thread wait for the lock of `here`."""
        queue, ahead = self.queue, len(self.queue.turns)
        waiter = Acquiring(self.mutex(poll=(0.02, 0.02), **options))
        until(lambda: len(queue.turns) > ahead and queue.known_taken)
        return waiter

    @property
    def row(self) -> LockItem:
        """The row as it is stored."""
        return self.there.get(self.key, consistent_read=True)

    @property
    def parsed(self) -> Claim:
        """The claim in the row, as the library reads it."""
        return store_for(self.there).layout.claim(self.everything[0])

    @property
    def queue(self) -> Any:
        """Where the threads and tasks of this process wait for the lock of `here`."""
        return QueueFor(self.here, self.key)

    def leftovers(self) -> list[str]:
        """Return what is left of a lock that nobody should hold or wait for."""
        found = []
        if not self.gone and self.row.expires_at is not None:
            found.append("a claim")
        if self.queue.holder is not None or self.queue.turns or self.queue.watchers:
            found.append("a holder or waiter of this process")
        queues = current_process().queues
        if any(store.model is self.here and place == self.key for store, place in queues):
            found.append("a queue")
        claims = [claim for held in scheduled() for claim in held.claims]
        if any(claim.store.model is self.here for claim in claims):
            found.append("a renewal")
        return found

    @contextmanager
    def fresh(self, **options) -> Iterator[Scene]:
        """Replace `here` by a client that knows neither server time nor the endpoint."""
        with fault_proxy(self.engine) as proxy:
            here = through(proxy, self.there, **options)
            try:
                yield Scene(self.engine, proxy, here, self.there, self.key)
            finally:
                forget_holds(here)


@dataclass
class RowScene(Claims):
    """Two clients, and the lock of one row.

    Attributes:
        engine: Answers the requests of both.
        proxy: Between `here` and the engine.
        here: The client whose network fails.
        there: The other client.
        old: A third client, which knows nothing of locks.
        in_table: Whether the claims are in a lock table, and guarded writes are transactions.
        key: Of the row.
    """

    engine: Engine
    proxy: FaultProxy
    here: type[Account]
    there: type[Account]
    old: type[OldAccount]
    in_table: bool
    key: str

    @property
    def places(self) -> list[tuple[type[Any], str]]:
        claims = [(self.locks, self.lock().key)] if self.in_table else []
        return [(self.there, self.key), *claims]

    def lock(self, **options: Any) -> RowLock[Account]:
        """Return a lock of `here`."""
        return self.here.locked(self.key, **{"timeout": 20, **options})

    def locked(self, **options: Any) -> Account:
        """Acquire the lock by `here`; return the row."""
        return held(self.lock(**options)).row

    def other(self, **options: Any) -> RowLock[Account]:
        """Return a lock of `there`."""
        return self.there.locked(self.key, **{"owner": "other", "timeout": 20, **options})

    def expire(self) -> None:
        """Move the claim's end into the past; waiters in this process no longer wait for its holder."""
        expire(self.key, self.there)

    def set_claim(self, *actions: Any) -> None:
        """Change the claim in the row by hand."""
        self.there._get_connection().update_item(self.key, actions=list(actions))

    def overwrite(self) -> None:
        """Save the row by the client that knows nothing of locks."""
        self.old(self.key, balance=1000, last="old").save()

    @property
    def locks(self) -> type[LockItem]:
        """The lock table, of the client `there`."""
        assert self.there.lock_model is not None
        return self.there.lock_model

    @property
    def raw(self) -> dict[str, Any]:
        """All attributes of the row as it is stored; none if there is no row."""
        return self.everything[0]

    @property
    def gone(self) -> bool:
        """Whether there is no row."""
        return not self.raw

    @property
    def row(self) -> Account:
        """The row as it is stored, read without a lock."""
        return self.there.get(self.key, consistent_read=True)

    @property
    def version(self) -> int:
        """The fencing token."""
        return int(self.claim["version"]["N"])

    def op(self, what: str) -> str:
        """Return the operation of the request that writes the row under its lock."""
        alone = {"save": "PutItem", "update": "update", "delete": "DeleteItem"}
        return TRANSACT if self.in_table else alone[what]


# -- the locks of three keys or rows ---------------------------------------------------------------


class _Three:
    """Three locks of a scene, of which `there` takes or breaks one, by its place."""

    def __init__(self, scene: Any) -> None:
        self.scene = scene
        self.keys = [f"{scene.key}-{name}" for name in "abc"]

    def taken(self, place: int, **options: Any) -> Any:
        """Acquire one by the other client."""
        return held(self.other(place, **options))

    def force(self, place: int) -> None:
        """Force the release of one."""
        assert self.other(place).force_release()

    def forced_and_taken(self, place: int) -> Any:
        """Force the release of one, and acquire it by the other client."""
        self.force(place)
        return self.taken(place)

    def there(self, place: int) -> Any:
        """Return one row as it is stored."""
        return self.scene.there.get(self.keys[place], consistent_read=True)

    @property
    def rows(self) -> list[Any]:
        """The rows as they are stored."""
        return [self.there(place) for place in range(3)]

    def free(self) -> list[bool]:
        """Return for each whether it is free."""
        return [not self.other(place).locked() for place in range(3)]


class Keys(_Three):
    """The locks of three keys."""

    def group(self, *places: int, **options: Any) -> MutexGroup:
        """Return the locks of all, or of those at some places, of the client `here`."""
        keys = [self.keys[at] for at in places or range(3)]
        return Mutex.for_keys(keys, **{"model": self.scene.here, "timeout": 20, **options})

    def other(self, place: int, **options: Any) -> Mutex:
        """Return the lock of one, of the client `there`, not renewed: as `Scene.other`."""
        others = {"model": self.scene.there, "owner": "other", "timeout": 20, "auto_renew": False}
        return Mutex.for_key(self.keys[place], **others | options)

    @property
    def ends(self) -> list[float | None]:
        """The ends of the claims."""
        return [row.expires_at for row in self.rows]


class Rows(_Three):
    """The locks of three rows."""

    def __init__(self, scene: RowScene) -> None:
        super().__init__(scene)
        for key in self.keys:
            scene.old(key).save()
        scene.proxy.start_anew()

    def locks(self, **options: Any) -> RowLocks[Account]:
        """Return the locks of all, of the client `here`."""
        return self.scene.here.locked_all(self.keys, **{"timeout": 20, **options})

    def other(self, place: int, **options: Any) -> RowLock[Account]:
        """Return the lock of one, of the client `there`."""
        others = {"owner": "other", "timeout": 20}
        return self.scene.there.locked(self.keys[place], **others | options)

    @property
    def balances(self) -> list[int]:
        """The balances that are stored."""
        return [row.balance for row in self.rows]


# -- fixtures --------------------------------------------------------------------------------------


@pytest.fixture
def pool(engine: Engine) -> Iterator[ThreadPoolExecutor]:
    """As many threads as are needed."""
    with ThreadPoolExecutor(40) as pool:
        yield pool


@pytest.fixture
def clock(engine: Engine) -> Iterator[FakeClock]:
    """The local clock, which the test moves."""
    with FakeClock() as clock:
        yield clock


@pytest.fixture
def proxy(engine: Engine) -> Iterator[FaultProxy]:
    """A proxy in front of the engine."""
    with fault_proxy(engine) as proxy:
        yield proxy


@pytest.fixture
def here(proxy: FaultProxy, table: type[LockItem]) -> type[LockItem]:
    """A client of the lock table whose requests pass the proxy."""
    return through(proxy, table)


@pytest.fixture
def scene(engine: Engine) -> Iterator[Scene]:
    """Two clients that know the endpoint and server time, and one key."""

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
        proxy.start_anew()
        yield Scene(engine, proxy, here, There)
        forget_holds(here, There)
        proxy.clear()


@pytest.fixture
def keys(scene: Scene) -> Keys:
    """The two clients, and three keys."""
    return Keys(scene)


@contextmanager
def _row_scene(engine: Engine, *, in_table: bool) -> Iterator[RowScene]:
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
            row.refresh()
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
    """Two clients, and a row with its claim in it."""
    with _row_scene(engine, in_table=False) as scene:
        yield scene


@pytest.fixture
def table_scene(engine: Engine) -> Iterator[RowScene]:
    """Two clients, and a row with its claim in a lock table."""
    with _row_scene(engine, in_table=True) as scene:
        yield scene


@pytest.fixture(params=["row", "table"])
def any_scene(request: pytest.FixtureRequest, engine: Engine) -> Iterator[RowScene]:
    """Two clients, and a row with its claim in it or in a lock table."""
    with _row_scene(engine, in_table=request.param == "table") as scene:
        yield scene


@pytest.fixture
def rows(any_scene: RowScene) -> Rows:
    """Two clients, and three rows with their claims in them or in a lock table."""
    return Rows(any_scene)
