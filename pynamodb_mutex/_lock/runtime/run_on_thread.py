"""The runner for threads: runs operations on the caller's thread, and renewals on threads of the library.

`execute` is the loop that takes an operation from effect to effect: a step inside the monitor (`Process.step`), then,
outside of it, the delivery of events, and the request or the wait that the step asked for. It also starts the renewal
loop (`pynamodb_mutex._lock.operations.renew`) when there is something to renew, and runs operations that signal handlers deferred.
The runner for asyncio tasks is `run_in_task`.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pynamodb.exceptions import PynamoDBException

from pynamodb_mutex._lock.operations.effects import Outside, Send, Start, Wait
from pynamodb_mutex._lock.operations.renew import renewal_loop
from pynamodb_mutex._lock.runtime.clock import local_clock
from pynamodb_mutex._lock.runtime.notifications import deliver, deliver_aside
from pynamodb_mutex._lock.runtime.process import InsideMonitor
from pynamodb_mutex._lock.runtime.threads import log
from pynamodb_mutex.exceptions import MutexError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamodb_mutex._lock.dynamodb.store import Request
    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.events import Event
    from pynamodb_mutex._lock.runtime.process import Process

R = TypeVar("R")

RETRY = 0.1
"""Seconds between two attempts to start a thread that the system refuses."""

INTERRUPTED = (
    "a signal handler or finaliser has interrupted this library on its thread: "
    "only a release is possible there"
)
"""Message of the MutexError that is raised for any other call there."""


class ThreadSleeper:
    """Lets a thread sleep until a local time, or until it is woken."""

    def __init__(self) -> None:
        # Always held, except between a wake-up and the end of the sleep that it ends: a sleep tries to acquire it again, a
        # wake-up releases it. That is one call, and if a signal handler raises in it, nothing is left half done. With
        # `Condition.wait`, suppose Ctrl-C comes just when it has released its lock: the `with` around it fails to release that
        # lock, and its RuntimeError hides the KeyboardInterrupt.
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def wake(self) -> None:
        """Wake the thread; if it does not sleep, its next sleep ends at once."""
        with suppress(RuntimeError):  # it has been woken already
            self._asleep.release()

    def sleep(self, until: float) -> None:
        """Sleep until a local time, or until it is woken."""
        local_clock().acquire(self._asleep, until)


def execute(  # noqa: C901, PLR0912 - one loop, which is read from top to bottom
    process: Process,
    operation: Operation[R],
    sleeper: ThreadSleeper | None = None,
    *,
    may_be_deferred: bool = False,
    interruption: BaseException | None = None,
    renews: bool = False,
) -> R:
    """Run an operation on this thread.

    An exception that interrupts the thread, such as Ctrl-C, is thrown into the operation. A signal handler, or a
    finaliser, runs on a thread that may be inside the monitor at that very moment. Its operation can neither wait
    for the interrupted step to end, nor run in the middle of it: it is deferred, or refused.

    Args:
        process: State of this process.
        operation: The operation; not begun yet, unless there is an interruption.
        sleeper: Lets the thread sleep; None for a new one, if it is needed.
        may_be_deferred: Whether the operation may run after the step that was interrupted. It must return None.
        interruption: Exception to throw into the operation first, at the effect at which another runner has left it; None to
            begin the operation.
        renews: Whether this thread serves renewals, and so waits neither for the log nor for receivers.

    Returns:
        The operation's result; None if it was deferred.

    Raises:
        MutexError: If a step of this thread was interrupted, and the operation may not be deferred.
    """
    resume: Any = operation.send if interruption is None else operation.throw
    value: Any = interruption
    request: Request | None = None
    sent = 0.0
    events: list[Event] = []
    delivers = deliver_aside if renews else deliver
    while True:
        try:
            # The time of the step is before the request is sent: leases are counted from it.
            effect, sent = process.step(resume, value, request, sent, events)
            if process.schedule.needs_loop:
                # Not only when the operation has ended: a lock is held before that, and must be renewed. A receiver may be
                # slow.
                start_renewals(process)
            if process.deferred:
                if isinstance(sleeper, _RenewalSleeper):
                    # A finaliser has run in a step of the renewal loop, which must not wait for a request.
                    process.renewal_workers.at("").post(partial(run_deferred, process))
                else:
                    run_deferred(process)
            if events:
                taken, events = events, []
                # If a receiver is interrupted, the exception is thrown into the operation below, before its effect is executed.
                delivers(process, taken)
            resume, value, request = operation.send, None, None
            if isinstance(effect, Send):
                request = effect.request
                value = request.send()
            elif isinstance(effect, Wait):
                sleeper = sleeper or ThreadSleeper()
                _wait(effect, sleeper)
            elif isinstance(effect, Outside):
                value = effect.call()
            elif isinstance(effect, Start):
                failed = "a renewal failed"
                call = partial(_run_logged, process, effect.operation, failed, renews=True)
                process.renewal_workers.at(effect.place).post(call)
        except StopIteration as done:
            _after(process, events, delivers)
            result: R = done.value
            return result
        except InsideMonitor:
            # only at the first step: a handler runs from beginning to end inside the interrupted step
            if may_be_deferred:
                process.deferred.append(operation)
                nothing: Any = None
                return nothing  # type: ignore[no-any-return]  # as may_be_deferred says
            operation.close()
            raise MutexError(INTERRUPTED) from None
        except BaseException as error:
            # the operation raised it, and has ended; or, below, it interrupted an effect
            if operation.gi_frame is None:  # type: ignore[attr-defined]  # a generator has one
                _after(process, events, delivers)
                if isinstance(error, PynamoDBException):
                    # the user needs their own call and DynamoDB's cause, not the frames in between
                    raise error.with_traceback(None) from error.__cause__
                raise
            resume, value, request = operation.throw, error, None


def _wait(effect: Wait, sleeper: ThreadSleeper) -> None:
    """Let this thread wait as an operation asks. The wait may end early: operations check their condition again."""
    wakeup = effect.wakeup
    if wakeup is None:
        sleeper.sleep(effect.until)
        return
    wakeup.sleeper = sleeper
    # `Wakeup.ring`, on another thread, sets `rung` first and reads `sleeper` second; this sets `sleeper` first and
    # reads `rung` second. So a ring at any moment is noticed here, or finds the sleeper and wakes it.
    if not wakeup.rung:
        sleeper.sleep(effect.until)
    # If a ring comes now and is cleared here, it is not lost: it was rung in a step, and this operation's next step comes after
    # that step and sees its result.
    wakeup.sleeper = None
    wakeup.rung = False


def _after(process: Process, events: list[Event], delivers: Callable[..., None]) -> None:
    """After an operation has ended, start, deliver and run what its last step has scheduled, emitted or deferred."""
    if process.schedule.needs_loop:
        start_renewals(process)
    if events:
        delivers(process, events)
    if process.threads.waiting:
        process.threads.start()
    if process.deferred:
        run_deferred(process)


def run_deferred(process: Process) -> None:
    """Run the releases that signal handlers and finalisers began inside the monitor.

    The runner calls it as soon as it has left the monitor, not when the interrupted operation has ended: that operation may wait
    for hours, perhaps for a holder that waits for the very lock to be released.
    """
    while process.deferred:
        try:
            operation = process.deferred.popleft()
        except IndexError:  # another thread was quicker
            return
        _run_logged(process, operation, "a release by a signal handler failed")


def _run_logged(
    process: Process, operation: Operation[None], what: str, *, renews: bool = False
) -> None:
    """Run an operation whose failure no caller sees; log the failure with a message."""
    try:
        execute(process, operation, renews=renews)
    except Exception:  # noqa: BLE001 - a thread that serves all locks must not end for one
        log(logging.ERROR, what, exc_info=True)


# -- renewals --------------------------------------------------------------------------------------


def start_renewals(process: Process) -> None:
    """Start the thread of the renewal loop, if the loop is needed and does not run."""
    with process.monitor:
        # asked again, inside: of two threads that found it needed, one starts it
        if not process.schedule.needs_loop:
            return
        loop = renewal_loop(process)
        # In this order: if Ctrl-C comes in between, there is one thread too many, which ends at once, and the next step starts
        # another. In the other order the process would count on a loop that never comes, and renew nothing any more.
        process.threads.put("pynamodb-mutex-renewer", partial(_run_renewals, process, loop))
        process.schedule.loop = loop
    process.threads.start()


def _run_renewals(process: Process, loop: Operation[None]) -> None:
    """Run the renewal loop on this thread until nothing has been scheduled for a while."""
    with process.monitor:
        if process.schedule.loop is not loop:
            return
    execute(process, loop, _RenewalSleeper(process), renews=True)


class _RenewalSleeper(ThreadSleeper):
    """Lets the thread of the renewal loop sleep.

    As long as the system refuses threads, it uses the time to ask for them again, and sends renewals itself if there is
    no thread that could: late is better than never.
    """

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process

    def sleep(self, until: float) -> None:
        """Sleep until a local time, or until it is woken; less long while the system refuses threads."""
        threads = self._process.threads
        if threads.refusing:
            threads.start()
            if self._process.renewal_workers.help_out():
                # Suppose one endpoint hangs, and 30 renewals wait there. The loop does not sleep, but before it sends the next
                # one it handles the locks that have become due: otherwise a lock at another endpoint would be lost behind them.
                return
        if threads.refusing:
            # A renewal that this thread sent may have taken long: ``until`` may have passed already.
            until = min(until, local_clock().now() + RETRY)
        super().sleep(until)
