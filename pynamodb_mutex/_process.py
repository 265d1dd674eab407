"""What the locks of one process share. A forked child starts with nothing of its parent's."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, WeakValueDictionary

from pynamodb_mutex._events import Teller
from pynamodb_mutex._renewer import Renewer
from pynamodb_mutex._store import Store
from pynamodb_mutex._threads import Threads, Workers
from pynamodb_mutex._waiting import LocalQueue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamodb.models import Model

    from pynamodb_mutex._clock import ServerTime
    from pynamodb_mutex._hold import Hold


REQUESTS_OF_TASKS = 16
"""Requests of tasks under way at a time, at most. Each takes a few seconds at the very worst."""


class Process:
    """Connections, knowledge of server time, local queues and the threads of one process.

    Attributes:
        left_behind: Whether this is the state of a parent process, seen from its forked child.
    """

    def __init__(self) -> None:
        self.left_behind = False
        self.threads = Threads()
        self.renewer = Renewer(self.threads)
        self.teller = Teller(self.threads)
        self.tasks_workers = Workers(self.threads, "pynamodb-mutex-aio", REQUESTS_OF_TASKS)
        self.stores: dict[type[Model], Store] = {}
        self._server_times: dict[str, ServerTime] = {}
        self._queues: WeakValueDictionary[
            tuple[Store, str | frozenset[str]], LocalQueue[Any, Any]
        ] = WeakValueDictionary()
        self._lock = threading.Lock()

    def store(self, model: type[Model]) -> Store:
        """Return the store of a model, a new one if its Meta now names another table."""
        store = self._known(model)
        if store is None:
            with self._lock:
                # another thread may have made it meanwhile, and two stores would be two queues
                store = self._known(model)
                if store is None:
                    store = Store(model, self._server_times)
                    store.on_thaw = self.renewer.recheck
                    self.stores[model] = store
        return store

    def _known(self, model: type[Model]) -> Store | None:
        store = self.stores.get(model)
        return store if store is not None and store.address == Store.address_of(model) else None

    def queue(
        self,
        store: Store,
        key: str | frozenset[str],
        kind: type[LocalQueue[Any, Any]] = LocalQueue,
    ) -> LocalQueue[Any, Any]:
        """Return the queue in which this process's threads wait for a key, or for any of several."""
        with self._lock:
            queue = self._queues.get((store, key))
            if queue is None:
                queue = self._queues[store, key] = kind()
            return queue

    def holders(self, store: Store, key: str) -> Iterator[Hold]:
        """Yield the acquisitions that hold a key here, in the table of a store, by whatever model."""
        for other in list(self.stores.values()):
            if other is store or other.shares_table_with(store):
                with self._lock:
                    queue = self._queues.get((other, key))
                if queue is not None and queue.holder is not None:
                    yield queue.holder


_process = Process()

lock_models: WeakSet[type[Model]] = WeakSet()
"""LockItem and its subclasses, whose own connections a fork must not share either."""


def current_process() -> Process:
    """Return what this process's locks share."""
    return _process


def store_for(model: type[Model]) -> Store:
    """Return the store of a model in this process."""
    return _process.store(model)


def forget_everything() -> None:
    """Start anew: no connection, no knowledge of server time, nothing held.

    Run in each forked child: on a shared socket parent and child would read each other's answers,
    and the parent's locks are the parent's.
    """
    global _process  # noqa: PLW0603 - one for the process is the point
    _process.left_behind = True
    for model in lock_models:
        model._connection = None
    _process = Process()


if hasattr(os, "register_at_fork"):  # pragma: no branch - Windows has no fork, nor a need for it
    os.register_at_fork(after_in_child=forget_everything)
