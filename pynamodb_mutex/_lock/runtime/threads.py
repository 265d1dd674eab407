"""Starts all of the library's threads, and copes with a system that refuses them.

A system may refuse threads for a while: at a container's limit, or without memory for a stack. Nothing is lost by that. The
functions wait, and each thread that gets here later tries again: one of the library's own, or a user's that calls a lock.
`Threads` starts a thread for one function, `Workers` are a few threads that make calls from a queue, `WorkersByEndpoint` a few
for each endpoint. The other modules of this folder have the functions that run on them; they write to the log by `log`, so that
no thread ends for that.
"""

from __future__ import annotations

import logging
import math
import threading
import traceback
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from pynamodb_mutex._lock.runtime.clock import read_clock

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("pynamodb_mutex")

LINGER = 5.0
"""Seconds without work after which a worker ends. It may be needed again soon."""

QUICK = 0.03
"""A call that takes fewer seconds is quick. As long as there are quick calls, `Workers` that begin with few stay few."""

LOOK = 0.1
"""Seconds after which workers are doubled, if calls wait and none was quick."""

REFUSALS = (RuntimeError, MemoryError)
"""Exceptions that ``Thread.start`` raises when the system refuses a thread."""


def log(level: int, message: str, *args: object, **options: Any) -> None:
    """Write a log record, as `logging.Logger.log` does; print an error of the application's filters and handlers.

    Suppose a filter asks a web framework for the present request: it raises on a thread that serves no request. The error would
    end the renewal loop, and with it the renewal of all locks, before `on_lost` is called; or it would end a worker, on which
    `post` would rely for ever. It cannot be logged, so it is printed, as `logging` does with the errors of its handlers.
    """
    try:
        _log.log(level, message, *args, **options, stacklevel=2)
    except Exception:  # noqa: BLE001 - code of the application's
        # If the terminal has gone, printing raises, too.
        with suppress(Exception):
            traceback.print_exc()


class Threads:
    """Starts the threads of one process.

    Attributes:
        refusing: Whether the system refused the last thread that we asked for: then some function waits for it.
        waiting: Functions that wait for a thread, each as the thread's name and a list with the function: see `_run`. Even
            without a refusal one is left here if Ctrl-C came between `put` and `start`.
    """

    def __init__(self) -> None:
        self.refusing = False
        self.waiting: deque[tuple[str, list[Callable[[], object]]]] = deque()
        self._starting = threading.Lock()

    def put(self, name: str, run: Callable[[], object]) -> None:
        """Queue a function that is to run on a thread of its own, which `start` starts."""
        self.waiting.append((name, [run]))

    def start(self) -> None:
        """Start a thread for each function that waits, unless the system refuses.

        If the system refuses, it does not raise, and it waits for nothing: a property may call it.
        """
        # It does not wait for the lock: the thread that has the lock starts threads for all functions that wait. Suppose thread
        # A finds nothing more to start; B adds a function, and does not get the lock; A releases it. So A checks again after
        # the release.
        while self.waiting and self._starting.acquire(blocking=False):
            was_refusing = self.refusing
            try:
                refusal = self._start_first()
            finally:
                self._starting.release()
            if refusal is not None:
                # "... at interpreter shutdown": no thread will ever come, and nobody needs to know
                if not was_refusing and "shutdown" not in str(refusal[1]):
                    # After the release of the lock: the output of the log may block for a minute, and as long as this thread
                    # has the lock, no other can start any.
                    text = "the system refuses the thread %s, to be tried again: %r"
                    log(logging.WARNING, text, *refusal)
                return

    def _start_first(self) -> tuple[str, Exception] | None:
        """Start a thread for the first function that waits; return its name and the error if the system refused it."""
        if not self.waiting:
            return None  # another thread has started it since `start` saw it
        name, job = self.waiting[0]
        try:
            threading.Thread(target=_run, args=(job,), name=name, daemon=True).start()
        except REFUSALS as error:
            self.refusing = True
            return name, error
        # Only now: if Ctrl-C comes before the thread has started, the function must still wait for one. If it comes after that,
        # a second thread is started, which finds the list empty. So the function runs exactly once.
        self.waiting.popleft()
        self.refusing = False
        return None


def _run(job: list[Callable[[], object]]) -> None:
    """Run the function in a list, unless another thread has taken it out."""
    try:
        run = job.pop()
    except IndexError:
        # `_start_first` was interrupted after it had started a thread for the function, and started another one later
        return
    run()


class Workers:
    """A few threads that make posted calls, first come first served. They start when needed and end when idle.

    Args:
        threads: Starts them.
        name: Name of each of the threads.
        most: Most threads at a time.
        few: Most threads until calls are slow; None for ``most``.
    """

    def __init__(self, threads: Threads, name: str, most: int, few: int | None = None) -> None:
        self._threads = threads
        self._name = name
        self._most = most
        self._few = most if few is None else few
        self._posted = threading.Condition()
        self._outbox: deque[Callable[[], object]] = deque()
        # threads that were asked for and have not ended; how many of them run; how many of them wait for a call
        self._asked_for = 0
        self._running = 0
        self._idle = 0
        # whether `_watch` runs, or is to; whether a quick call has ended since its last check
        self._is_watched = False
        self._was_quick = False

    def post(self, call: Callable[[], object], most: float = math.inf) -> bool:
        """Queue a call that a worker is to make soon, unless ``most`` calls wait already; return whether it is queued."""
        with self._posted:
            if len(self._outbox) >= most:
                return False
            self._outbox.append(call)
            # Not "if any is idle": a worker that was notified for an earlier call counts as idle until it runs.
            if self._idle >= len(self._outbox):
                self._posted.notify()
            elif self._asked_for < self._few:
                self._add()
            elif self._asked_for < self._most and not self._is_watched:
                self._threads.put(f"{self._name}-watch", self._watch)
                self._is_watched = True
        self._threads.start()
        return True

    def _add(self) -> None:
        """Ask for one worker more."""
        # Counted after it is queued: if Ctrl-C comes in between, there is one thread too many, not one that never comes.
        self._threads.put(self._name, self._work)
        self._asked_for += 1

    def _watch(self) -> None:
        """Double the workers, up to ``most``, while calls wait and none is quick; end when no call waits.

        Suppose the answers come at once. Then the processor is the limit: more threads make hardly more calls, and take the
        interpreter from the event loop for a second at a time. On a busy processor most calls take long, so a slow call does
        not mean that answers are slow; a quick call means that they are not.

        Suppose all workers wait for an endpoint that hangs, and no `post` follows a burst of tasks. No worker can add another:
        so this thread does.
        """
        while self._is_watched:
            self._was_quick = False
            threading.Event().wait(LOOK)
            with self._posted:
                more = min(len(self._outbox), self._asked_for, self._most - self._asked_for)
                for _ in range(0 if self._was_quick else more):
                    self._add()
                self._is_watched = bool(self._outbox) and self._asked_for < self._most
            self._threads.start()

    def help_out(self) -> bool:
        """Make one posted call on this thread if no worker runs and the system refuses one; return whether it made one.

        The thread that calls this, such as that of the renewal loop or of an event loop, should not wait for requests.
        It does so only because late is better than never.
        """
        if not self._threads.refusing:
            return False
        with self._posted:
            if self._running or not self._outbox:
                return False
            call = self._outbox.popleft()
        self._make(call)
        self._threads.start()
        return True

    def _work(self) -> None:
        """Make calls until there have been none for a while."""
        with self._posted:
            self._running += 1
        while (call := self._next()) is not None:
            began = read_clock()
            # Suppose a receiver of `released` ends a worker by `sys.exit()`, or by a CancelledError. `post` would rely on that
            # worker for ever: after ``most`` of them, no call would be made any more.
            self._make(call, BaseException)
            if read_clock() - began < QUICK:
                self._was_quick = True

    def _next(self) -> Callable[[], object] | None:
        """Return the next call for a worker; None if it is to end, after uncounting it."""
        with self._posted:
            self._idle += 1
            if not self._outbox:
                self._posted.wait(LINGER)
            self._idle -= 1
            # Even if the wait has timed out: `post` may have notified this worker just then. The worker is uncounted under the
            # same lock, so that `post` never relies on a worker that is about to end.
            if self._outbox:
                return self._outbox.popleft()
            self._running -= 1
            self._asked_for -= 1
            return None

    def _make(self, call: Callable[[], object], caught: type[BaseException] = Exception) -> None:
        """Make a call; if it raises an exception of the type ``caught``, log it."""
        try:
            call()
        except caught:
            log(logging.ERROR, "a call of %s failed", self._name, exc_info=True)


class WorkersByEndpoint:
    """Workers for the requests of each endpoint.

    Suppose an endpoint hangs, and every worker waits for it, for 3 s at a time. If all endpoints shared the workers, 100 locks
    there would queue 100 renewals, and a lock at another endpoint, in another region, would be lost behind them.

    Args:
        threads: Starts them.
        name: Name of each of the threads.
        most: Most threads at a time for one endpoint.
        few: As for `Workers`.
    """

    def __init__(self, threads: Threads, name: str, most: int, few: int | None = None) -> None:
        self._make = partial(Workers, threads, name, most, few)
        self._by_endpoint: dict[str, Workers] = {}

    def at(self, place: str) -> Workers:
        """Return the workers for the requests of a `Connection.place`; "" stands for all other calls."""
        # `setdefault`: two threads that ask at once get the same workers
        return self._by_endpoint.get(place) or self._by_endpoint.setdefault(place, self._make())

    def help_out(self) -> bool:
        """Make a posted call for each endpoint on this thread as `Workers.help_out` does; return whether it made any."""
        made_a_call = [workers.help_out() for workers in list(self._by_endpoint.values())]
        return any(made_a_call)
