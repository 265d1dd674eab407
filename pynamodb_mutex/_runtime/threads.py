"""The one place that starts the library's threads, and knows what to do when the system refuses one.

A system refuses threads for a while: at a container's limit, or without memory for a stack. Nothing
is lost by that. What was to run waits, and each thread that comes by here tries again: one of the
library's own that lives already, or one that calls a lock.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_log = logging.getLogger("pynamodb_mutex")

LINGER = 5.0
"""Seconds without work after which a thread ends that may be needed again."""

REFUSALS = (RuntimeError, MemoryError)
"""What ``Thread.start`` raises when the system refuses a thread."""


@contextmanager
def going_on(message: str) -> Iterator[None]:
    """Log what is raised inside the block, so that the thread goes on."""
    try:
        yield
    except Exception:  # noqa: BLE001 - a thread that serves all locks must not end for one
        _log.exception(message)


class Threads:
    """Starts the threads of one process.

    Attributes:
        refusing: Whether the system refused a thread when it was last asked for one, so that
            something waits for it.
    """

    def __init__(self) -> None:
        self.refusing = False
        # the name of the thread, and a list of the one function that it is to run
        self._waiting: deque[tuple[str, list[Callable[[], object]]]] = deque()
        self._starting = threading.Lock()

    def put(self, name: str, run: Callable[[], object]) -> None:
        """Let a function wait for a thread of its own, which `start` starts."""
        self._waiting.append((name, [run]))

    def start(self) -> None:
        """Start a thread for each function that waits, as far as the system lets us.

        Never raises because of a refusal, and waits for nothing: it may be called from a property.
        """
        # Do not wait for the lock: its holder starts threads for everything that waits. It checks again
        # after it has released the lock, for what was added meanwhile by a thread that did not get it.
        while self._waiting and self._starting.acquire(blocking=False):
            try:
                if not self._start_first():
                    return
            finally:
                self._starting.release()

    def _start_first(self) -> bool:
        """Start a thread for the first that waits; return whether the system let us."""
        if not self._waiting:
            return True  # another thread came first
        name, job = self._waiting[0]
        try:
            threading.Thread(target=_run, args=(job,), name=name, daemon=True).start()
        except REFUSALS as error:
            # at the end of the process none will ever come, and nobody needs to know
            if not self.refusing and "shutdown" not in str(error):
                _log.warning("the system refuses the thread %s, to be tried again: %r", name, error)
            self.refusing = True
            return False
        self._waiting.popleft()
        self.refusing = False
        return True


def _run(job: list[Callable[[], object]]) -> None:
    try:
        run = job.pop()
    except IndexError:
        # whoever started the first thread for it was interrupted before it could take note of that
        return
    run()


class Workers:
    """A few threads that make the calls that are posted, first come first served.

    Args:
        threads: Starts them, when there is something to do.
        name: Theirs.
        most: How many there are at a time, at most.
    """

    def __init__(self, threads: Threads, name: str, most: int) -> None:
        self._threads = threads
        self._name = name
        self._most = most
        self._posted = threading.Condition()
        self._outbox: deque[Callable[[], object]] = deque()
        self._asked_for = 0
        self._running = 0
        self._idle = 0

    def post(self, call: Callable[[], object]) -> None:
        """Let a worker make a call soon."""
        with self._posted:
            self._outbox.append(call)
            if self._idle >= len(self._outbox):
                self._posted.notify()
            elif self._asked_for < self._most:
                self._threads.put(self._name, self._work)
                self._asked_for += 1
        self._threads.start()

    def help_out(self) -> None:
        """Make the calls on this thread, as long as no worker runs and the system refuses one.

        Late is better than never: for that alone a thread calls this that should not wait.
        """
        while self._threads.refusing:
            with self._posted:
                if self._running or not self._outbox:
                    return
                call = self._outbox.popleft()
            self._make(call)
            self._threads.start()

    def _work(self) -> None:
        with self._posted:
            self._running += 1
        while (call := self._next()) is not None:
            self._make(call)

    def _next(self) -> Callable[[], object] | None:
        """Return what a worker is to do next; None if it is to end, and not counted any more."""
        with self._posted:
            self._idle += 1
            if not self._outbox:
                self._posted.wait(LINGER)
            self._idle -= 1
            if self._outbox:
                return self._outbox.popleft()
            self._running -= 1
            self._asked_for -= 1
            return None

    def _make(self, call: Callable[[], object]) -> None:
        with going_on(f"a call of {self._name} failed"):
            call()
