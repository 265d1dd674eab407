"""A lock for threads that waits in a task: it warns that the event loop stands still, at the line that waits."""

import ast
import asyncio
import threading
import types
import warnings
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest
from row_models import Account

from pynamodb_mutex import LockItem, Mutex, MutexTimeoutError, Once, Semaphore, synchronized
from pynamodb_mutex.aio import AsyncMutex
from pynamodb_mutex.testing import held_elsewhere

pytestmark = pytest.mark.usefixtures("table", "accounts")

KINDS = {
    "a mutex": partial(Mutex.for_key, "a"),
    "a mutex in line": partial(Mutex.for_key, "a", fair=True),
    "several": partial(Mutex.for_keys, ["b", "a"]),
    "any": partial(Mutex.any_of, ["a"]),
    "a semaphore": partial(Semaphore.for_key, "a", permits=1),
    "a row": partial(Account.locked, "a"),
    "rows": partial(Account.locked_all, ["a"]),
    "once": partial(Once.for_key, "a"),
}


@contextmanager
def shown_once():
    """Hold the key a, and free it when a warning is shown; return where the warnings point to, each once for each place."""
    places = []

    def show(message, category, filename, lineno, *_):
        assert category is RuntimeWarning
        assert "blocks the event loop" in str(message)
        places.append((filename, lineno))
        # not here: what is warned of is in the middle of a step
        threading.Thread(target=LockItem.force_release, args=["a"]).start()

    with warnings.catch_warnings(), held_elsewhere("a"):
        warnings.simplefilter("default")
        warnings.showwarning = show
        yield places


def line_in(function, number):
    return (__file__, function.__code__.co_firstlineno + number)


async def enters(timeout):
    Mutex.for_key("a", timeout=timeout).__enter__().release()


async def enters_a_stack(timeout):
    with ExitStack() as stack:
        stack.enter_context(Mutex.for_key("a", timeout=timeout))


async def calls(timeout):
    synchronized("a", timeout=timeout)(print)()


@pytest.mark.real("embedded")  # a simulated process adds lines of its own
@pytest.mark.parametrize(("wait", "line"), [(enters, 1), (enters_a_stack, 2), (calls, 1)])
def test_wait_in_a_task_warns_once_for_each_place(wait, line):
    with shown_once() as places:
        asyncio.run(wait(60))
        with held_elsewhere("a"), pytest.raises(MutexTimeoutError):
            asyncio.run(wait(0.5))
    assert places == [line_in(wait, line)]


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_wait_in_a_task_may_be_an_error_which_ends_it(make, pool):
    holder = make()
    pool.submit(holder.__enter__).result()

    async def main():
        make(timeout=60).__enter__()

    with pytest.raises(RuntimeWarning, match="blocks the event loop"):
        asyncio.run(main())
    # nobody waits any more
    pool.submit(holder.__exit__, SystemExit, SystemExit(), None).result()
    if isinstance(holder, Once):
        assert holder.call(lambda: 1) == 1
        return
    with make(timeout=5):
        pass


def test_what_does_not_block_a_loop_does_not_warn():
    def wait():
        assert not Mutex.for_key("a", timeout=5).acquire()

    async def of_another_loop():
        wait()

    async def main():
        # nobody waits for what is free, and nobody waits without a timeout
        with Mutex.for_key("b"), Mutex.for_keys(["c", "d"]):
            assert not Mutex.for_key("a").acquire(blocking=False)
            assert not Mutex.for_keys(["a", "e"]).acquire(blocking=False)
        assert not await AsyncMutex.for_key("a", timeout=5).acquire()

    with held_elsewhere("a"):
        asyncio.run(main())
        # no task waits
        wait()
        with pytest.raises(StopIteration):
            of_another_loop().send(None)
        loop = asyncio.new_event_loop()
        loop.call_soon(wait)
        loop.run_until_complete(asyncio.sleep(10))
        loop.close()


def test_cell_of_a_notebook_may_wait():
    async def handler():
        return Mutex.for_key("a", timeout=5).acquire()

    async def run_code(cell, names):
        exec(cell, names)

    in_shell = types.FunctionType(
        run_code.__code__, {"__name__": "IPython.core.interactiveshell", "exec": exec}
    )
    wait, names = "Mutex.for_key('a', timeout=5).acquire()", {"Mutex": Mutex, "handler": handler}

    def cell(source):
        return compile(source, "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    with held_elsewhere("a"):
        asyncio.run(in_shell(cell(wait), names))
        asyncio.run(eval(cell(f"import asyncio; await asyncio.sleep(0); {wait}"), names))
        with pytest.raises(RuntimeWarning, match="blocks the event loop"):
            asyncio.run(eval(cell("await handler()"), names))
        # code that `exec` runs in a coroutine is no cell, though it has no name
        with pytest.raises(RuntimeWarning, match="blocks the event loop"):
            asyncio.run(run_code(cell(wait), {"Mutex": Mutex}))


def test_worker_that_acts_for_a_task_does_not_block_its_loop():
    """A model's own method waits on a worker, which counts as the task."""
    ended = []

    class Own(Account):
        Meta = Account.Meta

        def save(self):
            ended.append(Mutex.for_key("a", timeout=5).acquire())
            return super().save()

    with held_elsewhere("a"):
        asyncio.run(Own("own").asave())
    assert ended == [False]
