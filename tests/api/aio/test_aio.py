"""Locks that are awaited: what they do when nothing goes wrong."""

import asyncio
import gc
import inspect
import sys
import threading

import pytest
from botocore.client import BaseClient
from processes import count_up, workers
from pynamodb.exceptions import DoesNotExist, UpdateError
from row_models import Account
from sent_requests import TRANSACT
from two_clients import held
from waits import until_async, until_cancelled

from dev.faultproxy import after, delay, drop_request, stall
from pynamodb_mutex import (
    LockItem,
    Mutex,
    MutexAlreadyHeldError,
    MutexLostError,
    MutexNotHeldError,
    MutexTimeoutError,
    signals,
)
from pynamodb_mutex._lock.runtime.threads import LINGER, Workers
from pynamodb_mutex.aio import AsyncMutex, AsyncRowLock, AsyncSemaphore
from pynamodb_mutex.testing import FakeClock, held_elsewhere

FEW_THREADS, MOST_THREADS = 8, 48
"""As the documentation says."""


def pool_threads():
    return {each for each in threading.enumerate() if each.name == "pynamodb-mutex-aio"}


# -- one task --------------------------------------------------------------------------------------


@pytest.mark.real
async def test_every_call_does_what_it_does_for_threads(scene, sent_on_a_loop):
    async with scene.async_mutex() as mutex:
        assert mutex.held
        assert not mutex.lost
        assert 0 < mutex.remaining <= 30
        assert (scene.row.token, scene.row.version) == (mutex.token, mutex.fencing_token)
    assert not mutex.held
    assert scene.proxy.kinds() == ["acquire", "release"]
    mutex = scene.async_mutex(lease=20, data={"page": 1})
    assert repr(mutex).startswith(f"<AsyncMutex {scene.key!r}")
    with pytest.raises(MutexNotHeldError, match="deadline"):
        _ = mutex.deadline
    assert await mutex.acquire() is True
    assert (mutex.key, mutex.data) == (scene.key, {"page": 1})
    assert await mutex.locked()
    await mutex.renew(lease=60)
    assert mutex.remaining > 40
    await mutex.ensure_held(at_least=10)
    await mutex.save_data({"page": 2})
    async with mutex.transaction() as transaction:
        transaction.save(scene.here(f"{scene.key}-row", owner="written"))
    assert scene.there.get(f"{scene.key}-row").owner == "written"
    with pytest.raises(MutexAlreadyHeldError):
        await mutex.acquire()
    await mutex.release()
    assert not await mutex.locked()
    with pytest.raises(MutexNotHeldError):
        await mutex.release()
    another = scene.async_mutex()
    assert await another.acquire(blocking=False)
    assert another.data == {"page": 2}
    assert await mutex.force_release()
    with pytest.raises(MutexLostError):
        await another.release()
    with pytest.raises(ValueError, match="non-blocking"):
        await mutex.acquire(blocking=False, timeout=3)
    assert scene.leftovers() == []
    assert sent_on_a_loop == []


@pytest.mark.real("embedded")
async def test_call_that_is_not_awaited_has_no_truth_value_and_is_a_coroutine_otherwise(scene):
    mutex = scene.async_mutex()
    message = r"^acquire\(\) has no truth value: await it"
    with pytest.warns(RuntimeWarning, match="was never awaited"):  # noqa: SIM117
        with pytest.raises(TypeError, match=message):
            bool(mutex.acquire())
    # a mock of it is awaited, too, where Python can be told
    assert inspect.iscoroutinefunction(mutex.acquire) is (sys.version_info >= (3, 12))
    task = asyncio.create_task(mutex.acquire())
    assert "coro=<AsyncMutex.acquire() running at " in repr(task)
    # as asyncio does from Python 3.12 on, for the line above
    asks = "__name__ = 'asyncio.base_tasks'; is_there = True if coroutine else False"
    names = {"coroutine": task.get_coro()}
    exec(asks, names)
    assert names["is_there"] is True
    assert await task is True
    assert await asyncio.gather(mutex.locked(), scene.async_mutex().acquire(False)) == [True, False]
    await mutex.release()
    assert await asyncio.wait_for(mutex.acquire(), 60)
    await mutex.release()
    mutex.acquire().close()


@pytest.mark.real("simulated", "local")
async def test_lock_is_detached_by_one_task_and_attached_by_another(scene, sent_on_a_loop):
    mutex = scene.async_mutex(lease=20)

    async def give(**options):
        await mutex.acquire()
        ticket = await mutex.detach(**options)
        assert not mutex.held
        return ticket, mutex.fencing_token

    ticket, token = await asyncio.create_task(give())
    async with await AsyncMutex.attach(ticket, model=scene.here) as attached:
        assert attached.fencing_token == token + 1
        assert attached.held
    assert not attached.held
    with pytest.raises(MutexLostError):
        await AsyncMutex.attach(ticket, model=scene.here)
    ticket, _ = await give(lease=50)
    # without a block
    attached = await AsyncMutex.attach(ticket, model=scene.here, cancel_on_loss=True)
    assert 0 < attached.remaining <= 20
    await attached.release()
    # after its release failed
    lost = scene.async_mutex(auto_renew=False)
    await lost.acquire()
    with FakeClock() as clock:
        clock.advance(31)
        with pytest.raises(MutexLostError):
            await lost.release()
        await asyncio.to_thread(scene.force)
        await lost.acquire()
        ticket = await lost.detach()
        await (await AsyncMutex.attach(ticket, model=scene.here)).release()
    assert scene.leftovers() == []
    assert sent_on_a_loop == []


async def test_only_a_request_or_a_receiver_needs_a_thread(scene, monkeypatch):
    posted, post = [], Workers.post

    def note(workers, call):
        posted.append(call)
        post(workers, call)

    async with scene.async_mutex():
        pass
    monkeypatch.setattr(Workers, "post", note)
    async with scene.async_mutex():
        assert len(posted) == 1
    assert len(posted) == 2
    threads = []
    with signals.acquired.connected_to(lambda _, **event: threads.append(threading.get_ident())):
        async with scene.async_mutex():
            pass
    assert len(posted) == 5
    assert threads != [threading.get_ident()]


async def test_receiver_sees_the_acquisition_of_the_task_that_it_is_about(scene):
    seen = []
    mutex = scene.async_mutex(reentrant=True)

    def see(sender, **event):
        seen.append((mutex.held, mutex.token == event["token"]))

    async def work():
        async with mutex:
            await asyncio.sleep(0)

    with signals.acquired.connected_to(see):
        await asyncio.gather(*(work() for _ in range(3)))
    assert seen == [(True, True)] * 3


async def test_exception_while_a_request_is_sent_ends_the_attempt(scene, monkeypatch):
    original = BaseClient._make_api_call

    def fail(client, operation, kwargs):
        monkeypatch.setattr(BaseClient, "_make_api_call", original)
        raise NotImplementedError(operation)

    async with scene.async_mutex():
        pass
    monkeypatch.setattr(BaseClient, "_make_api_call", fail)
    with pytest.raises(NotImplementedError):
        await scene.async_mutex().acquire()
    assert scene.leftovers() == []


async def test_lock_that_another_holds_is_not_taken(scene):
    with scene.other():
        mutex = scene.async_mutex(timeout=0.2)
        assert await mutex.acquire(blocking=False) is False
        assert await mutex.acquire(timeout=0.2) is False
        with pytest.raises(MutexTimeoutError) as raised:
            async with mutex:
                pass
        assert raised.value.owner == "other"
    assert scene.leftovers() == []
    with Mutex.for_row(scene.there, "a row", lock_model=scene.there) as there:
        mutex = AsyncMutex.for_row(scene.there, "a row", lock_model=scene.here)
        assert mutex.key == there.key
        assert not await mutex.acquire(blocking=False)
    # a lock shared with threads is one lock
    async with scene.async_mutex():
        assert not await asyncio.to_thread(scene.mutex().acquire, blocking=False)


async def test_owner_is_named_after_the_task(scene):
    asyncio.current_task().set_name("invoicing")
    async with scene.async_mutex() as mutex:
        assert mutex.owner == scene.row.owner
        assert mutex.owner.endswith(":invoicing")


async def test_decorated_functions_run_under_a_lock_of_their_own(scene):
    at_work = []

    @scene.async_mutex()
    async def work(number, *, times):
        """Work."""
        assert at_work == []
        at_work.append(number)
        await asyncio.sleep(0.01)
        return at_work.pop() * times

    working = (work(number, times=2) for number in range(4))
    assert await asyncio.gather(*working) == [0, 2, 4, 6]
    assert (work.__name__, work.__doc__) == ("work", "Work.")
    with pytest.raises(TypeError, match="coroutine function"):
        scene.async_mutex()(lambda: None)


async def test_lock_that_was_attached_and_released_is_acquired_anew_by_a_block(scene):
    ticket = held(scene.mutex()).detach()
    mutex = await AsyncMutex.attach(ticket, model=scene.here)
    await mutex.release()
    async with mutex:
        assert mutex.held
    assert scene.is_free


async def test_task_that_has_left_one_level_is_cancelled_for_a_loss(scene):
    with pytest.raises(MutexLostError):
        async with scene.async_mutex(reentrant=True, cancel_on_loss=True) as mutex:
            assert await mutex.acquire()
            await mutex.release()
            scene.force()
            await until_cancelled()


async def test_block_of_another_task_does_not_keep_a_loss_from_the_task_that_holds_the_lock(scene):
    ticket = held(scene.mutex()).detach()
    mutex = await AsyncMutex.attach(ticket, model=scene.here, cancel_on_loss=True)
    await mutex.release()

    async def hold():
        await mutex.acquire()
        await until_cancelled()

    async def enter():
        async with mutex:
            pass

    holding = asyncio.create_task(hold())
    await until_async(lambda: mutex._lock._latest.held)
    entering = asyncio.create_task(enter())
    await asyncio.sleep(1)
    scene.force()
    with pytest.raises(asyncio.CancelledError):
        await holding
    await entering


async def test_block_whose_body_released_the_lock_keeps_no_loss_from_the_next_task(scene):
    mutex = scene.async_mutex(cancel_on_loss=True)
    entered = asyncio.Event()

    async def first():
        async with mutex:
            await mutex.release()
            await entered.wait()

    async def second():
        async with mutex:
            entered.set()
            await asyncio.wait({releasing})
            scene.force()
            await until_cancelled()

    releasing = asyncio.create_task(first())
    await asyncio.sleep(0)
    with pytest.raises(MutexLostError):
        await asyncio.create_task(second())


async def test_transaction_whose_block_fails_is_not_sent(scene):
    async with scene.async_mutex() as mutex:
        with pytest.raises(ZeroDivisionError):
            async with mutex.transaction() as transaction:
                transaction.save(scene.here(f"{scene.key}.other"))
                raise ZeroDivisionError
    assert scene.proxy.kinds() == ["acquire", "release"]


# -- several tasks ---------------------------------------------------------------------------------


@pytest.mark.real("simulated", "local")
async def test_waiting_tasks_take_turns_and_few_threads(scene):
    tokens, at_work = [], []

    async def work():
        async with scene.async_mutex() as mutex:
            assert at_work == []
            at_work.append(mutex)
            tokens.append(mutex.fencing_token)
            await asyncio.sleep(0)
            at_work.pop()

    before = pool_threads()
    async with scene.async_mutex():
        tasks = [asyncio.create_task(work()) for _ in range(24)]
        queue = scene.queue
        await until_async(lambda: len(queue.turns) == 24)
        assert len(pool_threads() - before) <= MOST_THREADS
    await asyncio.gather(*tasks)
    assert len(tokens) == 24
    assert tokens == sorted(set(tokens))
    # handed over, as among threads: about one request for each
    assert len(scene.proxy.of("hand_over")) >= 20
    assert scene.leftovers() == []


async def test_threads_are_few_but_while_answers_are_slow(scene):
    async def work(number):
        async with AsyncMutex.for_key(f"{scene.key}-{number}", model=scene.here):
            pass

    async def most_threads(latency):
        scene.proxy.clear()
        scene.proxy.always(delay(latency))
        working = asyncio.gather(*(work(number) for number in range(300)))
        counts = [0]
        while not working.done():
            counts.append(len(pool_threads()))
            await asyncio.sleep(0.005)
        await working
        return max(counts)

    assert await most_threads(0.0) <= FEW_THREADS
    assert await most_threads(0.02) == FEW_THREADS
    assert await most_threads(0.04) == MOST_THREADS
    await asyncio.sleep(2 * LINGER)
    assert not pool_threads()
    assert await most_threads(0.02) == FEW_THREADS
    assert await most_threads(0.1) == MOST_THREADS


async def test_tasks_and_threads_wait_in_one_line(scene):
    order = []

    def thread():
        with scene.mutex(timeout=50):
            order.append("thread")

    async def task():
        async with scene.async_mutex(timeout=50):
            order.append("task")

    queue, waiting = scene.queue, []
    async with scene.async_mutex():
        for call in (task, lambda: asyncio.to_thread(thread), task):
            waiting.append(asyncio.create_task(call()))
            await until_async(lambda: len(queue.turns) == len(waiting))
    await asyncio.gather(*waiting)
    assert order == ["task", "thread", "task"]


@pytest.mark.real("embedded")
def test_tasks_of_several_processes_take_turns_after_a_killed_one(table):
    LockItem("counter", writes=0).save()
    with workers(0.0, 0.0) as (dying, other):
        assert dying.ask("hold_by_a_task('shared', 1.5)")
        first = LockItem.get("shared").version
        other.send("count_up(3, 3)")
        dying.kill()
        tokens = count_up(3, 3) + other.answer(90)
    count = LockItem.get("counter", consistent_read=True).writes
    # none was lost, for nobody else was there between reading and writing
    assert (len(tokens), count) == (len(set(tokens)), 2 * 3 * 3)
    assert min(tokens) > first


async def test_tasks_that_share_a_mutex_see_their_own_acquisitions(scene):
    mutex = scene.async_mutex()
    entered, leave = asyncio.Event(), asyncio.Event()

    async def taker():
        async with mutex:
            entered.set()
            await leave.wait()
            return mutex.fencing_token

    task = asyncio.create_task(taker())
    await entered.wait()
    assert not await mutex.acquire(timeout=0.1)
    leave.set()
    token = await task
    async with mutex:
        assert mutex.fencing_token > token


@pytest.mark.parametrize(
    "make",
    [
        AsyncMutex.for_key,
        lambda key: AsyncMutex.for_keys([key, "b"]),
        lambda key: AsyncMutex.any_of([key]),
        lambda key: AsyncSemaphore.for_key(key, permits=1),
        Account.alocked,
        lambda key: Account.alocked_all([key]),
    ],
)
async def test_refused_task_sees_nothing_of_what_another_holds(table, accounts, make):
    lock, seen = make("a"), []
    entered, leave = asyncio.Event(), asyncio.Event()

    async def hold():
        async with lock:
            entered.set()
            await leave.wait()
            return lock.held

    async def help_the_holder():
        await lock.ensure_held()

    def receive(*_, **__):
        seen.append(lock.held)

    holding = asyncio.create_task(hold())
    await entered.wait()
    with signals.not_acquired.connected_to(receive):
        assert not await lock.acquire(timeout=0.1)
    assert set(seen) == {False}
    assert (lock.held, lock.remaining, lock.lost, lock.loss) == (False, 0, False, None)
    for name in {"renew", "ensure_held", "detach", "release"} & set(dir(lock)):
        with pytest.raises(MutexNotHeldError):
            await getattr(lock, name)()
    await asyncio.create_task(help_the_holder())
    leave.set()
    assert await holding


async def test_mutex_keeps_nothing_of_tasks_that_have_ended(scene):
    mutex = scene.async_mutex(auto_renew=False)

    async def come_and_go():
        async with mutex:
            pass
        with held_elsewhere(scene.key, model=scene.there):
            assert not await mutex.acquire(timeout=0)
        await mutex.acquire()  # and never release it

    for _ in range(3):
        await asyncio.create_task(come_and_go())
    await asyncio.sleep(0)  # the loop refers to the last one until it runs another
    gc.collect()
    assert (len(mutex._lock._acquired), len(mutex._holders)) == (0, 0)


async def test_task_may_enter_again_and_another_may_not(scene):
    async def try_to_enter():
        return await scene.async_mutex(reentrant=True).acquire(blocking=False)

    async def try_as_a_thread():
        return scene.mutex(reentrant=True).acquire(blocking=False)

    async with scene.async_mutex(reentrant=True) as outer:
        async with scene.async_mutex(reentrant=True) as inner:
            assert inner.token == outer.token
            assert await try_to_enter()
            # the same coroutine function, by a task of its own
            assert not await asyncio.create_task(try_to_enter())
            async with inner:
                assert inner.held
            assert inner.held
        assert outer.held
        await inner.release()
        assert outer.held
    assert not outer.held
    assert scene.proxy.kinds().count("release") == 1
    assert scene.leftovers() == []
    # a mutex for threads distinguishes tasks as well
    with scene.mutex(reentrant=True):
        assert await try_as_a_thread()
        assert not await asyncio.create_task(try_as_a_thread())


# -- a bad network ---------------------------------------------------------------------------------


async def test_task_that_cannot_reach_dynamodb_takes_no_thread_while_it_waits(scene):
    scene.proxy.always(drop_request())
    before = pool_threads()

    async def try_to_acquire(number):
        mutex = AsyncMutex.for_key(f"{scene.key}-{number}", model=scene.here)
        with pytest.raises(UpdateError):
            await mutex.acquire(timeout=1.5)

    tasks = [asyncio.create_task(try_to_acquire(number)) for number in range(100)]
    await asyncio.sleep(0.5)
    # all of them are between two attempts most of the time
    assert len(pool_threads() - before) <= MOST_THREADS
    await asyncio.gather(*tasks)
    attempts = [seen.body["Key"]["key"]["S"] for seen in scene.proxy.of("acquire")]
    assert len(set(attempts)) == 100


@pytest.mark.real("embedded")
async def test_first_tasks_at_an_endpoint_take_no_more_threads_than_those_after_them(scene):
    before = pool_threads()
    with scene.fresh() as first:
        mutexes = [AsyncMutex.for_key(f"a-{number}", model=first.here) for number in range(100)]
        assert all(await asyncio.gather(*[mutex.acquire() for mutex in mutexes]))
        # and some for calls that go to no endpoint, such as the delivery of events
        assert len(pool_threads() - before) < 1.5 * MOST_THREADS
        await asyncio.gather(*[mutex.release() for mutex in mutexes])


async def test_tasks_at_an_endpoint_that_hangs_delay_none_at_another_one(scene):
    gate = threading.Event()
    tasks = []
    async with scene.async_mutex():  # the endpoint is known
        scene.proxy.always(stall(gate), op="acquire")
        for number in range(100):
            mutex = AsyncMutex.for_key(f"{scene.key}-{number}", model=scene.here)
            tasks.append(asyncio.create_task(mutex.acquire()))
        await until_async(lambda: len(scene.proxy.of("acquire")) == 1 + MOST_THREADS)
        elsewhere = AsyncMutex.for_key("elsewhere", model=scene.there)
        await asyncio.wait_for(elsewhere.acquire(), 60)
        await elsewhere.release()
        assert not any(task.done() for task in tasks)
        scene.proxy.clear()
        gate.set()
        assert all(await asyncio.gather(*tasks))


# -- rows ------------------------------------------------------------------------------------------


def is_free(scene, *keys):
    return all(scene.there.locked(key).acquire(blocking=False) for key in keys or [scene.key])


@pytest.mark.real
async def test_rows_are_locked_and_written(row_scene):
    lock = row_scene.here.alocked(row_scene.key)
    assert type(lock) is AsyncRowLock
    async with lock as account:
        assert account.name == row_scene.key
        assert lock.held
        with pytest.raises(MutexTimeoutError):
            async with row_scene.there.alocked(row_scene.key, timeout=0.1):
                pass
        account.balance += 5
        await asyncio.to_thread(account.save)
        assert account.is_locked
    assert not account.is_locked
    assert row_scene.row.balance == 5
    names = [f"{row_scene.key}-{letter}" for letter in "ab"]
    for name in names:
        row_scene.old(name).save()
    locks = row_scene.here.alocked_all(names)
    async with locks as rows:
        row_scene.proxy.start_anew()
        first, second = rows
        # they have been read
        assert row_scene.proxy.kinds() == []
        assert await locks.locked()
        first.balance, second.balance = 3, 4
        async with locks.transaction() as transaction:
            transaction.save(first)
            transaction.save(second)
        assert not locks.held
    assert [row_scene.there.get(name).balance for name in names] == [3, 4]


async def test_missing_row_is_reported_and_nothing_is_held(any_scene):
    here = any_scene.here
    lock = here.alocked("nobody")
    # where the locks stand in a lock table, only reading shows that one is missing
    locks = here.alocked_all([any_scene.key, "nobody"])
    for each in (lock, locks):
        with pytest.raises(here.DoesNotExist):
            async with each:
                pass
        assert not each.held
        assert not each.lost
    assert any_scene.there.count("nobody") == 0
    assert is_free(any_scene)
    assert repr(locks).count("nobody") == 1


async def test_cancelled_task_writes_no_more(row_scene):
    rows = []

    async def work():
        async with row_scene.here.alocked(row_scene.key) as account:
            rows.append(account)
            await until_cancelled()

    task = asyncio.create_task(work())
    await until_async(lambda: rows)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # a thread of the task may go on, and write what it has computed from a row that others have written since
    with row_scene.there.locked(row_scene.key, timeout=0) as theirs:
        theirs.balance = 100
        theirs.save()
        with pytest.raises(MutexNotHeldError, match="at the end of its block"):
            await asyncio.to_thread(rows[0].save)
    with pytest.raises(MutexNotHeldError, match="at the end of its block"):
        await asyncio.to_thread(rows[0].save)
    assert row_scene.row.balance == 100


async def test_transaction_of_a_cancelled_task_updates_the_version_of_what_it_wrote(scene):
    row = scene.here(f"{scene.key}-row")
    sent = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def work():
        async with scene.async_mutex() as mutex, mutex.transaction() as transaction:
            transaction.save(row)

    scene.proxy.next(after(lambda: loop.call_soon_threadsafe(sent.set)), op=TRANSACT)
    task = asyncio.create_task(work())
    await sent.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert row.version == scene.there.get(row.key).version


async def test_no_row_is_read_on_the_loops_thread(any_scene, sent_on_a_loop):
    here, key = any_scene.here, any_scene.key
    with pytest.raises(DoesNotExist):
        async with here.alocked_all([key, f"{key}-missing"]):
            pytest.fail("there is no such row")
    lock = here.alocked(key, reentrant=True)
    assert await lock.acquire()
    async with lock as account, lock as again:
        assert account.name == key
        assert again is account
    ticket = await lock.detach()
    async with await AsyncRowLock.attach(ticket, model=here) as account:
        assert account.name == key
        await asyncio.to_thread(account.save)
    locks = here.alocked_all([key], reentrant=True)
    assert await locks.acquire()
    async with locks as rows:
        assert rows[0].name == key
    await locks.release()
    assert sent_on_a_loop == []
    assert is_free(any_scene)


class _LoopOfAWorkflow(asyncio.AbstractEventLoop):
    """An event loop that has what a task needs, and no more: as that of Temporal's workflows."""

    def __init__(self):
        self._ready = []

    def get_debug(self):
        return False

    def create_future(self):
        return asyncio.Future(loop=self)

    def call_soon(self, callback, *args, context=None):
        self._ready.append((callback, args))

    def call_exception_handler(self, context):
        raise AssertionError(context)

    def run(self, main):
        asyncio._set_running_loop(self)
        try:
            task = asyncio.Task(main, loop=self)
            while self._ready:
                callback, args = self._ready.pop(0)
                callback(*args)
            return task.result()
        finally:
            asyncio._set_running_loop(None)


@pytest.mark.real("embedded")
def test_loop_that_would_never_get_the_answer_is_refused_before_anything_is_sent(scene):
    mutex = scene.async_mutex()

    async def main():
        with pytest.raises(NotImplementedError):
            await mutex.acquire()

    _LoopOfAWorkflow().run(main())
    assert not mutex.held
    assert scene.proxy.kinds() == []
