"""Waits for oneself: refused where they would never end, and nowhere else."""

import asyncio
import re
import threading
import time
from functools import partial

import pytest
from operations_by_hand import acquiring, waiting
from processes import Fork
from pynamodb.attributes import UnicodeAttribute
from row_models import Account, AccountElsewhere, Ledger
from this_process import QueueFor
from two_clients import held

from pynamodb_mutex import (
    LockItem,
    Mutex,
    MutexAlreadyHeldError,
    MutexTimeoutError,
    Semaphore,
    synchronized,
)
from pynamodb_mutex._lock.operations.contender import Caller
from pynamodb_mutex._lock.protocol.schedule import FEWEST_HAND_OVERS, SHORTEST_RUN
from pynamodb_mutex._lock.runtime.callers import acting_as, caller
from pynamodb_mutex.aio import AsyncMutex, AsyncSemaphore
from pynamodb_mutex.testing import expire, held_elsewhere

pytestmark = pytest.mark.usefixtures("accounts", "ledger")


def group(*keys):
    return partial(Mutex.for_keys, keys)


def any_of(*keys, **options):
    return partial(Mutex.any_of, keys, **options)


mutex, async_mutex = partial(Mutex.for_key, "a"), partial(AsyncMutex.for_key, "a")
fair, reentrant = partial(mutex, fair=True), partial(mutex, reentrant=True)
semaphore = partial(Semaphore.for_key, "a", permits=1)
row, rows = partial(Account.locked, "a"), partial(Account.locked_all, ["a"])
by_name = partial(Mutex.for_row, Ledger, "a")
any_again = any_of("a", reentrant=True)

PAIRS = {
    "two mutexes": (mutex, mutex, "a"),
    "one may be entered again, the other not": (reentrant, mutex, "a"),
    "one may not be entered again": (mutex, reentrant, "a"),
    "a group with the key": (mutex, group("b", "a"), "a"),
    "a key of a group": (group("a", "b"), mutex, "a"),
    "two groups": (group("a", "b"), group("c", "b"), "b"),
    "two that wait in line": (fair, fair, "a"),
    "any of one key": (mutex, any_of("a"), "a"),
    "the key of any": (any_of("a"), mutex, "a"),
    "any of the keys of a group": (group("a", "b"), any_of("a", "b"), None),
    "a semaphore's last permit": (semaphore, semaphore, "a#permit-1"),
    "any, which only the same object enters again": (any_again, any_again, "a"),
    "a row": (row, row, None),
    "a row by another model of its table": (row, partial(AccountElsewhere.locked, "a"), None),
    "a row among several": (row, rows, None),
    "several rows": (rows, row, None),
    "a row in the lock table, and by its name": (partial(Ledger.locked, "a"), by_name, None),
    "a row by its name": (by_name, partial(Ledger.locked, "a"), None),
}


@pytest.mark.parametrize(("holds", "asks", "key"), PAIRS.values(), ids=PAIRS)
def test_wait_for_an_own_lock_is_refused_without_a_request_or_ends_by_its_timeout(
    sent, holds, asks, key
):
    holder, waiter = holds(owner="outer"), asks(owner="inner")
    assert waiter.acquire()
    waiter.release()
    with holder:
        sent.clear()
        for call in (waiter.acquire, waiter.__enter__, lambda: waiter.acquire(timeout=-1)):
            with pytest.raises(MutexAlreadyHeldError, match="this thread or task") as raised:
                call()
            assert raised.value.owner == "outer"
            assert key in (None, raised.value.key)
            # both are named
            assert "owner 'outer'" in str(raised.value)
            assert "owner 'inner'" in str(raised.value)
        assert (sent, holder.held, waiter.held) == ([], True, False)
        patient = asks(timeout=0.05)
        for how in ({}, {"timeout": 0.05}, {"blocking": False}):
            assert patient.acquire(**how) is False
        with pytest.raises(MutexTimeoutError) as late:
            patient.__enter__()
        # of a group it names the key that is held
        assert re.search("this thread or task holds it itself: .*held by 'outer'", str(late.value))
    with waiter:
        assert not holder.held


@pytest.mark.parametrize("ends", [{"auto_renew": False}, {"max_hold": 1}], ids=str)
@pytest.mark.parametrize("asks", [mutex, fair, group("b", "a"), any_of("a")])
def test_wait_for_an_own_lock_that_is_not_renewed_without_end_lasts_as_long_as_its_lease(
    caplog, asks, ends
):
    holder, began = held(mutex(lease=2, owner="outer", **ends)), time.monotonic()
    held(asks(owner="inner")).release()
    assert time.monotonic() - began >= 1.9
    assert holder.lost
    (warning,) = (r.getMessage() for r in caplog.records if "cannot release" in r.getMessage())
    said = "'a' is held by 'outer', who cannot release it while 'inner' waits here: free in "
    assert warning.startswith(said + ("3.0 s" if "max_hold" in ends else "2.0 s"))
    # a timeout that comes first ends the wait, without a warning
    with mutex(auto_renew=False):
        assert not asks().acquire(timeout=0.05)
    assert len([r for r in caplog.records if "cannot release" in r.getMessage()]) == 1


def long_waits(caplog):
    """Return what was logged of waits that go on."""
    said = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    return [text for text in said if " has waited for " in text]


@pytest.mark.parametrize(
    "asks", [mutex, fair, group("b", "a"), any_of("a"), partial(mutex, shared=True)]
)
def test_wait_that_goes_on_is_logged_after_a_lease_and_then_ever_less_often(caplog, clock, asks):
    with held_elsewhere("a", owner="max", lease=900):
        waits, began, warned = waiting(asks(lease=10, owner="me")), clock.now(), []
        while clock.now() < began + 75:
            if len(long_waits(caplog)) > len(warned):
                warned.append(clock.now() - began)
            clock.advance(0.5)
            waits.wake()
        waits.interrupt()
    assert warned == [pytest.approx(after, abs=2) for after in (10, 20, 40)]
    text = r"'me' has waited for 'a' for 1\d s: held by 'max' until \S+ \(DynamoDB's time\) unless renewed, acquired at 2"
    assert re.match(text, long_waits(caplog)[0])


def test_wait_that_goes_on_names_a_holder_of_this_process(caplog, clock, pool):
    holder = pool.submit(held, mutex(owner="max", lease=900)).result()
    waits = waiting(mutex(lease=10))
    clock.advance(11)
    waits.wake()
    assert (
        ": another thread or task of this process holds it: held by 'max'" in long_waits(caplog)[0]
    )
    waits.interrupt()
    holder.release()
    with mutex(owner="max", lease=900, auto_renew=False):
        waits = waiting(mutex(lease=10))
        clock.advance(11)
        waits.wake()
        assert ": this thread or task holds it itself: held by 'max'" in long_waits(caplog)[1]
        waits.interrupt()


def test_refusal_says_which_of_the_two_is_reentrant_and_what_to_do():
    outer = r"by another mutex \(reentrant, owner 'outer'\)"
    inner = r"this one \(not reentrant, owner 'inner'\) would wait for it for ever"
    match = f"{outer}: {inner}. Release that one, enter it"
    with mutex(owner="outer", reentrant=True), pytest.raises(MutexAlreadyHeldError, match=match):
        mutex(owner="inner").acquire()


def test_lock_whose_object_is_gone_is_named_as_such():
    mutex(owner="outer").acquire()
    with pytest.raises(MutexAlreadyHeldError, match=r"'outer'.* That one is gone"):
        mutex().acquire()
    assert LockItem.force_release("a")


def test_function_that_calls_itself_under_its_lock_is_refused():
    @synchronized("a-{depth}")
    def by_key(depth):
        by_key(depth)

    @mutex()
    def by_mutex():
        by_mutex()

    for function in (lambda: by_key(1), by_mutex):
        with pytest.raises(MutexAlreadyHeldError):
            function()
    assert not mutex().locked()


def test_lock_that_was_attached_is_an_own_one_of_whoever_attached_or_entered_it(pool):
    attached = Mutex.attach(held(mutex()).detach(), owner="attached")
    with pytest.raises(MutexAlreadyHeldError, match="owner 'attached'"):
        mutex().acquire()
    attached = pool.submit(Mutex.attach, attached.detach()).result()
    driven = acquiring(mutex(), True, -1)
    assert driven.until_it_waits() is not None
    driven.interrupt()
    with attached, pytest.raises(MutexAlreadyHeldError):
        mutex().acquire()


@pytest.mark.parametrize("is_own", [False, True])
def test_wait_behind_a_wait_of_the_same_thread_is_refused(pool, is_own):
    """A signal handler runs while its thread waits, and the thread waits on when it returns."""
    holder = mutex(auto_renew=False)
    assert (held(holder) if is_own else pool.submit(held, holder).result()) is holder
    interrupted = waiting(mutex(owner="outer"))
    with pytest.raises(MutexAlreadyHeldError, match="'outer'"):
        mutex().acquire()
    interrupted.interrupt()


def test_wait_for_what_was_released_or_lost_goes_on(clock):
    def ended_unnoticed(_):
        clock.advance(2)
        assert QueueFor(LockItem, "a").holder is not None

    def forced(_):
        LockItem.force_release("a")

    for end in (Mutex.release, Mutex.detach, forced, lambda _: expire("a"), ended_unnoticed):
        end(held(mutex(lease=1, auto_renew=False)))
        held(mutex()).release()


def test_wait_for_what_another_thread_took_goes_on(pool):
    """Though this one may release it, as any may; and of several keys, if it is so for one."""
    threading.Timer(1, pool.submit(held, mutex()).result().release).start()
    with mutex():
        threading.Timer(1, pool.submit(held, Mutex.for_key("b")).result().release).start()
        with Mutex.any_of(["a", "b"]) as waiter:
            assert waiter.key == "b"


def test_lock_that_is_handed_over_to_the_waiter_is_not_taken_for_one_that_it_holds(pool):
    """It may come at any instant, also just before the wait is checked."""
    holder, taker = pool.submit(held, mutex()).result(), mutex()
    taking = waiting(taker, -1)
    (turn,) = QueueFor(LockItem, "a").turns
    behind = waiting(mutex())
    holder.release()
    assert QueueFor(LockItem, "a").holder.contender is turn.contender
    assert turn.contender.stalled_holder() is None
    assert (taking.wake(), taking.result) == (None, taker._latest)
    behind.interrupt()


def test_waiter_that_is_being_handed_the_lock_over_does_not_wait_for_itself(pool):
    """It may wake before it has the lock."""
    holder, taker = pool.submit(held, mutex()).result(), mutex()
    taking, queue = waiting(taker, -1), QueueFor(LockItem, "a")
    turn = queue.next_in_line(queue.holder, (1.0, 2.0), time.monotonic(), max)
    assert turn.promised_by is queue.holder
    assert taking.wake() is not None
    turn.end_promise()
    holder.release()
    assert (taking.wake(), taking.result) == (None, taker._latest)


@pytest.mark.real("embedded")
def test_wait_in_a_forked_child_for_its_parents_lock_goes_on():
    with mutex():
        fork = Fork(mutex().acquire)
        time.sleep(0.2)
    assert fork.value() is True


@pytest.mark.parametrize("make", [Mutex.for_key, lambda key, **o: Mutex.any_of([key], **o)])
def test_rows_whose_range_key_a_function_returns_are_different_locks(make):
    kinds = ["one"]

    class Kinds(LockItem):
        class Meta(LockItem.Meta):
            table_name = "ranged"

        kind = UnicodeAttribute(range_key=True, default=lambda: kinds[0])

    Kinds.create_table()
    lock = partial(make, "a", model=Kinds)
    one = held(lock(reentrant=True))
    kinds[0] = "other"
    other, waiter = held(lock(reentrant=True)), lock()
    assert other.token != one.token
    waits = waiting(waiter)
    one.release()
    assert waits.wake() is not None
    assert (other.held, waiter.held) == (True, False)
    other.release()
    assert (waits.wake(), waiter.held) == (None, True)


# -- tasks, and the threads of event loops ---------------------------------------------------------


def test_task_that_waits_for_itself_is_refused():
    async def main():
        semaphore = AsyncSemaphore.for_key("a", permits=1)
        for holder, permit in ((async_mutex(), "a"), (semaphore, "a#permit-1")):
            async with holder:
                for waiter in (
                    AsyncMutex.for_key(permit),
                    AsyncMutex.for_keys(["b", permit]),
                    AsyncMutex.any_of([permit]),
                ):
                    with pytest.raises(MutexAlreadyHeldError, match="this thread or task"):
                        await waiter.acquire()
                    assert not await waiter.acquire(timeout=0.05)
                with pytest.raises(MutexAlreadyHeldError, match="this thread or task"):
                    Mutex.for_key(permit).acquire()
        with mutex(), pytest.raises(MutexAlreadyHeldError, match="this thread or task"):
            await async_mutex().acquire()

    asyncio.run(main())


WAYS = {"a mutex": mutex, "a group": group("b", "a"), "any of some keys": any_of("a")}
ways = pytest.mark.parametrize("asks", WAYS.values(), ids=WAYS)


@ways
@pytest.mark.parametrize("holds", [mutex, async_mutex])
def test_wait_that_blocks_the_loop_of_the_holder_is_refused(asks, holds):
    async def hold(lock):
        taken = lock.acquire()
        assert taken is True or await taken

    async def main():
        await asyncio.create_task(hold(holds(owner="outer")))
        with pytest.raises(MutexAlreadyHeldError, match=r"aio\.AsyncMutex") as raised:
            asks(owner="inner").acquire()
        assert raised.value.owner == "outer"
        with pytest.warns(RuntimeWarning) as warned, pytest.raises(MutexTimeoutError):
            asks(owner="inner", timeout=0.05).__enter__()
        (warning,) = warned
        for message in (str(raised.value), str(warning.message)):
            assert all(part in message for part in ("'a'", "'outer'", "'inner'", "AsyncMutex"))
        assert "cannot be released at all: use" in str(raised.value)
        assert "cannot be released before the timeout: use" in str(warning.message)
        # who does not wait blocks nobody
        assert not asks().acquire(blocking=False)

    asyncio.run(main())


@pytest.mark.real("embedded")  # a simulated process adds a line of its own
def test_warning_of_a_wait_that_blocks_the_loop_names_the_line_that_waits():
    async def main():
        for asks in WAYS.values():
            with pytest.warns(RuntimeWarning) as warned, pytest.raises(MutexTimeoutError):
                asks(timeout=0.05).__enter__()
            assert [warning.filename for warning in warned] == [__file__]

    with mutex():
        asyncio.run(main())


@pytest.mark.real("embedded")  # as above
def test_warning_reaches_code_whose_module_has_no_name():
    code = {}
    exec("async def main(lock): return lock.acquire()", code)
    del code["__builtins__"]
    with mutex(), pytest.warns(RuntimeWarning, match="blocks the loop"):
        assert asyncio.run(code["main"](mutex(timeout=0.05))) is False


def test_wait_on_a_loops_thread_for_what_was_taken_before_the_loop_ran_is_refused(pool):
    async def main():
        mutex().acquire()

    with mutex(), pytest.raises(MutexAlreadyHeldError, match="AsyncMutex"):
        asyncio.run(main())
    # for another thread it waits
    threading.Timer(1, pool.submit(held, mutex()).result().release).start()
    with pytest.warns(RuntimeWarning, match="blocks the event loop"):
        asyncio.run(main())


def test_wait_behind_a_task_of_the_same_loop_is_refused(pool):
    """A hand-over to that task would come to one who never runs again."""

    async def main():
        first = asyncio.create_task(async_mutex().acquire())
        await asyncio.sleep(0)
        assert len(QueueFor(LockItem, "a").turns) == 1
        with pytest.raises(MutexAlreadyHeldError, match="AsyncMutex"):
            mutex().acquire()
        first.cancel()
        await asyncio.wait({first})

    pool.submit(held, mutex()).result()
    asyncio.run(main())


@ways
def test_wait_for_what_a_task_of_the_same_loop_takes_meanwhile_is_refused(asks):
    """Its request was under way when the wait began, and blocked the loop."""
    driven = acquiring(asks(), True, -1)
    with held_elsewhere("a"):
        assert driven.until_it_waits() is not None
        LockItem.force_release("a")
    with acting_as(Caller(10**9, caller().thread, "a task")):
        assert mutex(owner="a task").acquire(blocking=False)
    with pytest.raises(MutexAlreadyHeldError, match="'a task'"):
        driven.wake()


def test_wait_that_blocks_a_loop_wakes_when_another_lock_holder_is_known(clock, pool):
    """Also behind another waiter, and after it was reported: a task of that loop may be the holder."""
    holder = pool.submit(held, mutex(auto_renew=False)).result()
    with acting_as(Caller(10**9, 10**9, "another")):
        first = waiting(mutex())
    pinned = Caller(caller().number, caller().thread, "")
    with acting_as(pinned):
        second = waiting(mutex(), -1)
    queue = QueueFor(LockItem, "a")
    for _ in range(FEWEST_HAND_OVERS):
        queue.next_in_line(queue.holder, (1.0, 2.0), clock.now(), max).end_promise()
    clock.advance(SHORTEST_RUN)
    holder.release()
    second.effect.wakeup.rung = False
    with acting_as(Caller(10**9 + 1, pinned.thread, "a task")):
        assert mutex(owner="a task").acquire(blocking=False)
    assert second.effect.wakeup.rung
    with pytest.raises(MutexAlreadyHeldError, match="'a task'"):
        second.wake()
    first.interrupt()
