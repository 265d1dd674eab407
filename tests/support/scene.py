"""Two clients of one lock, one of which has a bad network. The fixtures are in scene_fixtures.py."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from dev.faultproxy import FaultProxy, apply_then_500, drop_answer, fault_proxy, through
from pynamodb_mutex import LockItem, Mutex
from pynamodb_mutex._runtime.process import current_process
from pynamodb_mutex.testing import Engine

lost_in_two_ways = pytest.mark.parametrize("lose", [drop_answer, apply_then_500])
"""The answer is lost: by a reset, or because an error comes in place of it."""

_serial = itertools.count(1)


def held(lock: Any) -> Any:
    """Acquire a lock; return it."""
    assert lock.acquire()
    return lock


class Acquiring:
    """A thread that acquires."""

    def __init__(self, mutex: Mutex) -> None:
        self.mutex = mutex
        self.acquired: bool | None = None
        thread = threading.Thread(target=self._acquire, daemon=True)
        self.join, self.is_alive = thread.join, thread.is_alive
        thread.start()

    def _acquire(self) -> None:
        self.acquired = self.mutex.acquire(timeout=60)


class Claims:
    """What another client does to a lock, and what stands in the table.

    Attributes:
        other: Returns a lock of the other client on the last of the rows with a claim.
        proxy: Between the client with the bad network and the engine.
        places: The model of the other client and the key, of each row with a claim; the last one is what
            is taken or broken.
    """

    def taken(self, **options):
        """Take it for the other client."""
        return held(self.other(**options))

    def force(self):
        """Break the claim, by the other client; return that it did."""
        assert self.other().force_release()
        return True

    def forced_and_taken(self):
        """Break the claim, and take it for the other client."""
        self.force()
        return self.taken()

    def expire(self):
        """Let the ends of the claims have passed long ago."""
        for at, claim in enumerate(self.claims):
            if "expires_at" in claim:
                self._change(at, lambda attribute: [attribute("expires_at").set(1.0)])

    def expired_and_taken(self):
        """Let the ends have passed long ago, and take it for the other client."""
        self.expire()
        return self.taken()

    def clear(self):
        """Take the claim out of the row by hand, and nothing else."""
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
        """Say which requests of these kinds were applied."""
        return [seen.applied for seen in self.proxy.of(*kinds)]

    @property
    def everything(self):
        """All that stands in the rows, to compare."""
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
        """What stands in the rows under the names of a claim's attributes."""
        return [{k.removeprefix("lock_"): v for k, v in row.items()} for row in self.everything]

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
    """One key.

    Attributes:
        engine: What answers in the end.
        proxy: Between `here` and the engine.
        here: A client whose network is bad.
        there: Another client, whose network is not.
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
        """Return a mutex of the client with the bad network."""
        return Mutex.for_key(self.key, **{"model": self.here, **options})

    def other(self, **options) -> Mutex:
        """Return a mutex of the other client, not renewed: a test that moves the clock is about the first."""
        others = {"model": self.there, "owner": "other", "timeout": 20, "auto_renew": False}
        return self.mutex(**others | options)

    def waiting(self, **options) -> Acquiring:
        """Let a thread of the first client's process wait for the lock."""
        polls = len(self.proxy.of("GetItem"))
        # it polls often, so that the log shows when it waits
        waiter = Acquiring(self.mutex(poll=(0.02, 0.02), **options))
        self.proxy.wait(polls + 1, "GetItem")
        return waiter

    @property
    def row(self) -> LockItem:
        """The row as it stands, read by the other client."""
        return self.there.get(self.key, consistent_read=True)

    @contextmanager
    def fresh(self, **options) -> Iterator[Scene]:
        """Make a first client that knows nothing yet: neither server time nor the endpoint."""
        with fault_proxy(self.engine) as proxy:
            here = through(proxy, self.there, **options)
            try:
                yield Scene(self.engine, proxy, here, self.there, self.key)
            finally:
                forget_holds(here)


def forget_holds(*clients: type[LockItem]) -> None:
    """Let no lock that these clients left behind be renewed any more."""
    process = current_process()
    with process.monitor:
        for claim in [c for held in list(process.schedule._due) for c in held.unreleased]:
            if claim.store.model in clients:
                claim.forget()
