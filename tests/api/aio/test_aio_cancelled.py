"""A task that is cancelled: nothing stays held, and nothing scheduled or queued."""

import asyncio
import gc
import math
import sys
import threading
import time
import weakref
from dataclasses import replace

import pytest
import uvloop
from this_process import current_process
from waits import LONG, until_async, until_cancelled

from dev.faultproxy import (
    after,
    delay,
    delay_answer,
    drop_answer,
    throttle,
)
from pynamodb_mutex import MutexLostError
from pynamodb_mutex._tasks.run_in_task import TaskSleeper, sleep
from pynamodb_mutex.aio import AsyncMutex
from pynamodb_mutex.exceptions import Loss


async def cancel(task, times=1):
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task


async def cancel_after(seconds, call, times=1):
    """Cancel a task that makes a call, some time later."""
    task = asyncio.create_task(call)
    await asyncio.sleep(seconds)
    assert not task.done()
    await cancel(task, times)


# -- at any await ----------------------------------------------------------------------------------


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("late", [delay, delay_answer])
async def test_cancelled_at_any_moment_of_a_section(scene, late, several):
    keys = [f"{scene.key}-{letter}" for letter in "abc"] if several else [scene.key]
    make = AsyncMutex.for_keys if several else lambda keys, **options: scene.async_mutex(**options)
    scene.proxy.always(late(0.010))
    entered = []

    async def section():
        async with make(keys, model=scene.here) as lock:
            entered.append(lock.held)
            await asyncio.sleep(0.010)

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
        assert [replace(scene, key=key).leftovers() for key in keys] == [[]] * len(keys)
    assert cancelled == 30
    assert entered == [True] * 22


@pytest.mark.real
async def test_cancelled_at_some_moments_of_a_section(scene):
    async def section():
        async with scene.async_mutex():
            await asyncio.sleep(0.002)

    for step in range(12):
        task = asyncio.create_task(section())
        await asyncio.sleep(0.005 * step)
        task.cancel()
        await asyncio.wait({task})
        assert scene.leftovers() == []


async def test_cancelled_at_any_moment_of_a_wait_in_line(scene):
    scene.proxy.always(delay_answer(0.003))
    ends = []

    async def section():
        async with scene.async_mutex(timeout=50):
            ends.append("entered")
            await asyncio.sleep(0.003)
        ends.append("left")

    # each is cancelled at another moment: waiting, handed over to, working, releasing
    tasks = [asyncio.create_task(section()) for _ in range(30)]
    for task in tasks[::2]:
        await asyncio.sleep(0.0105)
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    wrong = [each for each in results[::2] if not isinstance(each, asyncio.CancelledError | None)]
    assert wrong == []
    assert results[1::2] == [None] * 15
    assert ends.count("entered") > ends.count("left") > 15
    assert scene.leftovers() == []


@pytest.mark.parametrize(
    ("op", "times", "applied"),
    [
        ("acquire", 1, ["release"]),
        ("acquire", 3, ["release"]),
        ("renew", 1, ["attach", "release"]),
        ("renew before it is to end sooner", 1, ["disown"]),
        ("attach", 1, ["attach", "release"]),
        ("release", 2, ["release"]),
    ],
)
async def test_cancelled_while_a_request_is_under_way(scene, op, times, applied):
    mutex = scene.async_mutex()
    call = mutex.acquire()
    if op != "acquire":
        await call
        op, *sooner = op.split(maxsplit=1)
        call = mutex.release() if op == "release" else mutex.detach(1 if sooner else None)
    if op == "attach":
        call = AsyncMutex.attach(await call, model=scene.here)
        scene.proxy.log.clear()
    scene.proxy.next(delay_answer(0.3), op=op)
    await cancel_after(0.1, call, times)
    assert scene.applied(op)[:1] == [True]
    # it is over when the task is, and what it came to is undone
    assert scene.leftovers() == []
    assert scene.applied(*applied) == [True] * len(applied)


@pytest.mark.parametrize("several", [False, True])
async def test_cancelled_while_the_last_attempt_fails(scene, heard, several):
    """The cancellation is thrown at the request that disowns the claim, before that is sent."""
    options = {"model": scene.here}
    keys = [scene.key, f"{scene.key}-b"] if several else [scene.key]
    lock = AsyncMutex.for_keys(keys, **options) if several else scene.async_mutex()
    op = "TransactWriteItems" if several else "acquire"
    scene.proxy.next(drop_answer(lambda: time.sleep(2)), op=op)
    await cancel_after(1, lock.acquire(blocking=False))
    assert heard.names == ["not_acquired"] * len(keys)
    for key in keys:
        assert replace(scene, key=key).leftovers() == []


async def test_cancelled_while_it_waits_to_retry_a_release(scene, monkeypatch):
    mutex = scene.async_mutex()
    await mutex.acquire()
    monkeypatch.setattr(current_process(), "uniform", lambda low, high: 0.3)
    scene.proxy.next(throttle(), op="release")
    begun = time.monotonic()
    # again and again, as the scopes of anyio do
    await cancel_after(0.1, mutex.release(), times=100)
    assert time.monotonic() - begun >= 0.3
    assert scene.applied("release") == [False, True]
    assert scene.leftovers() == []


async def test_cancelled_while_it_learns_that_the_lock_is_held(scene):
    scene.taken()
    mutex = scene.async_mutex()
    assert not await mutex.acquire(blocking=False)
    scene.proxy.next(after(lambda: time.sleep(0.3)))
    await cancel_after(0.1, mutex.acquire(blocking=False))
    assert not mutex.held
    assert scene.row.is_held


async def test_claim_that_cannot_be_released_does_not_hide_the_cancellation(scene, caplog):
    scene.proxy.next(delay_answer(0.3), op="acquire")
    task = asyncio.create_task(scene.async_mutex().acquire())
    await asyncio.sleep(0.1)
    assert scene.force()
    await cancel(task)
    assert "could not be taken back" in caplog.text
    assert scene.leftovers() == []


async def collect_in_another_loop():
    gc.collect()


@pytest.mark.parametrize("left_by", ["async with", "finally"])
@pytest.mark.parametrize("collect", [gc.collect, lambda: asyncio.run(collect_in_another_loop())])
def test_lock_of_a_task_whose_loop_was_closed_is_released(table, left_by, collect):
    """As after a second Ctrl-C: Python closes the coroutine, which can wait for nothing any more."""
    mutex, around = (AsyncMutex.for_key(key, cancel_on_loss=True) for key in "ab")

    async def hold():
        if left_by == "async with":
            async with around, mutex:
                await asyncio.sleep(math.inf)
        await mutex.acquire()
        try:
            await asyncio.sleep(math.inf)
        finally:
            await mutex.release()

    async def until_held():
        while not mutex.held:
            await asyncio.sleep(0.01)

    loop = asyncio.new_event_loop()
    task = weakref.ref(loop.create_task(hold()))
    loop.run_until_complete(until_held())
    loop.close()
    collect()
    assert task() is None
    time.sleep(1)  # a worker releases it
    assert not mutex.held
    assert not around.held
    assert not table.get("a").is_held
    assert current_process().schedule.is_empty


async def test_async_generator_that_is_closed_awaits_the_release(scene):
    async def section():
        async with scene.async_mutex():
            yield

    generator = section()
    await generator.__anext__()
    await generator.aclose()
    assert scene.applied("release") == [True]


def test_sleeper_of_a_closed_loop_is_woken_in_vain():
    async def main():
        event = asyncio.Event()
        return event, TaskSleeper(event)

    event, sleeper = asyncio.run(main())
    sleeper.wake()
    del event
    sleeper.wake()


@pytest.mark.parametrize("new_event_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_sleeper_woken_by_a_thread_wakes_a_loop_that_sleeps(new_event_loop):
    async def main():
        event = asyncio.Event()
        threading.Timer(0.05, TaskSleeper(event).wake).start()
        # nothing else wakes it
        await asyncio.wait_for(sleep(event, math.inf), LONG)

    loop = new_event_loop()
    loop.run_until_complete(main())
    loop.close()


# -- on loss ---------------------------------------------------------------------------------------


@pytest.mark.real("simulated", "local")
async def test_loss_cancels_the_task_that_holds(scene, clock):
    with pytest.raises(MutexLostError) as raised:
        async with scene.async_mutex(cancel_on_loss=True):
            assert scene.force()
            clock.advance(11)  # a renewal finds it
            await until_cancelled()
    assert raised.value.loss is Loss.FORCED
    # as if it had never been cancelled
    await asyncio.sleep(0)


@pytest.mark.parametrize("awaited", [False, True])
async def test_loss_is_reported_and_cancels_no_task_unless_asked_to(scene, clock, awaited):
    lost = []

    def on_lost(mutex):
        lost.append((mutex, mutex.loss))

    async def on_lost_awaited(mutex):
        await asyncio.sleep(0)
        assert asyncio.get_running_loop() is loop
        on_lost(mutex)

    loop = asyncio.get_running_loop()
    still_inside = False
    with pytest.raises(MutexLostError):
        async with scene.async_mutex(on_lost=on_lost_awaited if awaited else on_lost) as mutex:
            assert scene.force()
            clock.advance(11)
            await until_async(lambda: lost)
            await asyncio.sleep(0.05)
            still_inside = mutex.lost
    assert still_inside
    assert lost == [(mutex, Loss.FORCED)]


@pytest.mark.parametrize("awaited", [False, True])
async def test_danger_is_reported_with_the_async_lock_and_cancels_no_task(scene, clock, awaited):
    reported = []

    async def on_danger(mutex):
        assert asyncio.get_running_loop() is loop
        reported.append((mutex, mutex.held))

    call = on_danger if awaited else (lambda mutex: reported.append((mutex, mutex.held)))
    loop = asyncio.get_running_loop()
    options = {"auto_renew": False, "on_danger": call, "cancel_on_loss": True}
    async with scene.async_mutex(**options) as mutex:
        clock.advance(21)
        await until_async(lambda: reported)
        await asyncio.sleep(0.05)
    assert reported == [(mutex, True)]
    # each call of a decorated function, too
    called = scene.async_mutex(**options)(lambda_of(clock, reported))
    await called()
    assert [held for _, held in reported] == [True, True]


def lambda_of(clock, reported):
    async def work():
        clock.advance(21)
        await until_async(lambda: len(reported) == 2)

    return work


async def test_task_that_loses_its_mutex_is_warned(scene):
    async def lose():
        await scene.async_mutex().acquire()
        gc.collect()

    with pytest.warns(ResourceWarning, match=scene.key):
        await lose()


async def test_acquire_that_on_lost_returns_is_awaited(scene, clock):
    other = AsyncMutex.for_key("other", model=scene.here)
    mutex = scene.async_mutex(on_lost=lambda _: other.acquire())
    assert await mutex.acquire()
    assert scene.force()
    clock.advance(11)
    await until_async(lambda: other.held)
    await other.release()


async def test_only_the_task_that_lost_is_cancelled(scene):
    mutex = scene.async_mutex(cancel_on_loss=True, lease=6, timeout=50)
    entered = asyncio.Event()

    async def lose():
        async with mutex:
            entered.set()
            await until_cancelled()

    async def win():
        async with mutex:
            await asyncio.wait({loser})
            return mutex.held

    loser = asyncio.create_task(lose())
    await entered.wait()
    winner = asyncio.create_task(win())
    await asyncio.sleep(0.05)
    assert scene.force()
    with pytest.raises(MutexLostError):
        await loser
    assert await winner
    assert scene.leftovers() == []


async def test_acquire_without_a_block_is_cancelled_as_well(scene, clock):
    async def work():
        await scene.async_mutex(cancel_on_loss=True).acquire()
        assert scene.force()
        clock.advance(11)
        await until_cancelled()

    task = asyncio.create_task(work())
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_loss_after_the_task_that_acquired_has_ended_cancels_nothing(scene, clock, caplog):
    mutex = scene.async_mutex(cancel_on_loss=True)
    await asyncio.create_task(mutex.acquire())
    assert scene.force()
    clock.advance(11)
    await until_async(lambda: mutex.lost)
    await asyncio.sleep(0.1)
    assert "Exception in callback" not in caplog.text


async def test_lock_that_was_lost_before_the_block_began_cancels_it(scene, monkeypatch):
    begin = AsyncMutex._begin

    def late(mutex, held):
        assert scene.force()
        with pytest.raises(MutexLostError):
            mutex._lock.renew()
        time.sleep(0.2)  # so that the loss is reported before the block begins
        begin(mutex, held)

    monkeypatch.setattr(AsyncMutex, "_begin", late)

    with pytest.raises(MutexLostError):
        async with scene.async_mutex(cancel_on_loss=True):
            await until_cancelled()


@pytest.mark.parametrize("releasing", [True, False])
async def test_task_that_blocks_the_loop_learns_of_the_loss_when_it_releases(scene, releasing):
    with pytest.raises(MutexLostError):
        async with scene.async_mutex(cancel_on_loss=True, lease=1.0, auto_renew=False) as mutex:
            time.sleep(1.5)  # the loss is reported meanwhile, and waits for the loop
            if releasing:
                await mutex.release()


async def ignore(mutex):
    await asyncio.sleep(0)


async def fail(mutex):
    raise LookupError("mine")


async def win_back(mutex):
    await mutex.renew(lease=30)
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("react", "error", "match"),
    [
        (None, MutexLostError, "lost"),
        (ignore, MutexLostError, "lost"),
        (fail, LookupError, "mine"),
        (win_back, MutexLostError, "had been lost"),
    ],
)
async def test_body_reacts_to_the_cancellation(scene, clock, react, error, match):
    with pytest.raises(error, match=match):
        async with scene.async_mutex(cancel_on_loss=True, auto_renew=False) as mutex:
            clock.advance(31)
            try:
                await until_cancelled()
            except asyncio.CancelledError:
                assert mutex.loss is Loss.EXPIRED
                if react is None:
                    raise
                await react(mutex)
    # as if it had never been cancelled
    await asyncio.sleep(0)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 does not count cancellations")
async def test_another_cancellation_at_the_same_time_counts(scene, clock):
    async def work():
        async with scene.async_mutex(cancel_on_loss=True):
            assert scene.force()
            clock.advance(11)
            try:
                await until_cancelled()
            except asyncio.CancelledError:
                asyncio.current_task().cancel()
                raise

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(work())


async def test_block_that_was_left_is_not_cancelled_any_more(scene, clock):
    async with scene.async_mutex(cancel_on_loss=True, auto_renew=False) as mutex:
        await mutex.release()
    clock.advance(31)
    await asyncio.sleep(0.2)
    assert scene.leftovers() == []
