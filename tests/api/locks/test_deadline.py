"""`deadline`: when the protected work must be over, by the local clock."""

from __future__ import annotations

import math
import time

import pytest
from driving import handle
from worker import forked

from pynamodb_mutex import LockItem, Mutex, MutexNotHeldError
from pynamodb_mutex.testing import FakeClock


def local_time():
    # as the documentation tells users
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def test_it_is_the_instant_at_which_held_becomes_false(table):
    with FakeClock() as clock, Mutex.for_key("a", lease=100, auto_renew=False) as mutex:
        assert clock.now() + 80 < mutex.deadline <= clock.now() + 100
        clock.advance(mutex.deadline - clock.now() - 0.001)
        assert mutex.held
        clock.advance(0.002)
        assert not mutex.held
        mutex.renew()  # nobody took it meanwhile
        assert mutex.held


@pytest.mark.real("embedded")
@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="only Linux has this clock")
def test_it_is_a_reading_of_the_clock_that_users_read(table):
    with Mutex.for_key("a", lease=100, auto_renew=False) as mutex:
        assert local_time() < mutex.deadline <= local_time() + 100
        assert mutex.remaining == pytest.approx(mutex.deadline - local_time(), abs=30)


def test_each_renewal_moves_it(table):
    with FakeClock() as clock, Mutex.for_key("a", lease=100, auto_renew=False) as mutex:
        before = mutex.deadline
        clock.advance(40)
        assert mutex.deadline <= before
        mutex.renew()
        assert before + 20 < mutex.deadline <= clock.now() + 100


def test_beyond_max_hold_it_stands_still(table):
    with FakeClock() as clock, Mutex.for_key("a", lease=10, max_hold=3) as mutex:
        before = mutex.deadline
        clock.advance(4)
        handle(mutex._latest)  # as the renewer does in the background
        assert mutex.deadline == pytest.approx(before, abs=0.001)


def test_of_a_lock_that_was_never_taken_there_is_none(table):
    with pytest.raises(MutexNotHeldError):
        _ = Mutex.for_key("a").deadline


def test_of_what_is_not_held_any_more_it_is_past(table):
    mutex = Mutex.for_key("a")
    with mutex:
        pass
    assert mutex.deadline == -math.inf
    mutex.acquire()
    LockItem.force_release("a")
    assert mutex.lost
    assert mutex.deadline == -math.inf
    mutex.acquire()
    mutex.detach()
    assert mutex.deadline == -math.inf


@pytest.mark.real("embedded")
def test_of_what_the_parent_holds_it_is_past_in_its_fork(table):
    with Mutex.for_key("a") as mutex:
        assert forked(lambda: mutex.deadline == -math.inf)
        assert mutex.deadline > 0
