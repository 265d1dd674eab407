"""The renewer: who is called when, on which thread, and what ends its threads."""

from __future__ import annotations

import math
import threading
import time

import pytest

from pynamodb_mutex import _threads
from pynamodb_mutex._renewer import (
    LINGER,
    LONGEST_SLEEP,
    MOST_TOGETHER,
    SHORTEST_SLEEP,
    WORKERS,
)
from pynamodb_mutex._renewer import Renewer as RenewerOf
from pynamodb_mutex._threads import Threads
from pynamodb_mutex.testing import FakeClock


def Renewer():  # noqa: N802 - one with threads of its own
    return RenewerOf(Threads())


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


class Member:
    """Due at one time; once tended, at the next."""

    def __init__(self, clock, *delays, sends=False, batch=None, early=0.0):
        self.dues = [clock.now() + delay for delay in delays]
        self.tended = []
        self.sent_by = []
        self.together = []
        self.sends = sends
        self.batch = batch
        self.early = early
        self._clock = clock

    def due(self):
        return self.dues[0] if self.dues else math.inf

    def tend(self, ahead=0.0):
        if self._clock.now() + ahead < self.dues[0]:
            return self.due(), False
        self.tended.append(self._clock.now())
        self.dues.pop(0)
        return self.due(), self.sends

    def send_renewal(self, *others):
        for member in (self, *others):
            member.together = [self, *others]
            member.sent_by.append(threading.current_thread().name)


def wait_until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.001)


def settle(renewer, clock):
    """Wait until the scheduler sleeps, or has ended."""
    wait_until(lambda: not renewer._schedules or clock.sleeps(renewer._changed))


def test_a_member_is_called_when_it_is_due_and_not_before(clock):
    renewer, member = Renewer(), Member(clock, 10, 20)
    start = clock.now()
    renewer.add(member)
    settle(renewer, clock)
    for _ in range(9):
        clock.advance(1)
        settle(renewer, clock)
    assert member.tended == []
    clock.advance(1)
    wait_until(lambda: member.tended)
    settle(renewer, clock)
    clock.advance(11)
    wait_until(lambda: len(member.tended) == 2)
    assert member.tended == [start + 10, start + 21]


def test_members_are_called_in_the_order_of_their_times(clock):
    order = []

    class Noting(Member):
        def tend(self, ahead=0.0):
            order.append(self)
            return super().tend(ahead)

    renewer = Renewer()
    late, early, middle = (Noting(clock, delay) for delay in (3, 1, 2))
    for member in (late, early, middle):
        renewer.add(member)
    settle(renewer, clock)
    clock.advance(5)
    wait_until(lambda: len(order) == 3)
    assert order == [early, middle, late]


def test_a_renewal_is_sent_by_a_worker(clock):
    renewer = Renewer()
    member, silent = Member(clock, 1, sends=True), Member(clock, 1)
    renewer.add(member)
    renewer.add(silent)
    settle(renewer, clock)
    clock.advance(1)
    wait_until(lambda: member.sent_by and silent.tended)
    assert member.sent_by == ["pynamodb-mutex-worker"]
    assert silent.sent_by == []


def test_an_idle_worker_is_used_again(clock):
    renewer, member = Renewer(), Member(clock, 1, 2, 3, sends=True)
    renewer.add(member)
    for number in range(3):
        settle(renewer, clock)
        clock.advance(1)
        wait_until(lambda n=number: len(member.sent_by) == n + 1)
        wait_until(lambda: renewer._workers._idle == 1)
    assert renewer._workers._running == 1


def test_a_removed_member_is_not_called(clock):
    renewer = Renewer()
    removed, other = Member(clock, 1), Member(clock, 1)
    renewer.add(removed)
    renewer.add(other)
    renewer.remove(removed)
    renewer.remove(removed)
    settle(renewer, clock)
    clock.advance(2)
    wait_until(lambda: other.tended)
    settle(renewer, clock)
    assert removed.tended == []


def test_a_member_that_is_never_due_is_not_looked_after(clock):
    renewer, member = Renewer(), Member(clock)
    renewer.add(member)
    assert not renewer._schedules
    member = Member(clock, 1)
    renewer.add(member)
    member.dues = []
    renewer.refresh(member)
    settle(renewer, clock)
    clock.advance(2)
    settle(renewer, clock)
    assert member.tended == []


def test_an_earlier_time_wakes_the_scheduler(clock):
    renewer, member = Renewer(), Member(clock, 0.9)
    renewer.add(member)
    settle(renewer, clock)
    urgent = Member(clock, 0)
    renewer.add(urgent)
    wait_until(lambda: urgent.tended)
    member.dues = [clock.now()]
    renewer.refresh(member)
    wait_until(lambda: member.tended)


def test_a_later_time_voids_the_entry_of_the_earlier(clock):
    renewer, member = Renewer(), Member(clock, 1)
    renewer.add(member)
    member.dues = [clock.now() + 5]
    renewer.refresh(member)
    for _ in range(4):
        settle(renewer, clock)
        clock.advance(1)
    settle(renewer, clock)
    assert member.tended == []
    clock.advance(1)
    wait_until(lambda: len(member.tended) == 1)
    settle(renewer, clock)
    assert len(member.tended) == 1


def test_refresh_does_not_add(clock):
    renewer, member = Renewer(), Member(clock, 0)
    renewer.refresh(member)
    assert not renewer._schedules
    assert member.tended == []


def test_recheck_asks_everyone_again(clock):
    renewer = Renewer()
    members = [Member(clock, 100) for _ in range(5)]
    for member in members:
        renewer.add(member)
    settle(renewer, clock)
    for member in members[:3]:
        member.dues = [clock.now()]
    renewer.recheck()
    wait_until(lambda: all(member.tended for member in members[:3]))
    settle(renewer, clock)
    assert [len(member.tended) for member in members] == [1, 1, 1, 0, 0]


# -- batches ------------------------------------------------------------------------------------


def added(clock, members):
    """Let a renewer look after members, and the first of them be due."""
    renewer = Renewer()
    for member in members:
        renewer.add(member)
    settle(renewer, clock)
    clock.advance(1)
    return renewer


def test_those_of_one_batch_that_are_due_soon_are_sent_together(clock):
    def member(delay, **options):
        return Member(clock, delay, 99, sends=True, **{"batch": "a", "early": 0.5, **options})

    first, second, alone = member(1), member(1.5), member(1.2, batch=None)
    patient, other, later = member(1.3, early=0.1), member(1.4, batch="b"), member(1.6)
    renewer = added(clock, [first, second, alone, patient, other, later])
    wait_until(lambda: first.sent_by and other.sent_by)
    settle(renewer, clock)
    assert first.together == [first, second]
    assert other.together == [other]
    assert [member.tended for member in (alone, patient, later)] == [[], [], []]
    clock.advance(0.6)
    wait_until(lambda: alone.sent_by and patient.sent_by and later.sent_by)
    assert alone.together == [alone]
    assert patient.together == later.together == [patient, later]


def test_one_without_a_batch_takes_nobody_along(clock):
    alone = Member(clock, 1, sends=True, early=1.0)
    other = Member(clock, 1.1, sends=True, early=1.0, batch="a")
    renewer = added(clock, [alone, other])
    wait_until(lambda: alone.sent_by)
    settle(renewer, clock)
    assert alone.together == [alone]
    assert not other.tended


def test_a_batch_has_no_more_members_than_dynamodb_takes(clock):
    members = [Member(clock, 1, sends=True, batch="a") for _ in range(2 * MOST_TOGETHER + 1)]
    silent = Member(clock, 1, batch="a")
    added(clock, [silent, *members])
    wait_until(lambda: all(member.sent_by for member in members))
    assert sorted({len(m.together) for m in members}) == [1, MOST_TOGETHER]
    assert silent.tended
    assert not silent.sent_by


def test_one_that_left_meanwhile_is_not_taken_along(clock):
    gone, first = (Member(clock, 1 + i, 9, sends=True, batch="a", early=2.0) for i in (0.5, 0))
    renewer = Renewer()
    renewer.add(first)
    renewer.add(gone)
    settle(renewer, clock)
    renewer.remove(gone)
    clock.advance(1)
    wait_until(lambda: first.sent_by)
    assert first.together == [first]
    assert not gone.tended


class Stuck(Member):
    """Due in the past, whatever happens."""

    def due(self):
        return self._clock.now() - 1

    def tend(self, ahead=0.0):
        self.tended.append(self._clock.now())
        return self.due(), False


def test_member_that_is_always_due_is_not_called_at_once_again(clock):
    renewer, stuck, other = Renewer(), Stuck(clock), Member(clock, SHORTEST_SLEEP)
    renewer.add(stuck)
    for count in (1, 2, 3):
        wait_until(lambda n=count: len(stuck.tended) == n)
        settle(renewer, clock)
        assert len(stuck.tended) == count
        clock.advance(SHORTEST_SLEEP)
        if count == 1:
            renewer.add(other)
    wait_until(lambda: other.tended)
    renewer.remove(stuck)


def test_member_that_is_asked_again_while_it_is_called_keeps_the_newer_time(clock):
    """What it returns may be out of date: an answer came in between."""

    class Answered(Member):
        def tend(self, ahead=0.0):
            returned = super().tend(ahead)
            self.dues = [self._clock.now() + 1]
            renewer.refresh(self)
            return returned

    renewer, member = Renewer(), Answered(clock, 1, 500)
    renewer.add(member)
    for count in (1, 2):
        settle(renewer, clock)
        clock.advance(1)
        wait_until(lambda n=count: len(member.tended) == n)
    renewer.remove(member)


def test_member_that_is_removed_while_it_is_called_is_not_put_back(clock):
    class Ended(Member):
        def tend(self, ahead=0.0):
            renewer.remove(self)
            return super().tend(ahead)

    renewer, member = Renewer(), Ended(clock, 1, 2)
    renewer.add(member)
    settle(renewer, clock)
    clock.advance(1)
    wait_until(lambda: member.tended)
    settle(renewer, clock)
    clock.advance(5)
    settle(renewer, clock)
    assert len(member.tended) == 1


def test_one_that_fails_does_not_end_the_others(clock, caplog):
    class Failing(Member):
        def tend(self, ahead=0.0):
            super().tend(ahead)
            raise LookupError("mine")

    renewer = Renewer()
    failing, other = Failing(clock, 1, 1, 1), Member(clock, 2, sends=True)
    renewer.add(failing)
    renewer.add(other)
    settle(renewer, clock)
    clock.advance(1)
    wait_until(lambda: failing.tended)
    settle(renewer, clock)
    assert len(failing.tended) == 1
    clock.advance(1)
    wait_until(lambda: other.sent_by)
    # again, but not at once
    wait_until(lambda: len(failing.tended) == 2)
    assert "what was due could not be done" in caplog.text
    assert "mine" in caplog.text


def test_a_hung_renewal_delays_nobody_and_workers_are_bounded(clock):
    under_way, most, over = [], [], threading.Event()

    class Hanging(Member):
        def send_renewal(self, *others):
            under_way.append(self)
            most.append(len(under_way))
            assert over.wait(20)
            under_way.remove(self)
            super().send_renewal()

    renewer = Renewer()
    hung = [Hanging(clock, 1, sends=True) for _ in range(WORKERS - 1)]
    for member in hung:
        renewer.add(member)
    settle(renewer, clock)
    clock.advance(1)
    wait_until(lambda: len(under_way) == WORKERS - 1)
    other = Member(clock, 0, sends=True)
    renewer.add(other)
    wait_until(lambda: other.sent_by)
    more = [Hanging(clock, 0, sends=True) for _ in range(2 * WORKERS)]
    for member in more:
        renewer.add(member)
    wait_until(lambda: all(member.tended for member in more) and len(under_way) == WORKERS)
    over.set()
    wait_until(lambda: all(member.sent_by for member in [*hung, *more]))
    assert max(most) == WORKERS


def test_the_scheduler_ends_after_a_while_without_work_and_starts_again(clock):
    before = set(threading.enumerate())
    renewer, member = Renewer(), Member(clock, 1)
    renewer.add(member)
    (first,) = (each for each in set(threading.enumerate()) - before if "renewer" in each.name)
    assert first.daemon
    settle(renewer, clock)
    clock.advance(1)
    wait_until(lambda: member.tended)
    for _ in range(int(LINGER / LONGEST_SLEEP)):
        settle(renewer, clock)
        assert first.is_alive()
        clock.advance(LONGEST_SLEEP)
    first.join(20)
    assert not first.is_alive()
    assert not renewer._schedules
    again = Member(clock, 0)
    renewer.add(again)
    wait_until(lambda: again.tended)


def test_it_stays_as_long_as_anybody_is_looked_after(clock):
    renewer, member = Renewer(), Member(clock, 1000)
    renewer.add(member)
    for _ in range(3):
        settle(renewer, clock)
        clock.advance(10 * LINGER)
    settle(renewer, clock)
    assert renewer._schedules
    renewer.remove(member)


def test_idle_workers_end(monkeypatch):
    monkeypatch.setattr(_threads, "LINGER", 0.1)
    with FakeClock() as clock:
        renewer, member = Renewer(), Member(clock, 0, sends=True)
        renewer.add(member)
        wait_until(lambda: member.sent_by)
        wait_until(lambda: renewer._workers._running == 0)
        again = Member(clock, 0, sends=True)
        renewer.add(again)
        wait_until(lambda: again.sent_by)


def test_what_was_removed_does_not_pile_up(clock):
    renewer = Renewer()
    kept = [Member(clock, 100) for _ in range(3)]
    for member in kept:
        renewer.add(member)
    for _ in range(500):
        member = Member(clock, 50)
        renewer.add(member)
        renewer.remove(member)
    assert len(renewer._heap) < 120
    settle(renewer, clock)
    clock.advance(100)
    wait_until(lambda: all(member.tended for member in kept))
