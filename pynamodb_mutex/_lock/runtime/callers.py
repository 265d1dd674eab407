"""Callers: which task calls a lock or, outside of tasks, which thread in which context (`contextvars`).

If several callers share a lock object, each sees its own latest acquisition, and only it may enter that again (reentrant locks).
So each has a `Caller` object, which ends with it: lock objects (`pynamodb_mutex._lock.handles`) record by it what the caller has
acquired. And each has a number that is never used twice in a process: claims refer to their holder by it.

A thread of a pool is no caller. Suppose it runs a dependency of FastAPI that yields inside a block, and then a job of another
request: that request does not hold the lock. A pool runs each job in a context of its own, and so a thread is a caller in each of
its contexts. A task is one caller, even if its context changes: a task that a holder starts gets a copy of the holder's context,
and holds nothing.
"""

from __future__ import annotations

import inspect
import itertools
import os
import socket
import sys
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary, ref

from pynamodb_mutex._lock.operations.contender import PASSED_OVER, Caller

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

T = TypeVar("T")

_serial = itertools.count(1)


class _Thread(threading.local):
    """A thread: its number, an object that ends with it, and the caller for which it calls user code now, or None."""

    def __init__(self) -> None:
        number = next(_serial)
        self.caller = Caller(number, number, "")
        self.thread = threading.current_thread()
        self.acts_as: Caller | None = None


_thread = _Thread()
_in_context: ContextVar[Caller | None] = ContextVar("pynamodb_mutex_caller", default=None)
"""The caller of this context; if the context is a copy, perhaps the caller of the original, on another thread."""
# by the tasks themselves, not by `id`: a new task may get the `id` of a task that ended, perhaps as a holder
_tasks: WeakKeyDictionary[Any, Caller] = WeakKeyDictionary()


def caller(*, labelled: bool = True) -> Caller:
    """Return the calling task or, outside of tasks, the calling thread in this context.

    Not by `threading.get_ident`: that may give a new thread the number of a thread that ended, perhaps as a holder.

    Args:
        labelled: Whether to bring its label and the number of its thread up to date.
    """
    if _thread.acts_as is not None:
        return _thread.acts_as
    # not imported: a process without tasks need not load asyncio
    asyncio: Any = sys.modules.get("asyncio")
    # by `getattr`, because another thread may be importing it at this moment: it is there, but not complete
    running_loop = getattr(asyncio, "_get_running_loop", None)
    loops = running_loop is not None and running_loop() is not None
    task = asyncio.current_task() if loops else None
    if task is None and "trio" in sys.modules:
        task = _task_of_trio()
    thread = _thread.caller
    if task is None:
        me = _in_context.get()
        # The caller of another context will do, if it is on the same thread: Django's `sync_to_async` runs each call in a copy
        # of the context, and copies the variables back.
        if me is None or me.thread != thread.number:
            me = Caller(next(_serial), thread.number, "", ref(thread))
            _in_context.set(me)
    else:
        me = _tasks.get(task)
        if me is None:
            me = _tasks[task] = Caller(next(_serial), 0, "")
    if labelled:
        of: Any = _thread.thread if task is None else task
        # a task of asyncio has `get_name` in place of `name`
        name = of.name if hasattr(of, "name") else of.get_name()
        me.thread, me.label = thread.number, f"{_host()}:{os.getpid()}:{name}"
        me.is_pinned = loops or task is not None
    return me


def _task_of_trio() -> Any:
    """Return the task of trio that runs on this thread; None if none does."""
    lowlevel: Any = getattr(sys.modules["trio"], "lowlevel", None)  # perhaps not complete, as above
    in_task = getattr(lowlevel, "in_trio_task", None)
    return lowlevel.current_task() if in_task is not None and in_task() else None


@cache
def _host() -> str:
    return socket.gethostname()


@contextmanager
def acting_as(other: Caller) -> Iterator[None]:
    """Count this thread as another caller inside the block: a worker calls receivers and callbacks for a task.

    If a receiver asks the lock whether it is held, it gets the task's answer.
    """
    before, _thread.acts_as = _thread.acts_as, other
    try:
        yield
    finally:
        _thread.acts_as = before


def waits_block() -> bool:
    """Return whether a wait blocks the caller's thread: not if this is a worker that acts for a task."""
    return _thread.acts_as is None


def calling_frame() -> FrameType | None:
    """Return the frame in which user code calls a lock, also by an `ExitStack`. Keep only its `id`, valid while it runs."""
    frame: FrameType | None = sys._getframe(1)
    # code that `exec` runs may have no name
    while frame is not None and frame.f_globals.get("__name__", "").startswith(PASSED_OVER):
        frame = frame.f_back
    return frame


def take_last(stacks: dict[Caller, list[T]], who: Caller) -> T | None:
    """Remove and return the last item of a caller; None if there is none."""
    own = stacks.get(who)
    if own is None:
        return None
    last = own.pop()
    if not own:
        del stacks[who]
    return last


class Blocks(dict[Caller, list[tuple[T, int, object]]]):
    """The open ``with`` blocks of one lock object, by the caller that began each, innermost last."""

    def begin(self, me: Caller, begun: T, frame: int) -> None:
        """Record the acquisition with which a caller began a block, in the frame with this `id`."""
        # `me.of()` keeps the caller alive until the block is left: another thread may leave it (`HeldClaim.is_orphaned`).
        self.setdefault(me, []).append((begun, frame, me.of()))

    def leave(self, error: BaseException | None) -> tuple[Caller, T]:
        """Take out the block that is left now, by an exception or by None; return its caller and its acquisition."""
        me = caller(labelled=False)
        # one caller may enter the block, and another leave it
        who = me if me in self else next(iter(self))
        if len(self) > 1:
            who = self._owner(error, who)
        block: Any = take_last(self, who)
        return who, block[0]

    def _owner(self, error: BaseException | None, who: Caller) -> Caller:
        """Return the caller that began the block that is left now: ``who``, unless the block's frame belongs to another caller.

        If a generator is suspended in its block, any thread of a pool may resume it, and the garbage collector may close it, on
        any thread, or the event loop, in a task of its own. Suppose A and B have a permit each by one semaphore, B in a
        generator: A goes on, and A's permit must not be released in place of B's.
        """
        frame: Any = calling_frame()
        resumable = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
        # Only the frame of a generator counts: an `ExitStack` may outlive the frame that entered it, and another frame may have
        # the same `id` by now. There is no frame if the interpreter itself closes a generator, as at exit.
        if frame is None or not (
            isinstance(error, GeneratorExit) or frame.f_code.co_flags & resumable
        ):
            return who
        of_frame = id(frame)
        found = [
            each for each, own in list(self.items()) if of_frame in [block[1] for block in own]
        ]
        return who if who in found or not found else found[0]
