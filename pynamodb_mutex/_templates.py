"""Requests that are built once, with slots in place of values, and filled in at each sending."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pynamodb.constants import EXPRESSION_ATTRIBUTE_VALUES, KEY
from pynamodb.expressions.operand import Value

if TYPE_CHECKING:
    from pynamodb.connection.table import TableConnection

    from pynamodb_mutex._keys import RawItem

T = TypeVar("T")

_SLOT = "$"

Given = Callable[[str, str], Value]
"""Gives the operand for a value by its type and name: a slot, or what is to stand there."""


def slot(kind: str, name: str) -> Value:
    """Return an operand that stands for a value to be filled in."""
    return Value({kind: _SLOT + name})


def given(values: Mapping[str, Any]) -> Given:
    """Return what gives these values as operands, for expressions that are built but once."""
    return lambda kind, name: Value({kind: values[name]})


class Template:
    """A request with slots for its key and values."""

    def __init__(self, connection: TableConnection, **parts: Any) -> None:
        kwargs = connection.get_operation_kwargs(
            "", **parts, return_values_on_condition_failure="ALL_OLD"
        )
        values = kwargs.pop(EXPRESSION_ATTRIBUTE_VALUES, {})
        del kwargs[KEY]
        self._fixed = kwargs
        self._constants: RawItem = {}
        self._slots: list[tuple[str, str, str]] = []
        for placeholder, ((kind, value),) in ((p, v.items()) for p, v in values.items()):
            if isinstance(value, str) and value.startswith(_SLOT):
                self._slots.append((placeholder, kind, value[len(_SLOT) :]))
            else:
                self._constants[placeholder] = {kind: value}

    def fill(self, key: RawItem, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the request for one key, each slot filled with its serialised value."""
        filled = {placeholder: {kind: values[name]} for placeholder, kind, name in self._slots}
        request = {**self._fixed, KEY: key}
        if self._constants or filled:
            request[EXPRESSION_ATTRIBUTE_VALUES] = {**self._constants, **filled}
        return request


class Once(Generic[T]):
    """A property that is computed at its first use.

    Not `functools.cached_property`: before Python 3.12 that takes a lock, and a child that is forked
    while another thread holds it waits for ever.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __get__(self, instance: Any, owner: type) -> T:
        value = instance.__dict__[self._compute.__name__] = self._compute(instance)
        return value


def seconds(value: float) -> str:
    """Serialise an instant or a duration, to the millisecond."""
    return f"{value:.3f}"
