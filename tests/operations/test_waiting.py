"""The schedule of polls, and the local queue with those who wait in it: no DynamoDB, and no time passes."""

import math
import random
import statistics
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pynamodb_mutex._operations.acquire import Acquisition, _leave_line
from pynamodb_mutex._operations.effects import Wait, Wakeup
from pynamodb_mutex._operations.local_queue import LocalQueue, Turn
from pynamodb_mutex._operations.shared import Shared
from pynamodb_mutex._protocol.schedule import LONGEST_SILENCE, MOST_HAND_OVERS, next_wait
from pynamodb_mutex._runtime.notifications import RECEIVERS

POLL = (0.05, 1.0)
STEP = 0.125


@pytest.fixture
def queue():
    return LocalQueue({}, "k")


@pytest.fixture
def line(queue):
    """Two in line."""
    return in_line(queue), in_line(queue)


def in_line(queue, *, polls_first=False):
    turn = Turn(queue, "", Wakeup())
    turn.enter(0.0, polls_first=polls_first)
    return turn


def next_in_line(queue, holder, now=0.0):
    return queue.next_in_line(holder, POLL, now, random.uniform)


# -- the schedule -------------------------------------------------------------------------------


@given(st.floats(0.001, 10), st.floats(1, 100), st.floats(0, 100))
def test_wait_is_within_its_bounds(base, times, previous):
    cap = base * times
    wait = next_wait(previous, (base, cap), random.uniform)
    assert base <= wait <= cap
    assert wait <= max(3 * max(base, previous), base)


def waits(count):
    """Return the waits of one who polls so often."""
    wait, several = 0.0, []
    for _ in range(count):
        wait = next_wait(wait, POLL, random.uniform)
        several.append(wait)
    return several


def test_waits_grow_from_the_base_and_do_not_pile_up_at_the_cap():
    first = [next_wait(0, POLL, random.uniform) for _ in range(2000)]
    assert max(first) <= 3 * POLL[0]
    later = waits(4000)
    assert statistics.mean(later) > 4 * POLL[0]
    assert sum(wait > 0.99 * POLL[1] for wait in later) < 0.1 * len(later)


def test_two_waiters_do_not_keep_step():
    assert abs(statistics.correlation(waits(500), waits(500))) < 0.5


# -- the queue ----------------------------------------------------------------------------------


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


def test_only_the_first_in_line_polls_unless_it_is_promised_the_lock(queue, line):
    first, second = line
    first.polls_at = second.polls_at = 7.0
    assert [queue.leads(turn) for turn in line] == [True, False]
    assert [queue.polls_at(turn) for turn in line] == [7.0, math.inf]
    assert next_in_line(queue, "a") is first
    assert [queue.leads(turn) for turn in line] == [False, False]
    first.end_promise()
    assert queue.leads(first)
    first.leave()
    second.leave()
    assert queue.is_idle


def test_first_in_line_polls_at_once_unless_this_process_holds_the_lock(queue, line):
    turn, behind = line
    assert (turn.polls_at, behind.polls_at) == (-math.inf, math.inf)
    behind.leave()
    turn.leave()
    queue.acquired_by("a")
    first, second = in_line(queue), in_line(queue)
    assert (first.polls_at, second.polls_at) == (math.inf, math.inf)
    # and when it releases
    queue.released_by("a")
    assert (first.polls_at, second.polls_at) == (-math.inf, math.inf)
    first.leave()
    second.leave()
    # one that is noted, but does not hold it any more
    queue.acquired_by("a")
    assert in_line(queue, polls_first=True).polls_at == -math.inf


@pytest.mark.parametrize("how", ["saw", "acquired_by"])
def test_all_in_line_are_woken_when_it_becomes_known_that_the_lock_is_held(queue, line, how):
    assert not queue.known_taken
    getattr(queue, how)("another's")
    assert queue.known_taken
    assert [turn.wakeup.rung for turn in line] == [True, True]
    for turn in line:
        turn.wakeup.rung = False
    queue.saw("a later one")
    assert queue.in_the_way == "a later one"
    assert [turn.wakeup.rung for turn in line] == [False, False]


def test_what_those_in_line_saw_is_forgotten_with_the_last_of_them(queue):
    turn = in_line(queue)
    queue.saw("another's")
    for _ in range(MOST_HAND_OVERS):
        assert next_in_line(queue, "a") is turn
        turn.end_promise()
    assert next_in_line(queue, "a") is None
    assert queue.polls_at(turn) > 0
    turn.leave()
    assert queue.in_the_way is None
    # nor does the process rest for the sake of others any more
    assert queue.polls_at(in_line(queue)) == -math.inf


def test_grant_makes_the_next_one_first(queue):
    queue.acquired_by("a")
    first, second = in_line(queue), in_line(queue)
    second.polls_at = -math.inf
    assert next_in_line(queue, "a") is first
    assert first.grant("b") is True
    assert queue.holder == "b"
    assert queue.turns == [second]
    # what it polls is another holder's claim now: it starts to wait anew
    assert second.polls_at == math.inf
    assert queue.leads(second)
    assert first.leave() == "b"
    assert second.leave() is None


def test_leaving_makes_the_next_one_first_and_only_then(queue):
    first = in_line(queue)
    queue.saw("another's")
    second, third = in_line(queue), in_line(queue)
    third.polls_at = 5.0
    third.leave()
    assert queue.turns == [first, second]
    second.polls_at = -math.inf
    first.leave()
    assert queue.turns == [second]
    assert second.polls_at == math.inf
    second.leave()
    assert queue.is_idle
    # it polls at once if the one before it left without knowing
    first, second = in_line(queue), in_line(queue)
    first.leave()
    assert second.polls_at == -math.inf
    assert second.wakeup.rung


def test_process_rests_after_some_hand_overs(queue):
    for number in range(MOST_HAND_OVERS):
        turn = in_line(queue)
        assert next_in_line(queue, "a") is turn
        turn.grant(f"hold {number}")
    turn = in_line(queue)
    assert next_in_line(queue, "a", now=10.0) is None
    turn.polls_at = -math.inf
    assert 10.0 + POLL[0] <= queue.polls_at(turn) <= 10.0 + POLL[1]
    # and then it begins to count anew
    assert next_in_line(queue, "a") is turn


def test_hand_overs_are_counted_only_while_somebody_waits(queue):
    for number in range(3 * MOST_HAND_OVERS):
        assert next_in_line(queue, "a") is None
        if number % MOST_HAND_OVERS == 0:
            turn = in_line(queue)
            assert next_in_line(queue, "a") is turn
            turn.end_promise()
            turn.leave()


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


@pytest.mark.parametrize("interrupted", [False, True])
def test_waiter_that_leaves_waits_for_the_hand_over_under_way(queue, interrupted):
    turn = in_line(queue)
    assert next_in_line(queue, "a") is turn
    leaving = _leave_line(turn)
    assert isinstance(next(leaving), Wait)
    if interrupted:
        with pytest.raises(KeyboardInterrupt):
            leaving.throw(KeyboardInterrupt())
        assert queue.turns == []
        # it comes too late
        assert turn.grant("b") is False
        assert queue.holder == "b"
    else:
        turn.grant("b")
        with pytest.raises(StopIteration) as done:
            next(leaving)
        assert done.value.value == "b"


# -- waiting ------------------------------------------------------------------------------------


class Waiter(Acquisition):
    """A wait in line that a test drives, in a time of its own."""

    def __init__(self, queue, *, poll=POLL, timeout=math.inf, frees_at=math.inf, now=0.0):
        self.time = now
        shared = Shared(lambda: self.time, random.uniform, lambda: "", RECEIVERS)
        contender = SimpleNamespace(
            shared=shared,
            queue=queue,
            key_queue=queue,
            options=SimpleNamespace(poll=poll),
            stalled_holder=lambda: None,
            stalls=lambda other: False,
        )
        super().__init__(contender, timeout)
        self.begin()
        self._ends = frees_at
        self.polled_at = []
        self.finds = None
        self.meanwhile = lambda: None
        self.turn = in_line(queue)
        self.turn.asks_at = self.time + LONGEST_SILENCE
        self.steps = self._wait(self.turn)
        self.wait = None
        self.result = self

    @property
    def free_at(self):
        return self._ends

    @property
    def holder(self):
        return None

    def poll(self):
        self.polled_at.append(self.time)
        found = self.finds
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return found
        yield

    @property
    def done(self):
        return self.result is not self

    def step(self):
        """Run it to its next wait, or to its end."""
        self.shared.now = self.time
        try:
            self.wait = next(self.steps)
        except StopIteration as done:
            self.wait = None
            granted = self.turn.leave()
            self.result = granted if done.value is None else done.value

    def run(self, seconds):
        """Let that much time pass; it is woken when it is due, or when its wake-up rings."""
        end = self.time + seconds
        if self.wait is None:
            self.step()
        while not self.done and self.time <= end:
            if self.turn.wakeup.rung or self.time >= self.wait.until:
                self.turn.wakeup.rung = False
                self.step()
            else:
                self.time += STEP


HOLDER = SimpleNamespace(ends=math.inf)


def test_first_in_line_polls_again_and_again(queue):
    waiter = Waiter(queue, poll=(1.0, 4.0))
    waiter.run(60)
    assert waiter.polled_at[0] == 0
    gaps = [after - before for before, after in pairwise(waiter.polled_at)]
    assert len(gaps) >= 12
    assert min(gaps) >= 1.0
    assert max(gaps) <= 4.0 + STEP
    assert len(set(gaps)) > 3
    assert 1.0 <= gaps[0] <= 3.0 + STEP
    waiter.finds = "the lock"
    waiter.run(5)
    assert waiter.result == "the lock"
    assert queue.is_idle


def test_waiter_that_wakes_early_keeps_its_plan(queue):
    waiter = Waiter(queue, poll=(1.0, 4.0))
    waiter.step()
    due = waiter.wait.until
    waiter.polled_at.clear()
    for _ in range(20):
        waiter.time += (due - waiter.time) / 2
        waiter.step()
        assert waiter.wait.until == due
    assert waiter.polled_at == []
    waiter.time = due
    waiter.step()
    assert waiter.wait.until >= due + 1.0
    assert waiter.polled_at == [due]


def test_waiter_never_waits_for_an_instant_that_has_passed(queue):
    queue.acquired_by(HOLDER)
    waiter = Waiter(queue, poll=(4.0, 60.0))
    waiter.step()
    waiter.time = 2 * LONGEST_SILENCE
    for _ in range(MOST_HAND_OVERS):
        next_in_line(queue, HOLDER, now=waiter.time).end_promise()
    # others are due a chance: it has waited for long, and is to pause
    assert next_in_line(queue, HOLDER, now=waiter.time) is None
    queue.released_by(HOLDER)
    waiter.step()
    assert waiter.wait.until > waiter.time


def test_waiter_gives_up_at_its_deadline_after_a_last_poll(queue):
    waiter = Waiter(queue, poll=(4.0, 60.0), timeout=10)
    waiter.run(20)
    assert waiter.result is None
    assert waiter.time == 10
    assert waiter.polled_at[-1] == 10
    assert queue.is_idle


def test_waiter_polls_when_the_claim_of_the_holder_ends(queue):
    waiter = Waiter(queue, poll=(0.5, 1000.0), frees_at=40)
    waiter.run(41)
    assert [at for at in waiter.polled_at if 40 <= at <= 40.5 + STEP]


def test_waiter_polls_seldom_while_a_holder_of_this_process_hands_over(queue):
    queue.acquired_by(HOLDER)
    waiter = Waiter(queue, poll=(0.25, 10.0))
    waiter.run(50)
    assert 4 <= len(waiter.polled_at) <= 5
    waiter.finds = "the lock"
    waiter.step()  # it may wake for no reason
    assert not waiter.done
    queue.released_by(HOLDER)
    waiter.run(1)
    assert waiter.result == "the lock"


def test_waiter_that_is_not_first_does_not_poll_until_it_is(queue):
    first = in_line(queue)
    queue.saw("another's")
    waiter, hasty = Waiter(queue, poll=(1.0, 2.0)), Waiter(queue, timeout=3)
    waiter.run(10)
    hasty.run(4)
    # nor if it gives up before it was ever first
    assert (waiter.polled_at, hasty.polled_at, hasty.result) == ([], [], None)
    first.leave()
    waiter.run(5)
    assert len(waiter.polled_at) >= 2


@pytest.mark.parametrize("timeout", [LONGEST_SILENCE / 2, 2 * LONGEST_SILENCE])
def test_waiters_ask_when_the_first_has_no_answer_for_long(queue, timeout):
    in_line(queue)
    waiter = Waiter(queue, timeout=timeout)
    waiter.meanwhile = lambda: queue.saw("another's")
    waiter.run(3 * LONGEST_SILENCE)
    assert waiter.result is None
    # once: then it is known that the lock is held
    assert waiter.polled_at == [min(timeout, LONGEST_SILENCE)]


def test_waiter_that_is_promised_the_lock_does_not_poll_before_it_gives_up(queue):
    first = in_line(queue)
    waiter = Waiter(queue, timeout=3)
    waiter.run(1)
    assert next_in_line(queue, "a") is first
    assert next_in_line(queue, "b") is waiter.turn
    waiter.run(1)
    waiter.turn.grant("handed over")
    waiter.run(1)
    assert waiter.result == queue.holder == "handed over"
    assert waiter.polled_at == []


def test_lock_that_is_handed_over_during_a_poll_is_taken_without_another(queue):
    waiter = Waiter(queue, poll=(1.0, 2.0))

    def hand_over():
        assert next_in_line(queue, "a") is waiter.turn
        assert waiter.turn.grant("b") is True

    waiter.meanwhile = hand_over
    waiter.run(5)
    assert waiter.result == "b"
    assert len(waiter.polled_at) == 1


def test_holder_that_releases_during_a_poll_is_followed_by_another_at_once(queue):
    queue.acquired_by(HOLDER)
    waiter = Waiter(queue, poll=(1.0, 2.0))

    def leave():
        queue.released_by(HOLDER)
        waiter.finds = "the lock"

    waiter.meanwhile = leave
    waiter.run(5)
    assert waiter.result == "the lock"
    first, second = waiter.polled_at
    assert second == first
