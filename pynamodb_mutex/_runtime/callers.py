"""Who calls: a thread, or an asyncio task. Each sees, and enters again, its own acquisitions only."""

from __future__ import annotations

import itertools
import os
import socket
import sys
import threading
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from pynamodb_mutex._operations.contender import Caller

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")

_serial = itertools.count(1)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.number = next(_serial)
        self.acts_as: Caller | None = None


_thread = _Thread()
_tasks: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def this_caller() -> int:
    """Return a number that no other thread or task of this process ever had.

    `threading.get_ident` gives a new thread the number of one that ended, perhaps as a holder.
    """
    if _thread.acts_as is not None:
        return _thread.acts_as.number
    task = _running_task()
    return _thread.number if task is None else _number_of(task)


def _number_of(task: Any) -> int:
    number = _tasks.get(task)
    if number is None:
        number = _tasks[task] = next(_serial)
    return number


def caller() -> Caller:
    """Return who calls."""
    if _thread.acts_as is not None:
        return _thread.acts_as
    task = _running_task()
    if task is None:
        number, name = _thread.number, threading.current_thread().name
    else:
        number, name = _number_of(task), task.get_name()
    return Caller(number, _thread.number, f"{_host()}:{os.getpid()}:{name}")


@cache
def _host() -> str:
    return socket.gethostname()


@contextmanager
def acting_as(other: Caller) -> Iterator[None]:
    """Let this thread call receivers and callbacks for a task inside the block."""
    before, _thread.acts_as = _thread.acts_as, other
    try:
        yield
    finally:
        _thread.acts_as = before


def _running_task() -> Any:
    # a process without tasks never loads asyncio, not for this either
    asyncio: Any = sys.modules.get("asyncio")
    # it may be just being loaded by another thread
    running_loop = getattr(asyncio, "_get_running_loop", None)
    return None if running_loop is None or running_loop() is None else asyncio.current_task()


def take_last(stacks: dict[int, list[T]]) -> T:
    """Take out what this caller put there last, or another if it put nothing there.

    What a thread or task began may be ended by another.
    """
    me = this_caller()
    caller = me if me in stacks else next(iter(stacks))
    last = stacks[caller].pop()
    if not stacks[caller]:
        del stacks[caller]
    return last
