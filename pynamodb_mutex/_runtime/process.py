"""The state of this process, and the monitor that guards it. A forked child starts with nothing of its parent's."""

from __future__ import annotations

import os
import random
import threading
import time
import uuid
from collections import deque
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from pynamodb_mutex._dynamodb.pynamodb_private import forget_connection
from pynamodb_mutex._dynamodb.store import Store
from pynamodb_mutex._operations.shared import Shared
from pynamodb_mutex._runtime.clock import read_clock
from pynamodb_mutex._runtime.notifications import RECEIVERS, Notifier
from pynamodb_mutex._runtime.threads import Threads, Workers

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamodb.models import Model

    from pynamodb_mutex._dynamodb.store import Request
    from pynamodb_mutex._operations.effects import Effect, Operation
    from pynamodb_mutex._operations.events import Event

RENEWAL_WORKERS = 8
"""Threads that send renewals, at most."""

TASK_WORKERS = 16
"""Requests of tasks under way at a time, at most. Each takes a few seconds at the very worst."""


def _random_bits() -> str:
    """Return random bits.

    The clock and the process are mixed in because copies of a virtual machine may draw the same random
    numbers.
    """
    return f"{uuid.uuid4().hex[13:]}{time.monotonic_ns() & 0xFFFFFFFF:08x}{os.getpid():x}"


class InsideMonitor(Exception):  # noqa: N818 - not an error: the runner handles it
    """A signal handler, or a finaliser, has interrupted a step of this very thread, and calls a lock."""


class Process(Shared):
    """What the locks of one process share, and what executes their operations.

    Attributes:
        monitor: Held while an operation runs from one effect to the next, and never while a request is sent, a
            wait lasts, or user code runs.
        deferred: Operations that a signal handler began inside the monitor. They run when it is left.
        threads: Starts the threads.
        renewal_workers: Send renewals.
        task_workers: Send the requests of tasks.
        notifier: Reports renewals.
    """

    def __init__(self) -> None:
        super().__init__(read_clock, random.uniform, _random_bits, RECEIVERS)
        # Reentrant: a signal handler runs on a thread that may be inside, and must find that out, not wait.
        self.monitor = threading.RLock()
        self._is_stepping = False
        self.deferred: deque[Operation[Any]] = deque()
        self.threads = Threads()
        self.renewal_workers = Workers(self.threads, "pynamodb-mutex-worker", RENEWAL_WORKERS)
        self.task_workers = Workers(self.threads, "pynamodb-mutex-aio", TASK_WORKERS)
        self.notifier = Notifier(self.threads)

    @property
    def waits_for_threads(self) -> bool:
        """Whether something waits for a thread that the system refuses."""
        return self.threads.refusing

    def store(self, model: type[Model]) -> Store:
        """Return the store of a model, a new one if its Meta now names another table."""
        store = self.known_store(model)
        if store is None:
            made = Store(model, self.server_times, read_clock)
            with self.monitor:
                # another thread may have made one meanwhile, and two stores would be two queues
                store = self.known_store(model)
                if store is None:
                    store = self.stores[model] = made
        return store

    def step(
        self,
        resume: Callable[[Any], Effect],
        value: Any,
        request: Request | None,
        sent: float,
        events: list[Event],
    ) -> tuple[Effect, float]:
        """Run an operation to its next effect, inside the monitor.

        Args:
            resume: Its ``send`` or ``throw``.
            value: What it gets.
            request: The request that ``value`` is the reply to, if it is one.
            sent: Local time before that was sent.
            events: Where to put what happens.

        Returns:
            The effect, and the local time of this step.

        Raises:
            StopIteration: With the operation's result.
            InsideMonitor: If this thread is inside the monitor already.
        """
        with self.monitor:
            if self._is_stepping:
                raise InsideMonitor
            self._is_stepping = True
            try:
                now = self.now = read_clock()
                if request is not None and request.store.learn(value, sent, now):
                    # what was planned for ends of leases that have come nearer is planned anew
                    self.schedule.refresh_all()
                return resume(value), now
            finally:
                if self.outbox:
                    events += self.outbox
                    self.outbox = []
                self._is_stepping = False


_process = Process()

lock_models: WeakSet[type[Model]] = WeakSet()
"""Models whose own connections a fork must not share either."""


def current_process() -> Process:
    """Return the state of this process."""
    return _process


def forget_everything() -> None:
    """Start anew: no connection, no knowledge of server time, nothing held.

    Run in each forked child: on a shared socket parent and child would read each other's answers,
    and the parent's locks are the parent's.
    """
    global _process
    left, _process = _process, Process()
    left.inherited = True
    # another thread of the parent may have been inside
    left.monitor, left._is_stepping = threading.RLock(), False
    for model in lock_models:
        forget_connection(model)


if hasattr(os, "register_at_fork"):  # pragma: no branch - Windows has no fork, nor a need for it
    os.register_at_fork(after_in_child=forget_everything)
