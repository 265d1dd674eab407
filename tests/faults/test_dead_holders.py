"""I7: a dead holder's lock is free in time, also for who never saw it before."""

import time

import pytest
from driving import acquiring
from hearing import until
from scene import Acquiring, held
from worker import workers

from dev.faultproxy import drop_answer, fault_proxy, no_date, through
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


@pytest.mark.parametrize("dated", [True, False])
def test_a_live_holders_lock_is_not_free_however_long_one_waits(engine, table, here, proxy, dated):
    waiter = Mutex.for_key("k", model=here)
    with fault_proxy(engine) as of_holder, FakeClock() as clock:
        if not dated:
            proxy.always(no_date())
            of_holder.always(no_date())
        holder = held(Mutex.for_key("k", model=through(of_holder, table)))
        assert not waiter.acquire(blocking=False)
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
        assert of_holder.of("renew")
        holder.release()
    assert waiter.acquire(timeout=30)
    assert waiter.abandoned_by is None
    assert waiter.fencing_token == holder.fencing_token + 1


# -- died long ago ---------------------------------------------------------------------------------


@pytest.mark.parametrize("knows_the_time", [False, True])
@pytest.mark.parametrize("answer_is_lost", [False, True])
def test_the_lock_of_a_holder_long_dead_is_taken_at_first_sight(
    table, here, proxy, knows_the_time, answer_is_lost
):
    dead_holder(table)
    if knows_the_time:
        with Mutex.for_key("another", model=here):
            pass
    proxy.start_anew()
    proxy.next(*[drop_answer()] * answer_is_lost, op="acquire")
    mutex = Mutex.for_key("k", model=here)
    assert mutex.acquire(blocking=False)
    assert proxy.kinds() == ["GetItem"] * (not knows_the_time) + ["acquire"] * (1 + answer_is_lost)
    assert [seen.applied for seen in proxy.of("acquire")] == [True, False][: 1 + answer_is_lost]
    assert mutex.abandoned_by == "the late"
    mutex.release()
    with mutex:  # what was released was not abandoned
        assert not mutex.abandoned


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
