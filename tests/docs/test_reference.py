"""The reference describes what docstrings must list by name: fields of rows, exceptions and signals."""

from __future__ import annotations

import inspect
import re
from typing import Any, get_type_hints

import pytest

from pynamodb_mutex import LockItem, RowLockMixin, exceptions, signals


def described(kind: type[Any]) -> set[str]:
    """Return the names below ``Attributes:`` in the docstring of a class."""
    _, _, fields = (inspect.getdoc(kind) or "").partition("Attributes:\n")
    return set(re.findall(r"^    (\w+)(?: \([^)]*\))?: ", fields, re.MULTILINE))


def test_fields_of_lock_item():
    assert described(LockItem) == set(LockItem.get_attributes())


def test_fields_of_row_lock_mixin():
    options = {"lock_model", "lock_enforced"}
    assert described(RowLockMixin) == set(RowLockMixin.get_attributes()) | options


@pytest.mark.parametrize("name", sorted(set(exceptions.__all__) - {"Loss"}))  # an enum
def test_fields_of_exception(name):
    kind = getattr(exceptions, name)
    inherited = set(vars(kind.__mro__[1]())) if kind is not exceptions.MutexError else set()
    assert described(kind) == set(vars(kind())) - inherited - {"msg", "cause"}


@pytest.mark.parametrize(
    "name", [name for name in signals.__all__ if inspect.isclass(getattr(signals, name))]
)
def test_arguments_of_signal(name):
    kind = getattr(signals, name)
    of_a_hold = set(signals._OfAHold.__annotations__)
    repeated = set() if kind is signals.Acquired else of_a_hold
    arguments = set(get_type_hints(kind))
    if not of_a_hold <= arguments:
        repeated = set()
    assert described(kind) == arguments - repeated
