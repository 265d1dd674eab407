"""Mutex among the threads of a process: decorator, reentrance, one object shared by many."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hearing import until

from pynamodb_mutex import (
    LockItem,
    Mutex,
    MutexAlreadyHeldError,
    MutexLostError,
    MutexNotHeldError,
    MutexTimeoutError,
)
from pynamodb_mutex.testing import held_elsewhere

QUICK = (0.02, 0.1)


@pytest.fixture
def aside():
    """Run a call on another thread, always the same, and give what it returns or raises."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda call, *args: pool.submit(call, *args).result(60)


# -- decorator ----------------------------------------------------------------------------------


def test_a_decorated_function_runs_under_the_lock(table):
    @Mutex.for_key("a")
    def add(a, b=1, *rest, c):
        """Add up."""
        assert Mutex.for_key("a").locked()
        return a + b + sum(rest) + c

    assert add(1, 2, 3, c=4) == 10
    assert add(1, c=4) == 6
    assert not Mutex.for_key("a").locked()
    assert (add.__name__, add.__doc__) == ("add", "Add up.")
    assert list(inspect.signature(add).parameters) == ["a", "b", "rest", "c"]
    assert add.__wrapped__ is not add


def test_an_exception_passes_through_the_decorator(table):
    @Mutex.for_key("a")
    def fail():
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        fail()
    assert not Mutex.for_key("a").locked()


def test_each_call_uses_a_mutex_of_its_own_with_the_same_options(table):
    decorating = Mutex.for_key("a", timeout=0.2, owner="deco", lease=7, data=[1], poll=QUICK)

    @decorating
    def read():
        assert not decorating.held
        item = table.get("a")
        return item.owner, item.data, item.lease

    owner, data, lease = read()
    assert (owner, data) == ("deco", [1])
    assert lease == pytest.approx(7, abs=0.01)
    with held_elsewhere("a"), pytest.raises(MutexTimeoutError):
        read()


def test_a_decorated_method_gets_its_self(table):
    class Till:
        total = 0

        @Mutex.for_key("till")
        def put(self, amount):
            self.total += amount
            return self

        @staticmethod
        @Mutex.for_key("till")
        def name():
            return "till"

    assert Till().put(3).put(4).total == 7
    assert Till.name() == "till"


@pytest.mark.real
def test_calls_from_many_threads_exclude_each_other(table):
    inside = []

    @Mutex.for_key("a", poll=QUICK)
    def alone():
        inside.append(1)
        assert len(inside) == 1
        inside.pop()

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(alone) for _ in range(12)]:
            done.result(60)


def test_a_reentrant_decorated_function_may_call_itself(table):
    @Mutex.for_key("a", reentrant=True)
    def count(n):
        return 0 if n == 0 else 1 + count(n - 1)

    assert count(3) == 3
    assert not Mutex.for_key("a").locked()


async def _coroutine():
    pass


async def _async_generator():
    yield


def _generator():
    yield


class _AsyncCallable:
    async def __call__(self):
        pass


@pytest.mark.parametrize(
    "function",
    [_coroutine, _async_generator, functools.partial(_coroutine), _AsyncCallable()],
)
def test_async_functions_are_refused(function):
    assert asyncio  # what they would block is its loop
    with pytest.raises(TypeError, match="event loop"):
        Mutex.for_key("a")(function)


def test_generators_are_refused():
    with pytest.raises(TypeError, match="inside the generator"):
        Mutex.for_key("a")(_generator)


# -- reentrance ---------------------------------------------------------------------------------


def test_a_reentrant_mutex_counts_and_the_last_exit_gives_it_back(table):
    mutex = Mutex.for_key("a", reentrant=True)
    with mutex:
        token = mutex.fencing_token
        with mutex:
            assert mutex.acquire(blocking=False)
            assert mutex.fencing_token == token
            mutex.release()
            assert mutex.held
        assert mutex.held
        assert table.get("a").token == mutex.token
    assert not mutex.held
    assert not mutex.locked()
    with pytest.raises(MutexNotHeldError):
        mutex.release()


def test_two_reentrant_objects_share_the_acquisition_of_a_thread(table):
    outer, inner = (Mutex.for_key("a", reentrant=True) for _ in range(2))
    with outer:
        with inner:
            assert inner.held
            assert (inner.token, inner.fencing_token) == (outer.token, outer.fencing_token)
        assert outer.held
        assert outer.locked()
    assert not outer.held
    assert not inner.held
    assert not outer.locked()


def test_whichever_object_is_left_last_gives_it_back(table):
    first, second = (Mutex.for_key("a", reentrant=True) for _ in range(2))
    first.acquire()
    second.acquire()
    first.release()
    assert second.held
    assert second.locked()
    second.release()
    assert not second.locked()
    assert not first.held


def test_another_thread_does_not_enter_on_it(table, aside):
    mutex = Mutex.for_key("a", reentrant=True, poll=QUICK)
    with mutex, mutex:
        assert aside(mutex.acquire, False) is False
        assert aside(Mutex.for_key("a", reentrant=True).acquire, False) is False
    assert aside(mutex.acquire, False) is True
    aside(mutex.release)


def test_a_mutex_that_is_not_reentrant_does_not_enter_on_one_that_is(table):
    with Mutex.for_key("a", reentrant=True):
        assert Mutex.for_key("a").acquire(blocking=False) is False
    with Mutex.for_key("a"):
        assert Mutex.for_key("a", reentrant=True).acquire(blocking=False) is False


def test_reentrance_does_not_outlive_the_lock(table):
    outer, inner = (Mutex.for_key("a", reentrant=True) for _ in range(2))
    outer.acquire()
    LockItem.force_release("a")
    with inner:
        assert inner.fencing_token > outer.fencing_token
        assert not outer.held
        with pytest.raises(MutexLostError):
            outer.release()
        assert inner.held


@pytest.mark.real("embedded")
def test_a_thread_is_not_taken_for_one_that_ended(table):
    """Python gives a new thread the number of an old one."""
    plain, nested = Mutex.for_key("a", poll=QUICK), Mutex.for_key("b", reentrant=True)
    numbers, taken = [], []

    def take_and_end():
        numbers.append(threading.get_ident())
        plain.acquire()
        nested.acquire()

    def come_after():
        if threading.get_ident() != numbers[0]:
            return
        for mutex in (Mutex.for_key("b", reentrant=True), plain):
            try:
                taken.append(mutex.acquire(blocking=False))
            except Exception as error:
                taken.append(error)

    def run(target):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()

    with Mutex.for_key("other"):
        pass  # from now on the renewer's thread is there, and takes no number
    run(take_and_end)
    for _ in range(100):
        if not taken:
            run(come_after)
    if not taken:
        pytest.skip("no thread got the number of the one that ended")
    assert taken == [False, False]


# -- one object, many threads -------------------------------------------------------------------


def test_each_thread_sees_its_own_acquisition(table, aside):
    mutex = Mutex.for_key("a", poll=QUICK)
    mutex.acquire()
    mine = mutex.fencing_token
    LockItem.force_release("a")
    assert aside(mutex.acquire, False) is True
    assert aside(lambda: mutex.held)
    assert not mutex.held
    assert mutex.lost
    assert mutex.fencing_token == mine
    assert aside(lambda: mutex.fencing_token) > mine
    with pytest.raises(MutexLostError):
        mutex.ensure_held()
    aside(mutex.release)


def test_leaving_a_block_never_releases_what_another_thread_took(table, aside):
    mutex = Mutex.for_key("a", poll=QUICK)

    def body():
        LockItem.force_release("a")
        aside(mutex.__enter__)

    with pytest.raises(MutexLostError), mutex:
        body()
    assert mutex.locked()
    assert aside(lambda: mutex.held)
    aside(mutex.__exit__, None, None, None)
    assert not mutex.locked()


def test_a_thread_without_an_acquisition_sees_the_latest(table, aside):
    mutex = Mutex.for_key("a")
    mutex.acquire()
    assert aside(lambda: mutex.held)
    assert aside(lambda: mutex.token) == mutex.token
    mutex.release()
    assert not aside(lambda: mutex.held)


def test_threads_that_share_a_mutex_exclude_each_other(table):
    mutex = Mutex.for_key("a", poll=QUICK)
    inside, tokens = [], []

    def work():
        for _ in range(5):
            with mutex:
                inside.append(1)
                time.sleep(0.01)
                assert len(inside) == 1
                assert mutex.held
                tokens.append(mutex.fencing_token)
                inside.pop()

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work) for _ in range(4)]:
            done.result(60)
    assert len(tokens) == 20
    assert tokens == sorted(set(tokens))
    assert not mutex.locked()


def test_a_waiter_that_shares_the_object_of_the_holder_gets_it_at_release(table):
    mutex = Mutex.for_key("a", poll=QUICK)
    mutex.acquire()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(mutex.acquire, timeout=20)
        time.sleep(1)
        with pytest.raises(MutexAlreadyHeldError):
            mutex.acquire()
        released = time.monotonic()
        mutex.release()
        assert waiting.result(60) is True
        assert time.monotonic() == released
    assert mutex.held  # the latest acquisition, by the other thread
    assert mutex.locked()
    mutex.release()


def test_a_waiter_whose_row_would_be_too_large_does_not_spoil_the_holders_release(table):
    holder, waiter = Mutex.for_key("a"), Mutex.for_key("a", data="x" * 500_000, poll=QUICK)
    holder.acquire()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(waiter.acquire, timeout=20)
        until(lambda: holder._latest.contender.queue.turns)
        try:
            holder.release()
        finally:
            error = waiting.exception(60)
    assert "size" in str(error)
    assert not holder.locked()
