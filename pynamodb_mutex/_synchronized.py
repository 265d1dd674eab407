"""The decorator ``synchronized``, which makes a lock's key from the arguments of each call.

Each call makes a `~pynamodb_mutex.Mutex` for its key or, for a coroutine function, an
`~pynamodb_mutex.aio.AsyncMutex`. For a fixed key no such decorator is needed: a mutex is itself a decorator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload

from pynamodb_mutex._lock.decorated import (
    Key,
    check_function,
    is_async,
    locked_calls,
    locked_coroutines,
)
from pynamodb_mutex._lock.operations.options import check_options
from pynamodb_mutex._lock.protocol.messages import shown
from pynamodb_mutex.models import LockItem
from pynamodb_mutex.mutex import Mutex, options_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import ParamSpec

    from typing_extensions import Unpack

    from pynamodb_mutex.mutex import Options

    P = ParamSpec("P")

R = TypeVar("R")

if TYPE_CHECKING:

    class Waiting(Protocol):
        """Type of the decorator with ``on_locked="wait"``: a call waits for the lock."""

        def __call__(self, function: Callable[P, R], /) -> Callable[P, R]: ...

    class Skipping(Protocol):
        """Type of the decorator with ``on_locked="skip"``: a call returns None while another holds the lock."""

        @overload
        def __call__(
            self, function: Callable[P, Coroutine[Any, Any, R]], /
        ) -> Callable[P, Coroutine[Any, Any, R | None]]: ...
        @overload
        def __call__(self, function: Callable[P, R], /) -> Callable[P, R | None]: ...


@overload
def synchronized(
    template: str,
    *,
    on_locked: Literal["wait"] = ...,
    range_key: Any = ...,
    model: type[LockItem] = ...,
    **options: Unpack[Options],
) -> Waiting: ...
@overload
def synchronized(
    template: str,
    *,
    on_locked: Literal["skip"],
    range_key: Any = ...,
    model: type[LockItem] = ...,
    **options: Unpack[Options],
) -> Skipping: ...
def synchronized(
    template: str,
    *,
    on_locked: str = "wait",
    range_key: Any = None,
    model: type[LockItem] = LockItem,
    **options: Unpack[Options],
) -> Any:
    """Decorate a function: each call runs under the lock whose key you make from its arguments.

    ``@synchronized("order-{order_id}")`` locks "order-7" for a call with ``order_id=7``. You can decorate coroutine functions,
    too; their calls wait without blocking the event loop. Each call has a mutex of its own: if your function calls itself with
    the same key, the inner call raises MutexAlreadyHeldError, unless you set ``reentrant`` or a ``timeout``.

    Args:
        template: The key, by the rules of ``str.format``, with the names of your function's parameters: "{order.id}",
            "{items[0]}", "{day:%Y-%m-%d}". Default values of parameters count.
        on_locked: What a call does if another holds the lock: "wait", and raise MutexTimeoutError after ``timeout`` seconds; or
            "skip" the call and return None, after one attempt, or after the ``timeout`` that you gave.
        range_key: The range key of the lock's row. If you give a string, it is a template like the key.
        model: The lock table.
        **options: The options of `Mutex.for_key <pynamodb_mutex.Mutex.for_key>`.

    Returns:
        The decorator. It raises ValueError if your template is malformed or names an unknown parameter, and TypeError for a
            generator function or above ``@contextmanager``, ``@staticmethod`` or ``@classmethod``. Calls raise the errors of
            ``with`` of a mutex, InvalidKeyError if the arguments make no valid key (a field is missing, or is a set or an
            object without a text of its own), and TypeError if a plain function returns a coroutine.

    Raises:
        TypeError: An option has a wrong type.
        ValueError: `Mutex.for_key <pynamodb_mutex.Mutex.for_key>` would refuse a value.

    Example::

        from pynamodb_mutex import synchronized

        @synchronized("order-{order_id}", timeout=10)
        def ship(order_id):
            print("you ship order", order_id)

        ship(order_id=7)
    """
    check_options("synchronized", options)
    if not isinstance(template, str):
        msg = f"synchronized needs a template for the key, not {shown(template)}"
        raise TypeError(msg)
    if on_locked not in ("wait", "skip"):
        msg = f"on_locked is 'wait' or 'skip', not {shown(on_locked)}"
        raise ValueError(msg)
    skips = on_locked == "skip"
    if skips and options.get("timeout") is None:
        options = {**options, "timeout": 0.0}
    # refuses invalid options now, not at the first call
    options_of("-", options, range_key=range_key, model=model)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        check_function(function)
        key_of = Key(template, function)
        range_of = Key(range_key, function) if isinstance(range_key, str) else None
        wrap: Any = locked_calls
        kind: Any = Mutex
        if is_async(function):
            from pynamodb_mutex.aio import AsyncMutex  # noqa: PLC0415 - loads asyncio

            wrap, kind = locked_coroutines, AsyncMutex

        def lock(*args: Any, **kwargs: Any) -> Any:
            part = range_of(*args, **kwargs) if range_of else range_key
            return kind.for_key(key_of(*args, **kwargs), range_key=part, model=model, **options)

        wrapped: Callable[..., Any] = wrap(function, lock, skips=skips)
        return wrapped

    return decorate
