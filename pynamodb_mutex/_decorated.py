"""Functions whose calls run under a lock."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any, ParamSpec

    P = ParamSpec("P")

R = TypeVar("R")


def locked_calls(
    function: Callable[P, R], lock: Callable[[], AbstractContextManager[Any]]
) -> Callable[P, R]:
    """Return a function that calls another under a lock, one for each call."""
    check_function(function)
    if is_async(function):
        msg = "an async function cannot run under a Mutex: it would block the event loop"
        raise TypeError(msg)

    @functools.wraps(function)
    def locked(*args: P.args, **kwargs: P.kwargs) -> R:
        with lock():
            return function(*args, **kwargs)

    return locked


def check_function(function: Callable[..., object]) -> None:
    """Refuse what would not run under the lock, though it is called under it.

    Raises:
        TypeError: If it is a generator, or what classmethod or staticmethod return.
    """
    if isinstance(function, (classmethod, staticmethod)):
        kind = type(function).__name__
        msg = f"write @{kind} above the lock's decorator, not below it"
        raise TypeError(msg)
    if _is(function, inspect.isgeneratorfunction) or _is(function, inspect.isasyncgenfunction):
        msg = (
            "a generator would run after the lock is given back, an async one on the event loop: "
            "take the lock inside the generator"
        )
        raise TypeError(msg)


def is_async(function: Callable[..., object]) -> bool:
    """Say whether calling it gives something to be awaited."""
    return _is(function, inspect.iscoroutinefunction)


def _is(function: Callable[..., object], kind: Callable[[object], bool]) -> bool:
    """Ask also of an object with ``__call__``."""
    return kind(function) or kind(type(function).__call__)
