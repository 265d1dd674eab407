"""What a thread would do in steps, done for a task: each but the first on a thread of a small pool.

The waits between the steps are awaited, so that no thread is taken up by who waits. Nothing here
knows what the steps do.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from pynamodb_mutex._callers import acting_as, caller_name, this_caller
from pynamodb_mutex._clock import local_clock
from pynamodb_mutex._process import current_process
from pynamodb_mutex._waiting import AT_ONCE, Alarm

if TYPE_CHECKING:
    from pynamodb_mutex._waiting import Steps

_log = logging.getLogger("pynamodb_mutex")

R = TypeVar("R")
T = TypeVar("T")


class TaskAlarm(Alarm):
    """Wakes the task that made it."""

    blocks = False

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Let the task look again; called on any thread."""
        with suppress(RuntimeError):  # its loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._event.set)

    async def rings(self, until: float) -> None:
        """Await a local time, or that it rings."""
        ahead = until - local_clock().now()
        timer = None
        if ahead < math.inf:
            timer = self._loop.call_later(max(0.0, ahead), self._event.set)
        try:
            await self._event.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self._event.clear()


async def on_thread(function: Callable[[], T]) -> T:
    """Call a function on a thread, in this task's name.

    It is seen to its end, however often the task is cancelled: what was sent cannot be called back.
    Where the system refuses every thread it is called on the loop's own: others wait for a request,
    but no lock is lost, and a process that ends does not hang.
    """
    workers = current_process().tasks_workers
    call = partial(_call_as, this_caller(), caller_name(), function)
    # not an executor: one whose thread is refused raises, and yet makes the call later
    result: Future[T] = Future()
    workers.post(partial(_settle, result, partial(contextvars.copy_context().run, call)))
    workers.help_out()
    future = asyncio.wrap_future(result)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    if cancelled is None:
        return future.result()
    if future.exception() is not None:
        _log.debug("a cancelled task's call failed", exc_info=future.exception())
    raise cancelled


def _settle(future: Future[T], call: Callable[[], T]) -> None:
    """Make a call, and note in a future what came of it."""
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 - also Ctrl-C: it is for who awaits
        future.set_exception(error)
        del future  # which keeps the error, whose traceback keeps this frame


def _call_as(number: int, name: str, function: Callable[[], T]) -> T:
    with acting_as(number, name):
        return function()


async def await_steps(make: Callable[[Alarm], Steps[R]], undo: Callable[[R], object]) -> R:
    """Do all the steps for this task, the first of them at once, before anything else runs on its loop.

    Args:
        make: Returns the steps, which are woken by the alarm.
        undo: Takes back what they came to, if the task was cancelled before it was told.
    """
    alarm = TaskAlarm()
    steps = make(alarm)
    results: list[R] = []

    def step() -> float:
        try:
            return next(steps)
        except StopIteration as done:
            results.append(done.value)
            return math.inf

    def leave() -> None:
        try:
            steps.close()
            for result in results:
                undo(result)
        except Exception:  # noqa: BLE001 - the task is told of its cancellation, not of this
            _log.exception("what a cancelled task had begun could not be taken back")

    try:
        # On the loop's thread: on several threads of the pool the steps of tasks that were called one after
        # the other would overtake each other, and so would their places in line.
        until = step()
        while not results:
            if until > AT_ONCE:
                await alarm.rings(until)
            until = await on_thread(step)
        return results[0]
    except asyncio.CancelledError:
        await on_thread(leave)
        raise
