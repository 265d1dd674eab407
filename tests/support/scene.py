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
from pynamodb_mutex.testing import Engine, expire

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
        self._thread = threading.Thread(target=self._acquire, daemon=True)
        self._thread.start()

    def _acquire(self) -> None:
        self.acquired = self.mutex.acquire(timeout=60)

    def join(self, timeout: float | None = None) -> None:
        self._thread.join(timeout)

    def is_alive(self) -> bool:
        return self._thread.is_alive()


@dataclass
class Scene:
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

    def mutex(self, **options) -> Mutex:
        """Return a mutex of the client with the bad network."""
        return Mutex.for_key(self.key, **{"model": self.here, **options})

    def other(self, **options) -> Mutex:
        """Return a mutex of the other client, not renewed: a test that moves the clock is about the first."""
        others = {"model": self.there, "owner": "other", "timeout": 20, "auto_renew": False}
        return self.mutex(**others | options)

    def taken(self, **options) -> Mutex:
        """Take the lock for the other client."""
        other = self.other(**options)
        assert other.acquire()
        return other

    def force(self) -> bool:
        """Break the claim, by the other client."""
        return self.there.force_release(self.key)

    def forced_and_taken(self) -> Mutex:
        """Break the claim, and take the lock for the other client."""
        assert self.force()
        return self.taken()

    def expired_and_taken(self) -> Mutex:
        """Let the claim's end have passed long ago, and take the lock for the other client."""
        self.expire()
        return self.taken()

    def clear(self) -> None:
        """Take the claim out of the row by hand, and nothing else."""
        actions = [self.there.expires_at.remove(), self.there.owner.remove()]
        self.there._get_connection().update_item(self.key, actions=actions)

    def delete(self) -> None:
        """Delete the row."""
        self.row.delete(add_version_condition=False)

    def expire(self) -> None:
        """Let the claim's end have passed long ago."""
        expire(self.key, self.there)

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

    @property
    def gone(self) -> bool:
        """Whether there is no row."""
        return self.there.count(self.key, consistent_read=True) == 0

    @property
    def everything(self) -> dict:
        """All that stands in the row, to compare; nothing if there is none."""
        return {} if self.gone else self.row.to_simple_dict()

    def applied(self, *kinds: str) -> list[bool]:
        """Say which requests of these kinds were applied."""
        return [seen.applied for seen in self.proxy.of(*kinds)]

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
