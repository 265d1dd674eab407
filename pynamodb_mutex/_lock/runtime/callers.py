"""Callers: which thread or asyncio task calls a lock.

Each caller sees its own latest attempt at a lock object that several share, and only it may enter its acquisition again
(reentrant locks). So each has a `Caller` object, which ends with it: lock objects (`pynamodb_mutex._lock.handles`) record by it
what the caller has acquired. And each has a number that is never used twice in a process: claims refer to their holder by
it.
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

from pynamodb_mutex._lock.operations.contender import Caller

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

T = TypeVar("T")

_PASSED_OVER = ("pynamodb_mutex.", "contextlib")
"""What the names of modules begin with whose frames are not user code."""

_serial = itertools.count(1)


class _Thread(threading.local):
    """A thread as a caller, and the task for which it calls user code at the moment; None if for none."""

    def __init__(self) -> None:
        number = next(_serial)
        self.caller = Caller(number, number, "")
        self.thread = threading.current_thread()
        self.acts_as: Caller | None = None


_thread = _Thread()
# by the tasks themselves, not by `id`: a new task gets the `id` of one that ended, perhaps as a holder
_tasks: WeakKeyDictionary[Any, Caller] = WeakKeyDictionary()


def caller(*, labelled: bool = True) -> Caller:
    """Return the calling thread or task.

    Not known by `threading.get_ident`: that gives a new thread the number of one that ended, perhaps as a holder.

    Args:
        labelled: Whether its label and the number of its thread are brought up to date.
    """
    if _thread.acts_as is not None:
        return _thread.acts_as
    # not imported: a process without tasks need not load asyncio
    asyncio: Any = sys.modules.get("asyncio")
    # by `getattr`, because another thread may be importing it at this moment: it is there, but not complete
    running_loop = getattr(asyncio, "_get_running_loop", None)
    task = None if running_loop is None or running_loop() is None else asyncio.current_task()
    me = _thread.caller if task is None else _tasks.get(task)
    if me is None:
        me = _tasks[task] = Caller(next(_serial), 0, "")
    if labelled:
        name = _thread.thread.name if task is None else task.get_name()
        me.thread, me.label = _thread.caller.number, f"{_host()}:{os.getpid()}:{name}"
    return me


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


def calling_frame() -> int:
    """Return the `id` of the frame in which user code calls a lock, also by an `ExitStack`; it is good while that runs."""
    frame: FrameType | None = sys._getframe(1)
    # code that `exec` runs may have no name
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_PASSED_OVER):
        frame = frame.f_back
    return id(frame)


def take_last(stacks: dict[Caller, list[T]], who: Caller) -> T | None:
    """Remove and return what a caller put there last; None if there is nothing of it."""
    own = stacks.get(who)
    if own is None:
        return None
    last = own.pop()
    if not own:
        del stacks[who]
    return last
