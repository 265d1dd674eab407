"""Blocks that are left by the exception with which a framework suspends a function: see `tests/frameworks` for the real ones."""

import asyncio
import re

import pytest
from row_models import Account

from pynamodb_mutex import Mutex, Once, Semaphore
from pynamodb_mutex._lock.handles import _MOST_WARNED
from pynamodb_mutex.aio import AsyncMutex, AsyncOnce

pytestmark = pytest.mark.usefixtures("accounts")


class Base(BaseException):
    """Stands for an exception by which LangGraph suspends a node."""


Base.__module__, Base.__name__ = "langgraph.errors", "GraphInterrupt"


class SuspendedError(Base):
    """One of its subclasses."""


class OrdinaryError(Exception):
    """Of the same package, and no suspension."""


OrdinaryError.__module__ = "langgraph.errors"


def said(caplog):
    return [each.getMessage() for each in caplog.records if "suspends your" in each.getMessage()]


def left(lock, error):
    with pytest.raises(type(error)), lock:
        raise error


async def left_by_task(lock, error):
    async def block():
        async with lock:
            raise error

    with pytest.raises(type(error)):
        await block()


LOCKS = {
    "a mutex": lambda: Mutex.for_key("a"),
    "several": lambda: Mutex.for_keys(["a", "b"]),
    "a permit": lambda: Semaphore.for_key("a", permits=2),
    "a row": lambda: Account.locked("a"),
    "once": lambda: Once.for_key("a"),
    "once, of which somebody decides": lambda: Once.for_key("a", on_abandoned="raise"),
    "a task's mutex": lambda: AsyncMutex.for_key("a"),
    "a task's row": lambda: Account.alocked("a"),
    "a task's once": lambda: AsyncOnce.for_key("a"),
}


@pytest.mark.parametrize("kind", LOCKS)
def test_suspension_in_a_block_is_logged_once_and_no_other_exception_is(caplog, table, kind):
    def leave(error):
        lock = LOCKS[kind]()
        if "task" in kind:
            asyncio.run(left_by_task(lock, error))
        else:
            left(lock, error)
        Once.forget("a", force=True)

    leave(OrdinaryError())
    assert said(caplog) == []
    leave(SuspendedError())
    (text,) = said(caplog)
    assert re.match("'(a|rows-.*/a)", text.removeprefix("once "))
    assert ": SuspendedError suspends your function, and its block is left: others may" in text
    leave(Base())
    assert said(caplog) == [text]


def test_each_lock_has_a_warning_of_its_own_and_what_is_remembered_is_bounded(caplog, table):
    def warned(key):
        before = len(said(caplog))
        left(Mutex.for_key(key), SuspendedError())
        return len(said(caplog)) - before

    assert [warned("a"), warned("b"), warned("a")] == [1, 1, 0]
    for number in range(_MOST_WARNED - 2):
        assert warned(f"k{number}") == 1
    assert warned("a") == 0
    assert warned("c") == 1  # and the others are forgotten
    assert warned("a") == 1
