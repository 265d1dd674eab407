"""The schedule of renewals and the loop that handles it: driven by hand, in a time of its own."""

import math
import random

import pytest

from pynamodb_mutex._operations import renew
from pynamodb_mutex._operations.effects import Start, Wait
from pynamodb_mutex._operations.events import Log
from pynamodb_mutex._operations.renew import (
    SHORTEST_SLEEP,
    renewal_loop,
)
from pynamodb_mutex._operations.shared import RenewalSchedule, Shared
from pynamodb_mutex._runtime.notifications import RECEIVERS


class Loop:
    """The renewal loop of a process, in a time that the test moves."""

    def __init__(self, monkeypatch):
        self.time = 1000.0
        self.shared = Shared(lambda: self.time, random.uniform, lambda: "", RECEIVERS)
        self.schedule = self.shared.schedule
        self.sent = []
        self.wait = Wait(-math.inf)
        self.steps = None
        monkeypatch.setattr(renew, "renew_in_background", lambda _, several: several)
        monkeypatch.setattr(renew, "_batch_of", lambda member: member.batch)

    def add(self, *members):
        for member in members:
            self.schedule.add(member, member.due())
        self.settle()

    @property
    def runs(self):
        return self.steps is not None

    def settle(self):
        """Let the loop do what is due, until it waits or has ended."""
        if self.schedule.is_wanted and not self.runs:
            self.schedule.is_wanted, self.schedule.runs = False, True
            self.shared.now = self.time
            self.steps = renewal_loop(self.shared)
        while self.runs and (self.time >= self.wait.until or self.schedule.wakeup.rung):
            self.schedule.wakeup.rung = False
            self.shared.now = self.time
            try:
                effect = next(self.steps)
            except StopIteration:
                self.steps, effect = None, Wait(-math.inf)
            if isinstance(effect, Start):
                self.sent.append(list(effect.operation))
                self.wait = Wait(-math.inf)
            else:
                self.wait = effect

    def advance(self, seconds):
        end = self.time + seconds
        while self.runs and self.wait.until <= end:
            self.time = max(self.time, self.wait.until)
            self.settle()
        self.time = end
        self.settle()


@pytest.fixture
def loop(monkeypatch):
    return Loop(monkeypatch)


class Member:
    """Due at one time; once handled, at the next."""

    def __init__(self, loop, *delays, sends=False, batch=None, early=0.0):
        self.dues = [loop.time + delay for delay in delays]
        self.handled = []
        self.sends = sends
        self.batch = batch
        self.loop = loop
        self._early = early

    def due(self):
        return self.dues[0] if self.dues else math.inf

    def early(self):
        return self._early

    def is_to_be_renewed(self, ahead):
        if self.loop.time + ahead < self.dues[0]:
            return False
        self.handled.append(self.loop.time)
        self.dues.pop(0)
        return self.sends


def test_earlier_time_wakes_the_loop_and_a_later_one_does_not(loop):
    member = Member(loop, 0.9)
    loop.add(member)
    later = Member(loop, 5)
    loop.schedule.add(later, later.due())
    assert not loop.schedule.wakeup.rung
    urgent = Member(loop, 0)
    loop.schedule.add(urgent, urgent.due())
    assert loop.schedule.wakeup.rung
    loop.settle()
    assert urgent.handled
    member.dues = [loop.time]
    loop.schedule.refresh(member)
    loop.settle()
    assert member.handled


def test_those_of_one_batch_that_are_due_soon_are_sent_together(loop):
    def member(delay, **options):
        return Member(loop, delay, 99, sends=True, **{"batch": "a", "early": 0.5, **options})

    first, second, alone = member(1), member(1.5), member(1.2, batch=None)
    patient, other, later = member(1.3, early=0.1), member(1.4, batch="b"), member(1.6)
    gone = member(1.1)
    loop.add(first, second, alone, patient, other, later, gone)
    loop.schedule.remove(gone)
    loop.advance(1)
    assert loop.sent == [[first, second], [other]]
    assert [each.handled for each in (alone, patient, later)] == [[], [], []]
    loop.advance(1)
    # the one without a batch takes nobody along
    assert loop.sent[2:] == [[alone], [patient], [later]]
    assert patient.handled == [pytest.approx(loop.time - 0.7)]
    assert gone.handled == []


def test_member_that_is_always_due_is_not_handled_at_once_again(loop):
    class Stuck(Member):
        """Due in the past, whatever happens."""

        def due(self):
            return self.loop.time - 1

        def is_to_be_renewed(self, ahead):
            self.handled.append(self.loop.time)
            return False

    stuck, other = Stuck(loop), Member(loop, SHORTEST_SLEEP)
    loop.add(stuck, other)
    assert len(stuck.handled) == 1
    loop.advance(SHORTEST_SLEEP * 1.5)
    assert len(stuck.handled) == 2
    assert other.handled


def test_member_that_is_refreshed_while_it_is_handled_keeps_the_newer_time(loop):
    """What it returns may be out of date: an answer came in between."""

    class Answered(Member):
        def due(self):
            due = super().due()
            if self.handled and not self.dues[1:]:
                self.dues = [self.loop.time + 1, math.inf]
                self.loop.schedule.refresh(self)
                return 500.0 + self.loop.time
            return due

    member = Answered(loop, 1, 600)
    loop.add(member)
    loop.advance(1)
    assert loop.schedule.next_due() <= loop.time + 1


def test_member_that_is_removed_while_it_is_handled_is_not_put_back(loop):
    class Ended(Member):
        def is_to_be_renewed(self, ahead):
            self.loop.schedule.remove(self)
            return super().is_to_be_renewed(ahead)

    member = Ended(loop, 1, 2)
    loop.add(member)
    loop.advance(5)
    assert len(member.handled) == 1


def test_member_that_fails_does_not_end_the_others(loop):
    class Failing(Member):
        def is_to_be_renewed(self, ahead):
            super().is_to_be_renewed(ahead)
            raise LookupError("mine")

    failing, other = Failing(loop, 1, 1, 1), Member(loop, 2, sends=True)
    loop.add(failing, other)
    loop.advance(1)
    assert len(failing.handled) == 1
    loop.advance(1)
    assert loop.sent == [[other]]
    # again, but not at once
    assert len(failing.handled) == 2
    (first, *_) = loop.shared.outbox
    assert isinstance(first, Log)
    assert "what was due could not be done" in first.message


def test_removed_members_do_not_pile_up(loop):
    schedule = RenewalSchedule()
    members = [Member(loop, 100.0) for _ in range(3)]
    for member in members:
        schedule.add(member, member.due())
    for _ in range(500):
        member = Member(loop, 50.0)
        schedule.add(member, member.due())
        schedule.remove(member)
    assert len(schedule._heap) < 120
    assert [schedule.take_due(loop.time + 100.0) for _ in range(4)] == [*members, None]
