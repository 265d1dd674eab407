"""Runs operations on threads: on the caller's, and those of renewals on threads of the library."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pynamodb.exceptions import PynamoDBException

from pynamodb_mutex._operations.effects import Open, Send, Start, Wait
from pynamodb_mutex._operations.renew import renewal_loop
from pynamodb_mutex._runtime.clock import local_clock
from pynamodb_mutex._runtime.notifications import deliver
from pynamodb_mutex._runtime.process import InsideMonitor
from pynamodb_mutex.exceptions import MutexError

if TYPE_CHECKING:
    from pynamodb_mutex._dynamodb.store import Request
    from pynamodb_mutex._operations.effects import Operation
    from pynamodb_mutex._operations.events import Event
    from pynamodb_mutex._runtime.process import Process

_log = logging.getLogger("pynamodb_mutex")

R = TypeVar("R")

RETRY = 0.1
"""Seconds from one try to the next to start a thread that the system refuses."""

INTERRUPTED = (
    "a signal handler or finaliser has interrupted this library on its thread: "
    "only a release is possible there"
)
"""What a MutexError says there."""


class ThreadSleeper:
    """Lets a thread sleep until a local time, or until it is woken."""

    def __init__(self) -> None:
        # Held, but from a wake-up to the sleep that it ends. To acquire it is one call, which a signal handler that
        # raises ends without a trace. Not so `Condition.wait`: a Ctrl-C just after it has released its lock leaves
        # nothing to release to the `with` around it, whose RuntimeError then hides the KeyboardInterrupt.
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def wake(self) -> None:
        """Wake it, also if it is only about to sleep."""
        with suppress(RuntimeError):  # it has been woken already
            self._asleep.release()

    def sleep(self, until: float) -> None:
        """Sleep until a local time, or until it is woken."""
        local_clock().acquire(self._asleep, until)


def run(  # noqa: C901, PLR0912 - one loop, which is read from top to bottom
    process: Process,
    operation: Operation[R],
    sleeper: ThreadSleeper | None = None,
    *,
    may_be_deferred: bool = False,
    interruption: BaseException | None = None,
) -> R:
    """Run an operation on this thread.

    What interrupts the thread, such as Ctrl-C, is thrown into the operation. A signal handler, or a
    finaliser, runs on a thread that may be inside the monitor at that very moment. It can neither wait
    for the interrupted step to end, nor run in the middle of it.

    Args:
        process: The state of this process.
        operation: Not begun yet, unless there is an interruption.
        sleeper: Lets the thread sleep.
        may_be_deferred: Whether the operation may run after the step that was interrupted: it returns nothing.
        interruption: Thrown into the operation first, at the effect to which another runner has brought it.

    Returns:
        What the operation returns.

    Raises:
        MutexError: If a step was interrupted, and it may not be deferred.
    """
    resume: Any = operation.send if interruption is None else operation.throw
    value: Any = interruption
    request: Request | None = None
    sent = 0.0
    events: list[Event] = []
    while True:
        try:
            effect, sent = process.step(resume, value, request, sent, events)
            if process.schedule.is_wanted:
                # A lock is held before its operation has ended: a receiver may be slow, and a waiter that has acquired
                # one key waits until it knows whether another is handed over to it.
                start_renewals(process)
            if process.deferred:
                run_deferred(process)
            if events:
                taken, events = events, []
                deliver(process, taken)
            resume, value, request = operation.send, None, None
            if isinstance(effect, Send):
                request = effect.request
                value = request.send()
            elif isinstance(effect, Wait):
                sleeper = sleeper or ThreadSleeper()
                _wait(effect, sleeper)
            elif isinstance(effect, Open):
                effect.store.connection.open()
            elif isinstance(effect, Start):
                start(process, effect.operation)
        except StopIteration as done:
            _after(process, events)
            result: R = done.value
            return result
        except InsideMonitor:
            if may_be_deferred:
                process.deferred.append(operation)
                nothing: Any = None
                return nothing  # type: ignore[no-any-return]  # as may_be_deferred says
            operation.close()
            raise MutexError(INTERRUPTED) from None
        except BaseException as error:
            if operation.gi_frame is None:  # type: ignore[attr-defined]  # a generator has one
                _after(process, events)
                if isinstance(error, PynamoDBException):
                    # what is of interest is the call, and DynamoDB's cause, not the way between
                    raise error.with_traceback(None) from error.__cause__
                raise
            resume, value, request = operation.throw, error, None


def _wait(effect: Wait, sleeper: ThreadSleeper) -> None:
    wakeup = effect.wakeup
    if wakeup is None:
        sleeper.sleep(effect.until)
        return
    wakeup.sleeper = sleeper
    # A ring sets `rung` first and reads `sleeper` second; this does the opposite. So a ring at any moment is
    # noticed here, or finds the sleeper.
    if not wakeup.rung:
        sleeper.sleep(effect.until)
    wakeup.sleeper = None
    wakeup.rung = False


def _after(process: Process, events: list[Event]) -> None:
    """Do what is to be done when an operation has ended."""
    if process.schedule.is_wanted:
        start_renewals(process)
    if events:
        deliver(process, events)
    if process.threads.refusing:
        process.threads.start()
    if process.deferred:
        run_deferred(process)


def run_deferred(process: Process) -> None:
    """Run the releases that signal handlers and finalisers began inside the monitor.

    Called as soon as the monitor is left: the operation that was interrupted may wait for hours after
    that step, perhaps for a holder that waits for the very lock that was released.
    """
    while process.deferred:
        try:
            operation = process.deferred.popleft()
        except IndexError:  # another thread was quicker
            return
        _run_logged(process, operation, "a release by a signal handler failed")


# -- renewals --------------------------------------------------------------------------------------


def start(process: Process, operation: Operation[None]) -> None:
    """Run an operation in the background."""
    what = "a renewal failed"
    process.renewal_workers.post(partial(_run_logged, process, operation, what))


def _run_logged(process: Process, operation: Operation[None], what: str) -> None:
    try:
        run(process, operation)
    except Exception:  # noqa: BLE001 - a thread that serves all locks must not end for one
        _log.exception(what)


def start_renewals(process: Process) -> None:
    """Start the thread of the renewal loop, if it is needed."""
    with process.monitor:
        if not process.schedule.is_wanted:
            return
        process.schedule.is_wanted = False
        process.schedule.runs = True
    process.threads.put("pynamodb-mutex-renewer", partial(_run_renewals, process))
    process.threads.start()


def _run_renewals(process: Process) -> None:
    run(process, renewal_loop(process), _RenewalSleeper(process))


class _RenewalSleeper(ThreadSleeper):
    """Lets the thread of the renewal loop sleep.

    As long as the system refuses threads, it asks for them again, and sends renewals itself if there is no
    thread that could: late is better than never.
    """

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process

    def sleep(self, until: float) -> None:
        """Sleep until a local time, or until it is woken."""
        threads = self._process.threads
        while threads.refusing:
            threads.start()
            self._process.renewal_workers.help_out()
            if not threads.refusing:
                break
            now = local_clock().now()
            if now >= until:
                return
            super().sleep(min(until, now + RETRY))
            return
        super().sleep(until)
