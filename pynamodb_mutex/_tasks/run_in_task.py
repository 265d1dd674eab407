"""The runner for asyncio tasks: runs operations on the event loop, and sends their requests on a few worker threads.

`execute` is the counterpart of `run_on_thread.execute`: steps run on the loop's thread, requests and receivers on workers, and a
wait takes no thread. The rest deals with tasks that are cancelled, and with abandoned tasks: Python closes their coroutine before
the operation has ended.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pynamodb.exceptions import PynamoDBException

from pynamodb_mutex._lock.operations.effects import Outside, Send, Wait
from pynamodb_mutex._lock.operations.events import LockEvent
from pynamodb_mutex._lock.runtime.callers import acting_as, caller
from pynamodb_mutex._lock.runtime.clock import local_clock
from pynamodb_mutex._lock.runtime.notifications import deliver
from pynamodb_mutex._lock.runtime.process import InsideMonitor, current_process
from pynamodb_mutex._lock.runtime.run_on_thread import INTERRUPTED, run_deferred, start_renewals
from pynamodb_mutex._lock.runtime.run_on_thread import execute as run_on_thread
from pynamodb_mutex._lock.runtime.threads import log
from pynamodb_mutex.exceptions import MutexError

if TYPE_CHECKING:
    from pynamodb_mutex._lock.dynamodb.store import Request
    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.events import Event
    from pynamodb_mutex._lock.runtime.process import Process

R = TypeVar("R")
T = TypeVar("T")

Undo = Callable[[R], "Operation[Any]"]
"""A function that returns the operation which takes back the result of another one, such as the release of a lock."""

LONGEST_SLEEP = 86_400.0
"""Seconds after which a sleeping task is woken though there is nothing to do: see `sleep`."""


class TaskSleeper:
    """Wakes a task that awaits an event, and does not keep the task alive.

    The wake-up of a waiter is in the local queue, to which the process refers. Suppose the loop is closed while the
    task waits in line. If the queue referred to the event, and so to the task, Python would never close its
    coroutine: the task would stay in line for ever, and a lock that is handed over to it would be renewed for ever.
    """

    def __init__(self, event: asyncio.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = weakref.ref(event)

    def wake(self) -> None:
        """Wake the task, if it is still there. Called on any thread."""
        event = self._event()
        if event is not None:
            with suppress(RuntimeError):  # its loop is closed: nobody sleeps any more
                self._loop.call_soon_threadsafe(event.set)


async def sleep(event: asyncio.Event, until: float) -> None:
    """Let this task sleep until a local time, or until an event is set; no longer than LONGEST_SLEEP."""
    ahead = min(until - local_clock().now(), LONGEST_SLEEP)
    # Even for a sleep without an end: the loop refers to its timers until it is closed, and perhaps nothing else refers to this
    # task (see `TaskSleeper`). Without a timer the garbage collector could take a task that still waits.
    timer = asyncio.get_running_loop().call_later(max(0.0, ahead), event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()


async def execute(  # noqa: C901, PLR0912 - one loop, which is read from top to bottom
    process: Process, operation: Operation[R], undo: Undo[R] | None = None
) -> R:
    """Run an operation for this task. Its first step runs at once, before anything else runs on the loop.

    Nothing can call a sent request back: however often the task is cancelled, it waits for the answer.

    Args:
        process: State of this process.
        operation: The operation; not begun yet.
        undo: Makes the operation interruptible. If the task is cancelled, the cancellation is thrown into the operation at its
            next effect or, if the operation has ended by then, the operation from ``undo`` takes its result back. None for an
            operation that runs to its end, such as a release: the task is cancelled after that.

    Raises:
        CancelledError: If the task was cancelled meanwhile.
        MutexError: If this runs in a signal handler that has interrupted a step.
    """
    loop = asyncio._get_running_loop()
    if loop is None:
        operation.close()
        raise RuntimeError(
            "no asyncio loop runs: in trio, use the locks for threads, by trio.to_thread.run_sync"
        )
    # The event loop of a workflow, such as Temporal's, refuses this call: it would never get the answer to a request.
    loop.is_closed()
    resume: Any = operation.send
    value: Any = None
    request: Request | None = None
    sent = 0.0
    events: list[Event] = []
    cancelled: asyncio.CancelledError | None = None
    under_way: Future[Any] | None = None
    while True:
        try:
            effect, sent = process.step(resume, value, request, sent, events, blocks=False)
            resume, request = operation.send, None
            if process.deferred:
                # on a worker: their requests would block the loop
                _posted(process, partial(run_deferred, process))
            if events or process.schedule.needs_loop:
                taken, events = events, []
                cancelled = await _delivered(process, taken) or cancelled
            # After the step, not as soon as the cancellation comes: the operation must have seen the answer to its last request,
            # or it would not know whether there is a claim to release.
            if cancelled is not None and undo is not None:
                raise cancelled  # noqa: TRY301 - thrown into the operation below
            value = None
            if isinstance(effect, Wait):
                cancelled = await _wait(effect, to_its_end=undo is None) or cancelled
            elif isinstance(effect, Send):
                request = effect.request
                under_way = _posted(process, request.send, request.store.connection.place)
                value, interruption = await _answer(under_way)
                cancelled = cancelled or interruption
            elif isinstance(effect, Outside):
                under_way = _posted(process, effect.call)
                value, interruption = await _answer(under_way)
                cancelled = cancelled or interruption
        except StopIteration as done:
            return await _result(process, done.value, events, cancelled, undo)
        except GeneratorExit:
            _abandon(process, operation, undo, under_way)
            raise
        except InsideMonitor:
            # A signal handler has interrupted a step and runs an event loop of its own. All steps of that loop are inside the
            # interrupted step, so only an operation's first step gets here, and nothing has been sent.
            operation.close()
            raise MutexError(INTERRUPTED) from None
        except BaseException as error:  # noqa: BLE001 - raised again, by the operation
            # the operation raised it, and has ended; or, below, its effect did
            if operation.gi_frame is None:  # type: ignore[attr-defined]  # a generator has one
                raise await _failure(process, error, events, cancelled) from error.__cause__
            resume, value, request = operation.throw, error, None
            if isinstance(error, asyncio.CancelledError):
                # Only once: the operation's reaction, such as the release of a claim, runs to its end, even if the task is
                # cancelled again. So there is no `undo` any more.
                cancelled, undo = error, None


async def _result(
    process: Process,
    result: R,
    events: list[Event],
    cancelled: asyncio.CancelledError | None,
    undo: Undo[R] | None,
) -> R:
    """Return the result of an operation or, if the task was cancelled, take it back and raise the cancellation."""
    try:
        cancelled = await _after(process, events) or cancelled
    except GeneratorExit:
        # Python closes the coroutine while receivers run: nobody will get the result, and this cannot await anything
        if undo is not None:
            run_on_worker(process, undo(result))
        raise
    if cancelled is None:
        return result
    if undo is not None:
        await _undone(process, undo(result))
    raise cancelled from None


def _abandon(
    process: Process,
    operation: Operation[R],
    undo: Undo[R] | None,
    under_way: Future[Any] | None,
) -> None:
    """Let a worker interrupt the operation of a task whose coroutine was closed, and take back its result, if any.

    Python closes a coroutine to which nobody refers any more, such as the coroutine of a task whose loop was closed: it throws
    GeneratorExit into it, on the thread on which the garbage collector happens to run. Three things are impossible there:

    - Await what the operation asks for: a coroutine that is being closed may not wait.
    - Throw GeneratorExit into the operation: it delegates to other generators, which Python would close, so that
      they could not send the request that takes back a claim.
    - Run a step of the operation. The thread may be in the middle of a step, and the two would go on for ever:

          thread                                  coroutine of an abandoned task
          begins a step of an operation
            allocates, and collects garbage
                                                  gets GeneratorExit, throws it into its operation by a step
                                                  step raises InsideMonitor, which it throws by a step
                                                  step raises InsideMonitor, which it throws by a step
                                                  ...

    So a worker does all of it, once the step is over and the request under way has been answered. Without the wait for
    that answer, an acquiring write that is slow could be applied after the request that takes it back. If there is no
    worker, as at the end of the process, the claim that the operation may have acquired is not renewed, and expires.

    Args:
        process: State of this process.
        operation: The operation, at the effect to which the task has brought it.
        undo: As for `execute`.
        under_way: A worker's call for the last effect that needed one, done or not; None if no effect needed one.
    """

    def end() -> None:
        try:
            result = run_on_thread(process, operation, interruption=asyncio.CancelledError())
        except asyncio.CancelledError:
            return
        # it has ended with a result in spite of the cancellation
        if undo is not None:
            run_on_thread(process, undo(result))

    if under_way is None:
        _leave_to_worker(process, end)
    else:
        under_way.add_done_callback(lambda _: _leave_to_worker(process, end))


def run_on_worker(process: Process, operation: Operation[Any]) -> None:
    """Let a worker run an operation, not begun yet, for an abandoned task."""
    _leave_to_worker(process, partial(run_on_thread, process, operation))


def _leave_to_worker(process: Process, call: Callable[[], object]) -> None:
    """Let a worker make a call for an abandoned task; not in a forked child, because the task goes on in the parent."""
    if not process.inherited:
        process.task_workers.at("").post(call)


async def _failure(
    process: Process,
    error: BaseException,
    events: list[Event],
    cancelled: asyncio.CancelledError | None,
) -> BaseException:
    """Return the exception to raise for an operation that has failed: if the task was cancelled, its cancellation."""
    cancelled = await _after(process, events) or cancelled
    if cancelled is not None and error is not cancelled:
        log(logging.DEBUG, "a cancelled task's call failed", exc_info=error)
        return cancelled
    # the user needs their own call and DynamoDB's cause, not the frames in between
    return error.with_traceback(None) if isinstance(error, PynamoDBException) else error


async def _wait(effect: Wait, *, to_its_end: bool) -> asyncio.CancelledError | None:
    """Let this task wait as an operation asks for.

    Args:
        effect: The wait.
        to_its_end: Whether the wait goes on when the task is cancelled. Scopes of anyio cancel a task again and again until
            it has left them. If each cancellation ended the wait before a retry, a release that DynamoDB throttles would
            be sent hundreds of times a second.

    Returns:
        The last cancellation that did not end the wait; None if there was none.

    Raises:
        CancelledError: If a cancellation ended it.
    """
    event, wakeup = asyncio.Event(), effect.wakeup
    cancelled: asyncio.CancelledError | None = None
    if wakeup is not None:
        wakeup.sleeper = TaskSleeper(event)
    try:
        # `Wakeup.ring` sets `rung` first and reads `sleeper` second; this does the opposite. So a ring at any moment is
        # noticed here, or finds the sleeper: see `run_on_thread`.
        while wakeup is None or not wakeup.rung:
            try:
                await sleep(event, effect.until)
                break
            except asyncio.CancelledError as error:
                if not to_its_end:
                    raise
                cancelled = error
    finally:
        if wakeup is not None:
            wakeup.sleeper = None
            wakeup.rung = False
    return cancelled


async def _delivered(process: Process, events: list[Event]) -> asyncio.CancelledError | None:
    """Start the renewal loop if it is needed, and deliver events; return the cancellation that came meanwhile, or None.

    If there are receivers, a worker delivers, because they may be slow. Without any there are only log records.
    """
    if process.schedule.needs_loop:
        start_renewals(process)
    if not any(isinstance(event, LockEvent) and process.receivers[event.name] for event in events):
        deliver(process, events)
        return None
    # receivers see the lock as the task sees it
    call = partial(acting_as(caller())(deliver), process, events)
    return (await _answer(_posted(process, call)))[1]


async def _after(process: Process, events: list[Event]) -> asyncio.CancelledError | None:
    """After an operation has ended, do the rest, as `run_on_thread._after`; return a cancellation that came meanwhile, or None."""
    cancelled = await _delivered(process, events)
    if process.threads.waiting:
        process.threads.start()
    if process.deferred:
        _posted(process, partial(run_deferred, process))
    return cancelled


async def _undone(process: Process, operation: Operation[Any]) -> None:
    """Run the operation that takes back the result of a cancelled task; an error in it is logged."""
    try:
        await execute(process, operation)
    except Exception:  # noqa: BLE001 - what the task raises is its cancellation
        text = "what a cancelled task had begun could not be taken back"
        log(logging.ERROR, text, exc_info=True)


def _posted(process: Process, function: Callable[[], T], place: str = "") -> Future[T]:
    """Let a worker call a function, in the context (`contextvars`) of this task.

    Where the system refuses every thread, it is called on the loop's own thread: other tasks have to wait for the
    request, but no lock is lost, and a process that ends does not hang.
    """
    # Not an executor of `concurrent.futures`: if the system refuses its thread, it raises, but still makes the call later.
    future: Future[T] = Future()
    call = partial(contextvars.copy_context().run, function)
    workers = process.task_workers.at(place)
    workers.post(partial(_settle, future, call))
    while workers.help_out():
        pass
    return future


async def _answer(future: Future[T]) -> tuple[T, asyncio.CancelledError | None]:
    """Return the result of a worker's call, and the first cancellation that came meanwhile, or None."""
    # By `asyncio.wait`, again and again: a cancellation while the future itself is awaited would cancel the future, and
    # the answer to a request that was sent would be lost.
    awaited = asyncio.wrap_future(future)
    cancelled: asyncio.CancelledError | None = None
    while not awaited.done():
        try:
            await asyncio.wait({awaited})
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    return awaited.result(), cancelled


def _settle(future: Future[T], call: Callable[[], T]) -> None:
    """Make a call, and give its result or its exception to a future."""
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 - also Ctrl-C: it is for whoever awaits
        future.set_exception(error)
        del future  # it refers to the error, whose traceback refers to this frame


# -- calls of what blocks ---------------------------------------------------------------------------


async def on_worker(function: Callable[[], T]) -> T:
    """Call a function on a worker, as this task; if the task is cancelled, it waits for the end."""
    result: Any = await execute(current_process(), _outside(acting_as(caller())(function)))
    # an async function returns a coroutine, which this task runs
    found: T = await result if isinstance(result, Coroutine) else result
    return found


async def iterate(items: Iterator[T]) -> AsyncIterator[T]:
    """Iterate over a blocking iterator, on a worker."""
    end: Any = object()
    while (item := await on_worker(partial(next, items, end))) is not end:
        yield item


def _outside(function: Callable[[], T]) -> Operation[T]:
    """Return the operation that calls a function, on a worker."""
    result: T = yield Outside(function)
    return result
