"""`AsyncOnce`: a `~pynamodb_mutex.Once` for tasks, which runs the same operations."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pynamodb_mutex._lock.decorated import check_function, is_async
from pynamodb_mutex._lock.handles import note_not_released, refusing
from pynamodb_mutex._lock.operations.options import made
from pynamodb_mutex._lock.runtime.callers import caller, calling_frame
from pynamodb_mutex._lock.runtime.process import current_process
from pynamodb_mutex._tasks.handles import AsyncTransaction, end_holding
from pynamodb_mutex._tasks.run_in_task import execute, on_worker
from pynamodb_mutex.runs import Known, Once, OnceItem, Run, _json

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from datetime import timedelta
    from types import TracebackType
    from typing import ParamSpec

    P = ParamSpec("P")

R = TypeVar("R")


class AsyncRun(Run):
    """One call of an `AsyncOnce`: see `~pynamodb_mutex.runs.Run`."""

    async def complete(self, value: Any) -> Any:
        """Record the result: see `~pynamodb_mutex.runs.Run.complete`. If your task is cancelled, it records the result first."""
        await execute(current_process(), self._completing(value))
        return self._returned(value)

    def transaction(self, *, result: Any) -> AsyncTransaction:  # type: ignore[override]  # for ``async with``
        """Return a transaction with the record of the result: see `~pynamodb_mutex.runs.Run.transaction`."""
        return AsyncTransaction(super().transaction(result=result))


class AsyncOnce(Once):
    """A `~pynamodb_mutex.Once` for tasks. If your task is cancelled in its work, another run may begin at once.

    Example::

        import asyncio

        from pynamodb_mutex.aio import AsyncOnce

        async def work():
            return "done"

        print(asyncio.run(AsyncOnce.for_key("job-1").call(work)))
    """

    async def call(  # type: ignore[override]  # awaited
        self,
        function: Callable[P, Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Call your coroutine function, unless a result counts; return the result: see `~pynamodb_mutex.Once.call`.

        If your task is cancelled once the function has returned, it records the result first.
        """
        check_function(function)
        if not is_async(function):
            raise TypeError("AsyncOnce.call takes a coroutine function")
        async with self as began:
            result: R = (
                began.result
                if began.done
                else await began.complete(await function(*args, **kwargs))
            )
        return result

    @classmethod
    async def peek(  # type: ignore[override]  # awaited
        cls,
        key: str,
        *,
        model: type[OnceItem] = OnceItem,
        decode: Callable[[str], Any] = json.loads,
    ) -> Known:
        """Return the knowledge about a key: see `~pynamodb_mutex.Once.peek`."""
        return await on_worker(partial(super().peek, key, model=model, decode=decode))

    @classmethod
    async def forget(  # type: ignore[override]  # awaited
        cls, key: str, *, force: bool = False, model: type[OnceItem] = OnceItem
    ) -> bool:
        """Forget a result or a run: see `~pynamodb_mutex.Once.forget`. If your task is cancelled, it forgets first."""
        return await on_worker(partial(super().forget, key, force=force, model=model))

    @classmethod
    async def record(  # type: ignore[override]  # awaited
        cls,
        key: str,
        result: Any,
        *,
        keep: float | timedelta = 86400.0,
        encode: Callable[[Any], str] = _json,
        model: type[OnceItem] = OnceItem,
    ) -> bool:
        """Record a result: see `~pynamodb_mutex.Once.record`. If your task is cancelled, it records the result first."""
        call = partial(super().record, key, result, keep=keep, encode=encode, model=model)
        return await on_worker(call)

    async def __aenter__(self) -> AsyncRun:
        """Begin a run, or find a result; raises the errors of `call`."""
        began, who = made(AsyncRun, self._terms), caller()
        await execute(
            current_process(),
            began._beginning(who, blocks=False),
            lambda _: began._ending(Exception()),  # not begun: nothing to decide
        )
        self._runs.begin(who, began, id(calling_frame()))
        return began

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End your run; without a result another run may begin. Never replaces an exception of your block."""
        _, run = self._runs.leave(error)
        try:
            await end_holding(run._ending(error), error)
        except Exception as failure:
            if error is None:
                raise
            note_not_released(error, failure)


# not in the class: see `Lock`
AsyncOnce.__enter__ = AsyncOnce.__exit__ = refusing("tasks: use 'async with', or a Once")  # type: ignore[method-assign]  # see above
