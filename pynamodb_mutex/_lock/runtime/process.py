"""The state of this process, and the monitor that guards it.

The state itself is plain data (`pynamodb_mutex._lock.operations.process_state`): holders, waiters, server time, the schedule of
renewals. `Process` adds the monitor, in which operations run step by step, and the threads. Each process has one: a forked child
starts with a new one and with nothing of its parent's.
"""

from __future__ import annotations

import os
import random
import threading
import time
import uuid
from collections import deque
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from pynamodb_mutex._lock.dynamodb.pynamodb_private import forget_connection
from pynamodb_mutex._lock.dynamodb.store import Store
from pynamodb_mutex._lock.operations.events import LockEvent, NoLock
from pynamodb_mutex._lock.operations.process_state import ProcessState
from pynamodb_mutex._lock.runtime.clock import local_clock, read_clock
from pynamodb_mutex._lock.runtime.notifications import RECEIVERS, logs_details
from pynamodb_mutex._lock.runtime.threads import Threads, Workers, WorkersByEndpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamodb.models import Model

    from pynamodb_mutex._lock.dynamodb.store import Request
    from pynamodb_mutex._lock.operations.effects import Effect, Operation
    from pynamodb_mutex._lock.operations.events import Event

RENEWAL_WORKERS = 32
"""Most threads that send renewals to one endpoint. Another thread starts only if a renewal is due while none is idle.

If a renewal takes 100 ms, they send 320 a second, for 3,200 locks of 30 s. Below 60 ms the processor is the limit (2 ms for each),
and more threads would send no more. With the workers for tasks they are fewer than `POOL_CONNECTIONS`.
"""

TASK_WORKERS = 48
"""Most requests of tasks under way at a time, to one endpoint. Each takes a few seconds at the very worst.

If a request takes 100 ms, they send 480 a second.
"""

FEW_TASK_WORKERS = 8
"""Most such requests while a request takes less than 30 ms. With 48, a burst of tasks would keep the event loop from running."""

REPORTS_EVERY = 60.0
"""Seconds between two reports that clocks of an endpoint disagree."""


def _random_bits() -> str:
    """Return more than 80 random bits, as hexadecimal digits.

    Two copies of a virtual machine may draw the same random numbers. So this adds the clock and the process id: they probably
    differ.
    """
    return f"{uuid.uuid4().hex[13:]}{time.monotonic_ns() & 0xFFFFFFFF:08x}{os.getpid():x}"


class InsideMonitor(Exception):  # noqa: N818 - not an error: the runner handles it
    """Raised by a step that would run in the middle of another step on the same thread.

    A signal handler or a finaliser has interrupted that other step, and calls a lock.
    """


class Process(ProcessState):
    """The state that the locks of one process share, with the monitor and the threads that execute their operations.

    Attributes:
        monitor: Held while an operation runs from one effect to the next, and never while a request is sent, a
            wait lasts, or user code runs.
        deferred: Operations that a signal handler or a finaliser began inside the monitor. They run once it is left.
        threads: Starts the threads.
        renewal_workers: Threads that send renewals.
        task_workers: Threads that send the requests of tasks.
        notifier: The thread that sends the signals of renewals, one after the other.
        reporter: The thread that delivers the events of renewals to the log, and their signals to the notifier.
    """

    def __init__(self) -> None:
        super().__init__(read_clock, random.uniform, _random_bits, RECEIVERS, logs_details)
        # Reentrant, because a signal handler runs on a thread that may be inside already. With a plain lock it would
        # wait for ever for the step that it interrupted; so it gets in, and finds `_is_stepping` set.
        self.monitor = threading.RLock()
        self._is_stepping = False
        self.deferred: deque[Operation[Any]] = deque()
        self.threads = Threads()
        self.renewal_workers = WorkersByEndpoint(
            self.threads, "pynamodb-mutex-worker", RENEWAL_WORKERS
        )
        self.task_workers = WorkersByEndpoint(
            self.threads, "pynamodb-mutex-aio", TASK_WORKERS, FEW_TASK_WORKERS
        )
        self.notifier = Workers(self.threads, "pynamodb-mutex-notifier", 1)
        self.reporter = Workers(self.threads, "pynamodb-mutex-log", 1)

    @property
    def waits_for_threads(self) -> bool:
        return self.threads.refusing

    def this_thread(self) -> int:
        return threading.get_ident()

    def store(self, model: type[Model]) -> Store:
        """Return the store of a model; a new store if its Meta names another table, region or host by now."""
        store = self.known_store(model)
        if store is None:
            # outside the monitor, because it runs user code: the defaults of extra attributes
            new = Store(model, self.server_times, read_clock)
            with self.monitor:
                # Another thread may have made a store meanwhile. Each store has queues of its own: with two stores, waiters for
                # one key would stand in different queues, and poll without knowing of each other.
                store = self.known_store(model)
                if store is None:
                    store = self.stores[model] = new
        return store

    def step(
        self,
        resume: Callable[[Any], Effect],
        value: Any,
        request: Request | None,
        sent: float,
        events: list[Event],
        *,
        blocks: bool = True,
    ) -> tuple[Effect, float]:
        """Run an operation to its next effect, inside the monitor.

        Args:
            resume: The operation's ``send`` or ``throw``.
            value: What the operation gets: the result of the last effect, or an exception.
            request: The request to which ``value`` is the reply; None if it is no reply.
            sent: Local time before that request was sent.
            events: List to which the events of this step are added, for the runner to deliver.
            blocks: Whether the operation blocks this thread while it waits.

        Returns:
            The effect, and the local time of this step; if the effect is a request, that is before it is sent.

        Raises:
            StopIteration: With the operation's result.
            InsideMonitor: If this thread is inside the monitor already.
        """
        with self.monitor:
            # only this thread can have set it, since it has the monitor: so this is a handler that interrupted a step
            if self._is_stepping:
                raise InsideMonitor
            self._is_stepping = True
            try:
                now = self.now = read_clock()
                self.blocks = blocks
                # Before the operation sees the reply, so that it decides by bounds which include it. Suppose the process's
                # clock stood still: by older bounds the operation would take a claim for running that this very reply shows as
                # ended.
                if request is not None and request.store.learn(value, sent, now):
                    # Leases end earlier than was known: plan their renewals anew.
                    self.schedule.refresh_all()
                if request is not None and request.store.connection.server.contradictions:
                    self._report_contradictions(request.store)
                return resume(value), now
            finally:
                # Inside the monitor, so that the events of no other step get among them; and even if the operation has ended or
                # failed, because the events that it emitted before have happened.
                if self.outbox:
                    events += self.outbox
                    self.outbox = []
                self._is_stepping = False

    def _report_contradictions(self, store: Store) -> None:
        """Report that answers of an endpoint contradict each other about the time, at most once a minute."""
        url, server = store.connection.url, store.connection.server
        if local_clock().by_hand or self.now < server.silent_until:
            return
        fields = {"endpoint": url, "behind": server.behind, "answers": server.contradictions}
        self.emit(LockEvent("clocks_disagree", NoLock(store.model), None, fields))
        server.contradictions, server.behind, server.silent_until = 0, 0.0, self.now + REPORTS_EVERY


_process = Process()

lock_models: WeakSet[type[Model]] = WeakSet()
"""All models with locks: a forked child must not use the connections that PynamoDB made for them in the parent."""


def current_process() -> Process:
    """Return the state of this process."""
    return _process


def forget_everything() -> None:
    """Start anew: no connection, no knowledge of server time, nothing held.

    Python calls it in each forked child: on a shared socket parent and child would read each other's answers, and the parent
    still holds its locks.
    """
    global _process
    left, _process = _process, Process()
    # Lock objects of the parent still refer to the old state. This flag makes their claims count as the parent's.
    left.inherited = True
    for leave in left.at_fork:
        leave()
    # Another thread of the parent may have been inside the monitor at the fork. It does not exist here and would never leave:
    # a call of one of the parent's locks would wait for ever. Or this thread forks inside a step.
    left.monitor, left._is_stepping = threading.RLock(), False
    for model in lock_models:
        forget_connection(model)


if hasattr(os, "register_at_fork"):  # pragma: no branch - Windows has no fork, nor a need for it
    os.register_at_fork(after_in_child=forget_everything)
