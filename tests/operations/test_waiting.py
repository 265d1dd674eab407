"""Those of this process who wait for one key: their line, when they poll, and hand-over to the next."""

import gc
import math
import os
import random
import signal
import statistics
import sys
import time
from collections import Counter
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operations_by_hand import Driven, acquiring, interrupt_at, waiting
from this_process import QueueFor, current_process, forget_everything, scheduled, store_for
from two_clients import Elsewhere, held
from waits import until

from pynamodb_mutex import LockItem, Mutex, MutexLostError, MutexNotHeldError
from pynamodb_mutex._lock.dynamodb.store import Store
from pynamodb_mutex._lock.operations.contender import Caller
from pynamodb_mutex._lock.operations.effects import Send, Wakeup
from pynamodb_mutex._lock.operations.held import HeldClaim
from pynamodb_mutex._lock.operations.local_queue import LocalQueue, Turn
from pynamodb_mutex._lock.operations.planning import Held
from pynamodb_mutex._lock.operations.release import release
from pynamodb_mutex._lock.protocol.schedule import (
    FEWEST_HAND_OVERS,
    LONGEST_SILENCE,
    SHORTEST_RUN,
    next_wait,
)
from pynamodb_mutex._lock.runtime.callers import acting_as, caller
from pynamodb_mutex._lock.runtime.run_on_thread import execute
from pynamodb_mutex.testing import FakeClock, expire, held_elsewhere

POLL = (0.05, 1.0)


@given(st.floats(0.001, 10), st.floats(1, 100), st.floats(0, 100))
def test_wait_is_within_its_bounds(base, times, previous):
    cap = base * times
    wait = next_wait(previous, (base, cap), random.uniform)
    assert base <= wait <= cap
    assert wait <= max(3 * max(base, previous), base)


def test_waits_grow_from_the_base_and_neither_pile_up_at_the_cap_nor_keep_step():
    def waits():
        wait = 0.0
        for _ in range(2000):
            yield (wait := next_wait(wait, POLL, random.uniform))

    assert max(next(waits()) for _ in range(2000)) <= 3 * POLL[0]
    several, others = list(waits()), list(waits())
    assert statistics.mean(several) > 4 * POLL[0]
    assert sum(wait > 0.99 * POLL[1] for wait in several) < 0.1 * len(several)
    assert abs(statistics.correlation(several, others)) < 0.5


# -- the line --------------------------------------------------------------------------------------


@pytest.fixture
def line():
    return LocalQueue({}, "k")


def in_line(line, *, polls_first=False):
    turn = Turn(line, SimpleNamespace(caller=1, thread=2), Wakeup())
    turn.enter(0.0, polls_first=polls_first)
    return turn


def next_in_line(line, holder, now=0.0):
    return line.next_in_line(holder, POLL, now, random.uniform)


def test_turn_whose_grant_was_interrupted_leaves_the_line(line, monkeypatch):
    """It would be handed the lock once more, which would be renewed and held by nobody."""
    first, second = in_line(line), in_line(line)
    next_in_line(line, "holder")

    def interrupt(_):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalQueue, "remove", lambda _, turn: interrupt(turn))
    with pytest.raises(KeyboardInterrupt):
        first.grant("claim")
    assert first.leave() == "claim"
    assert (line.turns, line.promises) == ([second], {})


def test_first_in_line_polls_at_once_if_it_may_be_that_nobody_holds_the_lock(line):
    first, second = in_line(line), in_line(line)
    assert (first.polls_at, second.polls_at) == (-math.inf, math.inf)
    # the one before it left without knowing
    first.leave()
    assert (second.polls_at, second.wakeup.rung) == (-math.inf, True)
    # not if it is promised the lock meanwhile, for however long
    assert next_in_line(line, "a") is second
    assert not second.is_due(2 * LONGEST_SILENCE, math.inf)
    second.leave()
    line.acquired_by("a")
    third = in_line(line)
    assert third.polls_at == math.inf
    third.leave()
    # one that is noted, but does not hold it any more
    assert in_line(line, polls_first=True).polls_at == -math.inf


def test_promise_ends_with_the_holder_who_made_it_and_no_other(line):
    line.acquired_by("a")
    first, second = in_line(line), in_line(line)
    line.turns.reverse()
    assert [next_in_line(line, holder) for holder in ("a", "b", "c")] == [second, first, None]
    for holder, promised in (("c", ("a", "b")), ("a", (None, "b")), ("b", (None, None))):
        line.released_by(holder)
        assert (second.promised_by, first.promised_by) == promised


@pytest.mark.parametrize("seconds", [0.0, 1 / 64, SHORTEST_RUN / FEWEST_HAND_OVERS, 1.0])
def test_lock_is_handed_over_so_often_and_for_so_long_before_others_get_a_chance(line, seconds):
    line.acquired_by("a")
    turn, now = in_line(line), 0.0
    for _ in range(2):
        began, count = now, 0
        while next_in_line(line, "a", now) is turn:
            turn.end_promise()
            count += 1
            # the first instant at which both have passed
            now = max(now + seconds, began + SHORTEST_RUN * (count >= SOME))
        assert count == max(FEWEST_HAND_OVERS, min(SOME, SHORTEST_RUN / (seconds or 1e-9)))
        assert now - began >= SHORTEST_RUN


@contextmanager
def counted_calls():
    """Count the functions of the library that are called."""
    calls = Counter()

    def count(frame, event, _):
        name = frame.f_globals.get("__name__", "")
        calls.update([name] if event == "call" and name.startswith("pynamodb_mutex.") else [])

    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("blocks", [True, False])
def test_what_each_waiter_costs_does_not_grow_with_their_number(table, clock, blocks):
    """Tasks on one thread, or threads, that join, and get the lock one after the other, with rests."""

    def calls_for(count):
        holder = held(mutex())
        with counted_calls() as calls:
            waiters = []
            for number in range(count):
                thread = 10**9 + number if blocks else caller().thread
                who = Caller(10**8 + number, thread, "")
                who.is_pinned = not blocks
                with acting_as(who):
                    taken = mutex()
                    for is_left in (True, False):  # it leaves, and comes again
                        driven = acquiring(taken, True, -1, blocks=blocks)
                        driven.until_it_waits()
                        if is_left:
                            driven.interrupt()
                    waiters.append((taken, driven))
            for place, (taken, driven) in enumerate(waiters):
                clock.advance(SHORTEST_RUN / 8)
                holder.release()
                # a rest, if it waits on
                while driven.wake() is not None:
                    clock.advance(driven.effect.until - clock.now())
                for _, other in waiters[place + 1 :]:
                    if other.effect.wakeup.rung:
                        other.effect.wakeup.rung = False
                        other.wake()
                holder = taken
            holder.release()
        return sum(calls.values())

    assert calls_for(100) < 2.2 * calls_for(50)


# -- polls -----------------------------------------------------------------------------------------


mutex = partial(Mutex.for_key, "a")


@pytest.fixture
def queue(table):
    return QueueFor(table, "a")


@pytest.fixture
def polls(table, wire):
    """The instants at which requests are sent."""
    return wire.instants


def test_first_in_line_polls_again_and_again_and_once_more_at_its_deadline(polls):
    with held_elsewhere("a", lease=100):
        began = time.monotonic()
        assert mutex(poll=(1.0, 4.0)).acquire(timeout=60) is False
    assert [time.monotonic() - began, polls[-1] - began] == pytest.approx([60, 60])
    *gaps, _ = [after - before for before, after in pairwise(sorted(set(polls)))]
    assert 12 <= len(gaps) <= 60
    assert 1.0 <= gaps[0] <= 3.1
    assert 1.0 <= min(gaps) < max(gaps) <= 4.1
    assert len(set(gaps)) > 3


def test_after_some_hand_overs_another_process_gets_in_and_waiters_never_wait_for_the_past(
    queue, clock
):
    holder = held(mutex(auto_renew=False))
    waits = waiting(mutex(poll=(4.0, 60.0)))
    clock.advance(2 * LONGEST_SILENCE)
    # others are due a chance: it has waited for long, and is to pause
    for _ in range(FEWEST_HAND_OVERS):
        next_in_line(queue, "a", clock.now()).end_promise()
    clock.advance(SHORTEST_RUN)
    holder.release()
    held(mutex(model=Elsewhere, timeout=0))
    assert waits.wake().until > clock.now()
    waits.interrupt()


def test_waiter_polls_when_the_lease_of_the_holder_ends(polls, pool):
    holder = held(mutex(lease=40, auto_renew=False))
    waits = pool.submit(mutex(poll=(0.5, 1000.0)).acquire)
    polls.clear()
    end = holder.deadline
    assert waits.result()
    assert end <= polls[0] <= end + 0.5


def test_waiter_does_not_poll_for_an_end_of_its_own_process_that_nobody_has_noted(polls):
    held(mutex(lease=2, auto_renew=False))
    time.sleep(10)
    held(mutex(model=Elsewhere, timeout=0))
    polls.clear()
    assert mutex(poll=(1.0, 4.0)).acquire(timeout=20) is False
    assert len(polls) <= 20


def test_waiter_polls_seldom_while_a_holder_of_this_process_hands_over(polls, pool):
    holder = held(mutex(lease=600, auto_renew=False))
    waits = pool.submit(mutex(poll=(0.25, 10.0)).acquire)
    polls.clear()
    time.sleep(45)
    assert len(polls) == 4
    holder.release()
    assert waits.result()
    assert len(polls) == 5


def test_waiter_keeps_its_plan_though_it_wakes_early_and_polls_only_if_it_is_first(polls, clock):
    with held_elsewhere("a"):
        first = waiting(mutex(poll=(1.0, 4.0)))
        due = first.effect.until
        polls.clear()
        for _ in range(20):
            clock.advance((due - clock.now()) / 2)
            assert first.wake().until == due
        assert polls == []
        clock.advance(due - clock.now())
        assert first.wake().until >= due + 1.0
        assert len(polls) == 1
        second = waiting(mutex(poll=(1.0, 2.0), lease=90), 60)  # by then it would log
        hasty = waiting(mutex(), 3)
        waits = [waiter.effect.until - clock.now() for waiter in (second, hasty)]
        assert waits == pytest.approx([60, 3])
        clock.advance(3)
        first.effect.wakeup.rung = False
        # nor if it gives up before it was ever first
        assert hasty.wake() is hasty.result is None
        assert (len(polls), first.effect.wakeup.rung) == (1, False)
        first.interrupt()
        assert second.effect.wakeup.rung
        clock.advance(second.wake().until - clock.now())
        second.wake()
        assert len(polls) == 2
        second.interrupt()


@pytest.mark.parametrize("timeout", [LONGEST_SILENCE / 2, 2 * LONGEST_SILENCE])
def test_waiters_ask_once_when_the_first_has_no_answer_for_long(polls, clock, timeout):
    with held_elsewhere("a"):
        first = acquiring(mutex(), True, 60.0)
        assert isinstance(first.step(), Send)
        polls.clear()
        second, wait = waiting(mutex(), timeout), min(timeout, LONGEST_SILENCE)
        assert polls == []
        assert second.effect.until - clock.now() == pytest.approx(wait)
        clock.advance(wait)
        second.wake()
        # then it is known that the lock is held
        count = len(polls)
        assert count > 0
        clock.advance(2 * LONGEST_SILENCE)
        assert second.wake() is second.result is None
        assert len(polls) == count
        first.interrupt()


def test_waiter_asks_at_its_deadline_if_what_the_first_has_seen_is_out_of_date(polls, clock):
    """The first has had no answer since then."""
    with held_elsewhere("a"):
        first = waiting(mutex(poll=(1.0, 2.0)))
        clock.advance(first.effect.until - clock.now())
        assert isinstance(first.step(), Send)
    waiter = mutex()
    second = waiting(waiter, 20.0)
    polls.clear()
    clock.advance(20)
    assert (second.wake(), len(polls), waiter.held) == (None, 1, True)
    first.interrupt()


def test_lock_that_is_handed_over_during_a_poll_is_taken_without_another(polls, clock):
    holder, waiter = held(mutex()), mutex(poll=(1.0, 2.0))
    waits = waiting(waiter)
    clock.advance(waits.effect.until - clock.now())
    assert isinstance(waits.step(), Send)
    holder.release()
    polls.clear()
    assert (waits.until_it_waits(), len(polls), waiter.held) == (None, 1, True)


SOME = 24
"""More hand-overs than the fewest."""


@pytest.mark.parametrize(
    ("seconds", "most"),
    [
        (SHORTEST_RUN / SOME, SOME),
        (3 * LONGEST_SILENCE / FEWEST_HAND_OVERS, FEWEST_HAND_OVERS),
    ],
)
def test_after_some_hand_overs_the_lock_is_released_for_another_process(table, pool, seconds, most):
    """Also if the next waiter has waited for long, and nobody in line has polled meanwhile."""
    order = []

    def wait(model, poll):
        with mutex(model=model, poll=poll):
            order.append(model)
            time.sleep(seconds)

    with mutex():
        waits = [pool.submit(wait, LockItem, (0.5, 1.0)) for _ in range(2 * most + 4)]
        waits.append(pool.submit(wait, Elsewhere, (0.02, 0.05)))
        time.sleep(1)
    for each in waits:
        each.result(60)
    # handed over to so many, then released for real; the second time at the latest
    assert FEWEST_HAND_OVERS <= order.index(Elsewhere) <= 2 * most + 1


def test_holder_that_is_lost_during_a_poll_is_followed_by_another_at_once(polls, clock):
    held(mutex(auto_renew=False))
    waits = waiting(mutex(poll=(1.0, 2.0)))
    clock.advance(waits.effect.until - clock.now())
    answer = waits.step().request.send()
    LockItem.force_release("a")
    polls.clear()
    assert waits.step(answer).until < clock.now()
    assert (waits.wake(), len(polls)) == (None, 2)


def test_lock_that_is_lost_before_the_answer_to_its_acquire_is_waited_for(table, clock):
    with mutex():  # the server's time is known from here on
        pass
    late = mutex(auto_renew=False)
    waits = acquiring(late, True, 300.0)
    answer = waits.step().request.send()
    clock.advance(31)
    expire("a")
    with held_elsewhere("a"):
        waits.step(answer)
        assert waits.until_it_waits().until > clock.now()
        assert not late.held
    clock.advance(waits.effect.until - clock.now())
    assert (waits.wake(), late.held) == (None, True)


# -- hand-over -------------------------------------------------------------------------------------


def test_eight_threads_take_turns_by_about_one_request_for_each_section(queue, pool, sent):
    one = held(mutex())
    inside, sections = [], []

    def work(number):
        own = one if number % 2 else mutex()
        for _ in range(10):
            with own:
                inside.append(number)
                assert inside == [number]
                sections.append((own.fencing_token, number))
                inside.pop()

    sent.clear()
    working = [pool.submit(work, number) for number in range(8)]
    until(lambda: len(queue.turns) == 8)
    one.release()
    for worker in working:
        worker.result(100)
    # first come, first served
    assert [number for _, number in sections] == [*range(8)] * 10
    assert sections == sorted(set(sections))
    assert len(sent) <= 1.15 * 80
    assert (queue.is_idle, one.locked()) == (True, False)


def test_store_that_another_thread_has_made_meanwhile_is_everybodys(table, monkeypatch):
    """Else there would be two queues."""
    made = []

    def make(*args):
        if not made:
            made.append(None)
            made.append(store_for(Elsewhere))
        return Store(*args)

    monkeypatch.setattr("pynamodb_mutex._lock.runtime.process.Store", make)
    assert store_for(Elsewhere) is made[1]


def claims_in_memory():
    gc.collect()
    return sum(isinstance(each, HeldClaim) for each in gc.get_objects())


@pytest.mark.parametrize("key", ["event {}", "the same"])
def test_locks_that_nobody_releases_or_renews_do_not_pile_up(table, key):
    options, before = {"lease": 1, "auto_renew": False}, claims_in_memory()
    kept = held(mutex(**options))
    for number in range(200):
        assert Mutex.for_key(key.format(number), **options).acquire(blocking=False)
        time.sleep(3)
    assert claims_in_memory() - before < 100
    assert len(current_process().queues) < 100
    # whoever still has the object may win the lock back, and hand it over
    kept.renew()
    waits = waiting(mutex())
    kept.release()
    waits.wake()
    assert waits.result.held


@pytest.mark.real
def test_hand_over_is_a_new_acquisition(table, queue, pool, sent):
    first, second = held(mutex(owner="one")), mutex(owner="two", lease=50)
    waits = pool.submit(second.acquire)
    until(lambda: queue.turns)
    sent.clear()
    first.release()
    assert (waits.result(60), sent) == (True, ["UpdateItem"])
    assert (second.held, second.fencing_token) == (True, first.fencing_token + 1)
    assert second.token != first.token
    assert 40 < second.remaining <= 50
    item = table.get("a")
    assert (item.owner, item.token, item.abandoned_by) == ("two", second.token, "")
    assert not second.abandoned
    with FakeClock() as clock:  # and it is renewed
        clock.advance(20)
        until(lambda: second.remaining > 40)
        second.release()


def handing_over(holder):
    """Release a lock, as far as the request that hands it over, which is not sent yet."""
    releasing = Driven(release(holder._latest))
    assert isinstance(releasing.step(), Send)
    return releasing


@pytest.mark.parametrize("fails", [False, True])
def test_deadline_during_a_hand_over_waits_for_its_outcome(queue, clock, sent, fails):
    holder, waiter = held(mutex()), mutex()
    waits = waiting(waiter, 0.5)
    releasing = handing_over(holder)
    if fails:
        Elsewhere.force_release("a")
        held(mutex(model=Elsewhere))
    sent.clear()
    clock.advance(0.8)
    assert waits.wake() is not None
    assert sent == []
    with pytest.raises(MutexLostError) if fails else nullcontext():
        releasing.until_it_waits()
    assert waits.effect.wakeup.rung
    assert (waits.wake(), waiter.held) == (None, not fails)
    if not fails:
        assert sent == ["UpdateItem"]
        waiter.release()
    assert queue.is_idle


def test_of_two_threads_that_release_at_once_one_releases_it(table, pool, sent):
    lock = held(mutex(auto_renew=False))
    # one has found its acquisition, and the other comes first
    late = release(lock._latest)
    sent.clear()
    pool.submit(lock.release).result(60)
    with pytest.raises(MutexNotHeldError, match="released"):
        execute(current_process(), late)
    assert (sent, lock.lost) == (["UpdateItem"], False)
    assert not lock.locked()


@pytest.mark.real("embedded")
def test_ctrl_c_while_waiting_leaves_nothing(queue, pool):
    gc.collect()  # what a collected object's last call raises is ignored, a Ctrl-C too
    gc.disable()
    holder, waiter = pool.submit(held, mutex()).result(60), mutex()
    pool.submit(lambda: until(lambda: queue.turns) and os.kill(os.getpid(), signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt):
            waiter.acquire(timeout=30)
    finally:
        gc.enable()
    assert (queue.turns, waiter.held, holder.held) == ([], False, True)
    holder.release()
    assert queue.is_idle
    assert waiter.acquire(timeout=0)


@pytest.mark.parametrize("within", [None, (Held, "start"), (Turn, "grant")])
def test_hand_over_that_is_interrupted_when_it_was_applied_leaves_no_claim_of_nobody(
    queue, monkeypatch, within
):
    holder, waiter = held(mutex()), mutex()
    waits = waiting(waiter)
    releasing = handing_over(holder)
    answer = releasing.effect.request.send()
    if within is None:
        releasing.interrupt()
    else:
        interrupt_at(monkeypatch, *within)
        with suppress(KeyboardInterrupt):
            releasing.step(answer)
            releasing.until_it_waits()
    assert holder.locked() is (within == (Turn, "grant"))
    assert (waits.wake(), waiter.held) == (None, True)
    assert scheduled() == [waiter._latest.whole]
    waiter.release()
    assert (queue.is_idle, scheduled()) == (True, [])


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Turn, "enter"),
        (Turn, "leave"),
        (Held, "__init__"),
        (Mutex, "_note"),
        (HeldClaim, "emit_acquired"),
        (LocalQueue, "unwatch"),
    ],
)
def test_waiter_interrupted_within_a_step_leaves_nothing(queue, monkeypatch, kind, name):
    """By Ctrl-C just when a call returns, or begins."""
    waits = acquiring(mutex(fair=name == "unwatch"), True, 60.0)
    if name == "leave":
        holder = held(mutex())
        waits.until_it_waits()
        holder.release()
    interrupt_at(monkeypatch, kind, name, calls=kind is not Held)
    with pytest.raises(KeyboardInterrupt):
        waits.wake()
    assert (mutex().locked(), queue.is_idle, scheduled()) == (False, True, [])


@pytest.mark.parametrize("when", ["before it comes", "when it came"])
def test_lock_handed_over_to_a_waiter_that_is_interrupted_is_released(queue, when):
    """By the thread that hands over if the waiter has left, or else by the waiter."""
    holder, waiter = held(mutex()), mutex()
    waits = waiting(waiter)
    releasing = handing_over(holder)
    if when == "before it comes":
        waits.interrupt()
        assert queue.turns == []
    releasing.until_it_waits()
    if when == "when it came":
        assert waits.effect.wakeup.rung
        waits.interrupt()
    assert (waiter.held, waiter.locked(), queue.is_idle, scheduled()) == (False, False, True, [])


def test_next_in_line_is_woken_once_the_claim_of_a_waiter_that_has_left_is_ended(queue):
    """Not before: it would see that claim, and sleep until its next poll."""
    holder, waits, next_waits = held(mutex()), waiting(mutex()), waiting(mutex(poll=(50, 50)))
    releasing = handing_over(holder)
    waits.interrupt()
    next_waits.effect.wakeup.rung = False  # the waiter that has left has woken it
    ending = releasing.step(releasing.effect.request.send())
    assert not next_waits.effect.wakeup.rung
    releasing.step(ending.request.send())
    assert (releasing.effect, next_waits.effect.wakeup.rung) == (None, True)
    assert next_waits.wake() is None  # it has polled at once, and acquired
    assert next_waits.result


def test_child_that_a_handler_forks_and_ends_does_not_wait_for_its_parents_hand_over(queue):
    holder, waits = held(mutex()), waiting(mutex())
    releasing = handing_over(holder)
    forget_everything()
    with pytest.raises(SystemExit):
        waits.step(error=SystemExit())
    releasing.until_it_waits()


def test_hand_over_to_a_waiter_that_has_left_and_whose_lease_has_ended_is_no_loss_of_the_giver(
    queue, clock
):
    holder, waiter = held(mutex()), mutex(lease=3)
    waits = waiting(waiter)
    releasing = handing_over(holder)
    waits.interrupt()
    answer = releasing.effect.request.send()
    clock.advance(10)  # the answer is late
    releasing.step(answer)
    releasing.until_it_waits()
    assert (releasing.effect, holder.lost, waiter.held, scheduled()) == (None, False, False, [])
