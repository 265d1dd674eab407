"""A task that is cancelled while it locks leaves nothing held and nothing behind."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
from typing import Any

import pytest
from aio_scene import LONG, Run, async_mutex, left_behind, queue_of, run, until
from scene import Scene

from dev.faultproxy import (
    Exchange,
    Fault,
    after,
    delay,
    delay_answer,
    deny,
    drop_answer,
    drop_request,
    throttle,
)
from pynamodb_mutex import MutexLostError
from pynamodb_mutex._runtime.process import current_process
from pynamodb_mutex._runtime.run_in_task import TaskSleeper
from pynamodb_mutex.aio import AsyncMutex
from pynamodb_mutex.exceptions import Loss
from pynamodb_mutex.testing import FakeClock

__all__ = ["run"]


async def cancel(task: asyncio.Task[Any], times: int = 1) -> None:
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task


# -- at any await ----------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [delay, delay_answer])
def test_cancelled_at_any_moment_of_a_section(scene: Scene, run: Run, late: Any) -> None:
    scene.proxy.always(late(0.010))
    entered = []

    async def section() -> None:
        async with async_mutex(scene) as mutex:
            entered.append(mutex.held)
            await asyncio.sleep(0.010)

    async def main() -> int:
        cancelled = 0
        # 10 ms for the acquire, for the body, and for the release
        for step in range(32):
            task = asyncio.create_task(section())
            await asyncio.sleep(0.0005 + 0.001 * step)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                cancelled += 1
            assert left_behind(scene) == []
        return cancelled

    assert run(main()) == 30
    assert entered == [True] * 22


@pytest.mark.real
def test_cancelled_at_some_moments_of_a_section(scene: Scene, run: Run) -> None:
    async def section() -> None:
        async with async_mutex(scene):
            await asyncio.sleep(0.002)

    async def main() -> None:
        for step in range(20):
            task = asyncio.create_task(section())
            await asyncio.sleep(0.003 * step)
            task.cancel()
            await asyncio.wait({task})
            assert left_behind(scene) == []

    run(main())


def test_cancelled_at_any_moment_of_a_wait_in_line(scene: Scene, run: Run) -> None:
    scene.proxy.always(delay_answer(0.003))
    ends: list[str] = []

    async def section() -> None:
        async with async_mutex(scene, timeout=50):
            ends.append("entered")
            await asyncio.sleep(0.003)
        ends.append("left")

    async def main() -> None:
        # each is cancelled at another moment: waiting, handed over to, working, releasing
        tasks = [asyncio.create_task(section()) for _ in range(30)]
        for task in tasks[::2]:
            await asyncio.sleep(0.0105)
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        wrong = [
            each for each in results[::2] if not isinstance(each, asyncio.CancelledError | None)
        ]
        assert wrong == []
        assert results[1::2] == [None] * 15

    run(main())
    assert ends.count("entered") > ends.count("left") > 15
    assert left_behind(scene) == []


def test_cancelled_while_it_polls(scene: Scene, run: Run) -> None:
    other = scene.taken()

    async def main() -> None:
        task = asyncio.create_task(async_mutex(scene, poll=(0.02, 0.02)).acquire())
        await until(lambda: len(scene.proxy.of("GetItem")) >= 2)
        await cancel(task)

    run(main())
    assert left_behind(scene) == ["a claim"]
    other.release()
    assert scene.other().acquire(blocking=False)


@pytest.mark.parametrize("times", [1, 3])
def test_cancelled_while_the_acquire_is_under_way(scene: Scene, run: Run, times: int) -> None:
    async def main() -> None:
        scene.proxy.next(delay_answer(0.3), op="acquire")
        task = asyncio.create_task(async_mutex(scene).acquire())
        await until(lambda: scene.applied("acquire") == [True])
        await cancel(task, times)
        # it is over when the task is
        assert left_behind(scene) == []

    run(main())
    assert scene.applied("release") == [True]


def test_cancelled_while_the_acquire_of_a_block_is_under_way(scene: Scene, run: Run) -> None:
    async def block() -> None:
        async with async_mutex(scene):
            pytest.fail("the block was entered")

    async def main() -> None:
        scene.proxy.next(delay(0.3), op="acquire")
        task = asyncio.create_task(block())
        await asyncio.sleep(0.1)
        await cancel(task)
        assert left_behind(scene) == []

    run(main())
    assert scene.applied("release") == [True]


def test_cancelled_while_a_lost_acquire_is_repeated(scene: Scene, run: Run) -> None:
    async def main() -> None:
        scene.proxy.next(drop_answer(), op="acquire")
        scene.proxy.always(drop_request(), op="acquire")
        task = asyncio.create_task(async_mutex(scene).acquire())
        await until(lambda: len(scene.proxy.of("acquire")) >= 3)
        await cancel(task)
        assert left_behind(scene) == []

    run(main())
    # the only thing that could be done, for what became of the first was not known
    assert scene.applied("disown") == [True]


def test_cancelled_while_the_lock_is_handed_over_to_it(scene: Scene, run: Run) -> None:
    mutex = scene.mutex()
    assert mutex.acquire()

    async def main() -> None:
        queue = queue_of(scene)
        task = asyncio.create_task(async_mutex(scene).acquire())
        await until(lambda: len(queue.turns) == 1)
        scene.proxy.next(delay_answer(0.3), op="hand_over")
        giving = asyncio.create_task(asyncio.to_thread(mutex.release))
        await until(lambda: scene.applied("hand_over") == [True])
        await cancel(task)
        await giving
        assert left_behind(scene) == []

    run(main())


def test_cancelled_while_it_releases(scene: Scene, run: Run) -> None:
    async def block() -> None:
        async with async_mutex(scene):
            scene.proxy.next(delay(0.3), op="release")

    async def main() -> None:
        task = asyncio.create_task(block())
        await until(lambda: scene.proxy.of("acquire"))
        await asyncio.sleep(0.15)
        await cancel(task, times=2)
        assert left_behind(scene) == []

    run(main())
    assert scene.applied("release") == [True]


def test_cancelled_while_it_waits_to_retry_a_release(
    scene: Scene, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        mutex = async_mutex(scene)
        await mutex.acquire()
        process, throttled = current_process(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def uniform(low: float, high: float) -> float:
            loop.call_soon_threadsafe(throttled.set)
            return 0.3

        monkeypatch.setattr(process, "uniform", uniform)
        scene.proxy.next(throttle(), op="release")
        task = asyncio.create_task(mutex.release())
        await throttled.wait()
        await asyncio.sleep(0)
        await cancel(task)

    run(main())
    assert scene.proxy.kinds()[-2:] == ["release", "release"]
    assert left_behind(scene) == []


def test_cancelled_while_it_learns_that_the_lock_is_held(scene: Scene, run: Run) -> None:
    scene.taken()
    asked = threading.Event()

    async def main() -> None:
        mutex = async_mutex(scene)
        assert not await mutex.acquire(blocking=False)
        scene.proxy.next(after(lambda: asked.set() or time.sleep(0.3)))
        task = asyncio.create_task(mutex.acquire(blocking=False))
        await until(asked.is_set)
        await cancel(task)
        assert not mutex.held

    run(main())
    assert scene.row.is_held


def test_cancelled_while_the_acquire_is_denied(scene: Scene, run: Run) -> None:
    under_way = threading.Event()

    def deny_late(exchange: Exchange) -> None:
        under_way.set()
        time.sleep(0.2)
        deny().meet(exchange)

    async def main() -> None:
        scene.proxy.next(Fault("deny_late", deny_late), op="acquire")
        task = asyncio.create_task(async_mutex(scene).acquire())
        await until(under_way.is_set)
        await cancel(task)

    run(main())
    assert left_behind(scene) == []


def test_cancelled_while_it_detaches(scene: Scene, run: Run) -> None:
    async def main() -> None:
        mutex = async_mutex(scene)
        await mutex.acquire()
        scene.proxy.next(delay_answer(0.3), op="renew")
        task = asyncio.create_task(mutex.detach())
        await until(lambda: scene.applied("renew") == [True])
        await cancel(task)
        assert left_behind(scene) == []

    run(main())
    assert scene.applied("attach", "release") == [True, True]


def test_cancelled_while_it_attaches(scene: Scene, run: Run) -> None:
    async def main() -> None:
        mutex = async_mutex(scene)
        await mutex.acquire()
        ticket = await mutex.detach()
        scene.proxy.next(delay_answer(0.3), op="attach")
        task = asyncio.create_task(AsyncMutex.attach(ticket, model=scene.here))
        await until(lambda: scene.applied("attach") == [True])
        await cancel(task)
        assert left_behind(scene) == []

    run(main())


def test_a_timeout_of_asyncios_own_is_a_cancellation(scene: Scene, run: Run) -> None:
    other = scene.taken()

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(async_mutex(scene).acquire(), 0.2)

    run(main())
    other.release()
    assert left_behind(scene) == []


def test_what_cannot_be_taken_back_does_not_hide_the_cancellation(
    scene: Scene, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        scene.proxy.next(delay_answer(0.3), op="acquire")
        task = asyncio.create_task(async_mutex(scene).acquire())
        await until(lambda: scene.applied("acquire") == [True])
        assert scene.force()
        await cancel(task)

    run(main())
    assert "could not be taken back" in caplog.text
    assert left_behind(scene) == []


def test_sleeper_of_a_closed_loop_is_woken_in_vain() -> None:
    async def main() -> TaskSleeper:
        return TaskSleeper()

    sleeper = asyncio.run(main())
    sleeper.wake()


@pytest.mark.real
def test_sleeper_woken_by_a_thread_wakes_a_loop_that_sleeps(run: Run) -> None:
    async def main() -> None:
        sleeper = TaskSleeper()
        threading.Timer(0.1, sleeper.wake).start()
        began = time.monotonic()
        # long before anything else wakes it
        await asyncio.wait_for(sleeper.sleep(math.inf), LONG / 2)
        assert time.monotonic() - began < LONG / 4

    run(main())


# -- on loss ---------------------------------------------------------------------------------------


@pytest.mark.real
def test_loss_cancels_the_task_that_holds(scene: Scene, run: Run) -> None:
    async def main() -> str:
        with FakeClock() as clock, pytest.raises(MutexLostError) as raised:
            async with async_mutex(scene, cancel_on_loss=True):
                assert scene.force()
                clock.advance(11)  # a renewal finds it
                await asyncio.sleep(50)
        assert raised.value.loss is Loss.FORCED
        # as if it had never been cancelled
        await asyncio.sleep(0)
        return "went on"

    assert run(main()) == "went on"


def test_the_end_of_the_lease_cancels_too(scene: Scene, run: Run) -> None:
    async def main() -> None:
        with FakeClock() as clock, pytest.raises(MutexLostError) as raised:
            async with async_mutex(scene, cancel_on_loss=True, auto_renew=False):
                clock.advance(31)
                await asyncio.sleep(50)
        assert raised.value.loss is Loss.EXPIRED

    run(main())


def test_loss_cancels_nobody_unless_asked_to(scene: Scene, run: Run) -> None:
    told = []

    async def main() -> None:
        with FakeClock() as clock, pytest.raises(MutexLostError):
            async with async_mutex(scene, on_lost=told.append) as mutex:
                assert scene.force()
                clock.advance(11)
                await until(lambda: told)
                await asyncio.sleep(0.05)
                assert told == [mutex]
                assert mutex.lost

    run(main())


@pytest.mark.real
def test_loss_is_asked_to_a_coroutine_function(scene: Scene, run: Run) -> None:
    told = []

    async def tell(mutex: Any) -> None:
        await asyncio.sleep(0)
        told.append((mutex.loss, asyncio.get_running_loop()))

    async def main() -> None:
        with FakeClock() as clock, pytest.raises(MutexLostError):
            async with async_mutex(scene, on_lost=tell):
                assert scene.force()
                clock.advance(11)
                await until(lambda: told)
        assert told == [(Loss.FORCED, asyncio.get_running_loop())]

    run(main())


def test_only_the_task_that_lost_is_cancelled(scene: Scene, run: Run) -> None:
    mutex = async_mutex(scene, cancel_on_loss=True, lease=6, timeout=50)

    async def hold(entered: asyncio.Event) -> str:
        async with mutex:
            entered.set()
            await asyncio.sleep(1 if mutex.fencing_token != first else 50)
        return "done"

    async def main() -> None:
        nonlocal first
        entered = asyncio.Event()
        loser = asyncio.create_task(hold(entered))
        await entered.wait()
        first = scene.row.version
        winner = asyncio.create_task(hold(asyncio.Event()))
        await asyncio.sleep(0.05)
        assert scene.force()
        with pytest.raises(MutexLostError):
            await loser
        assert await winner == "done"

    first = 0
    run(main())
    assert left_behind(scene) == []


def test_acquire_without_a_block_is_cancelled_as_well(scene: Scene, run: Run) -> None:
    async def work() -> None:
        with FakeClock() as clock:
            await async_mutex(scene, cancel_on_loss=True).acquire()
            assert scene.force()
            clock.advance(11)
            await asyncio.sleep(50)

    async def main() -> None:
        task = asyncio.create_task(work())
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())


def test_a_lock_that_was_lost_before_the_block_began_cancels_it(
    scene: Scene, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = AsyncMutex._begin

    def late(mutex: AsyncMutex, held: Any) -> None:
        assert scene.force()
        with pytest.raises(MutexLostError):
            mutex._lock.renew()
        time.sleep(0.2)  # so that all are told: there is nobody yet
        begin(mutex, held)

    monkeypatch.setattr(AsyncMutex, "_begin", late)

    async def main() -> None:
        with pytest.raises(MutexLostError):
            async with async_mutex(scene, cancel_on_loss=True):
                await asyncio.sleep(50)

    run(main())


def test_a_body_that_blocks_the_loop_is_reported_when_it_ends(scene: Scene, run: Run) -> None:
    async def main() -> None:
        with pytest.raises(MutexLostError):
            async with async_mutex(scene, cancel_on_loss=True, lease=1.0, auto_renew=False):
                time.sleep(1.5)  # the news comes meanwhile, and waits for the loop

    run(main())


def test_releasing_what_was_lost_is_not_interrupted_by_the_news(scene: Scene, run: Run) -> None:
    async def main() -> None:
        mutex = async_mutex(scene, cancel_on_loss=True, lease=1.0, auto_renew=False)
        await mutex.acquire()
        time.sleep(1.5)  # the news comes meanwhile, and waits for the loop
        with pytest.raises(MutexLostError):
            await mutex.release()

    run(main())


def test_a_body_that_takes_no_notice_is_reported_when_it_ends(
    scene: Scene, run: Run, fake_clock: FakeClock
) -> None:
    async def main() -> None:
        with pytest.raises(MutexLostError):
            async with async_mutex(scene, cancel_on_loss=True, auto_renew=False):
                fake_clock.advance(31)
                try:
                    await asyncio.sleep(50)
                except asyncio.CancelledError:
                    await asyncio.sleep(0)
        await asyncio.sleep(0)

    run(main())


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 does not count cancellations")
def test_another_cancellation_at_the_same_time_counts(
    scene: Scene, run: Run, fake_clock: FakeClock
) -> None:
    async def work() -> None:
        async with async_mutex(scene, cancel_on_loss=True):
            assert scene.force()
            fake_clock.advance(11)
            try:
                await asyncio.sleep(50)
            except asyncio.CancelledError:
                asyncio.current_task().cancel()
                raise

    async def main() -> None:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(work())

    run(main())


def test_the_bodys_own_error_is_kept(scene: Scene, run: Run, fake_clock: FakeClock) -> None:
    async def main() -> None:
        with pytest.raises(LookupError, match="mine"):
            async with async_mutex(scene, cancel_on_loss=True):
                assert scene.force()
                fake_clock.advance(11)
                try:
                    await asyncio.sleep(50)
                except asyncio.CancelledError as error:
                    raise LookupError("mine") from error

    run(main())


def test_a_lock_won_back_after_the_loss_still_ends_the_block_by_it(
    scene: Scene, run: Run, fake_clock: FakeClock
) -> None:
    async def main() -> None:
        with pytest.raises(MutexLostError, match="had been lost"):
            async with async_mutex(scene, cancel_on_loss=True, auto_renew=False) as mutex:
                fake_clock.advance(31)
                try:
                    await asyncio.sleep(50)
                except asyncio.CancelledError:
                    await mutex.renew(lease=30)
                    raise

    run(main())
    assert left_behind(scene) == []


def test_a_block_that_was_left_is_not_cancelled_any_more(
    scene: Scene, run: Run, fake_clock: FakeClock
) -> None:
    async def main() -> None:
        async with async_mutex(scene, cancel_on_loss=True, auto_renew=False) as mutex:
            await mutex.release()
        fake_clock.advance(31)
        await asyncio.sleep(0.2)

    run(main())
    assert left_behind(scene) == []
