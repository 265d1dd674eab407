"""Runners: interruptions, signal handlers, tasks that nobody refers to any more, and the states of a claim."""

import asyncio
import gc
import itertools
import math
import signal
import sys
import time
import weakref
from collections import deque
from functools import partial
from typing import get_args
from unittest.mock import Mock

import pytest
import uvloop
from operations_by_hand import acquiring
from processes import Fork
from signal_receivers import Slow
from this_process import Process, current_process
from two_clients import held
from waits import until

from dev.faultproxy import delay, delay_answer
from pynamodb_mutex import Loss, Mutex, MutexError, MutexNotHeldError, signals
from pynamodb_mutex._lock.operations.effects import Wait, Wakeup
from pynamodb_mutex._lock.operations.states import TRANSITIONS, Belief, Change, State
from pynamodb_mutex._lock.runtime.clock import read_clock
from pynamodb_mutex._lock.runtime.run_on_thread import ThreadSleeper, execute
from pynamodb_mutex._tasks import run_in_task


def inside_a_step(act):
    """Let something be called in the middle of a step, as a signal handler, or the garbage collector, may be."""

    def interrupted():
        signal.raise_signal(signal.SIGUSR1)
        yield Wait(0.0)

    before = signal.signal(signal.SIGUSR1, lambda *_: act())
    try:
        execute(current_process(), interrupted())
    finally:
        signal.signal(signal.SIGUSR1, before)


def one_wait():
    yield Wait(0.0)
    return "done"


@pytest.mark.parametrize("release", [Mutex.release, lambda mutex: mutex.__exit__(None, None, None)])
def test_release_in_a_handler_inside_a_step_is_done_right_after_it_and_logged_if_it_fails(
    scene, caplog, release
):
    mutex, seen = scene.mutex(), []
    mutex.__enter__()

    def handler():
        release(mutex)
        seen.append((mutex.held, mutex.remaining > 0, mutex.lost))

    inside_a_step(handler)
    # in the handler it is not released yet, and nothing hangs
    assert (seen, mutex.held, scene.row.expires_at) == ([(True, True, False)], False, None)
    held(mutex)
    scene.force()
    inside_a_step(mutex.release)
    assert "a release by a signal handler failed" in caplog.text
    assert mutex.loss is Loss.FORCED


def test_other_calls_in_a_handler_inside_a_step_are_refused(scene):
    mutex, task_mutex = held(scene.mutex(reentrant=True)), scene.async_mutex(reentrant=True)
    calls = [mutex.acquire, mutex.renew, mutex.locked, mutex.force_release]
    calls.append(lambda: asyncio.run(task_mutex.acquire()))
    before, refused = scene.everything, []

    def handler():
        for call in calls:
            with pytest.raises(MutexError, match="interrupted this library"):
                call()
            refused.append(call)

    inside_a_step(handler)
    assert (refused, scene.everything, mutex.held) == (calls, before, True)
    mutex.release()
    assert scene.leftovers() == []


def test_child_of_a_fork_inside_the_monitor_does_not_hang(scene):
    mutex = held(scene.mutex())

    def child():
        with pytest.raises(MutexNotHeldError):
            mutex.release()
        return Mutex.for_key(f"{scene.key}-child", model=scene.there).acquire()

    with current_process().monitor:
        fork = Fork(child)
    assert fork.value(30) is True


@pytest.mark.parametrize("runs", [execute, lambda *what: asyncio.run(run_in_task.execute(*what))])
@pytest.mark.parametrize("is_last", [False, True])
def test_deferred_release_does_not_wait_for_the_operation_that_it_interrupted(runs, is_last):
    process, done = Process(), []

    def releasing():
        done.append(True)
        return
        yield

    def interrupted():
        process.deferred.append(releasing())
        for _ in range(0 if is_last else 3000):
            if done:
                return
            yield Wait(process.now + 0.01)
        assert is_last, "it waits"

    runs(process, interrupted())
    until(lambda: done)


def test_release_that_another_thread_takes_first_is_left_to_it():
    class TakenMeanwhile(deque):
        """Another thread takes the only one after this thread has seen that there is one."""

        def __bool__(self):
            return True

    process = Process()
    process.deferred = TakenMeanwhile()
    execute(process, one_wait())


def test_request_that_is_sent_long_after_its_step_brings_no_end_nearer(scene):
    """Because a receiver is slow, or no worker is free for a task."""
    lock = held(scene.mutex(auto_renew=False))
    driven = acquiring(Mutex.for_key("another", model=scene.here))
    driven.step()
    time.sleep(20)
    driven.go_on()
    assert lock.remaining > 9
    assert driven.until_it_waits() is None


def test_interruption_at_any_instant_of_a_sleep_is_raised_as_it_is():
    """Before and after each call that a sleep makes, Ctrl-C may come."""

    def is_interrupted(at):
        sleeper, until, calls = ThreadSleeper(), read_clock() + 0.001, itertools.count()

        def interrupt(*_):
            if next(calls) == at:
                raise KeyboardInterrupt

        try:
            sys.setprofile(interrupt)
            sleeper.sleep(until)
            sys.setprofile(None)
        except KeyboardInterrupt:
            # and it can sleep and be woken again
            sleeper.wake()
            sleeper.sleep(math.inf)
            return True
        return False

    assert len(list(itertools.takewhile(is_interrupted, itertools.count()))) > 5


def test_waiter_whose_time_is_up_while_it_is_woken_does_not_fail_who_wakes_it():
    asleep = Mock()

    class Leaves(Wakeup):
        """The waiter takes its sleeper away after it was read once."""

        looks = iter([asleep, None])
        sleeper = property(lambda self: next(self.looks), lambda *_: None)

    Leaves().ring()
    asleep.wake.assert_called_once()


def test_task_cancelled_while_its_events_are_delivered_leaves_nothing_held(scene):
    slow = Slow(scene.key)

    async def main():
        task = asyncio.create_task(scene.async_mutex().acquire())
        await asyncio.to_thread(slow.come.wait, 30)
        task.cancel()
        await asyncio.sleep(0.05)
        slow.go.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    with signals.acquired.connected_to(slow):
        asyncio.run(main())
    assert scene.row.expires_at is None


def test_change_of_state_does_what_the_table_says_and_nothing_else(scene):
    # each state but the last ones has a way out
    assert {state for state, _ in TRANSITIONS} == set(get_args(State)) - {"released"}
    mutex = held(scene.mutex(auto_renew=False))
    claim = mutex._latest
    for state, change in itertools.product(get_args(State), get_args(Change)):
        before = claim.belief = Belief(state, Loss.EXPIRED if state == "lost" else None)
        after = TRANSITIONS.get((state, change))
        assert claim.change(change) is (after is not None), (state, change)
        if after is None:
            assert claim.belief is before
        else:
            loss = None if change == "won back" else before.loss
            assert (claim.belief.state, claim.belief.loss) == (after, loss)
    claim.belief = Belief("held")
    mutex.release()


close_at = pytest.mark.parametrize("close_at", [inside_a_step, lambda close: close()])
in_time = pytest.mark.timeout(30, method="thread")  # else it would go on for ever


def abandoned(coroutine):
    """Let a task run for 0.1 s, and close its loop; return what closes the coroutine."""
    tasks = []

    async def main():
        tasks.append(asyncio.create_task(coroutine))
        await asyncio.sleep(0.1)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()

    def close():
        assert not tasks[0].done()
        coroutine.close()

    return close


@in_time
@close_at
def test_abandoned_waiter_leaves_the_line(scene, close_at):
    queue = scene.queue
    with scene.mutex():
        close = abandoned(scene.async_mutex().acquire())
        assert queue.turns
        close_at(close)
        time.sleep(1)
        assert not queue.turns
    assert scene.leftovers() == []


def test_waiter_whose_loop_was_closed_is_collected_and_gets_no_lock(scene):
    with scene.mutex():
        abandoned(scene.async_mutex().acquire())
        gc.collect()
    time.sleep(1)
    assert scene.leftovers() == []


@pytest.mark.parametrize("new_event_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_task_that_waits_without_an_end_lives_as_long_as_its_loop(new_event_loop):
    wakeup = Wakeup()

    async def main():
        task = weakref.ref(
            asyncio.create_task(run_in_task._wait(Wait(wakeup=wakeup), to_its_end=False))
        )
        await asyncio.sleep(0)
        gc.collect()
        return task, task() is not None

    loop = new_event_loop()
    task, lived = loop.run_until_complete(main())
    loop.close()
    gc.collect()
    assert (lived, task()) == (True, None)


async def section(scene):
    async with scene.async_mutex():
        pass


@in_time
@close_at
@pytest.mark.parametrize(
    ("op", "fault"), [("acquire", delay), ("acquire", delay_answer), ("release", delay)]
)
def test_abandoned_acquire_or_release_leaves_nothing_held(scene, close_at, op, fault):
    scene.proxy.next(fault(0.3), op=op)
    close_at(abandoned(section(scene)))
    time.sleep(5)
    assert scene.leftovers() == []
    assert scene.mutex().acquire(blocking=False)


@in_time
@close_at
@pytest.mark.parametrize("signal", [signals.acquired, signals.released])
def test_lock_is_released_if_its_task_is_abandoned_while_receivers_run(scene, close_at, signal):
    slow = Slow(scene.key)
    with signal.connected_to(slow):
        close = abandoned(section(scene))
        assert slow.come.is_set()
        close_at(close)
        slow.go.set()
        time.sleep(5)
    assert scene.leftovers() == []


def taking_back(results, result):
    results.append(result)
    yield Wait(0.0)


def test_what_an_abandoned_operation_returns_in_spite_of_it_is_taken_back(scene):
    def stubborn():
        try:
            yield Wait(math.inf)
        except asyncio.CancelledError:
            return "done"
        pytest.fail("it was not interrupted")

    taken_back = []
    for how in (partial(taking_back, taken_back), None):
        abandoned(run_in_task.execute(current_process(), stubborn(), how))()
        time.sleep(1)
    assert taken_back == ["done"]


@pytest.mark.parametrize("interruption", [asyncio.CancelledError, GeneratorExit])
def test_result_of_an_operation_is_taken_back_if_its_task_is_interrupted_as_it_ends(
    scene, monkeypatch, interruption
):
    taken_back = []
    undo = partial(taking_back, taken_back)

    async def interrupted(*_):
        if interruption is GeneratorExit:
            raise GeneratorExit
        return asyncio.CancelledError()

    monkeypatch.setattr(run_in_task, "_after", interrupted)
    with pytest.raises(interruption):
        asyncio.run(run_in_task.execute(current_process(), one_wait(), undo))
    time.sleep(1)
    assert taken_back == ["done"]


def test_operation_of_a_parents_task_is_not_ended_by_a_forked_child():
    parent, posted = Process(), []

    async def begin(running):
        running.send(None)

    for inherited in (False, True):
        parent.inherited = inherited
        running = run_in_task.execute(parent, one_wait())
        asyncio.run(begin(running))
        parent.task_workers.at("").post = posted.append
        running.close()
        assert len(posted) == 1
