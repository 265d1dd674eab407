"""Releases all locks that this process holds: for signal handlers, and at a normal end of the interpreter."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pynamodb_mutex._lock.operations.options import as_seconds, check_duration
from pynamodb_mutex._lock.operations.release import release
from pynamodb_mutex._lock.protocol.messages import one_line, shown, shown_all
from pynamodb_mutex._lock.protocol.schedule import NEVER, RELEASE_PATIENCE
from pynamodb_mutex._lock.runtime.clock import read_clock
from pynamodb_mutex._lock.runtime.process import current_process
from pynamodb_mutex._lock.runtime.run_on_thread import ThreadSleeper, execute
from pynamodb_mutex._lock.runtime.threads import log
from pynamodb_mutex.exceptions import MutexError, MutexNotHeldError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from pynamodb_mutex._lock.operations.planning import Held
    from pynamodb_mutex._lock.runtime.process import Process

MOST_THREADS = 16
"""Most threads that release at a time: one waits for an answer for 3 s if its endpoint hangs."""


def release_all(timeout: float | timedelta = RELEASE_PATIENCE) -> list[tuple[str, Exception]]:
    """Release all locks that your process holds, of all its threads and tasks; runs of `once` go on.

    Call it in your handler of SIGTERM, and at the end of a Lambda environment. Each acquisition ends, however often you entered
    a reentrant lock, and no waiting thread of your process gets the lock. Your threads and tasks that held locks go on: for
    them ``held`` is False, guarded writes and ``release`` raise MutexNotHeldError, and a ``with`` block ends without an error,
    as after any release inside it. The library does not call ``on_lost`` for that. In a task, call this by
    ``asyncio.to_thread``, or your event loop stands still meanwhile.

    Not guaranteed: that your process holds nothing afterwards. A thread that waits for a lock may acquire it next, and this
    does not wait for a release or an acquire that another thread has under way.

    Args:
        timeout: Seconds after which this sends no more requests, except one for each lock whose release has begun, which may
            take 3 s more.

    Returns:
        The key of each lock that was not released, with the reason. The reason is MutexLostError if you had lost the lock,
        the error of the request, or MutexError if there was no time. Renewal ends for all of them, except for locks whose
        release could not begin in time. Empty if all were released.

    Raises:
        TypeError: The timeout is not a number.
        ValueError: The timeout is negative, infinite, NaN or over 100 years.

    Example::

        from pynamodb_mutex import release_all

        for key, reason in release_all(timeout=5):
            print(key, "was not released:", reason)
    """
    timeout = check_duration("timeout", as_seconds(timeout))
    if timeout < 0:
        msg = f"timeout must not be negative, got {timeout}"
        raise ValueError(msg)
    process = current_process()
    with process.monitor:
        held, is_inside = process.all_held(), process._is_stepping
    if not is_inside:
        return _release(process, held, timeout)
    # A signal handler has interrupted a step of this thread, and no other thread can run a step before it ends.
    for each in held:
        execute(process, release(each, by=read_clock() + timeout), may_be_deferred=True)
    msg = "it is released as soon as the step of this library ends that was interrupted"
    return [(claim.key, MutexError(msg, key=claim.key)) for each in held for claim in each.claims]


def _release(process: Process, held: Sequence[Held], timeout: float) -> list[tuple[str, Exception]]:
    """Release locks, on this thread and on others if the system grants any; return the locks that were not released."""
    until = read_clock() + timeout
    sleeper = ThreadSleeper()
    waiting = iter(held)
    msg = f"it was not released within {timeout:g} s"
    failures: dict[Held, Exception | None] = dict.fromkeys(held)
    pending = set(held)

    def work() -> None:
        for each in waiting:  # each is for one of the threads
            if read_clock() >= until:
                return
            try:
                execute(process, release(each, by=until))
            except Exception as error:  # noqa: BLE001 - the others are to be released all the same
                # no failure if the holder has released it meanwhile
                if type(error) is not MutexNotHeldError:
                    failures[each] = error
            pending.discard(each)
            sleeper.wake()

    # Ask for threads first, but this thread works, too: no other may start if this handler has interrupted the start of a
    # thread, or at the end of the interpreter.
    for _ in held[1:MOST_THREADS]:
        process.threads.put("pynamodb-mutex-release", work)
    process.threads.start()
    work()
    while pending and read_clock() < until:
        sleeper.sleep(until)
    failures |= {each: MutexError(msg) for each in list(pending)}
    return [
        (claim.key, error)
        for each, error in failures.items()
        if error is not None
        for claim in each.claims
    ]


def release_at_exit() -> None:
    """At a normal end of the interpreter, release the locks with renewals. The others may be meant to expire."""
    process = current_process()
    held = [each for each in process.all_held() if each.plan is not NEVER]
    if not held:
        return
    keys = [claim.key for each in held for claim in each.claims]
    log(logging.WARNING, "released at the end of the process, for nobody had: %s", shown_all(keys))
    for key, error in _release(process, held, RELEASE_PATIENCE):
        log(logging.WARNING, "%s was not released: %s", shown(key), one_line(error))
