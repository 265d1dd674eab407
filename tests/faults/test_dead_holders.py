"""I7: a dead holder's lock is free in time, also for who never saw it before."""

import time

import pytest
from driving import acquiring
from hearing import until
from scene import Acquiring
from worker import workers

from dev.faultproxy import drop_answer, no_date, through
from pynamodb_mutex import Mutex
from pynamodb_mutex._runtime.process import forget_everything
from pynamodb_mutex.testing import FakeClock, expire

LEASE = 3.0
BOUND = 1.01 * LEASE + 2.5


def dead_holder(table, **options):
    """Let a process that is gone have held the key until long ago."""
    mutex = Mutex.for_key("k", model=table, owner="the late", auto_renew=False, **options)
    assert mutex.acquire(blocking=False)
    forget_everything()
    expire("k", table)


# -- just died -------------------------------------------------------------------------------------


@pytest.mark.real("embedded")
def test_locks_of_a_killed_process_are_free_in_time(table):
    with workers(0.0, 0.0) as (dies, waits):
        dies.ask("m = Mutex.for_key('k', lease=1.0, owner='the late')")
        dies.ask("l = Mutex.for_key('l', lease=1.0, owner='the late')")
        dies.ask("s = Mutex.for_keys(['a', 'b'], lease=1.0, owner='the late')")
        assert dies.ask("m.acquire() and l.acquire() and s.acquire()")
        before = dies.ask("s.fencing_tokens")
        waits.ask("m = Mutex.for_key('k')")
        waits.send("m.acquire(timeout=60)")
        assert not Mutex.for_keys(["b", "c"]).acquire(blocking=False)
        time.sleep(0.5)  # they are renewed meanwhile
        dies.kill()
        # that they are free after BOUND test_idle_processes.py shows, in virtual time
        with Mutex.for_keys(["b", "a"], timeout=60) as group:
            assert all(group.fencing_tokens[key] > before[key] for key in "ab")
        comes_after = Mutex.for_key("l")
        assert comes_after.acquire(timeout=60)
        assert comes_after.abandoned_by == "the late"
        assert waits.answer(100)
        assert waits.ask("m.abandoned_by") == "the late"


def test_who_first_comes_when_the_time_is_over_does_not_wait(table, here, proxy):
    assert Mutex.for_key("k", lease=LEASE).acquire()
    time.sleep(1.5)  # it is renewed meanwhile
    forget_everything()
    time.sleep(BOUND)
    assert Mutex.for_key("k", model=here).acquire(blocking=False)
    assert proxy.kinds() == ["GetItem", "acquire"]


def assert_live(holder, waiter):
    """See that a waiter does not get a lock that is renewed, for four leases."""
    with FakeClock() as clock, holder:
        waiting = acquiring(waiter, True, 121)
        assert waiting.until_it_waits()
        for _ in range(12):
            clock.advance(10)
            until(lambda: holder.remaining > 25)
            waiting.step()
            assert waiting.until_it_waits()
        clock.advance(2)
        waiting.step()
        assert waiting.until_it_waits() is None
        assert waiting.result is None
        assert holder.held


def test_a_live_holders_lock_is_not_free_however_long_one_waits(table, here):
    assert_live(Mutex.for_key("k", model=table), Mutex.for_key("k", model=here))


# -- died long ago ---------------------------------------------------------------------------------


def test_the_lock_of_a_holder_long_dead_is_taken_at_first_sight(table, here, proxy):
    dead_holder(table)
    mutex = Mutex.for_key("k", model=here)
    assert mutex.acquire(blocking=False)
    assert proxy.kinds() == ["GetItem", "acquire"]
    assert mutex.abandoned
    assert mutex.abandoned_by == "the late"


def test_who_knows_the_time_takes_it_by_one_request(table, here, proxy):
    dead_holder(table)
    with Mutex.for_key("another", model=here):
        pass
    assert Mutex.for_key("k", model=here).acquire(blocking=False)
    assert proxy.kinds() == ["GetItem", "acquire", "release", "acquire"]


def test_that_it_was_abandoned_is_reported_also_when_the_answer_was_lost(table, here, proxy):
    dead_holder(table)
    proxy.next(drop_answer(), op="acquire")
    mutex = Mutex.for_key("k", model=here)
    assert mutex.acquire(blocking=False)
    assert [seen.applied for seen in proxy.of("acquire")] == [True, False]
    assert mutex.abandoned_by == "the late"


def test_what_was_released_was_not_abandoned(table, here):
    dead_holder(table)
    for abandoned in (True, False):
        with Mutex.for_key("k", model=here) as mutex:
            assert mutex.abandoned is abandoned


# -- free ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delete_on_release", [False, True])
def test_an_unlocked_key_is_never_waited_for(table, here, proxy, delete_on_release):
    with Mutex.for_key("k", lease=60, delete_on_release=delete_on_release):
        pass
    forget_everything()
    assert Mutex.for_key("k", model=here).acquire(blocking=False)
    assert proxy.kinds() == ["GetItem", "acquire"]
    assert Mutex.for_key("new", model=here).acquire(blocking=False)
    assert proxy.kinds() == ["GetItem", "acquire", "acquire"]


def test_waiter_gets_it_soon_after_a_release_long_before_the_lease_ends(table, here, proxy):
    mutex = Mutex.for_key("k", lease=600)
    assert mutex.acquire()
    waiter = Acquiring(Mutex.for_key("k", model=here))
    proxy.wait(2, "GetItem")
    mutex.release()
    waiter.join(60)
    assert waiter.acquired
    waiter.mutex.release()


# -- an endpoint that does not show its time -------------------------------------------------------


def test_without_a_date_a_dead_holders_lock_is_free_after_its_lease_unchanged(table, here, proxy):
    proxy.always(no_date())
    dead = Mutex.for_key("k", model=here, lease=LEASE, auto_renew=False)
    assert dead.acquire()
    forget_everything()
    since = time.monotonic()
    mutex = Mutex.for_key("k", model=here)
    assert not mutex.acquire(blocking=False)
    assert mutex.acquire(timeout=60)
    assert time.monotonic() - since >= LEASE
    assert mutex.abandoned


def test_without_a_date_a_live_holders_lock_is_not_free(table, proxy):
    proxy.always(no_date())
    holder, waiter = (Mutex.for_key("k", model=through(proxy, table)) for _ in range(2))
    assert_live(holder, waiter)
    assert proxy.of("renew")
