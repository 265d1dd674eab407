"""The schedule of polls, and the queue of one process's threads, without any DynamoDB."""

from __future__ import annotations

import math
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pynamodb_mutex._waiting import (
    LONGEST_SILENCE,
    MOST_HAND_OVERS,
    Alarm,
    LocalQueue,
    Turn,
    all_steps,
    next_wait,
)
from pynamodb_mutex.testing import FakeClock

POLL = (0.05, 1.0)
STEP = 0.125
UNBOUNDED = {"deadline": math.inf, "frees_at": lambda: math.inf, "rests": lambda: None}


class Clock(FakeClock):
    """A clock that also knows who sleeps by it, and until when."""

    def __init__(self):
        super().__init__()
        self.sleepers = {}

    def wait(self, condition, timeout):
        self.sleepers[condition] = math.inf if timeout is None else self.now() + timeout
        try:
            super().wait(condition, timeout)
        finally:
            del self.sleepers[condition]

    def sleeps(self, condition):
        return self.sleepers.get(condition, -math.inf) > self.now()


@pytest.fixture
def clock():
    with Clock() as clock:
        yield clock


@pytest.fixture
def queue():
    return LocalQueue()


def turn_of(queue, name="", *, looks=False):
    """Make a turn; its ``back`` collects what is given back."""
    back = []
    turn = Turn(queue, name, back.append, looks=looks, alarm=Alarm())
    turn.back = back
    return turn


def wait_until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.001)


# -- the schedule -------------------------------------------------------------------------------


@given(
    st.floats(0.001, 10),
    st.floats(1, 100),
    st.floats(0, 100),
)
def test_a_wait_is_within_its_bounds(base, times, previous):
    cap = base * times
    wait = next_wait(previous, (base, cap))
    assert base <= wait <= cap
    assert wait <= max(3 * max(base, previous), base)


def test_waits_grow_from_the_base_and_do_not_pile_up_at_the_cap():
    first = [next_wait(0, POLL) for _ in range(2000)]
    assert max(first) <= 3 * POLL[0]
    wait, waits = 0.0, []
    for _ in range(4000):
        wait = next_wait(wait, POLL)
        waits.append(wait)
    assert statistics.mean(waits) > 4 * POLL[0]
    assert sum(wait > 0.99 * POLL[1] for wait in waits) < 0.1 * len(waits)


def test_two_waiters_do_not_keep_step():
    def waits():
        wait = 0.0
        for _ in range(500):
            wait = next_wait(wait, POLL)
            yield wait

    assert abs(statistics.correlation(list(waits()), list(waits()))) < 0.5


# -- alarms -------------------------------------------------------------------------------------


def test_an_alarm_goes_by_the_clock_in_use(clock, pool):
    alarm = Alarm()
    waiting = pool.submit(alarm.wait_until, clock.now() + 60)
    wait_until(lambda: clock.sleeps(alarm.condition))
    clock.advance(59)
    time.sleep(0.05)
    assert not waiting.done()
    clock.advance(1)
    waiting.result(20)
    alarm.wait_until(clock.now())


def test_an_alarm_that_rang_before_the_wait_ends_it_and_no_other(clock, pool):
    alarm = Alarm()
    alarm.ring()
    alarm.wait_until(math.inf)
    waiting = pool.submit(alarm.wait_until, math.inf)
    wait_until(lambda: clock.sleeps(alarm.condition))
    alarm.ring()
    waiting.result(20)


# -- the queue ----------------------------------------------------------------------------------


def test_a_queue_knows_its_holder(queue):
    assert queue.idle
    queue.took("a")
    assert (queue.holder, queue.idle) == ("a", False)
    queue.left("another")
    assert queue.holder == "a"
    queue.left("a")
    assert queue.idle


def test_nobody_is_next_when_nobody_waits(queue):
    queue.took("a")
    assert queue.next_in_line("a", POLL) is None


def test_only_the_first_in_line_looks(queue):
    with turn_of(queue) as first, turn_of(queue) as second, queue.lock:
        assert queue.leads(first)
        assert not queue.leads(second)
        first.looks_at = second.looks_at = 7.0
        assert (queue.looks_at(first), queue.looks_at(second)) == (7.0, math.inf)
    assert queue.idle


def test_first_in_line_polls_at_once_unless_this_process_holds_the_lock(queue):
    with turn_of(queue) as turn:
        assert turn.looks_at == -math.inf
        with turn_of(queue) as behind:
            assert behind.looks_at == math.inf
    queue.took("a")
    with turn_of(queue) as turn:
        assert turn.looks_at == math.inf
    # one that is noted, but does not hold it any more
    with turn_of(queue, looks=True) as turn:
        assert turn.looks_at == -math.inf


@pytest.mark.parametrize("how", ["found", "took"])
def test_all_in_line_are_woken_when_it_becomes_known_that_the_lock_is_held(queue, how):
    with turn_of(queue) as first, turn_of(queue) as second:
        assert not queue.known_taken
        getattr(queue, how)("another's")
        assert queue.known_taken
        assert (first.alarm._rung, second.alarm._rung) == (True, True)
        first.alarm._rung = second.alarm._rung = False
        queue.found("a later one")
        assert queue.in_the_way == "a later one"
        assert (first.alarm._rung, second.alarm._rung) == (False, False)


def test_what_those_in_line_found_is_forgotten_with_the_last_of_them(queue, clock):
    with turn_of(queue) as turn:
        queue.found("another's")
        for _ in range(MOST_HAND_OVERS):
            assert queue.next_in_line("a", POLL) is turn
            turn.pass_over()
        assert queue.next_in_line("a", POLL) is None
        with queue.lock:
            assert queue.looks_at(turn) > clock.now()
    assert queue.in_the_way is None
    # nor does the process rest for the sake of others any more
    with turn_of(queue) as turn, queue.lock:
        assert queue.looks_at(turn) == -math.inf


def test_when_the_holder_has_left_the_first_in_line_looks_at_once(queue):
    queue.took("a")
    with turn_of(queue) as first, turn_of(queue) as second:
        queue.left("a")
        assert (first.looks_at, second.looks_at) == (-math.inf, math.inf)


def test_a_promised_turn_does_not_look(queue):
    with turn_of(queue) as first, turn_of(queue) as second:
        assert queue.next_in_line("a", POLL) is first
        with queue.lock:
            assert not queue.leads(first)
            assert not queue.leads(second)
        first.pass_over()
        with queue.lock:
            assert queue.leads(first)


def test_a_grant_makes_the_next_one_first(queue):
    queue.took("a")
    with turn_of(queue) as first, turn_of(queue) as second:
        second.looks_at = -math.inf
        assert queue.next_in_line("a", POLL) is first
        assert first.grant("b") is True
        assert queue.holder == "b"
        assert list(queue.turns) == [second]
        # what it looks at is another holder's claim now: it starts to wait anew
        assert second.looks_at == math.inf
        with queue.lock:
            assert queue.leads(second)
    # nobody asked for it
    assert first.back == ["b"]
    assert second.back == []


def test_a_grant_comes_too_late_for_who_has_left(queue):
    with turn_of(queue) as turn:
        pass
    assert turn.grant("b") is False
    assert queue.holder == "b"


def test_next_in_line_polls_at_once_if_the_one_before_it_left_without_a_word(queue):
    with turn_of(queue):
        second = turn_of(queue)
        second.__enter__()
    assert second.looks_at == -math.inf
    assert second.alarm._rung
    second.__exit__(None, None, None)


def test_leaving_makes_the_next_one_first_and_only_then(queue):
    with turn_of(queue) as first:
        queue.found("another's")
        second, third = turn_of(queue), turn_of(queue)
        second.__enter__()
        with third:
            third.looks_at = 5.0
        assert list(queue.turns) == [first, second]
        second.looks_at = -math.inf
    assert list(queue.turns) == [second]
    assert second.looks_at == math.inf
    second.__exit__(None, None, None)
    assert queue.idle


def test_after_some_hand_overs_the_process_rests(queue, clock):
    now = clock.now()
    for number in range(MOST_HAND_OVERS):
        with turn_of(queue) as turn:
            assert queue.next_in_line("a", POLL) is turn
            turn.grant(f"hold {number}")
    with turn_of(queue) as turn:
        assert queue.next_in_line("a", POLL) is None
        turn.looks_at = -math.inf
        with queue.lock:
            assert now + POLL[0] <= queue.looks_at(turn) <= now + POLL[1]
        # and then it begins to count anew
        assert queue.next_in_line("a", POLL) is turn
        turn.pass_over()


def test_hand_overs_are_counted_only_while_somebody_waits(queue):
    for number in range(3 * MOST_HAND_OVERS):
        assert queue.next_in_line("a", POLL) is None
        if number % MOST_HAND_OVERS == 0:
            with turn_of(queue) as turn:
                assert queue.next_in_line("a", POLL) is turn
                turn.pass_over()


def test_a_promise_ends_with_the_holder_who_made_it_and_no_other(queue):
    queue.took("a")
    first, second = turn_of(queue), turn_of(queue)
    with ThreadPoolExecutor() as pool, second:
        first.__enter__()
        queue.turns.reverse()
        assert queue.next_in_line("a", POLL) is first
        assert queue.next_in_line("b", POLL) is second
        assert queue.next_in_line("c", POLL) is None
        leaving = pool.submit(first.__exit__, None, None, None)
        queue.left("c")
        assert (first.promised, second.promised) == (True, True)
        queue.left("a")
        leaving.result(30)
        assert second.promised
        queue.left("b")
        assert not second.promised


def test_who_leaves_waits_for_the_hand_over_under_way(queue):
    turn = turn_of(queue)
    turn.__enter__()
    assert queue.next_in_line("a", POLL) is turn
    with ThreadPoolExecutor() as pool:
        leaving = pool.submit(turn.__exit__, None, None, None)
        time.sleep(0.1)
        assert not leaving.done()
        turn.grant("b")
        leaving.result(20)
    assert turn.back == ["b"]


# -- waiting ------------------------------------------------------------------------------------


class Wait:
    """A wait on a thread of its own, under a clock that the test moves."""

    def __init__(self, pool, clock, turn, *, poll=POLL, timeout=math.inf, frees_at=math.inf):
        self.clock = clock
        self.looked_at = []
        self.finds = None
        self.meanwhile = lambda: None
        self._entered = threading.Event()
        self._turn = turn
        self._options = UNBOUNDED | {
            "deadline": clock.now() + timeout,
            "frees_at": lambda: frees_at,
        }
        self._poll = poll
        self.result = pool.submit(self._run)
        assert self._entered.wait(20)

    def _run(self):
        with self._turn:
            self._entered.set()
            steps = self._turn.wait(self._look, self._poll, **self._options)
            return all_steps(steps, self._turn.alarm)

    def _look(self):
        self.looked_at.append(self.clock.now())
        found = self.finds
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return found
        yield  # in steps, though in none here

    def run(self, seconds):
        """Let that much time pass, step by step, and each step take effect."""
        end = self.clock.now() + seconds
        while self.clock.now() < end and not self.result.done():
            self._settle()
            if not self.result.done():
                self.clock.advance(STEP)
        self._settle()

    def _settle(self):
        wait_until(lambda: self.result.done() or self.clock.sleeps(self._turn.alarm.condition))


@pytest.fixture
def pool(clock):
    with ThreadPoolExecutor() as pool:
        yield pool
        clock.advance(math.inf)  # whoever still waits gives up


def test_the_first_in_line_looks_again_and_again(queue, clock, pool):
    start = clock.now()
    wait = Wait(pool, clock, turn_of(queue), poll=(1.0, 4.0))
    wait.run(60)
    assert wait.looked_at[0] == start
    gaps = [after - before for before, after in pairwise(wait.looked_at)]
    assert len(gaps) >= 12
    assert min(gaps) >= 1.0
    assert max(gaps) <= 4.0 + STEP
    assert len(set(gaps)) > 3
    assert 1.0 <= gaps[0] <= 3.0 + STEP
    wait.finds = "the lock"
    wait.run(5)
    assert wait.result.result(20) == "the lock"
    assert queue.idle


def test_waiter_that_wakes_early_keeps_its_plan(queue, clock):
    def look():
        looked_at.append(clock.now())
        return None
        yield  # in steps, though in none here

    looked_at = []
    with turn_of(queue) as turn:
        steps = turn.wait(look, (1.0, 4.0), **UNBOUNDED)
        due = next(steps)
        looked_at.clear()
        for _ in range(20):
            clock.advance((due - clock.now()) / 2)
            assert next(steps) == due
        assert looked_at == []
        clock.advance(due - clock.now())
        assert next(steps) >= clock.now() + 1.0
        assert looked_at == [due]


def test_waiter_that_wakes_early_goes_on_when_the_holder_has_left(queue, clock):
    def look():
        return "the lock"
        yield  # in steps, though in none here

    queue.took("a")
    with turn_of(queue) as turn:
        steps = turn.wait(look, (1.0, 4.0), **UNBOUNDED)
        clock.advance((next(steps) - clock.now()) / 2)
        next(steps)
        queue.left("a")
        assert all_steps(steps, turn.alarm) == "the lock"


def test_it_gives_up_at_its_deadline_after_a_last_look(queue, clock, pool):
    start = clock.now()
    wait = Wait(pool, clock, turn_of(queue), poll=(4.0, 60.0), timeout=10)
    wait.run(20)
    assert wait.result.result(20) is None
    assert clock.now() == start + 10
    assert wait.looked_at[-1] == start + 10
    assert queue.idle


def test_it_looks_when_the_holders_claim_ends(queue, clock, pool):
    start = clock.now()
    wait = Wait(pool, clock, turn_of(queue), poll=(0.5, 1000.0), frees_at=start + 40)
    wait.run(41)
    assert [look for look in wait.looked_at if start + 40 <= look <= start + 40.5 + STEP]
    wait.finds = "the lock"
    clock.advance(2000)
    assert wait.result.result(20) == "the lock"


def test_a_holder_of_this_process_is_looked_at_rarely(queue, clock, pool):
    queue.took("a")
    wait = Wait(pool, clock, turn_of(queue), poll=(0.25, 10.0))
    wait.run(50)
    assert 4 <= len(wait.looked_at) <= 5
    wait.finds = "the lock"
    queue.left("a")
    assert wait.result.result(20) == "the lock"


def test_who_is_not_first_does_not_look_until_it_is(queue, clock, pool):
    turn = turn_of(queue)
    with turn_of(queue):
        queue.found("another's")
        wait = Wait(pool, clock, turn, poll=(1.0, 2.0))
        wait.run(10)
        assert wait.looked_at == []
    wait_until(lambda: turn.looks_at < math.inf)
    wait.run(5)
    assert len(wait.looked_at) >= 2
    wait.finds = "the lock"
    wait.run(5)
    assert wait.result.result(20) == "the lock"


def test_who_was_never_first_gives_up_without_a_look(queue, clock, pool):
    with turn_of(queue):
        queue.found("another's")
        wait = Wait(pool, clock, turn_of(queue), timeout=3)
        wait.run(4)
        assert wait.result.result(20) is None
        assert wait.looked_at == []


@pytest.mark.parametrize("timeout", [LONGEST_SILENCE / 2, 2 * LONGEST_SILENCE])
def test_those_in_line_ask_when_the_first_has_no_answer_for_long(queue, clock, pool, timeout):
    start = clock.now()
    with turn_of(queue):
        wait = Wait(pool, clock, turn_of(queue), timeout=timeout)
        wait.meanwhile = lambda: queue.found("another's")
        wait.run(3 * LONGEST_SILENCE)
        assert wait.result.result(20) is None
        # once: then it is known that the lock is held
        assert wait.looked_at == [start + min(timeout, LONGEST_SILENCE)]


def test_who_is_promised_the_lock_does_not_look_before_it_gives_up(queue, clock, pool):
    turn = turn_of(queue)
    with turn_of(queue) as first:
        wait = Wait(pool, clock, turn, timeout=3)
        wait.run(1)
        assert queue.next_in_line("a", POLL) is first
        assert queue.next_in_line("b", POLL) is turn
        clock.advance(3)
        turn.grant("handed over")
        assert wait.result.result(20) == "handed over"
        assert wait.looked_at == []
        first.pass_over()


def test_a_lock_that_is_handed_over_is_taken_without_a_look(queue, clock, pool):
    queue.took("a")
    turn = turn_of(queue)
    wait = Wait(pool, clock, turn, poll=(5.0, 10.0))
    assert queue.next_in_line("a", POLL) is turn
    assert turn.grant("b") is True
    assert wait.result.result(20) == "b"
    assert wait.looked_at == []
    assert turn.back == []
    assert queue.holder == "b"


def test_a_hand_over_that_comes_after_the_deadline_still_counts(queue, clock, pool):
    queue.took("a")
    turn = turn_of(queue)
    wait = Wait(pool, clock, turn, poll=(5.0, 10.0), timeout=2)
    assert queue.next_in_line("a", POLL) is turn
    wait_until(lambda: clock.sleeps(turn.alarm.condition))
    clock.advance(3)
    time.sleep(0.1)
    assert not wait.result.done()
    assert turn.grant("b") is True
    assert wait.result.result(20) == "b"


def test_a_lock_that_is_handed_over_during_a_look_is_taken_without_another(queue, clock, pool):
    queue.took("a")
    turn = turn_of(queue)
    wait = Wait(pool, clock, turn, poll=(1.0, 2.0))

    def hand_over():
        assert queue.next_in_line("a", POLL) is turn
        assert turn.grant("b") is True

    wait.meanwhile = hand_over
    wait.run(5)
    assert wait.result.result(20) == "b"
    assert len(wait.looked_at) == 1


def test_a_holder_that_leaves_during_a_look_is_followed_by_another_at_once(queue, clock, pool):
    queue.took("a")
    wait = Wait(pool, clock, turn_of(queue), poll=(1.0, 2.0))

    def leave():
        queue.left("a")
        wait.finds = "the lock"

    wait.meanwhile = leave
    wait.run(5)
    assert wait.result.result(20) == "the lock"
    first, second = wait.looked_at
    assert second == first


def test_an_exception_while_looking_leaves_the_queue(queue, clock):
    def look():
        raise LookupError("mine")
        yield  # in steps, though in none here

    def wait():
        with turn_of(queue) as turn:
            steps = turn.wait(look, POLL, **UNBOUNDED)
            all_steps(steps, turn.alarm)

    with pytest.raises(LookupError, match="mine"):
        wait()
    assert queue.idle
