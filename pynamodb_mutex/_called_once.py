"""The decorator ``once``, which makes the key of a `~pynamodb_mutex.Once` from the arguments of each call."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from pynamodb_mutex._lock.decorated import Key, check_function, is_async
from pynamodb_mutex._lock.protocol.messages import shown
from pynamodb_mutex.exceptions import InvalidKeyError
from pynamodb_mutex.runs import Once, OnceItem

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec

    from typing_extensions import Unpack

    from pynamodb_mutex.runs import OnceOptions

    P = ParamSpec("P")

R = TypeVar("R")

_CONTAINERS = (list, tuple, dict, Sequence, Mapping, Union, UnionType)
"""Types that JSON can carry if it can carry their items."""

_NOT_JSON = (bytes, AbstractSet, date, time, timedelta, Decimal, UUID, Enum)
"""Common types that JSON cannot carry, in addition to dataclasses and Pydantic's models."""

_functions: dict[tuple[type, str], str] = {}
"""The function of each template, by model: two functions with one template would get each other's results."""


def once(
    key: str | Callable[..., str],
    *,
    payload: str | Callable[..., Any] | None = None,
    **options: Unpack[OnceOptions],
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function: the first call with a key does the work, and later calls with that key get its stored result.

    ``@once("charge-{order_id}")`` charges once for each order. You can decorate coroutine functions, too. If your function
    raises an `Exception`, the call records nothing, and the next call does the work.

    Args:
        key: The key, by the rules of ``str.format``, with the names of your function's parameters, as for `synchronized`; or a
            function of the call's arguments that returns the key.
        payload: A description of the work, in the same way: a call with the same key and another payload raises
            PayloadMismatchError. Your function for it may return any JSON value.
        **options: The options of `Once.for_key <pynamodb_mutex.Once.for_key>`.

    Returns:
        The decorator. It raises ValueError if your template is malformed, names an unknown parameter, or serves another
            function already; and TypeError for a generator function, for an annotated result that JSON cannot carry, without
            ``encode``, or above ``@contextmanager``, ``@staticmethod`` or ``@classmethod``. Calls raise the errors of
            `Once.call <pynamodb_mutex.Once.call>`, and InvalidKeyError if a field of your template is missing, None or empty
            ("charge-None" would give one customer's result to another), or is a set or an object without a text of its own.

    Raises:
        TypeError: An option has a wrong type.
        ValueError: A value is out of range.

    Example::

        from pynamodb_mutex import once

        @once("charge-{order_id}")
        def charge(order_id):
            return {"receipt": f"r-{order_id}"}

        print(charge(order_id=7))
    """
    for what, given in (("key", key), ("payload", payload)):
        if not (isinstance(given, str) or callable(given) or (given is None and what == "payload")):
            msg = f"once needs a template or a function for its {what}, not {shown(given)}"
            raise TypeError(msg)
    # refuses invalid options, and an empty key, now and not at the first call
    Once.for_key("-" if key else "", **options)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        check_function(function)
        _check_json(function, options)
        if isinstance(key, str):
            _register(options.get("model", OnceItem), key, function)
        elif not callable(function):  # an argument of a function below @once, which has no key
            raise TypeError(f"once needs a template for the key, not {shown(key)}")
        key_of: Any = _StrictKey(key, function) if isinstance(key, str) else key
        about: Any = Key(payload, function, "the payload") if isinstance(payload, str) else payload

        def made_for(kind: Any, args: Any, kwargs: Any) -> Any:
            paid = None if about is None else about(*args, **kwargs)
            return kind.for_key(key_of(*args, **kwargs), payload=paid, **options)

        if is_async(function):
            from pynamodb_mutex._async_runs import AsyncOnce  # noqa: PLC0415 - loads asyncio

            @functools.wraps(function)
            async def call(*args: Any, **kwargs: Any) -> Any:
                return await made_for(AsyncOnce, args, kwargs).call(function, *args, **kwargs)
        else:

            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                return made_for(Once, args, kwargs).call(function, *args, **kwargs)

        wrapped: Any = call
        return wrapped  # type: ignore[no-any-return]  # of the function's own type

    return decorate


def _check_json(function: Callable[..., object], options: OnceOptions) -> None:
    """Raise TypeError if JSON cannot carry the annotated result of a function, and there is no ``encode``.

    Otherwise the first call would do the work, and all later calls would fail for as long as its result counts.
    """
    # if another decorator is below, it may change the annotated result
    if "encode" in options or hasattr(function, "__wrapped__"):
        return
    try:
        returned = [get_type_hints(function).get("return")]
    except Exception:  # noqa: BLE001 - a name that is imported for type checkers alone, or no function
        return
    while returned:
        kind = returned.pop()
        of: Any = get_origin(kind) or kind
        if of in _CONTAINERS:
            returned += get_args(kind)
        elif _is_not_json(of):
            what = f"{getattr(function, '__qualname__', function)} returns {of.__name__}"
            raise TypeError(f"{what}, which JSON cannot carry: give once an encode= and a decode=")


def _is_not_json(kind: Any) -> bool:
    """Return whether JSON certainly cannot carry a value with this annotation."""
    if not isinstance(kind, type) or issubclass(kind, (str, int, float, list, tuple, dict)):
        return False
    return issubclass(kind, _NOT_JSON) or is_dataclass(kind) or hasattr(kind, "model_dump_json")


def _register(model: type, template: str, function: Callable[..., object]) -> None:
    """Note the function of a template; raise ValueError if the template has another function."""
    module, own = getattr(function, "__module__", ""), getattr(function, "__qualname__", function)
    # By its file: a module that runs as a program may be imported again by its own name, as ``uvicorn.run("main:app")`` does.
    file = getattr(sys.modules.get(module), "__file__", None)
    name = f"{os.path.realpath(file) if file else module}:{own}"
    first = _functions.setdefault((model, template), name)
    if first != name:
        msg = f"{shown(template)} is the key of {first} already: {name} would get its results"
        raise ValueError(msg)


class _StrictKey(Key):
    """Makes the key of a call, in which no field may be None or empty."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        found = super().get_field(field_name, args, kwargs)
        return (self._full(found[0], field_name), found[1])

    def format_field(self, value: Any, format_spec: str) -> Any:
        return self._full(super().format_field(value, format_spec), "a field")

    @staticmethod
    def _full(value: Any, name: str) -> Any:
        if value is None or (isinstance(value, (str, list, tuple, dict)) and not value):
            msg = f"{name} of the key is {value!r}: calls that are not about the same would share one result"
            raise InvalidKeyError(msg)
        return value
