"""Several locks, one of several, and permits, for tasks."""

import asyncio

import pytest
from operations_by_hand import acquiring
from pynamodb.exceptions import UpdateError
from sent_requests import TRANSACT
from this_process import scheduled, store_for
from waits import LONG, until_async, until_cancelled

from dev.faultproxy import delay_answer, deny
from pynamodb_mutex import Loss, Mutex, MutexLostError, Semaphore
from pynamodb_mutex._lock.operations import local_queue
from pynamodb_mutex._lock.operations.effects import Outside
from pynamodb_mutex.aio import AsyncMutex, AsyncMutexGroup, AsyncSemaphore


def keys_of(scene):
    return [f"{scene.key}-{letter}" for letter in "abc"]


def free(scene, *keys):
    return not any(Mutex.for_key(key, model=scene.there).locked() for key in keys)


@pytest.mark.real
async def test_several_keys_are_acquired_and_released_together(scene, sent_on_a_loop):
    keys = keys_of(scene)
    group = AsyncMutex.for_keys(iter(keys), model=scene.here, lease=20)
    assert type(group) is AsyncMutexGroup
    assert not group.held
    async with group as entered:
        assert entered is group
        assert group.held
        assert not group.lost
        assert group.keys == tuple(keys)
        assert sorted(group.fencing_tokens) == keys
        assert [mutex.held for mutex in group.members] == [True] * 3
        assert 0 < group.remaining <= 20
        assert group.deadline > 0
        await group.renew(lease=60)
        await group.ensure_held(at_least=10)
        assert group.remaining > 20
        assert await group.locked()
        async with group.transaction() as transaction:
            transaction.save(scene.here(f"{scene.key}-row", owner="written"))
        assert "AsyncMutexGroup" in repr(group)
        with pytest.raises(TypeError, match="truth value"):
            bool(group)
    assert not await group.locked()
    assert scene.proxy.kinds().count(TRANSACT) == 4
    async with AsyncMutex.any_of(keys, model=scene.here) as one:
        assert one.key in keys
        assert not await one.locked()
    assert sent_on_a_loop == []
    assert free(scene, *keys)


@pytest.mark.parametrize("mutexes", [0, 2, 3])
async def test_loss_of_one_cancels_the_task_that_holds_all(scene, fake_clock, mutexes):
    keys, lost = keys_of(scene), []
    own = {"model": scene.here, "on_lost": lost.append}
    members = [Mutex.for_key(key, **own) for key in keys[3 - mutexes :]]
    listed = [*keys[: 3 - mutexes], *members]
    group = AsyncMutex.for_keys(listed, model=scene.here, cancel_on_loss=True, on_lost=lost.append)
    with pytest.raises(MutexLostError):
        async with group:
            assert scene.there.force_release(keys[2])
            fake_clock.advance(11)
            await until_cancelled()
    assert group.loss is Loss.FORCED
    expected = {*members[-1:], group}
    await until_async(lambda: len(lost) == len(expected))
    assert set(lost) == expected
    assert free(scene, *keys)


async def test_any_of_several_keys_says_which_it_got(scene):
    keys = keys_of(scene)
    others = [Mutex.for_key(key, model=scene.there) for key in keys[:2]]
    assert all(other.acquire() for other in others)
    async with AsyncMutex.any_of(keys, model=scene.here) as mutex:
        assert mutex.key == keys[2]
        assert not await AsyncMutex.any_of(keys, model=scene.here).acquire(blocking=False)
        with pytest.raises(TypeError, match=r"which of .*\? Use .*\.force_release"):
            await AsyncMutex.any_of(keys, model=scene.here).force_release()
        assert all(other.locked() for other in others)
    waiting = asyncio.create_task(
        AsyncMutex.any_of(keys[:2], model=scene.here, poll=(0.02, 0.05)).acquire(timeout=50)
    )
    await until_async(lambda: scene.proxy.of("BatchGetItem"))
    others[0].release()
    assert await waiting
    others[1].release()


async def test_semaphore_limits_the_number_of_tasks(scene):
    permits, most = [], set()

    async def work():
        semaphore = AsyncSemaphore.for_key(scene.key, permits=2, model=scene.here, timeout=50)
        async with semaphore:
            permits.append(semaphore.permit)
            most.add(len(permits))
            await asyncio.sleep(0.01)
            permits.remove(semaphore.permit)
            assert semaphore.permit not in permits
            return semaphore.permit

    assert {*await asyncio.gather(*(work() for _ in range(12)))} == {1, 2}
    assert max(most) == 2
    holders = [Semaphore.for_key(scene.key, permits=2, model=scene.there) for _ in range(2)]
    assert all(holder.acquire(blocking=False) for holder in holders)


async def test_generator_that_the_loop_closes_ends_no_block_of_another_task(scene):
    semaphore = AsyncSemaphore.for_key(scene.key, permits=2, model=scene.here)

    async def numbers():
        async with semaphore:
            yield 1

    async def iterate():
        async for _ in numbers():
            break

    async with semaphore:
        mine = semaphore.permit
        await asyncio.create_task(iterate())
        await asyncio.sleep(1)
        assert (semaphore.held, semaphore.permit) == (True, mine)
        assert len(scheduled()) == 1
    assert scheduled() == []


async def test_cancelled_wait_for_a_permit_leaves_the_others_in_line(scene):
    def semaphore():
        return AsyncSemaphore.for_key(scene.key, permits=1, model=scene.here, timeout=50)

    async with semaphore():
        first, second = (asyncio.create_task(semaphore().acquire()) for _ in range(2))
        await asyncio.sleep(0.1)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert not second.done()
    assert await second


def one_of(scene, kind, **options):
    """Return what one task at a time may hold."""
    options = {"model": scene.here, "timeout": 50, **options}
    if kind == "a mutex":
        return AsyncMutex.for_key(scene.key, **options)
    if kind == "any of some keys":
        return AsyncMutex.any_of([f"{scene.key}-a"], **options)
    return AsyncSemaphore.for_key(scene.key, permits=1, **options)


@pytest.fixture
def patient_line(monkeypatch):
    """However slow the machine, the first in line is taken to have its answer soon."""
    monkeypatch.setattr(local_queue, "LONGEST_SILENCE", LONG)


patient = pytest.mark.usefixtures("patient_line")
kinds = pytest.mark.parametrize("kind", ["a mutex", "any of some keys", "a semaphore"])


@patient
@kinds
async def test_tasks_of_one_tick_acquire_in_the_order_of_their_calls(scene, kind):
    order = []

    async def work(number):
        async with one_of(scene, kind):
            order.append(number)

    # the first of them has its answer last
    scene.proxy.next(delay_answer(0.3))
    await asyncio.gather(*map(work, range(12)))
    assert order == list(range(12))


@patient
async def test_tasks_of_one_tick_take_permits_in_the_order_of_their_calls(scene):
    order = []

    async def work(number, leave):
        async with AsyncSemaphore.for_key(scene.key, permits=3, model=scene.here, timeout=50):
            order.append(number)
            await leave.wait()

    leave = [asyncio.Event() for _ in range(8)]
    working = asyncio.gather(*map(work, range(8), leave))
    for left, event in enumerate(leave):
        have = min(left + 3, len(leave))
        await until_async(lambda have=have: len(order) == have)
        event.set()
    await working
    assert order == list(range(8))


@pytest.mark.parametrize("left_by", ["an error", "a cancellation"])
async def test_next_in_line_goes_on_when_the_first_left_without_an_answer(scene, left_by):
    scene.proxy.next(deny() if left_by == "an error" else delay_answer(0.3), op="acquire")

    first, second = (asyncio.create_task(scene.async_mutex().acquire()) for _ in range(2))
    await asyncio.sleep(0)
    if left_by == "a cancellation":
        first.cancel()
    with pytest.raises((UpdateError, asyncio.CancelledError)):
        await first
    assert await second


def test_no_client_of_boto_is_made_on_the_loops_thread(scene):
    with scene.fresh() as fresh:
        options = {"model": fresh.here}
        locks = [
            AsyncMutex.for_key(scene.key, **options),
            AsyncMutex.any_of(keys_of(scene), **options),
            AsyncMutex.for_keys(keys_of(scene), **options),
            AsyncSemaphore.for_key(scene.key, permits=2, **options),
        ]
        in_line = [acquiring(lock._lock, blocks=False) for lock in locks]
        assert {type(driven.step()) for driven in in_line} == {Outside}
        assert not store_for(fresh.here).connection.is_open
        for driven in in_line:
            driven.interrupt()
