"""Counts how often clients make each public call of the package, and give each option: for `python -m dev.simulation --calls`.

What is public is read from the package: the functions and classes that its modules export, and of each class the methods
and properties that the package defines. A call that the package makes itself does not count. Options are those of all calls
of a name: those of `for_key` are given to a mutex, a semaphore or a once.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from pynamodb.exceptions import PynamoDBException

import pynamodb_mutex
from pynamodb_mutex import aio, groups, runs
from pynamodb_mutex._async_runs import AsyncRun
from pynamodb_mutex._lock.runtime import callers

if TYPE_CHECKING:
    import random
    from collections import Counter
    from collections.abc import Coroutine, Iterator

    Call = tuple[str, str]
    """The name of a public class, empty for a function, and that of its method, property or of the function.

    Or the name of a call with parentheses, and that of its option.
    """

_SPECIAL = {
    "__enter__",
    "__exit__",
    "__aenter__",
    "__aexit__",
    "__call__",
    "__getitem__",
    "__len__",
}

LEFT_OUT = {
    "create_table": "the tables exist before anybody locks; tests/dynamodb",
    "aheld": "as held; tests/api/aio",
    "batch_write": "writes past every lock, as its documentation says",
    "serialize": "sends nothing and reads no claim; tests/api/rows",
    "to_dynamodb_dict": "as serialize",
    "to_simple_dict": "as serialize",
    "place": "of Hints, which are options",
    "bind": "for the library itself",
    "bound": "for the library itself",
    "reading": "for the library itself",
    "encode": "of results, which are JSON here; tests/api/once",
    "decode": "as encode",
    "return_values_on_condition_failure": "PynamoDB's own; tests/api/rows",
    "shared": "schedules of shared locks give it: ``--shared``",
    "add_version_condition": "no row has a VersionAttribute; tests/api/rows",
}
"""Names of the calls that no schedule makes and of options that none gives, each with its reason."""


def exported() -> dict[str, Any]:
    """Return the public classes and functions by name; errors and plain values are no calls."""
    found = {AsyncRun.__name__: AsyncRun}
    for module in (pynamodb_mutex, groups, runs, aio):
        for name in module.__all__:
            value = getattr(module, name)
            is_plain = isinstance(value, type) and issubclass(value, (BaseException, Enum))
            if not is_plain:
                found[name] = value
    return found


def _members(kind: type) -> Iterator[tuple[str, type, Any]]:
    """Yield the public methods and properties of a class: name, the class that defines it, and what that has."""
    for name in sorted({name for base in kind.__mro__ for name in vars(base)}):
        base = next(each for each in kind.__mro__ if name in vars(each))
        member = vars(base)[name]
        function = getattr(member, "__func__", getattr(member, "fget", member))
        is_call = isinstance(function, FunctionType) and function.__name__ == name
        if is_call and base.__module__.startswith("pynamodb_mutex"):
            # `Made` has them refuse what makes another kind of lock
            makers: Any = [vars(each).get("_makers", ()) for each in kind.__mro__]
            makes_another = any(name in each for each in makers) and name not in makers[0]
            if not makes_another and (name in _SPECIAL or not name.startswith("_")):
                yield name, base, member


def public_calls() -> list[Call]:
    """Return all public calls that a schedule may make, and then the options that it may give."""
    calls: dict[Call, Any] = {}
    for owner, value in exported().items():
        members = _members(value) if isinstance(value, type) else [(owner, value, value)]
        calls |= {(owner * isinstance(value, type), name): each for name, _, each in members}
    options = [
        (f"{name}()", each.name)
        for (_, name), member in calls.items()
        if name not in LEFT_OUT and not isinstance(member, property)
        for each in inspect.signature(getattr(member, "__func__", member)).parameters.values()
        if each.default is not each.empty
    ]
    return [each for each in dict.fromkeys([*calls, *options]) if each[1] not in LEFT_OUT]


@cache
def _properties(kind: type) -> list[str]:
    members = _members(kind)
    return [
        name for name, _, each in members if isinstance(each, property) and name not in LEFT_OUT
    ]


def read_some(rng: random.Random, thing: Any) -> None:
    """Read a few public properties of an object, chosen at random."""
    names = _properties(type(thing))
    for name in rng.sample(names, min(4, len(names))):
        # such as the fencing token of what was never acquired
        with suppress(PynamoDBException):
            getattr(thing, name)


def _owner(thing: Any, kinds: dict[type, str]) -> str:
    """Return the name of the public class of an object, or of a class."""
    kind = thing if isinstance(thing, type) else type(thing)
    return next(kinds[each] for each in kind.__mro__ if each in kinds)


@contextmanager
def counted(counts: Counter[Call]) -> Iterator[None]:
    """Count the public calls that are made inside the block, by wrapping what is public."""
    public = exported()
    kinds = {value: name for name, value in public.items() if isinstance(value, type)}

    def counting(function: Any, owner: str | None = None) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not sys._getframe(1).f_globals["__name__"].startswith("pynamodb_mutex"):
                of = _owner(args[0], kinds) if owner is None else owner
                counts[of, function.__name__] += 1
                given = inspect.signature(function).bind(*args, **kwargs).arguments
                name = f"{function.__name__}()"
                counts.update((name, each) for each in given if given[each] is not None)
            return function(*args, **kwargs)

        return call

    with ExitStack() as stack:
        # a lock remembers the frame of its block, which is that of the caller, and not of `call`
        passed_over = (*callers.PASSED_OVER, __name__)
        stack.enter_context(patch.object(callers, "PASSED_OVER", passed_over))
        members = {(base, name): each for kind in kinds for name, base, each in _members(kind)}
        for (base, name), member in members.items():
            if isinstance(member, property):
                made = property(counting(member.fget), member.fset)
            elif isinstance(member, FunctionType):
                made = counting(member)
            else:
                made = type(member)(counting(member.__func__))
            stack.enter_context(patch.object(base, name, made))
        for module, name in itertools.product((pynamodb_mutex, aio), public):
            if isinstance(public[name], FunctionType) and name in module.__all__:
                stack.enter_context(patch.object(module, name, counting(public[name], "")))
        yield


def table(counts: Counter[Call]) -> str:
    """Return how often each public call was made, and each option given, a line for each class or call; and what is left out."""
    lines: dict[str, list[str]] = {}
    for owner, name in public_calls():
        lines.setdefault(owner or "functions", []).append(f"{name} {counts[owner, name]:,}")
    parts = [f"{owner}: {', '.join(made)}" for owner, made in lines.items()]
    return "\n".join([*parts, *(f"left out: {name}: {why}" for name, why in LEFT_OUT.items())])


async def done(result: Any) -> Any:
    """Return the result of a call, which is awaited if it is that of a lock for tasks."""
    return await result if inspect.isawaitable(result) else result


def finish(steps: Coroutine[Any, Any, None]) -> None:
    """Run steps under a lock for threads: they wait for nothing that could be awaited."""
    with suppress(StopIteration):
        steps.send(None)
        raise AssertionError("a lock for threads was awaited")
