"""Renewal: many locks on few threads, none that outlives its lock, and renewals next to guarded writes."""

import asyncio
import re
import threading
import time
from dataclasses import replace
from functools import partial

import pytest
from operations_by_hand import Driven, send_renewal
from row_models import delete, every_write, save, update
from sent_requests import Dates, assert_changes_nothing
from signal_receivers import OnLost
from this_process import RENEWAL_WORKERS
from two_clients import held, place_of
from waits import until

from dev import faultproxy as net
from dev.faultproxy import after, drop_answer, through
from pynamodb_mutex import LockItem, Mutex, signals
from pynamodb_mutex._lock.operations.planning import Held
from pynamodb_mutex._lock.operations.process_state import RenewalSchedule
from pynamodb_mutex._lock.operations.renew import renew_in_background
from pynamodb_mutex.aio import AsyncMutex

LONG = 100.0
"""Seconds for which an answer is waited for: whoever waits for less does not wait for it."""

# -- the schedule, and the loop that handles it ----------------------------------------------------


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

    def handle_or_fail(held):
        handled.append(held.claims[0].key)
        if handled[-1] == "failing":
            raise LookupError("mine")
        return handle(held)

    monkeypatch.setattr(Held, "is_to_be_renewed", handle_or_fail)
    monkeypatch.setattr(Held, "due", lambda held: held.claims[0].key != "stuck" and due(held))
    held(Mutex.for_key(key))
    with Mutex.for_key("good") as good:
        time.sleep(10)
        handled.clear()
        time.sleep(90)
        assert good.held
    # not at once: after SHORTEST_SLEEP, or LONGEST_SLEEP if it failed
    assert handled.count(key) in count
    assert ("what was due could not be done" in caplog.text) is (key == "failing")


def renewing_threads():
    return {t for t in threading.enumerate() if t.name.startswith("pynamodb-mutex")}


def test_short_locks_share_one_thread_and_those_that_need_none_have_none(table):
    with Mutex.for_key("k", auto_renew=False):
        assert renewing_threads() == set()
    seen = set()
    for i in range(30):
        with Mutex.for_key(f"k{i % 3}", lease=30.0):
            seen |= renewing_threads()
    assert [thread.name for thread in seen] == ["pynamodb-mutex-renewer"]


def test_threads_follow_what_is_due(here, proxy):
    """With 100 ms added to each request: 200 renewals a second occupy 20 threads."""
    proxy.always(net.delay(0.1))
    locks = [held(Mutex.for_key(f"lock-{i}", model=here, lease=3.0)) for i in range(200)]
    for _ in range(8):
        time.sleep(1)
        assert 20 <= len(renewing_threads()) <= RENEWAL_WORKERS + 1
    assert all(mutex.held and not mutex.lost for mutex in locks)
    for mutex in locks:
        mutex.release()
    until(lambda: not renewing_threads())
    with Mutex.for_key("one", model=here, lease=3.0):
        time.sleep(30)
        assert len(renewing_threads()) == 2  # the loop's, and one


def test_renewal_whose_turn_comes_when_the_lock_is_lost_is_not_sent(here, proxy, clock):
    mutex = held(Mutex.for_key("k", model=here, lease=30.0, auto_renew=False))
    renewal = Driven(renew_in_background(mutex._latest.whole))
    clock.advance(31)
    assert renewal.until_it_waits() is None
    assert proxy.of("renew") == []


def test_no_third_renewal_is_sent_while_two_hang(table, proxy):
    """An endpoint that answers nothing would else be sent more and more of them."""
    here, goes_on = through(proxy, table, read_timeout=LONG), threading.Event()
    with Mutex.for_key("k", model=here, lease=30.0) as mutex:
        proxy.next(net.stall(goes_on), net.stall(goes_on), op="renew")
        proxy.wait(2, "renew")
        mutex.renew()
        time.sleep(25)
        assert len(proxy.of("renew")) == 3
        assert mutex.held
        goes_on.set()
        time.sleep(5)
        assert len(proxy.of("renew")) > 3


def test_renewal_that_meets_a_later_end_leaves_it_if_it_is_its_own(table, here, proxy):
    with Mutex.for_key("k", model=here, lease=30.0) as mutex:
        # on its way, it is overtaken by another
        proxy.next(after(mutex.renew), op="renew")
        mutex.renew()
        later, overtaken = proxy.of("renew")
        assert (later.applied, overtaken.applied) == (True, False)
        assert end_of(overtaken) < end_of(later) == table.get("k").expires_at
        proxy.start_anew()
        # that of another hand
        end = round(table.get("k").expires_at + 100, 3)
        table._get_connection().update_item("k", actions=[table.expires_at.set(end)])
        mutex.renew()
        assert [seen.applied for seen in proxy.of("renew")] == [False, True]
        assert table.get("k").expires_at == pytest.approx(end + 0.001, abs=0.0001)
        assert mutex.remaining < 31  # its belief is its own


def before_the_answer(act):
    """Applied, and answered after something else has happened."""
    return replace(net.pass_on(), edit=lambda reply: act() or reply)


@pytest.mark.parametrize(("meet", "applied"), [(after, False), (before_the_answer, True)])
def test_renewal_under_way_does_not_revive_a_released_lock(table, here, proxy, meet, applied):
    mutex = held(Mutex.for_key("k", model=here))
    proxy.next(meet(mutex.release), op="renew")
    send_renewal(mutex._latest)
    assert [seen.applied for seen in proxy.of("renew")] == [applied]
    assert (mutex.held, mutex.lost) == (False, False)
    assert table.get("k", consistent_read=True).expires_at is None


@pytest.fixture
def dates(proxy):
    return Dates(proxy, 2_000_000_000)


def begin_next_second(dates, model):
    """Let an answer show the next second, at the start of which it seems to come."""
    dates.now += 1
    assert not Mutex.for_key("another", model=model).locked()


def test_renewal_of_a_short_lease_comes_before_an_end_that_came_nearer(here, proxy, dates, clock):
    """The acquisition was answered at the end of a second, another request at the start of the next."""
    on_lost = []
    with Mutex.for_key("k", model=here, lease=1.0, on_lost=on_lost.append) as mutex:
        assert mutex.remaining > 0.9
        begin_next_second(dates, here)
        assert 0.2 < mutex.remaining < 0.3
        assert proxy.of("renew") == []
        clock.advance(0.1)
        proxy.wait(1, "renew")
        until(lambda: mutex.remaining > 0.9)
    assert on_lost == []


def test_renewal_that_follows_one_that_hangs_comes_nearer_with_the_end(table, proxy, dates, clock):
    here, goes_on = through(proxy, table, read_timeout=LONG), threading.Event()
    with Mutex.for_key("k", model=here, lease=1.0) as mutex:
        proxy.next(net.stall(goes_on), op="renew")
        clock.advance(0.34)
        proxy.wait(1, "renew")
        begin_next_second(dates, here)
        # the next was planned a third of the lease after the one that hangs: too late now
        assert mutex.remaining < 1 / 3
        clock.advance(mutex.remaining / 2)
        proxy.wait(2, "renew")
        until(lambda: mutex.remaining > 0.8)
        goes_on.set()


def test_answer_of_another_endpoint_moves_no_renewal(engine, table, here, dates, clock):
    with net.fault_proxy(engine) as proxy, Mutex.for_key("k", model=here, lease=1.0) as mutex:
        other, there = Dates(proxy, dates.now - 1), through(proxy, table)
        due = mutex._latest.whole.due()
        for _ in range(3):
            begin_next_second(other, there)
        assert mutex._latest.whole.due() == due


@pytest.mark.parametrize("options", [{"auto_renew": False}, {"max_hold": 0.1}])
def test_lock_that_is_not_to_be_renewed_is_not_for_a_nearer_end(here, proxy, dates, clock, options):
    on_lost = OnLost()
    held(Mutex.for_key("k", model=here, lease=3.0, on_lost=on_lost, **options))
    time.sleep(1.1)  # beyond max_hold nothing is planned any more
    dates.now += 1
    begin_next_second(dates, here)
    until(lambda: clock.advance(0.01) or on_lost.calls)
    assert proxy.of("renew") == []


def test_lock_that_is_held_for_longer_than_max_hold_is_logged_once(here, clock, caplog):
    on_lost = OnLost()
    held(Mutex.for_key("k", model=here, lease=3.0, on_lost=on_lost, max_hold=0.1))
    until(lambda: clock.advance(0.01) or on_lost.calls)
    (record,) = (each for each in caplog.records if ": not renewed" in each.getMessage())
    said = "'k' is held for more than 0.1 s: not renewed"
    assert (record.getMessage(), record.lock_key) == (said, "k")


# -- writes of rows --------------------------------------------------------------------------------


def end_of(seen, name="expires_at"):
    """The end that an acquisition, a renewal or a save asks for."""
    if seen.op == "PutItem":
        return float(seen.body["Item"][name]["N"])
    names = {name: short for short, name in seen.body["ExpressionAttributeNames"].items()}
    placeholder = re.search(rf"{names[name]} = (:\w+)", seen.body["UpdateExpression"])[1]
    return float(seen.body["ExpressionAttributeValues"][placeholder]["N"])


def ends_written(row_scene):
    """The ends in the requests that were applied, each later than the one before it."""
    seen = [each for each in row_scene.proxy.of("acquire", "renew", "PutItem") if each.applied]
    ends = [end_of(each, "lock_expires_at") for each in seen]
    assert ends == sorted(set(ends))
    return ends


@pytest.mark.parametrize(
    ("faults", "applied"),
    [
        (lambda renew: [after(renew)], [False, True]),
        (lambda renew: [net.drop_request(), after(renew)], [False, False, True]),
        (lambda renew: [drop_answer(then=renew)], [True, False]),
        (lambda renew: [net.apply_then_500(then=renew)], [True, False]),
        (lambda renew: [net.late(), after(renew)], [False, True]),
    ],
)
def test_save_that_meets_a_renewal_is_applied_once(row_scene, faults, applied):
    """Repeated, if the renewal was sent later and comes first; else recognised. What the network kept lands in vain."""
    with row_scene.lock() as row:
        faults = faults(row.row_lock.renew)
        row_scene.proxy.next(*faults, op="PutItem")
        save(row)
        assert row_scene.applied("PutItem") == applied
        assert row_scene.row.balance == 1
        assert place_of(row_scene.row.lock_writes, row.row_lock) == 1
        _, _, end = ends_written(row_scene)
        assert row_scene.row.lock_expires_at == end
        assert row.is_locked
        for kept in faults:
            if isinstance(kept, net.Late):
                assert_changes_nothing(row_scene, kept)


def test_renewal_that_meets_a_save_sent_later_is_no_loss(row_scene):
    row = row_scene.locked()
    row_scene.proxy.next(after(lambda: save(row)), op="renew")
    row.row_lock.renew()
    assert row_scene.row.balance == 1
    assert ends_written(row_scene)
    assert row.is_locked


@pytest.mark.parametrize("write", [update, delete])
def test_other_writes_do_not_mind_a_renewal(row_scene, write):
    row, op = row_scene.locked(), row_scene.op(write.__name__)
    row_scene.proxy.next(after(row.row_lock.renew), op=op)
    write(row)
    assert row_scene.applied(op) == [True]


def test_save_renews_unless_beyond_max_hold_and_update_does_not(row_scene, clock):
    row = row_scene.locked(auto_renew=False, max_hold=25)
    lock = row.row_lock
    clock.advance(20)
    update(row)
    assert lock.remaining < 10
    before = row_scene.row.lock_expires_at
    save(row)
    assert lock.remaining > 28
    assert row_scene.row.lock_expires_at > before
    clock.advance(10)
    left = lock.remaining
    save(row)
    assert lock.remaining <= left
    assert row_scene.row.balance == 3


@pytest.mark.parametrize("fault", [drop_answer, net.drop_request])
def test_save_that_is_repeated_renews_no_further_than_what_was_applied(row_scene, fault):
    row = row_scene.locked(auto_renew=False)
    row_scene.proxy.next(fault(then=lambda: time.sleep(20)), op="PutItem")
    save(row)
    # the repeat of the one that was applied was refused, so it brought nothing
    assert (row.row_lock.remaining < 10) is (fault is drop_answer)
    assert (row.row_lock.remaining > 25) is (fault is net.drop_request)


@pytest.mark.parametrize("write", [save, update])
def test_saves_that_come_often_renew_and_updates_do_not(row_scene, write):
    row = row_scene.locked()
    for _ in range(5):  # more than two renewals' time
        time.sleep(5)
        write(row)
    assert (row_scene.proxy.of("renew") == []) == (write is save)


@every_write
@pytest.mark.parametrize("first", ["write", "renewal"])
def test_renewal_that_meets_a_write_that_unlocks_is_no_loss(row_scene, write, first):
    lost = []
    row = row_scene.locked(on_lost=lost.append, auto_renew=False)
    lock = row.row_lock
    renew = partial(send_renewal, lock._latest)
    unlock = partial(write, row, **({} if write is delete else {"unlock": True}))
    if first == "write":
        # applied, and its answer has not come yet
        row_scene.proxy.next(drop_answer(then=renew), op=row_scene.op(write.__name__))
        unlock()
    else:
        row_scene.proxy.next(after(unlock), op="renew")
        renew()
    assert row_scene.applied("renew") == [False]
    assert row_scene.is_free
    assert not lock.lost
    time.sleep(0.2)
    assert lost == []


def test_hung_renewal_delays_no_save(row_scene):
    answered = threading.Event()
    row = row_scene.locked()
    row_scene.proxy.next(net.stall(answered), op="renew")
    row_scene.proxy.wait(1, "renew")
    save(row)
    assert row.row_lock._latest.whole.renewals_under_way
    answered.set()
    assert row_scene.row.balance == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_lock_is_renewed_while_the_receiver_of_its_acquisition_is_slow(table, is_async):
    """Also if it is the first of the process, and the renewal loop does not run yet."""

    async def hold():
        async with AsyncMutex.for_key("a", lease=3) as mutex:
            assert mutex.held

    with signals.acquired.connected_to(lambda *_, **__: time.sleep(10), LockItem):
        if is_async:
            asyncio.run(hold())
            return
        with Mutex.for_key("a", lease=3) as mutex:
            assert mutex.held
