"""Renewal: many locks on few threads, none that outlives its lock, and renewals next to guarded writes."""

import re
import threading
import time
from email.utils import formatdate

import pytest
from botocore.client import BaseClient
from driving import Driven, handle, send_renewal
from hearing import until
from row_scene import delete, every_write, save, update
from scene import held
from subjects import assert_changes_nothing

from dev.faultproxy import (
    Fault,
    Late,
    after,
    apply_then_500,
    drop_answer,
    drop_request,
    fault_proxy,
    late,
    set_date,
    stall,
    through,
)
from pynamodb_mutex import Mutex
from pynamodb_mutex._operations.renew import renew_in_background
from pynamodb_mutex._runtime.process import RENEWAL_WORKERS, current_process

LONG = 100.0
"""Seconds for which an answer is waited for: whoever waits for less does not wait for it."""


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


def test_200_locks_of_one_process_live_on_a_few_threads(table, monkeypatch):
    """With 30 ms added to each request."""
    original = BaseClient._make_api_call
    monkeypatch.setattr(
        BaseClient, "_make_api_call", lambda *args: time.sleep(0.03) or original(*args)
    )
    locks = [held(Mutex.for_key(f"lock-{i}", lease=20.0)) for i in range(200)]
    for _ in range(21):  # longer than a lease
        time.sleep(1)
        assert 0 < len(renewing_threads()) <= RENEWAL_WORKERS + 1
    assert all(mutex.held and not mutex.lost for mutex in locks)
    for mutex in locks:
        mutex.release()
    until(lambda: not renewing_threads())


def test_renewal_whose_turn_comes_when_the_lock_is_lost_is_not_sent(here, proxy, clock):
    mutex = held(Mutex.for_key("k", model=here, lease=30.0, auto_renew=False))
    renewal = Driven(renew_in_background(current_process(), [mutex._latest.together]))
    clock.advance(31)
    assert renewal.until_it_waits() is None
    assert proxy.of("renew") == []


def test_no_third_renewal_is_sent_while_two_hang(table, proxy):
    """An endpoint that answers nothing would else be sent more and more of them."""
    here, goes_on = through(proxy, table, read_timeout=LONG), threading.Event()
    with Mutex.for_key("k", model=here, lease=30.0) as mutex:
        proxy.next(stall(goes_on), stall(goes_on), op="renew")
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


class Dates:
    """The engine's answers with Dates that a test sets."""

    def __init__(self, proxy):
        self.now = 2_000_000_000
        proxy.always(set_date(lambda _: formatdate(self.now, usegmt=True)))


@pytest.fixture
def dates(proxy):
    return Dates(proxy)


def test_renewal_of_a_short_lease_comes_before_an_end_that_came_nearer(here, proxy, dates, clock):
    """The acquisition was answered at the end of a second, another request at the start of the next."""
    on_lost = []
    mutex = Mutex.for_key("k", model=here, lease=1.0, on_lost=on_lost.append)
    assert mutex.acquire()
    assert mutex.remaining > 0.9
    dates.now += 1
    assert not Mutex.for_key("another", model=here).locked()
    assert 0.2 < mutex.remaining < 0.3
    assert proxy.of("renew") == []
    clock.advance(0.1)
    proxy.wait(1, "renew")
    until(lambda: mutex.remaining > 0.9)
    assert on_lost == []
    mutex.release()


def test_renewal_that_follows_one_that_hangs_comes_nearer_with_the_end(table, proxy, dates, clock):
    here, goes_on = through(proxy, table, read_timeout=LONG), threading.Event()
    mutex = Mutex.for_key("k", model=here, lease=1.0)
    assert mutex.acquire()
    proxy.next(stall(goes_on), op="renew")
    clock.advance(0.34)
    proxy.wait(1, "renew")
    dates.now += 1
    assert not Mutex.for_key("another", model=here).locked()
    # the next was planned a third of the lease after the one that hangs: too late now
    assert mutex.remaining < 1 / 3
    clock.advance(mutex.remaining / 2)
    proxy.wait(2, "renew")
    until(lambda: mutex.remaining > 0.8)
    goes_on.set()
    mutex.release()


def test_answer_of_another_endpoint_moves_no_renewal(engine, table, here, dates, clock):
    with fault_proxy(engine) as other_proxy:
        other = Dates(other_proxy)
        there = through(other_proxy, table)
        mutex = Mutex.for_key("k", model=here, lease=1.0)
        assert mutex.acquire()
        due = mutex._latest.together.due()
        for _ in range(3):
            assert not Mutex.for_key("another", model=there).locked()
            other.now += 1
        assert mutex._latest.together.due() == due
        mutex.release()


@pytest.mark.parametrize("options", [{"auto_renew": False}, {"max_hold": 0.1}])
def test_lock_that_is_not_to_be_renewed_is_not_for_an_end_that_came_nearer(
    here, proxy, dates, clock, options
):
    on_lost = threading.Event()
    mutex = Mutex.for_key("k", model=here, lease=1.0, on_lost=lambda _: on_lost.set(), **options)
    assert mutex.acquire()
    clock.advance(0.2)
    handle(mutex._latest, 0.5)  # beyond max_hold nothing is planned any more
    dates.now += 1
    assert not Mutex.for_key("another", model=here).locked()
    until(lambda: clock.advance(0.01) or on_lost.is_set())
    assert proxy.of("renew") == []


def end_of(seen, name="expires_at"):
    """The end that an acquisition or a renewal asks for."""
    names = {name: short for short, name in seen.body["ExpressionAttributeNames"].items()}
    placeholder = re.search(rf"{names[name]} = (:\w+)", seen.body["UpdateExpression"])[1]
    return float(seen.body["ExpressionAttributeValues"][placeholder]["N"])


def before_the_answer(act):
    """Applied, and answered after something else has happened."""

    def meet(exchange):
        reply = exchange.apply("before_the_answer")
        act()
        exchange.answer(reply)

    return Fault("before_the_answer", meet)


@pytest.mark.parametrize(("meet", "applied"), [(after, False), (before_the_answer, True)])
def test_renewal_under_way_does_not_revive_a_released_lock(table, here, proxy, meet, applied):
    mutex = Mutex.for_key("k", model=here)
    assert mutex.acquire()
    proxy.next(meet(mutex.release), op="renew")
    send_renewal(mutex._latest)
    assert [seen.applied for seen in proxy.of("renew")] == [applied]
    assert (mutex.held, mutex.lost) == (False, False)
    assert table.get("k", consistent_read=True).expires_at is None


def end_in_row(any_scene):
    return float(any_scene.claim["expires_at"]["N"])


def ends_written(any_scene):
    """The ends of the claim in the requests that were applied, in the engine's order."""
    return [
        float(seen.body["Item"]["lock_expires_at"]["N"])
        if seen.op == "PutItem"
        else end_of(seen, "lock_expires_at")
        for seen in any_scene.proxy.of("acquire", "renew", "PutItem")
        if seen.applied
    ]


@pytest.mark.parametrize(
    ("faults", "applied"),
    [
        (lambda renew: [after(renew)], [False, True]),
        (lambda renew: [drop_request(), after(renew)], [False, False, True]),
        (lambda renew: [drop_answer(then=renew)], [True, False]),
        (lambda renew: [apply_then_500(then=renew)], [True, False]),
        (lambda renew: [late(), after(renew)], [False, True]),
    ],
)
def test_save_that_meets_a_renewal_is_applied_once(row_scene, faults, applied):
    """Repeated, if the renewal was sent later and comes first; else recognised. What the network kept lands in vain."""
    with row_scene.lock() as row:
        faults = faults(row.row_lock.renew)
        row_scene.proxy.next(*faults, op="PutItem")
        save(row)
        assert row_scene.applied("PutItem") == applied
        assert (row_scene.row.balance, row_scene.writes) == (1, 1)
        ends = ends_written(row_scene)
        assert ends == sorted(set(ends))
        assert len(ends) == 3
        assert end_in_row(row_scene) == ends[-1]
        assert row.is_locked
        for kept in faults:
            if isinstance(kept, Late):
                assert_changes_nothing(row_scene, kept)


def test_renewal_that_meets_a_save_sent_later_is_no_loss(row_scene):
    row = row_scene.locked()
    row_scene.proxy.next(after(lambda: save(row)), op="renew")
    row.row_lock.renew()
    assert row_scene.row.balance == 1
    ends = ends_written(row_scene)
    assert ends == sorted(set(ends))
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
    before = end_in_row(row_scene)
    save(row)
    assert lock.remaining > 28
    assert end_in_row(row_scene) > before
    clock.advance(10)
    left = lock.remaining
    save(row)
    assert lock.remaining <= left
    assert row_scene.row.balance == 3


@pytest.mark.parametrize("fault", [drop_answer, drop_request])
def test_save_that_is_repeated_renews_no_further_than_what_was_applied(row_scene, fault):
    row = row_scene.locked(auto_renew=False)
    row_scene.proxy.next(fault(then=lambda: time.sleep(20)), op="PutItem")
    save(row)
    if fault is drop_answer:
        # its repeat was refused, so it brought nothing
        assert row.row_lock.remaining < 10
    else:
        assert row.row_lock.remaining > 25


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
    lock, op = row.row_lock, row_scene.op(write.__name__)

    def renew():
        send_renewal(lock._latest)

    def unlock():
        write(row, **({} if write is delete else {"unlock": True}))

    if first == "write":
        # applied, and its answer has not come yet
        row_scene.proxy.next(drop_answer(then=renew), op=op)
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
    row_scene.proxy.next(stall(answered), op="renew")
    row_scene.proxy.wait(1, "renew")
    save(row)
    assert row.row_lock._latest.together.renewals_under_way
    answered.set()
    assert row_scene.row.balance == 1
