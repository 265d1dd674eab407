"""Locks that are awaited: what they do when nothing goes wrong."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from aio_scene import Run, async_mutex, left_behind, queue_of, run, until
from botocore.client import BaseClient
from pynamodb.exceptions import UpdateError
from scene import Scene

from dev.faultproxy import drop_answer, drop_request
from pynamodb_mutex import (
    Mutex,
    MutexAlreadyHeldError,
    MutexLostError,
    MutexNotHeldError,
    MutexTimeoutError,
    signals,
)
from pynamodb_mutex._runtime.process import current_process
from pynamodb_mutex.aio import AsyncMutex
from pynamodb_mutex.testing import FakeClock

__all__ = ["run"]


MOST_THREADS = 16
"""As the documentation says."""


def pool_threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if "pynamodb-mutex-aio" in each.name}


# -- one task --------------------------------------------------------------------------------------


@pytest.mark.real
def test_two_requests_acquire_and_release(scene: Scene, run: Run) -> None:
    async def main() -> None:
        async with async_mutex(scene) as mutex:
            assert mutex.held
            assert not mutex.lost
            assert 0 < mutex.remaining <= 30
            assert (scene.row.token, scene.row.version) == (mutex.token, mutex.fencing_token)
        assert not mutex.held

    run(main())
    assert scene.proxy.kinds() == ["acquire", "release"]
    assert left_behind(scene) == []


def test_only_a_request_or_a_receiver_needs_a_thread(
    scene: Scene, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = current_process().task_workers
    posted, post = [], workers.post

    def note(call: Callable[[], object]) -> None:
        posted.append(call)
        post(call)

    async def main() -> None:
        async with async_mutex(scene):
            pass
        monkeypatch.setattr(workers, "post", note)
        async with async_mutex(scene):
            assert len(posted) == 1
        assert len(posted) == 2
        threads = []
        with signals.acquired.connected_to(
            lambda _, **event: threads.append(threading.get_ident())
        ):
            async with async_mutex(scene):
                pass
        assert len(posted) == 5
        assert threads != [threading.get_ident()]

    run(main())


def test_lock_that_was_won_back_after_its_release_failed_is_detached(
    scene: Scene, run: Run
) -> None:
    async def main() -> str:
        mutex = async_mutex(scene, auto_renew=False)
        with pytest.raises(MutexNotHeldError, match="deadline"):
            _ = mutex.deadline
        await mutex.acquire()
        with FakeClock() as clock:
            clock.advance(31)
            with pytest.raises(MutexLostError):
                await mutex.release()
            await mutex.renew()
            return await mutex.detach()

    Mutex.attach(run(main()), model=scene.here).release()
    assert left_behind(scene) == []


def test_receiver_sees_the_acquisition_of_the_task_that_it_is_about(scene: Scene, run: Run) -> None:
    seen: list[tuple[bool, bool]] = []

    async def main() -> None:
        mutex = async_mutex(scene, reentrant=True)

        def see(sender: object, **event: Any) -> None:
            seen.append((mutex.held, mutex.token == event["token"]))

        async def work() -> None:
            async with mutex:
                await asyncio.sleep(0)

        with signals.acquired.connected_to(see):
            await asyncio.gather(*(work() for _ in range(3)))

    run(main())
    assert seen == [(True, True)] * 3


def test_what_is_raised_while_a_request_is_sent_ends_the_attempt(
    scene: Scene, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = BaseClient._make_api_call

    def fail(client: object, operation: str, kwargs: dict[str, Any]) -> Any:
        monkeypatch.setattr(BaseClient, "_make_api_call", original)
        raise NotImplementedError(operation)

    async def main() -> None:
        async with async_mutex(scene):
            pass
        monkeypatch.setattr(BaseClient, "_make_api_call", fail)
        with pytest.raises(NotImplementedError):
            await async_mutex(scene).acquire()

    run(main())
    assert left_behind(scene) == []


@pytest.mark.real
def test_every_call_does_what_it_does_for_threads(scene: Scene, run: Run) -> None:
    async def main() -> None:
        mutex = async_mutex(scene, lease=20, data={"page": 1})
        assert repr(mutex).startswith(f"<AsyncMutex {scene.key!r}")
        assert await mutex.acquire() is True
        assert (mutex.key, mutex.data) == (scene.key, {"page": 1})
        assert await mutex.locked()
        await mutex.renew(lease=60)
        assert mutex.remaining > 40
        await mutex.ensure_held(at_least=10)
        await mutex.save_data({"page": 2})
        with pytest.raises(MutexAlreadyHeldError):
            await mutex.acquire()
        await mutex.release()
        assert not await mutex.locked()
        with pytest.raises(MutexNotHeldError):
            await mutex.release()
        another = async_mutex(scene)
        assert await another.acquire(blocking=False)
        assert another.data == {"page": 2}
        assert await mutex.force_release()
        with pytest.raises(MutexLostError):
            await another.release()
        await mutex.acquire()
        await mutex.release()
        with pytest.raises(ValueError, match="non-blocking"):
            await mutex.acquire(blocking=False, timeout=3)

    run(main())
    assert left_behind(scene) == []


def test_a_lock_that_is_held_is_not_taken(scene: Scene, run: Run) -> None:
    other = scene.taken()

    async def main() -> None:
        mutex = async_mutex(scene, timeout=0.2)
        assert await mutex.acquire(blocking=False) is False
        assert await mutex.acquire(timeout=0.2) is False
        with pytest.raises(MutexTimeoutError) as raised:
            async with mutex:
                pass
        assert raised.value.owner == "other"

    run(main())
    other.release()
    assert left_behind(scene) == []


def test_the_owner_is_named_after_the_task(scene: Scene, run: Run) -> None:
    async def main() -> None:
        asyncio.current_task().set_name("invoicing")
        async with async_mutex(scene) as mutex:
            assert mutex.owner == scene.row.owner
            assert mutex.owner.endswith(":invoicing")

    run(main())


def test_decorated_functions_run_under_a_lock_of_their_own(scene: Scene, run: Run) -> None:
    at_work, most = 0, 0

    @async_mutex(scene)
    async def work(number: int, *, times: int) -> int:
        """Work."""
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0.01)
        at_work -= 1
        return number * times

    async def main() -> list[int]:
        return await asyncio.gather(*(work(number, times=2) for number in range(4)))

    assert run(main()) == [0, 2, 4, 6]
    assert most == 1
    assert (work.__name__, work.__doc__) == ("work", "Work.")
    with pytest.raises(TypeError, match="coroutine function"):
        async_mutex(scene)(lambda: None)


def test_transaction_whose_block_fails_is_not_sent(scene: Scene, run: Run) -> None:
    async def main() -> None:
        async with async_mutex(scene) as mutex:
            with pytest.raises(ZeroDivisionError):
                async with mutex.transaction() as transaction:
                    transaction.save(scene.here(f"{scene.key}.other"))
                    raise ZeroDivisionError

    run(main())
    assert scene.proxy.kinds() == ["acquire", "release"]


def test_a_transaction_is_guarded_by_the_lock(scene: Scene, run: Run) -> None:
    async def main() -> None:
        async with async_mutex(scene) as mutex, mutex.transaction() as transaction:
            transaction.save(scene.here(f"{scene.key}-row", owner="written"))

    run(main())
    assert scene.there.get(f"{scene.key}-row").owner == "written"


def test_for_row_names_the_same_lock_as_for_threads(scene: Scene, run: Run) -> None:
    there = Mutex.for_row(scene.there, "a row", lock_model=scene.there)
    assert there.acquire()

    async def main() -> None:
        mutex = AsyncMutex.for_row(scene.there, "a row", lock_model=scene.here)
        assert mutex.key == there.key
        assert not await mutex.acquire(blocking=False)

    run(main())
    there.release()


# -- several tasks ---------------------------------------------------------------------------------


@pytest.mark.real
def test_a_hundred_waiting_tasks_take_turns_and_few_threads(scene: Scene, run: Run) -> None:
    tokens: list[int] = []
    at_work = most = 0

    async def work() -> None:
        nonlocal at_work, most
        async with async_mutex(scene) as mutex:
            at_work += 1
            most = max(most, at_work)
            tokens.append(mutex.fencing_token)
            await asyncio.sleep(0)
            at_work -= 1

    before = pool_threads()

    async def main() -> int:
        async with async_mutex(scene):
            tasks = [asyncio.create_task(work()) for _ in range(100)]
            queue = queue_of(scene)
            await until(lambda: len(queue.turns) == 100)
            threads = len(pool_threads() - before)
        await asyncio.gather(*tasks)
        return threads

    assert run(main()) <= MOST_THREADS
    assert most == 1
    assert len(tokens) == 100
    assert tokens == sorted(set(tokens))
    # handed over, as among threads: about one request for each
    assert len(scene.proxy.of("hand_over")) >= 90
    assert left_behind(scene) == []


@pytest.mark.real
def test_tasks_and_threads_wait_in_one_line(scene: Scene, run: Run) -> None:
    order: list[str] = []

    def thread() -> None:
        with scene.mutex(timeout=50):
            order.append("thread")

    async def task() -> None:
        async with async_mutex(scene, timeout=50):
            order.append("task")

    async def main() -> None:
        queue = queue_of(scene)
        async with async_mutex(scene):
            first = asyncio.create_task(task())
            await until(lambda: len(queue.turns) == 1)
            second = threading.Thread(target=thread)
            second.start()
            await until(lambda: len(queue.turns) == 2)
        await first
        await asyncio.to_thread(second.join)

    run(main())
    assert order == ["task", "thread"]


def test_tasks_that_share_a_mutex_see_their_own_acquisitions(scene: Scene, run: Run) -> None:
    mutex = async_mutex(scene)

    async def taker(entered: asyncio.Event, leave: asyncio.Event) -> int:
        async with mutex:
            entered.set()
            await leave.wait()
            return mutex.fencing_token

    async def main() -> None:
        entered, leave = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(taker(entered, leave))
        await entered.wait()
        assert not await mutex.acquire(timeout=0.1)
        leave.set()
        token = await task
        async with mutex:
            assert mutex.fencing_token > token

    run(main())


def test_a_task_may_enter_again_and_another_may_not(scene: Scene, run: Run) -> None:
    async def try_to_enter() -> bool:
        return await async_mutex(scene, reentrant=True).acquire(blocking=False)

    async def main() -> None:
        async with async_mutex(scene, reentrant=True) as outer:
            async with async_mutex(scene, reentrant=True) as inner:
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

    run(main())
    assert scene.proxy.kinds().count("release") == 1
    assert left_behind(scene) == []


def test_a_reentrant_mutex_for_threads_distinguishes_tasks_as_well(scene: Scene, run: Run) -> None:
    async def try_to_enter() -> bool:
        return scene.mutex(reentrant=True).acquire(blocking=False)

    async def main() -> None:
        with scene.mutex(reentrant=True):
            assert await try_to_enter()
            assert not await asyncio.create_task(try_to_enter())

    run(main())


# -- a bad network ---------------------------------------------------------------------------------


def test_lost_answers_are_harmless(scene: Scene, run: Run) -> None:
    async def main() -> None:
        scene.proxy.next(drop_answer(), op="acquire")
        async with async_mutex(scene, timeout=20) as mutex:
            assert mutex.held
            assert scene.row.token == mutex.token
            scene.proxy.next(drop_answer(), op="release")

    run(main())
    assert scene.applied("acquire") == [True, False]
    assert left_behind(scene) == []


def test_whoever_cannot_reach_dynamodb_takes_no_thread_while_it_waits(
    scene: Scene, run: Run
) -> None:
    scene.proxy.always(drop_request())
    before = pool_threads()

    async def try_to_acquire(number: int) -> None:
        mutex = AsyncMutex.for_key(f"{scene.key}-{number}", model=scene.here)
        with pytest.raises(UpdateError):
            await mutex.acquire(timeout=1.5)

    async def main() -> None:
        tasks = [asyncio.create_task(try_to_acquire(number)) for number in range(40)]
        await asyncio.sleep(0.5)
        # all of them are between two attempts most of the time
        assert len(pool_threads() - before) <= MOST_THREADS
        await asyncio.gather(*tasks)

    run(main())
    attempts = [seen.body["Key"]["key"]["S"] for seen in scene.proxy.of("acquire")]
    assert len(set(attempts)) == 40


# -- acquire here, release there -------------------------------------------------------------------


@pytest.mark.real
def test_a_lock_is_detached_by_one_task_and_attached_by_another(scene: Scene, run: Run) -> None:
    async def give() -> tuple[str, int]:
        mutex = async_mutex(scene, lease=20)
        await mutex.acquire()
        token = mutex.fencing_token
        ticket = await mutex.detach()
        assert not mutex.held
        return ticket, token

    async def main() -> None:
        ticket, token = await asyncio.create_task(give())
        async with await AsyncMutex.attach(ticket, model=scene.here) as mutex:
            assert mutex.fencing_token == token + 1
            assert mutex.held
        assert not mutex.held
        with pytest.raises(MutexLostError):
            await AsyncMutex.attach(ticket, model=scene.here)

    run(main())
    assert left_behind(scene) == []


def test_what_was_attached_may_be_released_without_a_block(scene: Scene, run: Run) -> None:
    async def main() -> None:
        mutex = async_mutex(scene)
        await mutex.acquire()
        ticket = await mutex.detach(lease=50)
        taken = await AsyncMutex.attach(ticket, model=scene.here, cancel_on_loss=True)
        assert 0 < taken.remaining <= 30
        await taken.release()

    run(main())
    assert left_behind(scene) == []
