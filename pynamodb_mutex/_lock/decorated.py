"""Wrap functions so that they run under a lock, and refuse functions that would run without it."""

from __future__ import annotations

import functools
import inspect
import re
import string
from collections.abc import Coroutine
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from pynamodb_mutex._lock.protocol.messages import one_line, shown
from pynamodb_mutex.exceptions import InvalidKeyError, MutexTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from typing import ParamSpec

    P = ParamSpec("P")

R = TypeVar("R")


def locked_calls(
    function: Callable[P, R],
    lock: Callable[P, AbstractContextManager[Any]],
    *,
    skips: bool = False,
) -> Callable[P, R]:
    """Wrap a function so that each call runs under a lock.

    Args:
        function: The function to wrap, one that `check_function` accepts.
        lock: Makes the lock for one call from the arguments of the call.
        skips: Whether a call returns None, and does not run, if its lock was not free in time.
    """

    @functools.wraps(function)
    def locked(*args: P.args, **kwargs: P.kwargs) -> Any:
        entered = False
        try:
            with lock(*args, **kwargs):
                entered = True
                return check_result(function(*args, **kwargs))
        except MutexTimeoutError:
            # The function may raise this error for another lock: that must not look as if the call had been skipped.
            if entered or not skips:
                raise

    return locked


def locked_coroutines(
    function: Callable[P, Coroutine[Any, Any, R]],
    lock: Callable[P, AbstractAsyncContextManager[Any]],
    *,
    skips: bool = False,
) -> Callable[P, Coroutine[Any, Any, R]]:
    """Wrap a coroutine function as `locked_calls` does a function."""

    @functools.wraps(function)
    async def locked(*args: P.args, **kwargs: P.kwargs) -> Any:
        entered = False
        try:
            async with lock(*args, **kwargs):
                entered = True
                return await function(*args, **kwargs)
        except MutexTimeoutError:
            if entered or not skips:  # as in `locked_calls`
                raise

    return locked


_OF_CONTEXT_MANAGERS = {contextmanager(iter).__code__, asynccontextmanager(aiter).__code__}
"""The code that all functions made by these decorators share."""


def check_function(function: Callable[..., object]) -> None:
    """Refuse a function whose body would not run while the lock is held.

    Raises:
        TypeError: If it is a generator function, also below ``@contextmanager``: a call of it runs nothing. Or if
            classmethod or staticmethod returned it.
    """
    if isinstance(function, (classmethod, staticmethod)):
        kind = type(function).__name__
        msg = f"write @{kind} above the lock's decorator, not below it"
        raise TypeError(msg)
    if (
        _is(function, inspect.isgeneratorfunction)
        or _is(function, inspect.isasyncgenfunction)
        or getattr(function, "__code__", None) in _OF_CONTEXT_MANAGERS
    ):
        msg = (
            "a generator would run after the lock is released, an async one on the event loop: "
            "take the lock inside the generator"
        )
        raise TypeError(msg)


def check_result(result: R) -> R:
    """Return what a function returned under its lock.

    Raises:
        TypeError: If it is a coroutine. Another decorator has hidden the coroutine function from `is_async`: the lock
            would be released before anything of it runs, and its callers would all run at once.
    """
    if isinstance(result, Coroutine):
        result.close()
        msg = "the call returned a coroutine, which would run outside the lock: decorate the async function itself"
        raise TypeError(msg)
    return result


def is_async(function: Callable[..., object]) -> bool:
    """Return whether a function is a coroutine function, whose result must be awaited."""
    return _is(function, inspect.iscoroutinefunction)


def _is(function: Callable[..., object], kind: Callable[[object], bool]) -> bool:
    """Return whether a function, or the ``__call__`` of an object, is of a kind."""
    return kind(function) or kind(type(function).__call__)


_ADDRESS = re.compile(" at 0x[0-9A-Fa-f]+>")
"""The end of the text that Python makes for an object without its own: ``<Order object at 0x7f3a...>``."""


class Key(string.Formatter):
    """Makes the key of a call, or another text, from the call's arguments."""

    def __init__(
        self, template: str, function: Callable[..., object], what: str = "the key"
    ) -> None:
        self._name = f"{what} {shown(template)}"
        self._template = template
        self._signature = inspect.signature(function)
        try:
            # A dry run, because only str.format knows all its rules. It raises ValueError itself for a malformed template.
            template.format_map({name: _Anything() for name in self._signature.parameters})
        except KeyError as error:
            msg = f"{self._name}: the function has no parameter {error}"
            raise ValueError(msg) from error

    def __call__(self, /, *args: object, **kwargs: object) -> str:  # `self` may be among the kwargs
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return self.vformat(self._template, (), bound.arguments)

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the value of a field.

        Raises:
            InvalidKeyError: If this call has none.
        """
        try:
            return super().get_field(field_name, args, kwargs)
        except (LookupError, AttributeError, TypeError) as error:
            why = f"{type(error).__name__}: {one_line(error)}"
            msg = f"{self._name}: this call has no {{{field_name}}}: {why}"
            raise InvalidKeyError(msg) from error

    def convert_field(self, value: Any, conversion: Any) -> Any:
        """Return the value of a field as ``!r`` and the like make it.

        Raises:
            InvalidKeyError: If its text is not the same each time.
        """
        converted = super().convert_field(value, conversion)
        # Suppose a key contained an address: Python gives it to another object once this one is gone, so one customer would
        # get another's result, and two processes would have two keys for one lock. Each process orders a set of str anew.
        is_set = isinstance(value, (set, frozenset))
        if is_set or (not isinstance(value, str) and _ADDRESS.search(format(converted))):
            msg = (
                f"{self._name}: {shown(value)} is not the same text each time: "
                "write what identifies it, such as {user.id}"
            )
            raise InvalidKeyError(msg)
        return converted


class _Anything:
    """Stands in for each argument in the dry run: has every attribute and item, and accepts every format."""

    def __getattribute__(self, name: str) -> _Anything:
        return self

    def __getitem__(self, index: object) -> _Anything:
        return self

    def __format__(self, spec: str) -> str:
        return ""
