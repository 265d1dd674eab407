"""Calls by mistake: the error names what was called and, where a class was called, what to call instead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pynamodb.attributes import UnicodeAttribute
from pynamodb.models import Model

from pynamodb_mutex import LockItem, Mutex, RowLock, RowLockMixin, Semaphore, synchronized
from pynamodb_mutex.aio import (
    AsyncMutex,
    AsyncMutexGroup,
    AsyncRowLock,
    AsyncRowLocks,
    AsyncSemaphore,
    locked,
    locked_all,
)
from pynamodb_mutex.groups import AnyOf, MutexGroup, RowLocks


class Account(RowLockMixin, Model):
    class Meta:
        table_name = "accounts"

    name = UnicodeAttribute(hash_key=True)


class Special(Mutex):
    """A subclass of a user's own."""


def attached(lock: Any, *args: Any, **options: Any) -> Any:
    """Attach, also where that is awaited; nothing is sent before the mistake is seen."""
    result = lock.attach(*args, **options)
    return asyncio.run(result) if asyncio.iscoroutine(result) else result


# -- classes that are called -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "instead"),
    [
        (Mutex, "Mutex.for_key(...)"),
        (Special, "Special.for_key(...)"),
        (Semaphore, "Semaphore.for_key(...)"),
        (AnyOf, "Mutex.any_of([...])"),
        (MutexGroup, "Mutex.for_keys([...])"),
        (RowLock, "locked(...) of the row's model"),
        (RowLocks, "locked_all([...]) of the rows' model"),
        (AsyncMutex, "AsyncMutex.for_key(...)"),
        (AsyncSemaphore, "AsyncSemaphore.for_key(...)"),
        (AsyncMutexGroup, "AsyncMutex.for_keys([...])"),
        (AsyncRowLock, "pynamodb_mutex.aio.locked(Model, ...)"),
        (AsyncRowLocks, "pynamodb_mutex.aio.locked_all(Model, [...])"),
    ],
)
def test_a_class_that_is_called_names_what_makes_its_objects(kind: Any, instead: str) -> None:
    for args, options in (((), {}), (("x",), {}), (("x", 3), {}), ((), {"key": "x", "lease": 3})):
        with pytest.raises(TypeError) as raised:
            kind(*args, **options)
        assert str(raised.value) == f"{kind.__name__}(...) makes no lock: call {instead}"


def test_a_subclass_makes_objects_of_its_own() -> None:
    assert type(Special.for_key("x")) is Special
    assert type(Special.for_row(Account, "a")) is Special


# -- methods that are only inherited ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "made_by", "other"),
    [
        (lambda: Semaphore.for_row(Account, "a"), "Semaphore.for_key(...)", "Mutex.for_row(...)"),
        (lambda: Semaphore.any_of(["x", "y"]), "Semaphore.for_key(...)", "Mutex.any_of(...)"),
        (lambda: AnyOf.for_key("x"), "Mutex.any_of([...])", "Mutex.for_key(...)"),
        (lambda: RowLock.for_key("x"), "locked(...) of the row's model", "Mutex.for_key(...)"),
        (
            lambda: AsyncSemaphore.for_row(Account, "a"),
            "AsyncSemaphore.for_key(...)",
            "AsyncMutex.for_row(...)",
        ),
    ],
)
def test_a_method_that_makes_no_object_of_the_class_says_what_does(
    call: Callable[[], Any], made_by: str, other: str
) -> None:
    with pytest.raises(TypeError) as raised:
        call()
    assert str(raised.value).endswith(f": call {made_by} for one, or {other}")


CALLS: dict[str, Callable[..., Any]] = {
    "for_key": lambda kind, **options: kind.for_key("x", **options),
    "for_row": lambda kind, **options: kind.for_row(Account, "a", **options),
    "for_keys": lambda kind, **options: kind.for_keys(["x", "y"], **options),
    "any_of": lambda kind, **options: kind.any_of(["x", "y"], **options),
    "attach": lambda kind, **options: attached(kind, "{}", **options),
}


@pytest.mark.parametrize(
    ("kind", "makers"),
    [
        (AnyOf, {"any_of"}),
        (Semaphore, {"for_key"}),
        (RowLock, {"attach"}),
        (AsyncSemaphore, {"for_key"}),
        (AsyncRowLock, {"attach"}),
    ],
)
def test_every_other_method_is_refused(kind: Any, makers: set[str]) -> None:
    for name in set(CALLS) - makers:
        with pytest.raises(TypeError, match=rf"^{kind.__name__}\.{name}\(\) makes no "):
            CALLS[name](kind)


def test_what_makes_an_object_of_the_class_does() -> None:
    assert type(AnyOf.any_of(["x", "y"])) is AnyOf
    assert type(Semaphore.for_key("x", permits=3)) is Semaphore
    assert type(AsyncSemaphore.for_key("x", permits=3)) is AsyncSemaphore


# -- options that do not exist ---------------------------------------------------------------------


def options_of(function: Any, *args: Any, **more: Any) -> Callable[..., Any]:
    return lambda **options: function(*args, **more, **options)


@pytest.mark.parametrize(
    ("called", "call"),
    [
        *[
            (f"{kind.__name__}.{name}", options_of(call, kind))
            for kind in (Mutex, Special, AsyncMutex)
            for name, call in CALLS.items()
            if (kind, name) != (Special, "for_key")  # Python names the class that has it
        ],
        ("AnyOf.any_of", options_of(CALLS["any_of"], AnyOf)),
        ("Semaphore.for_key", options_of(CALLS["for_key"], Semaphore, permits=2)),
        ("AsyncSemaphore.for_key", options_of(CALLS["for_key"], AsyncSemaphore, permits=2)),
        ("RowLock.attach", options_of(CALLS["attach"], RowLock, model=Account)),
        ("AsyncRowLock.attach", options_of(CALLS["attach"], AsyncRowLock, model=Account)),
        ("Account.locked", options_of(Account.locked, "a")),
        ("Account.locked_all", options_of(Account.locked_all, ["a", "b"])),
        ("Account.locked_all", options_of(Account.locked_all, [Account.locked("a")])),
        ("Mutex.for_keys", options_of(Mutex.for_keys, [Mutex.for_key("a")])),
        ("locked", options_of(locked, Account, "a")),
        ("locked_all", options_of(locked_all, Account, ["a", "b"])),
        ("synchronized", options_of(synchronized, "x")),
    ],
)
def test_an_unknown_option_names_the_function_that_was_called(
    called: str, call: Callable[..., Any]
) -> None:
    with pytest.raises(TypeError) as raised:
        call(lease=3, lese=3)
    assert str(raised.value) == f"{called}() got an unexpected keyword argument 'lese'"


def test_a_rows_table_is_no_option() -> None:
    for locked_by in (Account.locked, Account.locked_all):
        with pytest.raises(TypeError, match=r"Account\.\w+\(\) got .* 'model'"):
            locked_by("a", model=LockItem)  # type: ignore[call-arg]  # the mistake
