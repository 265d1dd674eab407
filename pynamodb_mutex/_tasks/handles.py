"""Base classes of the locks for asyncio tasks.

Such a lock contains a lock for threads, and runs that lock's operations with the runner for tasks
(`pynamodb_mutex._tasks.run_in_task`): there is one protocol, not two. This module has only what tasks need in addition: it takes
back the acquisition of a cancelled call, cancels the task that lost its lock, and releases the lock of a task whose coroutine is
closed. The public classes are in `pynamodb_mutex.aio`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pynamodb_mutex._lock.decorated import locked_coroutines
from pynamodb_mutex._lock.handles import Handle, Lock, note_not_released, refusing
from pynamodb_mutex._lock.operations.options import check_bool, check_callable, made
from pynamodb_mutex._lock.operations.release import release
from pynamodb_mutex._lock.runtime.callers import caller, calling_frame, take_last
from pynamodb_mutex._lock.runtime.process import current_process
from pynamodb_mutex._tasks.run_in_task import execute, run_on_worker
from pynamodb_mutex.exceptions import MutexLostError

if TYPE_CHECKING:
    from datetime import timedelta
    from types import FrameType, TracebackType
    from typing import ParamSpec

    from pynamodb.transactions import TransactWrite
    from typing_extensions import Self

    from pynamodb_mutex._lock.operations.contender import Caller
    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.planning import Held
    from pynamodb_mutex.exceptions import Loss, MutexNotHeldError

    P = ParamSpec("P")


L = TypeVar("L", bound="Lock[Any]")
R = TypeVar("R")


@Coroutine.register
class _Unawaited:
    """A coroutine without a truth value: ``if mutex.acquire():`` lacks an ``await``, and would always be true."""

    def __init__(self, coroutine: Any) -> None:
        self._coroutine = coroutine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coroutine, name)

    def __await__(self) -> Any:
        return self._coroutine.__await__()

    def __bool__(self) -> bool:
        # asyncio asks a task for its coroutine in this way, from Python 3.12 on, before it shows the task: in a debugger, or in the
        # log if the task has failed and nobody awaits it
        if sys._getframe(1).f_globals.get("__name__") == "asyncio.base_tasks":
            return True
        raise TypeError(f"{self.__name__}() has no truth value: await it")


def to_be_awaited(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a coroutine function whose result has a truth value, which its coroutines must not have."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return _Unawaited(function(*args, **kwargs))  # type: ignore[return-value]  # it acts as one

    # From Python 3.12 on it still counts as a coroutine function: `unittest.mock` replaces it by an AsyncMock.
    getattr(inspect, "markcoroutinefunction", id)(call)
    return call


class AsyncLock(Handle[Any], Generic[L]):
    """A lock for tasks: the lock for threads whose operations it runs, and the tasks that hold it."""

    def __init__(
        self, make: Callable[..., L], calls: dict[str, Any], *, cancel_on_loss: bool
    ) -> None:
        # makes the lock for threads, also for further handles: see `__call__`
        self._make = make
        # ``on_lost`` and ``on_danger``, if they were given
        self._calls = calls
        self._cancel_on_loss = cancel_on_loss
        # by task, as long as it lives; several if the lock is reentrant, innermost last
        self._holders: dict[Caller, list[_HoldingTask]] = {}
        is_notified = cancel_on_loss or "on_lost" in calls
        on_danger = functools.partial(self._call, "on_danger") if "on_danger" in calls else None
        self._lock = make(on_lost=self._notify if is_notified else None, on_danger=on_danger)
        self._options = self._lock._options

    @classmethod
    def _made(cls, make: Callable[..., Any], cancel_on_loss: bool, options: Any) -> Self:
        check_bool("cancel_on_loss", cancel_on_loss)
        given = {name: options.pop(name, None) for name in ("on_lost", "on_danger")}
        calls = {name: call for name, call in given.items() if call is not None}
        for name, call in calls.items():
            check_callable(name, call)
        inside = functools.partial(make, **options)
        return made(cls, inside, calls, cancel_on_loss=cancel_on_loss)

    def _mine(self) -> Held | None:
        held: Held | None = self._lock._mine()
        return held

    @property
    def _shown(self) -> str:
        return self._lock._shown

    def _not_held_error(self, what: str) -> MutexNotHeldError:
        return self._lock._not_held_error(what)

    def _notify(self, lock: L) -> None:
        """Report a loss to the tasks that hold the lock; called on a thread of its own."""
        # copies, because tasks acquire and release meanwhile, on their event loop's thread
        for several in list(self._holders.values()):
            for holder in list(several):
                holder.check_soon()
        if "on_lost" in self._calls:
            self._call("on_lost", lock)

    def _call(self, name: str, _: L) -> None:
        """Call the user's ``on_lost`` or ``on_danger`` with this object; runs on a thread of its own."""
        result = self._calls[name](self)
        if asyncio.iscoroutine(result):
            # awaited, so that its exception is logged like that of a function
            asyncio.run_coroutine_threadsafe(result, self._loop).result()

    # -- calls --------------------------------------------------------------------------------------

    @to_be_awaited
    async def acquire(
        self, blocking: bool = True, timeout: float | timedelta | None = None
    ) -> bool:
        """Acquire the lock: see `~pynamodb_mutex.Mutex.acquire`. If your task is cancelled, it holds nothing."""
        return await self._acquire(blocking, timeout)

    async def _acquire(
        self, blocking: bool, timeout: float | timedelta | None, force: bool = False
    ) -> bool:
        lock, who = self._lock, caller()
        acquisition = lock._acquisition(
            who, lock._options.seconds_to_wait(blocking, timeout), blocks=False
        )
        if force:
            check_bool("force", force)
            acquisition.by_force()
        operation = lock._acquiring(acquisition, who)
        # Suppose the task is cancelled while the acquiring write is under way; the answer says that it was applied.
        # The caller gets CancelledError and will never release, so the runner does.
        held = await self._run(
            operation, lambda held: _nothing() if held is None else release(held, at_least=False)
        )
        if held is None:
            return False
        self._begin(held)
        return True

    async def release(self) -> None:
        """Release the lock: see `~pynamodb_mutex.Mutex.release`. If your task is cancelled, it releases first."""
        await self._release()

    async def _release(self, data: str | None = None) -> None:
        # First. Suppose the lease ends and `_notify` schedules `_check` on the loop, and the task calls this before `_check` runs:
        # `_check` would run while the task awaits the request below, and cancel a task that has left the lock.
        held = self._lock._current("release")
        self._end_holding(held)
        await end_holding(release(held, data=data), sys.exc_info()[1])

    async def renew(self, lease: float | timedelta | None = None) -> None:
        """Renew now: see `~pynamodb_mutex.Mutex.renew`."""
        await self._run(self._lock._renewing(lease))

    async def ensure_held(self, at_least: float | timedelta = 0.0) -> None:
        """Raise unless you hold the lock, and renew it if needed: see `~pynamodb_mutex.Mutex.ensure_held`."""
        await self._run(self._lock._ensuring(at_least))

    async def locked(self) -> bool:
        """Whether anyone holds the lock, by one consistent read: see `~pynamodb_mutex.Mutex.locked`."""
        return await self._run(self._lock._asking())

    async def _enter(self) -> Any:
        """Acquire the lock for an ``async with`` block; return the acquisition."""
        lock, who = self._lock, caller()
        acquisition = lock._acquisition(
            who, lock._options.seconds_to_wait(True, None), blocks=False
        )
        operation = lock._entering(acquisition, who, id(calling_frame()))
        held = await self._run(operation, self._leaving)
        self._begin(held)
        return held

    def _leaving(self, _: Any) -> Operation[None]:
        """Return the operation that leaves the block which a cancelled task has just entered."""
        _, held = self._lock._leave_block(None)
        return _nothing() if held is None else release(held, at_least=False)

    async def _run(
        self, operation: Operation[R], undo: Callable[[R], Operation[Any]] | None = None
    ) -> R:
        # for ``on_lost``, which is called on a thread without a loop
        self._loop: Any = asyncio._get_running_loop()
        return await execute(current_process(), operation, undo)

    def _end_holding(self, held: Any) -> None:
        """Forget the task that has an acquisition, if one does: a loss does not cancel it from now on.

        Found by acquisition, not by lock: tasks that share a semaphore hold different permits.
        """
        for who, several in list(self._holders.items()):
            last = several[-1]
            if last.held is held:
                last.end()
                several.pop()
                if not several:
                    del self._holders[who]

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the lock. Never replaces an exception of your block, except the cancellation of ``cancel_on_loss``.

        Raises:
            MutexLostError: You have lost the lock, and your block did not raise or was cancelled for that loss.
        """
        who, held = self._lock._leave_block(error)
        # None if the body released the lock. Not the holder of a task which shares this object and has acquired the lock since:
        # a loss must still cancel that task. Ended before the release is awaited, as in `release`.
        holder = take_last(self._holders, who)
        left_by = error if holder is None else holder.leave(error)
        if held is not None:
            try:
                await end_holding(self._lock._ending_block(held, error), error)
            except Exception as failure:
                if left_by is None:
                    raise
                note_not_released(left_by, failure)
        loss = None if holder is None else holder.cancelled_for
        if loss is not None and left_by is None and error is not None:
            # A renewal won the lock back after the loss had cancelled the task, so that the release succeeded. We interrupted the
            # body all the same, and our CancelledError must not pass for success.
            raise MutexLostError(f"{self._lock!r} had been lost: {loss.value}", loss=loss)

    def _begin(self, held: Held) -> None:
        """Record that this task holds the lock, so that a loss can cancel it."""
        me = caller(labelled=False)
        forget = functools.partial(self._holders.pop, me)
        holder = _HoldingTask(held, forget, cancel_on_loss=self._cancel_on_loss)
        self._holders.setdefault(me, []).append(holder)
        # Suppose the lease ends while the acquiring call still delivers ``acquired`` to a slow receiver. `_notify`
        # finds no holder then, and a loss is reported once: without this check the task would never be cancelled.
        holder.check_soon()

    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]]
    ) -> Callable[P, Coroutine[Any, Any, R]]:
        """Decorate a coroutine function: each call acquires the lock by an object of its own.

        Raises:
            TypeError: You decorate anything other than a coroutine function.
        """
        if not inspect.iscoroutinefunction(function):
            msg = f"{function!r} is no coroutine function: an async lock cannot be taken in it"
            raise TypeError(msg)

        def another(*_: P.args, **__: P.kwargs) -> Any:
            cancels = self._cancel_on_loss
            return made(type(self), self._make, self._calls, cancel_on_loss=cancels)

        return locked_coroutines(function, another)


# not in the class: see `Lock`
AsyncLock.__enter__ = AsyncLock.__exit__ = refusing("tasks: use 'async with', or a Mutex")  # type: ignore[attr-defined]  # see above


async def end_holding(operation: Operation[None], error: BaseException | None) -> None:
    """Run a release: for this task or, if its coroutine cannot await, on a worker thread.

    Suppose a second Ctrl-C ends the loop while the first one still cancels the tasks. Python then closes the coroutines
    of tasks that hold locks: they leave ``async with`` and ``finally``, but cannot await the release there. Without a
    worker the lock would be renewed for as long as the process lives. The same holds for the lock of a block around this one, if
    Python collects a task to which nobody refers while a loop runs: it drops a coroutine that awaits as it is closed.

    Args:
        operation: The release.
        error: The exception by which the caller leaves the lock, or that it handles; None if there is none.
    """
    if _can_await(error):
        await execute(current_process(), operation)
    else:
        run_on_worker(current_process(), operation)


def _can_await(error: BaseException | None) -> bool:
    """Return whether the calling coroutine can await, while it handles an exception: a loop runs, and it is not closed."""
    if asyncio._get_running_loop() is None:
        return False
    if not isinstance(error, GeneratorExit):
        return True
    # An async generator that is closed can await, in its ``aclose``.
    frame: FrameType | None = sys._getframe()
    while frame is not None and not frame.f_code.co_flags & inspect.CO_ASYNC_GENERATOR:
        frame = frame.f_back
    return frame is not None


def _nothing() -> Operation[None]:
    """Return an operation that does nothing."""
    return
    yield  # makes this a generator


class _HoldingTask:
    """A task that holds a lock, and is cancelled if the lock is lost.

    Attributes:
        held: The acquisition.
        cancelled_for: The loss for which this object cancelled the task; None if it has not.
    """

    def __init__(
        self, held: Held, forget: Callable[[Any], object], *, cancel_on_loss: bool
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.held = held
        # never None: it is a task that awaited the acquisition
        task: Any = asyncio.current_task()
        # Weak, because the process refers to the claim, the claim to `AsyncLock._notify`, and the handle to this object. Suppose
        # the loop is closed while the task holds the lock. If this kept the task alive, Python would never close its coroutine,
        # and so never leave the block: the lock would be renewed for as long as the process lives.
        self._task: Callable[[], Any] = weakref.ref(task, forget)
        self._cancels_on_loss = cancel_on_loss
        self.cancelled_for: Loss | None = None
        self._other_cancels = self._cancels()
        self._ended = False

    def _cancels(self) -> int:
        """Return how many cancellations of the task are requested; 0 on Python 3.10, which does not count them.

        On Python 3.10, after this object has cancelled the task, `leave` takes each CancelledError for this object's own.
        """
        count: int = getattr(self._task(), "cancelling", int)()
        return count

    def check_soon(self) -> None:
        """Let the loop cancel the task if it has lost the lock; called on any thread."""
        with suppress(RuntimeError):  # the loop is closed, so the task has ended
            self._loop.call_soon_threadsafe(self._check)

    def _check(self) -> None:
        # Runs on the loop, so the task is at an await, where it can be cancelled; `Task.cancel` is not thread-safe.
        task = self._task()
        has_ended = task is None or self._ended
        if has_ended or self.cancelled_for is not None or not self._cancels_on_loss:
            return
        self.cancelled_for = self.held.loss
        if self.cancelled_for is not None:
            task.cancel(f"a lock was lost: {self.cancelled_for.value}")

    def end(self) -> None:
        """Never cancel the task from now on."""
        self._ended = True

    def leave(self, error: BaseException | None) -> BaseException | None:
        """Note that the task leaves the block; return the error with which it leaves.

        None if that error is a cancellation that only this object requested.
        """
        self.end()
        if self.cancelled_for is None:
            return error
        # Take back our own request, as `asyncio.timeout` does. If another request since the block began remains, such as a
        # timeout's around the block, the CancelledError belongs to that one, too, and must not be replaced.
        getattr(self._task(), "uncancel", int)()
        ours = self._cancels() <= self._other_cancels
        return None if ours and isinstance(error, asyncio.CancelledError) else error


class AsyncTransaction:
    """A TransactWrite that is sent when your ``async with`` block ends without an exception."""

    def __init__(self, transaction: TransactWrite) -> None:
        self._transaction: Any = transaction

    async def __aenter__(self) -> TransactWrite:
        """Return PynamoDB's TransactWrite; you do not await its ``save``, ``update`` and ``delete``."""
        entered: TransactWrite = self._transaction.__enter__()
        return entered

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Send the transaction, unless your block raised; it is sent even if your task is cancelled meanwhile.

        Raises the errors that `~pynamodb_mutex.Mutex.transaction` names for the end of its block.
        """
        if kind is None:
            await execute(current_process(), self._transaction.committing())


AsyncTransaction.__enter__ = AsyncTransaction.__exit__ = refusing("tasks: use 'async with'")  # type: ignore[attr-defined]  # see above
