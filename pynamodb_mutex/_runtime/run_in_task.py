"""Runs operations for asyncio tasks: their requests are sent on a few threads, and waiting takes none."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pynamodb.exceptions import PynamoDBException

from pynamodb_mutex._operations.effects import Open, Send, Wait
from pynamodb_mutex._operations.events import LockEvent
from pynamodb_mutex._runtime.callers import acting_as, caller
from pynamodb_mutex._runtime.clock import local_clock
from pynamodb_mutex._runtime.notifications import deliver
from pynamodb_mutex._runtime.run_on_thread import start_renewals

if TYPE_CHECKING:
    from pynamodb_mutex._dynamodb.store import Request
    from pynamodb_mutex._operations.effects import Effect, Operation
    from pynamodb_mutex._operations.events import Event
    from pynamodb_mutex._runtime.process import Process

_log = logging.getLogger("pynamodb_mutex")

R = TypeVar("R")
T = TypeVar("T")

Undo = Callable[[R], "Operation[Any]"]
"""Returns the operation that takes back what an operation came to."""


class TaskSleeper:
    """Lets the task that made it sleep until a local time, or until it is woken."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def wake(self) -> None:
        """Wake the task; called on any thread."""
        with suppress(RuntimeError):  # its loop is closed: nobody sleeps any more
            self._loop.call_soon_threadsafe(self._event.set)

    async def sleep(self, until: float) -> None:
        """Sleep until a local time, or until it is woken."""
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


async def run(  # noqa: C901 - one loop, which is read from top to bottom
    process: Process, operation: Operation[R], undo: Undo[R] | None = None
) -> R:
    """Run an operation for this task; its first step at once, before anything else runs on the loop.

    What was sent cannot be called back: however often the task is cancelled, it waits for the answer.

    Args:
        process: The state of this process.
        operation: Not begun yet.
        undo: For an operation that cancelling the task interrupts: the cancellation is thrown into it at its next
            effect or, if it has ended by then, what it came to is taken back. Without, the operation runs to its
            end, and the task is cancelled after that.
    """
    resume: Any = operation.send
    value: Any = None
    request: Request | None = None
    sent = 0.0
    events: list[Event] = []
    cancelled: asyncio.CancelledError | None = None
    while True:
        try:
            effect, sent = process.step(resume, value, request, sent, events)
            resume, request = operation.send, None
            if events:
                taken, events = events, []
                cancelled = await _delivered(process, taken) or cancelled
            if cancelled is not None and undo is not None:
                raise cancelled  # noqa: TRY301 - thrown into the operation below
            if isinstance(effect, Send):
                request = effect.request
            value, interruption = await _perform(process, effect)
            cancelled = cancelled or interruption
        except StopIteration as done:
            result: R = done.value
            cancelled = await _after(process, events) or cancelled
            if cancelled is None:
                return result
            if undo is not None:
                await _undone(process, undo(result))
            raise cancelled from None
        except BaseException as error:  # noqa: BLE001 - raised again, by the operation
            if operation.gi_frame is None:  # type: ignore[attr-defined]  # a generator has one
                raise await _failure(process, error, events, cancelled) from error.__cause__
            if not isinstance(error, asyncio.CancelledError):
                resume, value, request = operation.throw, error, None
                continue
            cancelled, value, request = error, None, None
            if undo is not None:
                # thrown once: what the operation does about it is seen to its end
                resume, value, undo = operation.throw, error, None


async def _perform(process: Process, effect: Effect) -> tuple[Any, asyncio.CancelledError | None]:
    """Do what an operation asks for; return what it gets for it, and what cancelled the task meanwhile."""
    if isinstance(effect, Send):
        return await _to_its_end(process, effect.request.send)
    if isinstance(effect, Open):
        return await _to_its_end(process, effect.store.connection.open)
    if isinstance(effect, Wait):
        await _wait(effect)
    return None, None


async def _failure(
    process: Process,
    error: BaseException,
    events: list[Event],
    cancelled: asyncio.CancelledError | None,
) -> BaseException:
    """Return what is to be raised for an operation that has failed."""
    cancelled = await _after(process, events) or cancelled
    if cancelled is not None and error is not cancelled:
        _log.debug("a cancelled task's call failed", exc_info=error)
        return cancelled
    # what is of interest is the call, and DynamoDB's cause, not the way between
    return error.with_traceback(None) if isinstance(error, PynamoDBException) else error


async def _wait(effect: Wait) -> None:
    sleeper, wakeup = TaskSleeper(), effect.wakeup
    if wakeup is None:
        await sleeper.sleep(effect.until)
        return
    wakeup.sleeper = sleeper
    try:
        # Who rings sets `rung` first, and then looks for a sleeper: one of the two sees the other.
        if not wakeup.rung:
            await sleeper.sleep(effect.until)
    finally:
        wakeup.sleeper = None
        wakeup.rung = False


async def _delivered(process: Process, events: list[Event]) -> asyncio.CancelledError | None:
    """Deliver events; return what cancelled the task meanwhile.

    On a thread if there are receivers, for they may be slow. The rest are records for the log.
    """
    if not any(isinstance(event, LockEvent) and process.receivers[event.name] for event in events):
        deliver(process, events)
        return None
    call = partial(_deliver_as, process, events, caller())
    return (await _to_its_end(process, call))[1]


def _deliver_as(process: Process, events: list[Event], who: Any) -> None:
    with acting_as(who):
        deliver(process, events)


async def _after(process: Process, events: list[Event]) -> asyncio.CancelledError | None:
    """Do what is to be done when an operation has ended."""
    cancelled = await _delivered(process, events) if events else None
    if process.schedule.is_wanted:
        start_renewals(process)
    if process.threads.refusing:
        process.threads.start()
    return cancelled


async def _undone(process: Process, operation: Operation[Any]) -> None:
    """Run an operation that takes back what a cancelled task had begun."""
    try:
        await run(process, operation)
    except Exception:  # noqa: BLE001 - what the task raises is its cancellation
        _log.exception("what a cancelled task had begun could not be taken back")


async def _to_its_end(
    process: Process, function: Callable[[], T]
) -> tuple[T, asyncio.CancelledError | None]:
    """Call a function on a thread; return what it returned, and what cancelled the task meanwhile.

    Where the system refuses every thread it is called on the loop's own: others wait for a request,
    but no lock is lost, and a process that ends does not hang.
    """
    # not an executor: one whose thread is refused raises, and yet makes the call later
    future: Future[T] = Future()
    call = partial(contextvars.copy_context().run, function)
    process.task_workers.post(partial(_settle, future, call))
    process.task_workers.help_out()
    awaited = asyncio.wrap_future(future)
    cancelled: asyncio.CancelledError | None = None
    while not awaited.done():
        try:
            await asyncio.wait({awaited})
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    return awaited.result(), cancelled


def _settle(future: Future[T], call: Callable[[], T]) -> None:
    """Make a call, and note in a future what came of it."""
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 - also Ctrl-C: it is for who awaits
        future.set_exception(error)
        del future  # which keeps the error, whose traceback keeps this frame
