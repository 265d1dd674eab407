"""Who is the same caller: a task or, outside of tasks, a thread in one context."""

import _thread
import asyncio
import gc
import logging
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import Context, copy_context
from functools import partial

import pytest
import trio
from row_models import Account
from waits import until

from pynamodb_mutex import (
    LockItem,
    Mutex,
    MutexAlreadyHeldError,
    MutexNotHeldError,
    Once,
    OnceItem,
    Semaphore,
)
from pynamodb_mutex.aio import AsyncMutex

pytestmark = pytest.mark.usefixtures("accounts", "once_table")

REENTRANT = {
    "mutex": partial(Mutex.for_key, "a", reentrant=True),
    "group": partial(Mutex.for_keys, ["a", "b"], reentrant=True),
    "row": partial(Account.locked, "a", reentrant=True),
}
LOCKS = {
    **REENTRANT,
    "not reentrant": partial(Mutex.for_key, "a"),
    "last permit": partial(Semaphore.for_key, "a", permits=1),
    "readers": partial(Mutex.for_key, "a", shared=True),
    "run": partial(Once.for_key, "a"),
}
WAITERS = LOCKS | {"readers": partial(Mutex.for_key, "a")}


@pytest.fixture
def once_table():
    OnceItem.create_table()


@pytest.fixture
def thread():
    """One thread of a pool, which runs each job in a copy of the caller's context, as anyio's do."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda call, *args: pool.submit(copy_context().run, call, *args)


def suspended(lock):
    with lock as held:
        yield held
        if isinstance(lock, Once) and not held.done:
            held.complete(None)


def elsewhere(call, *args):
    other = threading.Thread(target=copy_context().run, args=(call, *args))
    other.start()
    other.join()


@pytest.mark.parametrize("make", REENTRANT.values(), ids=REENTRANT)
def test_job_does_not_enter_what_a_suspended_job_of_its_thread_holds(make, thread):
    first = suspended(make())
    thread(next, first).result()
    assert not thread(make(timeout=0).acquire).result()
    elsewhere(next, first, None)
    assert thread(make(timeout=0).acquire).result()


@pytest.mark.parametrize("kind", LOCKS)
def test_job_waits_for_what_a_suspended_job_of_its_thread_holds(kind, thread):
    first, second = suspended(LOCKS[kind]()), suspended(WAITERS[kind]())
    thread(next, first).result()
    waits = thread(next, second)
    time.sleep(0.1)
    assert not waits.done()
    elsewhere(next, first, None)
    waits.result(10)
    thread(next, second, None).result()


def test_block_that_another_thread_leaves_releases_its_own_permit(thread):
    semaphore = Semaphore.for_key("a", permits=3)
    blocks = [suspended(semaphore) for _ in range(3)]

    def enter(block):
        next(block)
        return semaphore.permit

    permits = [*(thread(enter, block).result() for block in blocks[:2]), enter(blocks[2])]
    for block, permit in zip(blocks, permits, strict=True):
        before = {item.key for item in LockItem.held()}
        elsewhere(next, block, None)
        assert before - {item.key for item in LockItem.held()} == {f"a#permit-{permit}"}


def test_block_of_a_run_that_another_thread_leaves_ends_that_run(thread):
    once = Once.for_key("a")
    with once as began:
        began.complete(1)
    known, first = suspended(once), suspended(once)
    next(known)  # in its block, with the result
    Once.forget("a")
    thread(next, first).result()
    elsewhere(first.close)
    assert Once.peek("a").state == "nothing"
    known.close()


def test_stack_that_outlives_its_frame_ends_no_block_of_another_caller(thread):
    """The frame that closes it may have the `id` of one that has ended."""
    semaphore = Semaphore.for_key("a", permits=2)

    def entered():
        stack = ExitStack()
        stack.enter_context(semaphore)
        return stack, semaphore.permit

    other, _ = thread(entered).result()
    stack, permit = entered()
    before = {item.key for item in LockItem.held()}
    frame, blocks = id(sys._getframe()), next(iter(semaphore._blocks.values()))
    blocks[:] = [(held, frame, alive) for held, _, alive in blocks]
    stack.close()
    assert before - {item.key for item in LockItem.held()} == {f"a#permit-{permit}"}
    other.close()


@pytest.mark.real("embedded")
def test_stack_that_the_interpreter_closes_ends_a_block():
    """No frame of user code calls it then."""
    semaphore, ended = Semaphore.for_key("a", permits=2), threading.Event()
    other, stack = suspended(semaphore), ExitStack()
    next(other)
    stack.callback(ended.set)
    elsewhere(stack.enter_context, semaphore)
    _thread.start_new_thread(stack.close, ())
    assert ended.wait(10)
    until(lambda: len(list(LockItem.held())) == 1)
    other.close()


@pytest.mark.parametrize("make", [partial(Semaphore.for_key, "a", permits=3), LOCKS["readers"]])
def test_jobs_of_a_pool_may_release_what_others_have_acquired_by_one_object(thread, make):
    lock = make()
    for _ in range(2):
        assert thread(lock.acquire).result()
    for _ in range(2):
        assert thread(lambda: lock.held).result()
        thread(lock.release).result()
    assert not thread(lambda: lock.held).result()
    with pytest.raises(MutexNotHeldError):
        thread(lock.release).result()


def test_lock_held_alone_covers_readers_of_its_context_alone(thread):
    def shares():
        return Mutex.for_key("a", shared=True, timeout=0).acquire()

    with Mutex.for_key("a"):
        assert shares()
        assert not Context().run(shares)
        assert not thread(shares).result()


def test_copy_of_the_holders_context_enters_again_on_its_thread_alone(thread):
    again = REENTRANT["mutex"](timeout=0)
    with REENTRANT["mutex"]():
        assert copy_context().run(again.acquire)
        again.release()
        assert not thread(again.acquire).result()
        assert not Context().run(again.acquire)


def test_task_that_a_holder_starts_holds_nothing():
    async def main():
        make = partial(AsyncMutex.for_key, "a", reentrant=True, timeout=0)
        async with make():
            assert not await asyncio.create_task(make().acquire())
            assert not await asyncio.to_thread(REENTRANT["mutex"](timeout=0).acquire)

    asyncio.run(main())


def test_tasks_of_trio_are_callers_of_their_own():
    got = []

    async def child():
        got.append(REENTRANT["mutex"](timeout=0).acquire())

    async def main():
        with REENTRANT["mutex"](), REENTRANT["mutex"]():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(child)

    trio.run(main)
    assert got == [False]


def test_callback_of_a_loop_that_waits_for_another_one_is_refused():
    async def main():
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        first = Mutex.for_key("a")

        def wait():
            with pytest.raises(MutexAlreadyHeldError, match="loop"):
                Mutex.for_key("a").acquire()
            first.release()
            done.set()

        loop.call_soon(first.acquire, context=Context())
        loop.call_soon(wait, context=Context())
        await done.wait()

    asyncio.run(main())


def test_holder_whose_context_has_ended_is_no_orphan_as_long_as_its_thread_runs(thread, caplog):
    mutex = Mutex.for_key("a")
    with caplog.at_level(logging.WARNING, "pynamodb_mutex"):
        thread(mutex.acquire).result()
        gc.collect()
        assert mutex.held
        assert not Mutex.for_key("a", timeout=0.2).acquire()
        assert not caplog.records
        mutex.release()


def test_holder_whose_thread_has_ended_is_no_orphan_as_long_as_its_block_is_suspended(caplog):
    first = suspended(Mutex.for_key("a"))
    with caplog.at_level(logging.WARNING, "pynamodb_mutex"):
        elsewhere(next, first)
        gc.collect()
        assert not Mutex.for_key("a", timeout=0.2).acquire()
        assert not caplog.records
        elsewhere(next, first, None)


def test_lock_keeps_nothing_of_contexts_that_have_ended(thread):
    mutex = Mutex.for_key("a")
    for _ in range(3):
        thread(mutex.acquire).result()
        thread(mutex.release).result()
    gc.collect()
    assert not mutex._acquired


def test_context_that_is_handed_back_is_the_same_caller(thread):
    """As asgiref does it: each call runs in a copy, whose variables are copied back."""

    def handing_back(call):
        copy = copy_context()
        result = thread_of(copy.run, call)
        for variable in copy:
            variable.set(copy[variable])
        return result

    def thread_of(call, *args):
        return pool.submit(call, *args).result()

    with ThreadPoolExecutor(1) as pool:
        mutex = REENTRANT["mutex"](timeout=0)
        assert handing_back(mutex.acquire)
        assert handing_back(REENTRANT["mutex"](timeout=0).acquire)


@pytest.mark.parametrize("make", REENTRANT.values(), ids=REENTRANT)
def test_wait_for_a_reentrant_lock_of_another_context_is_logged_once(make, thread, caplog):
    first, again = suspended(make()), make(timeout=0.2)
    with caplog.at_level(logging.WARNING, "pynamodb_mutex"):
        thread(next, first).result()
        elsewhere(again.acquire)
        assert not thread(make(timeout=0.2, reentrant=False).acquire).result()
        assert not caplog.records
        assert not thread(again.acquire).result()
        assert all("another context" in said for said in caplog.messages)
        assert len(set(caplog.messages)) == len(caplog.messages) > 0
        elsewhere(next, first, None)


def test_wait_that_blocks_a_loop_is_no_matter_of_contexts(caplog):
    async def main():
        with pytest.warns(RuntimeWarning, match="loop"):
            assert not REENTRANT["mutex"](timeout=0.2).acquire()

    with caplog.at_level(logging.WARNING, "pynamodb_mutex"), REENTRANT["mutex"]():
        asyncio.run(main())
        assert not caplog.records
