"""A release in a signal handler, or a finaliser, that interrupts a step: it runs when the step is over."""

import asyncio
from collections import deque

import pytest

from pynamodb_mutex._operations.effects import Wait, Wakeup
from pynamodb_mutex._runtime.clock import read_clock
from pynamodb_mutex._runtime.process import Process
from pynamodb_mutex._runtime.run_in_task import run as run_in_task
from pynamodb_mutex._runtime.run_on_thread import run as run_on_thread


def run_in_loop(process, operation):
    return asyncio.run(run_in_task(process, operation))


on_each_runner = pytest.mark.parametrize("run", [run_on_thread, run_in_loop])


@pytest.fixture
def process():
    return Process()


def releasing(done):
    done.append(True)
    return
    yield


def waiting_for(done):
    for _ in range(3000):
        if done:
            return True
        yield Wait(read_clock() + 0.01)
    return False


@on_each_runner
def test_deferred_release_does_not_wait_for_the_operation_that_it_interrupted(process, run):
    done = []

    def waiting():
        process.deferred.append(releasing(done))
        return (yield from waiting_for(done))

    assert run(process, waiting())


@on_each_runner
def test_release_that_interrupts_the_last_step_is_done(process, run):
    done = []

    def ending():
        process.deferred.append(releasing(done))
        return
        yield

    run(process, ending())
    assert run_on_thread(Process(), waiting_for(done))


def test_release_that_another_thread_takes_first_is_left_to_it(process):
    class TakenMeanwhile(deque):
        """Another thread takes the only one after this thread has seen that there is one."""

        def __bool__(self):
            return True

    process.deferred = TakenMeanwhile()
    assert run_on_thread(process, waiting_for([True]))


def test_waiter_whose_time_is_up_while_it_is_woken_does_not_fail_who_wakes_it():
    class Leaves(Wakeup):
        """The waiter takes its sleeper away after it was looked at once."""

        seen = 0

        @property
        def sleeper(self):
            self.seen += 1
            return sleeper if self.seen == 1 else None

        @sleeper.setter
        def sleeper(self, sleeper):
            pass

    class Sleeper:
        woken = False

        def wake(self):
            self.woken = True

    sleeper = Sleeper()
    Leaves().ring()
    assert sleeper.woken
