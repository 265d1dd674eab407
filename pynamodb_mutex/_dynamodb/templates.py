"""Requests that are built once, with slots for the values, and filled in for each attempt."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pynamodb.constants import (
    CONDITION_EXPRESSION,
    EXPRESSION_ATTRIBUTE_NAMES,
    EXPRESSION_ATTRIBUTE_VALUES,
    KEY,
    RETURN_VALUES_ON_CONDITION_FAILURE,
    TABLE_NAME,
    UPDATE_EXPRESSION,
)
from pynamodb.expressions.operand import Value

if TYPE_CHECKING:
    from pynamodb.connection.table import TableConnection

    from pynamodb_mutex._dynamodb.keys import RawItem

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


class Statement:
    """An update in PartiQL, as it stands in a batch: the same change, on the same condition.

    Args:
        update: Sets attributes to values, on comparisons that are all joined by AND.
        key: Stored names of the attributes of the primary key.
    """

    def __init__(self, update: Template, key: Sequence[str]) -> None:
        fixed = update._fixed
        names: dict[str, str] = fixed[EXPRESSION_ATTRIBUTE_NAMES]
        slots = {placeholder: (kind, name) for placeholder, kind, name in update._slots}
        order: list[tuple[str, str]] = []

        def spelled(placeholder: re.Match[str]) -> str:
            if placeholder[0] in names:
                return _quoted(names[placeholder[0]])
            order.append(slots[placeholder[0]])
            return "?"

        changes = re.sub(r"[#:]\w+", spelled, fixed[UPDATE_EXPRESSION].replace(", ", " SET "))
        self._changes = len(order)
        condition = re.sub(r"[#:]\w+", spelled, re.sub("[()]", "", fixed[CONDITION_EXPRESSION]))
        where = " AND ".join([*(f"{_quoted(name)} = ?" for name in key), condition])
        table = _quoted(fixed[TABLE_NAME])
        self._text = f"UPDATE {table} {changes} WHERE {where} RETURNING MODIFIED NEW *"
        self._key = key
        self._order = order

    def fill(self, key: RawItem, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the statement for one key, with its serialised values."""
        filled = [{kind: values[name]} for kind, name in self._order]
        filled[self._changes : self._changes] = [key[name] for name in self._key]
        return {
            "Statement": self._text,
            "Parameters": filled,
            RETURN_VALUES_ON_CONDITION_FAILURE: "ALL_OLD",
        }


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


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
