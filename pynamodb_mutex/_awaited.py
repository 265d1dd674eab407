"""A lock for threads, driven by tasks: what all locks of `aio` have in common."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pynamodb_mutex._await import await_steps, on_thread
from pynamodb_mutex._callers import take_last, this_caller
from pynamodb_mutex._holding import Holding
from pynamodb_mutex._terms import Made, made
from pynamodb_mutex.exceptions import MutexLostError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import ParamSpec, Protocol

    from pynamodb.transactions import TransactWrite
    from typing_extensions import Self

    from pynamodb_mutex._claim import Loss
    from pynamodb_mutex._terms import AsyncOptions
    from pynamodb_mutex._waiting import Alarm, Steps

    P = ParamSpec("P")

    class Lock(Protocol):
        """What a lock for threads offers to tasks."""

        @property
        def loss(self) -> Loss | None: ...
        def release(self) -> None: ...
        def renew(self, lease: float | None = None) -> None: ...
        def ensure_held(self, at_least: float = 0.0) -> None: ...
        def _acquiring(
            self, blocking: bool, timeout: float | None, alarm: Alarm
        ) -> Steps[object | None]: ...
        def _entering(self, alarm: Alarm) -> Steps[Any]: ...
        def __exit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            trace: TracebackType | None,
        ) -> None: ...


L = TypeVar("L", bound="Lock")
R = TypeVar("R")

_CANCELLED = (asyncio.CancelledError, asyncio.CancelledError(), None)


class Awaited(Made, Generic[L]):
    """A lock for threads, and the tasks that hold it."""

    def __init__(self, make: Callable[..., L], on_lost: Any, *, cancel_on_loss: bool) -> None:
        self._make = make
        self._on_lost = on_lost
        self._cancel_on_loss = cancel_on_loss
        self._holdings: dict[int, list[Holding]] = {}
        self._lock = make(on_lost=self._told if cancel_on_loss or on_lost is not None else None)

    @classmethod
    def _made(cls, make: Callable[..., Any], cancel_on_loss: bool, options: AsyncOptions) -> Self:
        on_lost = options.pop("on_lost", None)
        inside = functools.partial(make, **options)
        return made(cls, inside, on_lost, cancel_on_loss=cancel_on_loss)

    def _told(self, _: L) -> None:
        """Pass on the news of a loss, which comes on a thread of its own."""
        holdings = [holding for several in list(self._holdings.values()) for holding in several]
        for holding in holdings:
            holding.check_soon()
        if self._on_lost is None:
            return
        result = self._on_lost(self)
        if inspect.iscoroutine(result):
            # an error in it is logged, as one in a function is
            asyncio.run_coroutine_threadsafe(result, self._loop).result()

    async def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Take the lock: see `~pynamodb_mutex.Mutex.acquire`. Cancelled, it leaves nothing held."""
        failed: object | None = await self._await_steps(
            lambda alarm: self._lock._acquiring(blocking, timeout, alarm),
            lambda failed: self._lock.release() if failed is None else None,
        )
        if failed is None:
            self._begin()
        return failed is None

    async def release(self) -> None:
        """Give the lock back: see `~pynamodb_mutex.Mutex.release`. Cancelled, it does so before it ends."""
        self._end_holding()
        await on_thread(self._lock.release)

    async def renew(self, lease: float | None = None) -> None:
        """Renew now: see `~pynamodb_mutex.Mutex.renew`."""
        await on_thread(functools.partial(self._lock.renew, lease))

    async def ensure_held(self, at_least: float = 0.0) -> None:
        """Raise unless the lock is held: see `~pynamodb_mutex.Mutex.ensure_held`."""
        await on_thread(functools.partial(self._lock.ensure_held, at_least))

    async def __aenter__(self) -> Any:
        """Take the lock."""
        entered = await self._await_steps(
            self._entering, lambda _: self._lock.__exit__(*_CANCELLED)
        )
        self._begin()
        return entered

    def _entering(self, alarm: Alarm) -> Steps[Any]:
        return self._lock._entering(alarm)

    async def _await_steps(self, make: Callable[[Alarm], Steps[R]], undo: Any) -> R:
        self._loop = asyncio.get_running_loop()
        return await await_steps(make, undo)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the lock back. The body's own exception is never replaced.

        Raises:
            MutexLostError: After a clean body, or one that was cancelled for that, if the lock was
                lost meanwhile.
        """
        # none if the body gave the lock back
        holding = take_last(self._holdings) if self._holdings else None
        left_by = error if holding is None else holding.leave(error)
        kind = None if left_by is None else type(left_by)
        await on_thread(functools.partial(self._lock.__exit__, kind, left_by, trace))
        loss = None if holding is None else holding.cancelled_for
        if loss is not None and left_by is None and error is not None:
            # it was won back after the task had been cancelled: the body was interrupted all the same
            raise MutexLostError(f"{self._lock!r} had been lost: {loss.value}", loss=loss)

    def _begin(self) -> None:
        holding = Holding(self._lock, cancel_on_loss=self._cancel_on_loss)
        self._holdings.setdefault(this_caller(), []).append(holding)
        # it may have been lost, and told so, before
        holding.check_soon()

    def _end_holding(self) -> None:
        if self._holdings:
            take_last(self._holdings).end()

    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]]
    ) -> Callable[P, Coroutine[Any, Any, R]]:
        """Decorate a coroutine function: each call runs under the lock, by an object of its own."""
        if not inspect.iscoroutinefunction(function):
            msg = f"{function!r} is no coroutine function: an async lock cannot be taken in it"
            raise TypeError(msg)

        @functools.wraps(function)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            cancels = self._cancel_on_loss
            another = made(type(self), self._make, self._on_lost, cancel_on_loss=cancels)
            async with another:
                return await function(*args, **kwargs)

        return locked


class AsyncTransaction:
    """A TransactWrite that is sent when its ``async with`` block ends without an exception."""

    def __init__(self, transaction: TransactWrite) -> None:
        self._transaction = transaction

    async def __aenter__(self) -> TransactWrite:
        """Return PynamoDB's, to put writes into; they are not awaited."""
        return self._transaction.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Send it: see `~pynamodb_mutex.Mutex.transaction` for what it raises. Cancelled, it is sent all the same."""
        await on_thread(functools.partial(self._transaction.__exit__, kind, error, trace))
