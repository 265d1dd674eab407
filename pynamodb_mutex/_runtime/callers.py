"""Callers: which thread or asyncio task calls a lock.

Each caller sees its own acquisitions of a lock object that several share, and only it may enter them again (reentrant
locks). So callers are distinguished by numbers that are never used twice in a process. The acquisitions by caller are kept
by the lock objects (`pynamodb_mutex._handles`).
"""

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
    from types import FrameType

T = TypeVar("T")

_PASSED_OVER = ("pynamodb_mutex.", "contextlib")
"""What the names of modules begin with whose frames are not user code."""

_serial = itertools.count(1)


class _Thread(threading.local):
    """The number of a thread, and the task for which it calls user code at the moment; None if for none."""

    def __init__(self) -> None:
        self.number = next(_serial)
        self.acts_as: Caller | None = None


_thread = _Thread()
# by the tasks themselves, not by `id`: a new task gets the `id` of one that ended, perhaps as a holder
_tasks: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def this_caller() -> int:
    """Return the number of the calling thread or task, which no other one of this process ever had.

    Not `threading.get_ident`: that gives a new thread the number of one that ended, perhaps as a holder.
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
    """Return the calling thread or task: its number, the number of its thread, and its label."""
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
    """Count this thread as another caller inside the block: a worker calls receivers and callbacks for a task.

    A receiver that asks the lock whether it is held shall get the answer that the task would get.
    """
    before, _thread.acts_as = _thread.acts_as, other
    try:
        yield
    finally:
        _thread.acts_as = before


def _running_task() -> Any:
    """Return the task that runs on this thread; None if none does."""
    # not imported: a process without tasks need not load asyncio
    asyncio: Any = sys.modules.get("asyncio")
    # by `getattr`, because another thread may be importing it at this moment: it is there, but not complete
    running_loop = getattr(asyncio, "_get_running_loop", None)
    return None if running_loop is None or running_loop() is None else asyncio.current_task()


def calling_frame() -> int:
    """Return the `id` of the frame in which user code calls a lock, also by an `ExitStack`; it is good while that runs."""
    frame: FrameType | None = sys._getframe(1)
    # code that `exec` runs may have no name
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_PASSED_OVER):
        frame = frame.f_back
    return id(frame)


def take_last(stacks: dict[int, list[T]], who: int) -> T | None:
    """Remove and return what a caller put there last; None if there is nothing of it."""
    own = stacks.get(who)
    if own is None:
        return None
    last = own.pop()
    if not own:
        del stacks[who]
    return last
