"""I1 and I7: at most one acquisition is held, whatever clocks, pauses and forks do, and a dead holder's lock is free."""

import os
import subprocess
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from operations_by_hand import acquiring, waiting
from processes import Fork, forked, workers
from pynamodb.exceptions import UpdateError
from sent_requests import TRANSACT
from signal_receivers import hearing
from simulated_engine import suspended
from this_process import forget_everything
from two_clients import held
from waits import until

from dev.faultproxy import after, delay_answer, deny, drop_answer, fault_proxy, no_date, through
from pynamodb_mutex import Loss, Mutex, MutexLostError, MutexNotHeldError
from pynamodb_mutex.testing import expire

HOUR = 3600.0
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def stored(table, key="k"):
    return table.get(key, consistent_read=True)


# -- processes and wall clocks ---------------------------------------------------------------------


@pytest.mark.real
def test_processes_whose_wall_clocks_are_hours_off_are_never_two_at_a_time(table):
    with workers(0.0, HOUR, -HOUR) as crowd:
        for worker in crowd:
            worker.send("compete('k', seconds=1.5, lease=0.5)")
        results = [worker.answer() for worker in crowd]
    assert all(results)
    sections = sorted(section for result in results for section in result)
    assert all(end < since for (_, end), (since, _) in pairwise(sections))


@pytest.mark.real("embedded")
def test_wall_clock_neither_takes_nor_loses_nor_lengthens_a_lock(table):
    with workers(HOUR, -HOUR) as (ahead, behind):
        # neither takes what another holds
        with Mutex.for_key("k") as mutex:
            for thief in (ahead, behind):
                assert thief.ask("Mutex.for_key('k').acquire(timeout=0.3)") is False
                assert thief.ask("Mutex.for_key('k').locked()") is True
            assert mutex.held
            assert stored(table).token == mutex.token
        # stepped by an hour, it does not lose what it holds
        assert ahead.ask("(m := Mutex.for_key('k', lease=60.0)).acquire()")
        for seconds in (HOUR, -HOUR, -HOUR, HOUR):
            ahead.ask(f"step({seconds})")
            ahead.ask("m.renew()")
            assert ahead.ask("m.held and not m.lost")
            assert 0 < stored(table).expires_at - time.time() < 63
            assert not Mutex.for_key("k").acquire(blocking=False)
        ahead.ask("m.release()")
        # stepped back, it does not hold for longer
        assert ahead.ask("(m := Mutex.for_key('k', lease=0.5, auto_renew=False)).acquire()")
        ahead.ask(f"step({-HOUR})")
        ahead.ask("time.sleep(0.5)")
        assert not ahead.ask("m.held")
        assert Mutex.for_key("k").acquire(timeout=20)
        assert not ahead.ask("m.acquire(blocking=False)")


@pytest.mark.real("embedded")
def test_process_stopped_past_its_lease_knows_at_once_that_it_does_not_hold(table):
    with workers(0.0) as (holder,):
        assert holder.ask("(m := Mutex.for_key('k', lease=0.5, data='before')).acquire()")
        holder.stop()
        with Mutex.for_key("k", timeout=20, data="mine") as mine:
            # it finds these when it goes on, before any timer of its own
            refused = ("m.ensure_held()", "m.save_data('stale')", "m.release()")
            for code in ("m.held", *refused, "m.loss is not None and m.lost"):
                holder.send(code)
            holder.go_on()
            assert holder.answer() is False
            assert [holder.answer(of="error") for _ in range(3)] == ["MutexLostError"] * 3
            assert holder.answer() is True
            assert (stored(table).data, stored(table).token) == ("mine", mine.token)
            assert mine.held


# -- a local clock that stood still ----------------------------------------------------------------


@pytest.mark.parametrize("finds", ["another request", "save_data", "release"])
def test_process_that_was_suspended_while_another_took_the_lock_finds_that_out(table, finds):
    mutex = held(Mutex.for_key("k", lease=1.0, auto_renew=False))
    with suspended(10):
        held(Mutex.for_key("k", lease=60, data="theirs", timeout=10))
    assert mutex.held  # it cannot know yet
    if finds == "another request":
        held(Mutex.for_key("another"))
        assert not mutex.held
    calls = {"save_data": partial(mutex.save_data, "stale"), "release": mutex.release}
    with pytest.raises(MutexLostError) as caught:
        calls.get(finds, mutex.ensure_held)()
    loss = Loss.EXPIRED if finds == "another request" else Loss.TAKEN
    assert (caught.value.loss, caught.value.applied, mutex.held) == (loss, False, False)
    assert (stored(table).is_held, stored(table).data) == (True, "theirs")


def test_process_that_acquires_after_a_freeze_gets_a_claim_that_is_long_enough(table):
    with Mutex.for_key("first"), suspended(7):  # its knowledge of server time is suspended with it
        pass
    mutex = held(Mutex.for_key("k", lease=12.0, auto_renew=False, timeout=0))
    assert mutex.remaining > 6
    assert stored(table).expires_at - time.time() > 1.5


def test_on_lost_after_a_freeze_comes_with_the_first_answer_and_not_with_the_lease(table, on_lost):
    held(Mutex.for_key("k", lease=1.0, auto_renew=False, on_lost=on_lost))
    with suspended(3.5):
        pass
    time.sleep(0.5)
    assert on_lost.calls == []
    assert not Mutex.for_key("other").locked()
    time.sleep(0.1)
    assert on_lost.wait()[1] is Loss.EXPIRED


def test_claim_that_is_over_when_it_comes_and_cannot_be_renewed_is_given_up(
    table, here, proxy, clock
):
    mutex = Mutex.for_key("k", model=here)
    proxy.next(after(lambda: clock.advance(31)), op="acquire")
    proxy.next(deny(), op="renew")
    with pytest.raises(UpdateError):
        mutex.acquire(blocking=False)
    assert not mutex.held
    assert proxy.kinds() == ["GetItem", "acquire", "renew", "disown"]
    assert stored(table).expires_at is None
    assert mutex.acquire(blocking=False)


# -- fork ------------------------------------------------------------------------------------------


@forks
@pytest.mark.real("embedded")
def test_forked_child_holds_and_reports_nothing_and_its_parent_everything(table, fake_clock):
    several = Mutex.for_keys(["a", "b"], auto_renew=False)
    with hearing("k") as heard, Mutex.for_key("k") as mutex, several:
        before = len(heard.names)

        def child():
            calls = [mutex.release, mutex.renew, mutex.ensure_held, mutex.transaction]
            calls += [partial(mutex.save_data, "the child's"), several.release, several.renew]
            for call in [*calls, partial(mutex.__exit__, None, None, None)]:
                with pytest.raises(MutexNotHeldError, match="parent"):
                    call()
            time.sleep(0.2)
            beliefs = [len(heard.names) != before, mutex.held, mutex.lost, mutex.remaining]
            tries = [Mutex.for_key("k"), mutex, Mutex.for_keys(["b", "c"])]
            return [*beliefs, several.held, *[each.acquire(blocking=False) for each in tries]]

        assert not any(forked(child))
        assert several.held
        fake_clock.advance(11)
        until(lambda: mutex.remaining > 25)  # its renewals go on
        assert stored(table).data is None
    assert forked(lambda: Mutex.for_key("k").acquire(blocking=False))
    assert not mutex.acquire(blocking=False)


@forks
@pytest.mark.real("embedded")
def test_parent_and_its_children_that_work_at_the_same_time_read_their_own_answers(engine, table):
    def work(name):
        for i in range(4):
            with Mutex.for_key(name, model=slow, lease=10.0, data=[name, i]) as mutex:
                assert mutex.data == [name, i]
                mutex.save_data([name, i, "again"])
        return name

    def read():
        for name in ["a", "b"] * 4:
            assert slow.get(name, consistent_read=True).key == name
        return "read"

    with fault_proxy(engine) as proxy:
        # whose answers take a while: who shares its connection reads them in between
        proxy.always(delay_answer(0.03))
        slow = through(proxy, table)
        slow("a").save()
        slow("b").save()
        # a connection that no lock has used yet
        children = [Fork(read), Fork(read)]
        assert read() == "read"
        assert [child.value() for child in children] == ["read", "read"]
        with Mutex.for_key("held", model=slow, lease=12.0) as mutex:
            children = [Fork(lambda: work("c")), Fork(lambda: work("d"))]
            assert work("parent") == "parent"
            assert [child.value() for child in children] == ["c", "d"]
            assert mutex.held


@forks
@pytest.mark.real("embedded")
def test_fork_while_threads_are_at_work_leaves_no_child_hanging(table):
    # not measured: a fork may meet coverage's own lock held, and at its end the child wants that
    env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    script = Path(__file__).with_name("fork_at_work.py")
    done = subprocess.run(
        [sys.executable, script], env=env, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr


# -- dead holders ----------------------------------------------------------------------------------

LEASE = 3.0
BOUND = 1.01 * LEASE + 2.5


@pytest.mark.real("embedded")
def test_locks_of_a_killed_process_are_free_in_time(table):
    with workers(0.0, 0.0) as (dies, waits):
        assert dies.ask("(m := Mutex.for_key('k', lease=1.0, owner='the late')).acquire()")
        assert dies.ask("(l := Mutex.for_key('l', lease=1.0, owner='the late')).acquire()")
        assert dies.ask("(s := Mutex.for_keys(['a', 'b'], lease=1.0, owner='the late')).acquire()")
        before = dies.ask("s.fencing_tokens")
        waits.send("(m := Mutex.for_key('k')).acquire(timeout=60)")
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
def test_lock_of_a_live_holder_is_not_free_however_long_one_waits(
    engine, table, proxy, clock, dated
):
    waiter = Mutex.for_key("k", model=through(proxy, table))
    with fault_proxy(engine) as of_holder:
        if not dated:
            proxy.always(no_date())
            of_holder.always(no_date())
        holder = held(Mutex.for_key("k", model=through(of_holder, table)))
        waiting = acquiring(waiter, True, 121)
        assert waiting.until_it_waits()
        for _ in range(12):
            clock.advance(10)
            until(lambda: holder.remaining > 25)
            waiting.step()
            assert waiting.until_it_waits()
        clock.advance(2)
        waiting.step()
        assert waiting.until_it_waits() is waiting.result is None
        assert holder.held
        assert of_holder.of("renew")
        holder.release()
    assert waiter.acquire(timeout=30)
    assert waiter.abandoned_by is None
    assert waiter.fencing_token == holder.fencing_token + 1


@pytest.mark.parametrize("several", [False, True])
def test_claim_that_is_renewed_when_its_watch_is_over_is_not_taken_over(scene, clock, several):
    holder = scene.taken(lease=10)
    # by server time the claim would not end for a day: the waiter has to watch it for its lease
    far = [scene.there.expires_at.set(time.time() + 86_400)]
    scene.there._get_connection().update_item(scene.key, actions=far)
    lock = Mutex.for_keys([scene.key], model=scene.here) if several else scene.mutex()
    waits = waiting(lock)
    clock.advance(13)
    scene.proxy.next(after(holder.renew), op=TRANSACT if several else "acquire")
    assert waits.wake()
    assert holder.held
    assert scene.row.token == holder.token
    waits.interrupt()


@pytest.mark.parametrize("knows_the_time", [False, True])
@pytest.mark.parametrize("answer_is_lost", [False, True])
def test_lock_of_a_holder_long_dead_is_taken_at_first_sight(
    table, here, proxy, knows_the_time, answer_is_lost
):
    held(Mutex.for_key("k", owner="the late", auto_renew=False))
    forget_everything()
    expire("k", table)
    if knows_the_time:
        held(Mutex.for_key("another", model=here))
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


@pytest.mark.parametrize("delete_on_release", [False, True])
def test_unlocked_key_is_never_waited_for(table, here, proxy, delete_on_release):
    held(Mutex.for_key("k", lease=60, delete_on_release=delete_on_release)).release()
    forget_everything()
    assert Mutex.for_key("k", model=here).acquire(blocking=False)
    assert proxy.kinds() == ["GetItem", "acquire"]
    assert Mutex.for_key("new", model=here).acquire(blocking=False)
    assert proxy.kinds() == ["GetItem", "acquire", "acquire"]
