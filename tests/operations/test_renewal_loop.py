"""The schedule of renewals, and the loop that handles it."""

import time

import pytest
from botocore.client import BaseClient
from lock_items import Elsewhere

from pynamodb_mutex import Mutex
from pynamodb_mutex._operations.held import Held
from pynamodb_mutex._operations.shared import RenewalSchedule


class Member:
    def __init__(self, schedule, due):
        self.at = due
        schedule.add(self, due)

    def due(self):
        return self.at


def test_earlier_time_wakes_the_loop_and_a_later_one_does_not():
    schedule = RenewalSchedule()
    schedule.wakes_at = 5.0
    Member(schedule, 9.0)
    assert not schedule.wakeup.rung
    Member(schedule, 4.0)
    assert schedule.wakeup.rung


def test_member_is_put_back_unless_it_was_asked_again_or_removed_while_it_was_handled():
    schedule = RenewalSchedule()
    members = asked, removed, other = [Member(schedule, 1.0) for _ in range(3)]
    assert [schedule.take_due(1.0) for _ in range(4)] == [*members, None]
    asked.at = 2.0
    schedule.refresh(asked)
    schedule.remove(removed)
    for member in members:
        schedule.put_back(member, 9.0)
    assert schedule.next_due() == 2.0
    assert [schedule.take_due(9.0) for _ in range(3)] == [asked, other, None]


def test_removed_members_do_not_pile_up():
    schedule = RenewalSchedule()
    members = [Member(schedule, 100.0) for _ in range(3)]
    for _ in range(500):
        schedule.remove(Member(schedule, 50.0))
    assert len(schedule._heap) < 120
    assert [schedule.take_due(100.0) for _ in range(4)] == [*members, None]


@pytest.mark.parametrize(
    ("key", "count"), [("stuck", range(8900, 9020)), ("failing", range(80, 100))]
)
def test_lock_that_is_always_due_or_cannot_be_handled_does_not_end_the_renewal_of_others(
    table, monkeypatch, caplog, key, count
):
    due, handle, handled = Held.due, Held.is_to_be_renewed, []

    def is_to_be_renewed(held, ahead):
        handled.append(held.claims[0].key)
        if handled[-1] == "failing":
            raise LookupError("mine")
        return handle(held, ahead)

    monkeypatch.setattr(Held, "is_to_be_renewed", is_to_be_renewed)
    monkeypatch.setattr(Held, "due", lambda held: held.claims[0].key != "stuck" and due(held))
    assert Mutex.for_key(key).acquire()
    with Mutex.for_key("good") as good:
        time.sleep(10)
        handled.clear()
        time.sleep(90)
        assert good.held
    # not at once: after SHORTEST_SLEEP, or LONGEST_SLEEP if it failed
    assert handled.count(key) in count
    assert ("what was due could not be done" in caplog.text) is (key == "failing")


def test_locks_of_one_connection_that_are_due_soon_share_a_request(table, monkeypatch):
    sent, original, began = [], BaseClient._make_api_call, time.monotonic()

    def record(self, operation, kwargs):
        sent.append((round(time.monotonic() - began, 1), len(kwargs.get("Statements", [1]))))
        return original(self, operation, kwargs)

    for at, key, options in (
        (0, "first", {}),
        (0.8, "of another connection", {"model": Elsewhere}),
        (1.0, "second", {}),
        (3.0, "later", {}),
        (11.5, "patient", {"lease": 30}),
        (15.25, "too short for a batch", {"lease": 15}),
        (17.55, "too short to take others along", {"lease": 15}),
    ):
        time.sleep(began + at - time.monotonic())
        assert Mutex.for_key(key, **{"lease": 60, **options}).acquire()
    monkeypatch.setattr(BaseClient, "_make_api_call", record)
    time.sleep(began + 23 - time.monotonic())
    assert sent == [(19.8, 2), (19.8, 1), (20.2, 1), (21.4, 1), (22.5, 1), (22.8, 1)]
