"""Several locks, one of several, and permits, for tasks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aio_scene import LONG, Run, async_mutex, left_behind, run, sent_on_a_loop, until
from driving import acquiring
from pynamodb.exceptions import UpdateError
from scene import Scene
from stores import store_for

from dev.faultproxy import delay, delay_answer, deny
from pynamodb_mutex import (
    Mutex,
    MutexLostError,
    MutexTimeoutError,
    Semaphore,
    synchronized,
)
from pynamodb_mutex._operations import local_queue
from pynamodb_mutex._operations.effects import Open
from pynamodb_mutex._runtime.callers import caller
from pynamodb_mutex.aio import AsyncMutex, AsyncMutexGroup, AsyncSemaphore
from pynamodb_mutex.testing import FakeClock

__all__ = ["run", "sent_on_a_loop"]

TRANSACT = "TransactWriteItems"


def keys_of(scene: Scene) -> list[str]:
    return [f"{scene.key}-{letter}" for letter in "abc"]


def free(scene: Scene, *keys: str) -> bool:
    return not any(Mutex.for_key(key, model=scene.there).locked() for key in keys)


# -- all or none -----------------------------------------------------------------------------------


@pytest.mark.real
def test_several_keys_are_acquired_and_released_together(scene: Scene, run: Run) -> None:
    keys = keys_of(scene)

    async def main() -> None:
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

    run(main())
    assert scene.proxy.kinds().count(TRANSACT) == 4
    assert free(scene, *keys)


def test_a_group_with_a_key_in_the_way_times_out(scene: Scene, run: Run) -> None:
    keys = keys_of(scene)
    other = Mutex.for_key(keys[1], model=scene.there, owner="other")
    assert other.acquire()

    async def main() -> None:
        with pytest.raises(MutexTimeoutError) as raised:
            async with AsyncMutex.for_keys(keys, model=scene.here, timeout=0.2):
                pass
        assert (raised.value.key, raised.value.owner) == (keys[1], "other")

    run(main())
    other.release()
    assert free(scene, *keys)


@pytest.mark.parametrize("late", [delay, delay_answer])
def test_a_group_that_is_cancelled_leaves_nothing_held(scene: Scene, run: Run, late: Any) -> None:
    keys = keys_of(scene)

    scene.proxy.always(late(0.010))
    entered = []

    async def section() -> None:
        async with AsyncMutex.for_keys(keys, model=scene.here) as group:
            entered.append(group.held)
            await asyncio.sleep(0.010)

    async def main() -> None:
        # 10 ms for the acquire, for the body, and for the release
        for step in range(30):
            task = asyncio.create_task(section())
            await asyncio.sleep(0.0005 + 0.001 * step)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert free(scene, *keys)

    run(main())
    assert entered == [True] * 20


def test_loss_of_one_cancels_the_task_that_holds_all(
    scene: Scene, run: Run, fake_clock: FakeClock
) -> None:
    keys = keys_of(scene)

    async def main() -> None:
        group = AsyncMutex.for_keys(keys, model=scene.here, cancel_on_loss=True)
        with pytest.raises(MutexLostError):
            async with group:
                assert scene.there.force_release(keys[2])
                fake_clock.advance(11)
                await asyncio.sleep(50)
        assert group.loss is not None

    run(main())
    assert free(scene, *keys)


def test_tasks_at_one_table_all_get_their_turn(scene: Scene, run: Run) -> None:
    forks = [f"{scene.key}-fork-{number}" for number in range(5)]
    eating: set[int] = set()
    wrong: list[Any] = []

    async def dine(place: int) -> None:
        left, right = forks[place], forks[(place + 1) % 5]
        for _ in range(4):
            async with AsyncMutex.for_keys([left, right], model=scene.here, timeout=50):
                if eating & {(place - 1) % 5, (place + 1) % 5}:
                    wrong.append((place, set(eating)))
                eating.add(place)
                await asyncio.sleep(0.005)
                eating.remove(place)

    async def main() -> None:
        await asyncio.gather(*(dine(place) for place in range(5)))

    run(main())
    assert wrong == []
    assert free(scene, *forks)


# -- whichever is free, and permits ----------------------------------------------------------------


def test_any_of_several_keys_says_which_it_got(scene: Scene, run: Run) -> None:
    keys = keys_of(scene)
    others = [Mutex.for_key(key, model=scene.there) for key in keys[:2]]
    assert all(other.acquire() for other in others)

    async def main() -> None:
        async with AsyncMutex.any_of(keys, model=scene.here) as mutex:
            assert mutex.key == keys[2]
            assert not await AsyncMutex.any_of(keys, model=scene.here).acquire(blocking=False)
        waiting = asyncio.create_task(
            AsyncMutex.any_of(keys[:2], model=scene.here, poll=(0.02, 0.05)).acquire(timeout=50)
        )
        await until(lambda: scene.proxy.of("BatchGetItem"))
        others[0].release()
        assert await waiting

    run(main())
    others[1].release()


@pytest.mark.real
def test_a_semaphore_lets_so_many_tasks_in(scene: Scene, run: Run) -> None:
    at_work, most = 0, 0
    both: asyncio.Event
    permits: set[int | None] = set()

    async def work() -> None:
        nonlocal at_work, most
        semaphore = AsyncSemaphore.for_key(scene.key, permits=2, model=scene.here, timeout=50)
        async with semaphore:
            at_work += 1
            most = max(most, at_work)
            permits.add(semaphore.permit)
            if at_work == 2:
                both.set()
            # however slow the machine: the first does not leave before a second is in
            await both.wait()
            await asyncio.sleep(0.01)
            at_work -= 1

    async def main() -> None:
        nonlocal both
        both = asyncio.Event()
        await asyncio.gather(*(work() for _ in range(12)))

    run(main())
    assert most == 2
    assert permits == {1, 2}
    holders = [Semaphore.for_key(scene.key, permits=2, model=scene.there) for _ in range(2)]
    assert all(holder.acquire(blocking=False) for holder in holders)


def test_a_cancelled_wait_for_a_permit_leaves_the_others_in_line(scene: Scene, run: Run) -> None:
    async def main() -> None:
        def semaphore() -> AsyncSemaphore:
            return AsyncSemaphore.for_key(scene.key, permits=1, model=scene.here, timeout=50)

        async with semaphore():
            first, second = (asyncio.create_task(semaphore().acquire()) for _ in range(2))
            await asyncio.sleep(0.1)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            assert not second.done()
        assert await second

    run(main())


# -- first come, first served ----------------------------------------------------------------------


def one_of(scene: Scene, kind: str, **options: Any) -> Any:
    """Return what one task at a time may hold."""
    options = {"model": scene.here, "timeout": 50, **options}
    if kind == "a mutex":
        return AsyncMutex.for_key(scene.key, **options)
    if kind == "any of some keys":
        return AsyncMutex.any_of([f"{scene.key}-a"], **options)
    return AsyncSemaphore.for_key(scene.key, permits=1, **options)


@pytest.fixture
def patient_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine, the first in line is taken to have its answer soon."""
    monkeypatch.setattr(local_queue, "LONGEST_SILENCE", LONG)


patient = pytest.mark.usefixtures("patient_line")
kinds = pytest.mark.parametrize("kind", ["a mutex", "any of some keys", "a semaphore"])


@patient
@kinds
def test_tasks_of_one_tick_acquire_in_the_order_of_their_calls(
    scene: Scene, run: Run, kind: str
) -> None:
    order: list[int] = []

    async def work(number: int) -> None:
        async with one_of(scene, kind):
            order.append(number)

    async def main() -> None:
        # the first of them has its answer last
        scene.proxy.next(delay_answer(0.3))
        await asyncio.gather(*map(work, range(12)))

    run(main())
    assert order == list(range(12))


@kinds
def test_tasks_of_one_tick_stand_in_line_in_the_order_of_their_calls(
    scene: Scene, run: Run, kind: str
) -> None:
    tasks = 100

    async def work(number: int) -> None:
        async with one_of(scene, kind, owner=str(number)):
            pass

    async def main() -> list[str]:
        async with one_of(scene, kind) as holder:
            scene.proxy.next(delay_answer(0.3), op="GetItem")
            working = asyncio.gather(*map(work, range(tasks)))
            await asyncio.sleep(0)
            attempt = holder._lock._attempt(caller(), 0.0, blocks=False)
            turns = list(attempt.contender.queue.turns)
        await working
        return [turn.contender.owner for turn in turns]

    assert run(main()) == [str(number) for number in range(tasks)]


@patient
def test_tasks_of_one_tick_take_permits_in_the_order_of_their_calls(scene: Scene, run: Run) -> None:
    order: list[int] = []

    async def work(number: int, leave: asyncio.Event) -> None:
        async with AsyncSemaphore.for_key(scene.key, permits=3, model=scene.here, timeout=50):
            order.append(number)
            await leave.wait()

    async def main() -> None:
        leave = [asyncio.Event() for _ in range(8)]
        working = asyncio.gather(*map(work, range(8), leave))
        for left, event in enumerate(leave):
            have = min(left + 3, len(leave))
            await until(lambda have=have: len(order) == have)
            event.set()
        await working

    run(main())
    assert order == list(range(8))


@pytest.mark.parametrize("left_by", ["an error", "a cancellation"])
def test_next_in_line_goes_on_when_the_first_left_without_an_answer(
    scene: Scene, run: Run, left_by: str
) -> None:
    scene.proxy.next(deny() if left_by == "an error" else delay_answer(0.3), op="acquire")

    async def main() -> None:
        first, second = (asyncio.create_task(async_mutex(scene).acquire()) for _ in range(2))
        await asyncio.sleep(0)
        if left_by == "a cancellation":
            first.cancel()
        with pytest.raises((UpdateError, asyncio.CancelledError)):
            await first
        assert await second

    run(main())


@pytest.mark.real
def test_no_request_is_sent_on_the_loops_thread(
    scene: Scene, run: Run, sent_on_a_loop: list[str]
) -> None:
    async def main() -> None:
        mutex = async_mutex(scene, reentrant=True)
        assert await mutex.acquire(blocking=False)
        async with mutex:
            await mutex.renew()
            await mutex.save_data(1)
            assert await mutex.locked()
        taken = await AsyncMutex.attach(await mutex.detach(), model=scene.here)
        async with AsyncMutex.for_keys(keys_of(scene), model=scene.here) as group:
            await group.renew()
            assert await group.locked()
            assert await taken.force_release()
        async with AsyncMutex.any_of(keys_of(scene), model=scene.here) as one:
            assert not await one.locked()

    run(main())
    assert sent_on_a_loop == []


def test_no_client_of_boto_is_made_on_the_loops_thread(scene: Scene) -> None:
    with scene.fresh() as fresh:
        options: dict[str, Any] = {"model": fresh.here}
        locks = [
            AsyncMutex.for_key(scene.key, **options),
            AsyncMutex.any_of(keys_of(scene), **options),
            AsyncMutex.for_keys(keys_of(scene), **options),
            AsyncSemaphore.for_key(scene.key, permits=2, **options),
        ]
        in_line = [acquiring(lock._lock, blocks=False) for lock in locks]
        assert {type(driven.step()) for driven in in_line} == {Open}
        assert not store_for(fresh.here).connection.is_open
        for driven in in_line:
            driven.interrupt()


# -- decorated functions ---------------------------------------------------------------------------


def test_calls_with_the_same_argument_take_turns(scene: Scene, run: Run) -> None:
    at_work: list[int] = []
    most = 0

    @synchronized(f"{scene.key}-{{order_id}}", model=scene.here)
    async def ship(order_id: int) -> int:
        nonlocal most
        at_work.append(order_id)
        most = max(most, at_work.count(7))
        await asyncio.sleep(0.01)
        at_work.remove(order_id)
        return order_id

    async def main() -> None:
        assert await asyncio.gather(*(ship(each) for each in (7, 7, 8, 7))) == [7, 7, 8, 7]

    run(main())
    assert most == 1
    assert left_behind(scene) == []


def test_a_lock_shared_with_threads_is_one_lock(scene: Scene, run: Run) -> None:
    async def main() -> None:
        async with async_mutex(scene):
            assert not await asyncio.to_thread(scene.mutex().acquire, blocking=False)

    run(main())
