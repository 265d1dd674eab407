"""Those of this process who wait for one key: their line, when they poll, and what wakes them."""

import math
import random
import statistics
import time
from itertools import pairwise

import pytest
from botocore.client import BaseClient
from driving import acquiring, waiting
from hypothesis import given
from hypothesis import strategies as st
from lock_items import Elsewhere
from scene import held
from stores import QueueFor

from pynamodb_mutex import LockItem, Mutex
from pynamodb_mutex._operations.effects import Send, Wakeup
from pynamodb_mutex._operations.local_queue import LocalQueue, Turn
from pynamodb_mutex._protocol.schedule import LONGEST_SILENCE, MOST_HAND_OVERS, next_wait
from pynamodb_mutex.testing import expire, held_elsewhere

POLL = (0.05, 1.0)


# -- the schedule ----------------------------------------------------------------------------------


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
def queue():
    return LocalQueue({}, "k")


def in_line(queue, *, polls_first=False):
    turn = Turn(queue, "", Wakeup())
    turn.enter(0.0, polls_first=polls_first)
    return turn


def next_in_line(queue, holder, now=0.0):
    return queue.next_in_line(holder, POLL, now, random.uniform)


def test_queue_knows_its_holder_and_is_kept_while_it_is_in_use():
    queues = {}
    queue = LocalQueue(queues, "k")
    assert (queue.is_idle, queues) == (True, {})
    turn, wakeup = in_line(queue), Wakeup()
    queue.watch(wakeup)
    turn.leave()
    assert queues == {"k": queue}
    queue.unwatch(wakeup)
    assert queues == {}
    queue.acquired_by("a")
    assert (queue.holder, queue.is_idle, queues) == ("a", False, {"k": queue})
    assert next_in_line(queue, "a") is None
    queue.released_by("another")
    assert queue.holder == "a"
    queue.released_by("a")
    assert (queue.is_idle, queues) == (True, {})


def test_first_in_line_polls_at_once_if_it_may_be_that_nobody_holds_the_lock(queue):
    first, second = in_line(queue), in_line(queue)
    assert (first.polls_at, second.polls_at) == (-math.inf, math.inf)
    # the one before it left without knowing
    first.leave()
    assert second.polls_at == -math.inf
    assert second.wakeup.rung
    # not if it is promised the lock meanwhile, for however long
    assert next_in_line(queue, "a") is second
    assert not second.is_due(2 * LONGEST_SILENCE, math.inf)
    second.leave()
    queue.acquired_by("a")
    assert in_line(queue).polls_at == math.inf
    queue.turns.clear()
    # one that is noted, but does not hold it any more
    assert in_line(queue, polls_first=True).polls_at == -math.inf


@pytest.mark.parametrize("how", ["saw", "acquired_by"])
def test_all_in_line_are_woken_when_it_becomes_known_that_the_lock_is_held(queue, how):
    line = in_line(queue), in_line(queue)
    assert not queue.known_taken
    getattr(queue, how)("another's")
    assert queue.known_taken
    assert [turn.wakeup.rung for turn in line] == [True, True]
    for turn in line:
        turn.wakeup.rung = False
    queue.saw("a later one")
    assert queue.in_the_way == "a later one"
    assert [turn.wakeup.rung for turn in line] == [False, False]


def test_process_rests_for_others_and_knows_of_them_until_its_line_is_empty(queue):
    turn = in_line(queue)
    queue.saw("another's")
    for _ in range(MOST_HAND_OVERS):
        assert next_in_line(queue, "a") is turn
        turn.end_promise()
    assert next_in_line(queue, "a", now=10.0) is None
    turn.polls_at = -math.inf
    assert 10.0 + POLL[0] <= queue.polls_at(turn) <= 10.0 + POLL[1]
    turn.leave()
    assert queue.in_the_way is None
    assert queue.polls_at(in_line(queue)) == -math.inf


def test_promise_ends_with_the_holder_who_made_it_and_no_other(queue):
    queue.acquired_by("a")
    first, second = in_line(queue), in_line(queue)
    queue.turns.reverse()
    assert next_in_line(queue, "a") is second
    assert next_in_line(queue, "b") is first
    assert next_in_line(queue, "c") is None
    for holder, promised in (("c", ("a", "b")), ("a", (None, "b")), ("b", (None, None))):
        queue.released_by(holder)
        assert (second.promised_by, first.promised_by) == promised


# -- polls -----------------------------------------------------------------------------------------


def mutex(**options):
    return Mutex.for_key("a", **options)


@pytest.fixture
def polls(table, monkeypatch):
    """The instants at which requests are sent."""
    instants = []
    original = BaseClient._make_api_call

    def send(*args):
        instants.append(time.monotonic())
        return original(*args)

    monkeypatch.setattr(BaseClient, "_make_api_call", send)
    return instants


def test_first_in_line_polls_again_and_again(polls, pool):
    with held_elsewhere("a", lease=100):
        waits = pool.submit(mutex(poll=(1.0, 4.0)).acquire)
        time.sleep(60)
    gaps = [after - before for before, after in pairwise(sorted(set(polls)))]
    assert len(gaps) >= 12
    assert 1.0 <= gaps[0] <= 3.1
    assert 1.0 <= min(gaps) < max(gaps) <= 4.1
    assert len(set(gaps)) > 3
    assert waits.result()


def test_waiter_that_wakes_early_keeps_its_plan(polls, clock):
    with held_elsewhere("a"):
        waits = waiting(mutex(poll=(1.0, 4.0)))
        due = waits.effect.until
        polls.clear()
        for _ in range(20):
            clock.advance((due - clock.now()) / 2)
            assert waits.wake().until == due
        assert polls == []
        clock.advance(due - clock.now())
        assert waits.wake().until >= due + 1.0
        assert len(polls) == 1
        waits.interrupt()


def test_waiter_never_waits_for_an_instant_that_has_passed(table, clock):
    holder = held(mutex(auto_renew=False))
    waits = waiting(mutex(poll=(4.0, 60.0)))
    clock.advance(2 * LONGEST_SILENCE)
    # others are due a chance: it has waited for long, and is to pause
    queue = QueueFor(table, "a")
    for _ in range(MOST_HAND_OVERS):
        next_in_line(queue, "a").end_promise()
    holder.release()
    held(mutex(model=Elsewhere))
    assert waits.wake().until > clock.now()
    waits.interrupt()


def test_waiter_gives_up_at_its_deadline_after_a_last_poll(polls, pool):
    with held_elsewhere("a"):
        began = time.monotonic()
        assert mutex(poll=(4.0, 60.0)).acquire(timeout=10) is False
        assert time.monotonic() - began == pytest.approx(10)
        assert polls[-1] - began == pytest.approx(10)


def test_waiter_polls_when_the_lease_of_the_holder_ends(polls, pool):
    holder = held(mutex(lease=40, auto_renew=False))
    waits = pool.submit(mutex(poll=(0.5, 1000.0)).acquire)
    polls.clear()
    end = holder.deadline
    assert waits.result()
    assert end <= polls[0] <= end + 0.5


def test_waiter_polls_seldom_while_a_holder_of_this_process_hands_over(polls, pool):
    holder = held(mutex(lease=600, auto_renew=False))
    waits = pool.submit(mutex(poll=(0.25, 10.0)).acquire)
    polls.clear()
    time.sleep(45)
    assert len(polls) == 4
    holder.release()
    assert waits.result()
    assert len(polls) == 5


def test_waiter_that_is_not_first_does_not_poll_until_it_is(polls, clock):
    with held_elsewhere("a"):
        first = waiting(mutex(poll=(1.0, 2.0)))
        polls.clear()
        second, hasty = waiting(mutex(poll=(1.0, 2.0)), 60), waiting(mutex(), 3)
        assert second.effect.until - clock.now() == pytest.approx(60)
        assert hasty.effect.until - clock.now() == pytest.approx(3)
        clock.advance(3)
        first.effect.wakeup.rung = False
        # nor if it gives up before it was ever first
        assert hasty.wake() is hasty.result is None
        assert polls == []
        assert not first.effect.wakeup.rung
        first.interrupt()
        assert second.effect.wakeup.rung
        clock.advance(second.wake().until - clock.now())
        second.wake()
        assert len(polls) == 1
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


def test_lock_that_is_handed_over_during_a_poll_is_taken_without_another(polls, clock):
    holder, waiter = held(mutex()), mutex(poll=(1.0, 2.0))
    waits = waiting(waiter)
    clock.advance(waits.effect.until - clock.now())
    assert isinstance(waits.step(), Send)
    holder.release()
    polls.clear()
    assert waits.until_it_waits() is None
    assert len(polls) == 1
    assert waiter.held


def test_holder_that_is_lost_during_a_poll_is_followed_by_another_at_once(polls, clock):
    held(mutex(auto_renew=False))
    waits = waiting(mutex(poll=(1.0, 2.0)))
    clock.advance(waits.effect.until - clock.now())
    answer = waits.step().request.send()
    LockItem.force_release("a")
    polls.clear()
    assert waits.step(answer).until < clock.now()
    assert waits.wake() is None
    assert len(polls) == 2


def test_lock_that_is_lost_before_the_answer_to_its_acquire_is_waited_for(polls, clock):
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
    assert waits.wake() is None
    assert late.held
