"""Renewal in the background: many locks on few threads, and none that outlives its lock."""

import re
import threading
import time
from email.utils import formatdate

import pytest
from driving import handle
from hearing import until
from worker import workers

from dev.faultproxy import Fault, after, fault_proxy, late, set_date, stall, through
from pynamodb_mutex import Mutex
from pynamodb_mutex._runtime.process import RENEWAL_WORKERS
from pynamodb_mutex.testing import FakeClock

GENEROUS = 60.0
LONG = 100.0
"""Seconds for which an answer is waited for: whoever waits for less does not wait for it."""


@pytest.fixture
def proxy(engine):
    with fault_proxy(engine) as proxy:
        yield proxy


@pytest.fixture
def here(proxy, table):
    return through(proxy, table)


MANY = """
import http.client
from concurrent.futures import ThreadPoolExecutor
from threading import active_count

at_once = http.client.HTTPConnection.getresponse
def later(*args, **kwargs):
    time.sleep(0.03)
    return at_once(*args, **kwargs)
http.client.HTTPConnection.getresponse = later

locks = [Mutex.for_key(f"lock-{i}", lease=20.0) for i in range(500)]
def all_of_them(do):
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(do, locks))
"""


@pytest.mark.real("local")  # the faster one: it takes 30 s
@pytest.mark.alone
def test_500_locks_of_one_process_live_on_a_few_threads(table):
    """With 30 ms added to each request."""
    with workers(0.0) as (holder,):
        holder.ask(MANY)
        assert all(holder.ask("all_of_them(Mutex.acquire)"))
        for _ in range(21):  # longer than a lease
            time.sleep(1)
            assert holder.ask("active_count()") <= 12
        assert holder.ask("sum(m.held and not m.lost for m in locks)") == 500
        holder.ask("all_of_them(Mutex.release)")
        until(lambda: holder.ask("active_count()") == 1)


def test_a_renewal_that_waited_until_the_lock_was_lost_is_not_sent(table, proxy, clock):
    goes_on, told = threading.Event(), threading.Event()
    proxy.always(stall(goes_on), op="renew")
    here = through(proxy, table, read_timeout=LONG)
    for i in range(RENEWAL_WORKERS):
        assert Mutex.for_key(f"hangs-{i}", model=here, lease=300.0).acquire(blocking=False)
    clock.advance(101)
    proxy.wait(RENEWAL_WORKERS, "renew")
    waits = Mutex.for_key("waits", model=here, lease=30.0, on_lost=lambda _: told.set())
    assert waits.acquire(blocking=False)
    clock.advance(11)
    until(lambda: waits._latest.together.is_queued)
    clock.advance(20)
    assert told.wait(GENEROUS)
    with Mutex.for_key("lives", model=here, lease=30.0) as lives:
        clock.advance(11)
        until(lambda: lives._latest.together.is_queued)  # behind that one
        proxy.clear()
        goes_on.set()
        until(lambda: any(key_of(seen) == "lives" for seen in proxy.of("renew")))
    assert not any(key_of(seen) == "waits" for seen in proxy.of("renew"))


def key_of(seen):
    return seen.body["Key"]["key"]["S"]


def test_a_renewal_that_arrives_after_a_later_one_leaves_the_later_end(table, here, proxy):
    with Mutex.for_key("k", model=here, lease=30.0) as mutex:
        # on its way, it is overtaken by another
        proxy.next(after(mutex.renew), op="renew")
        mutex.renew()
        assert mutex.held
        later, overtaken = proxy.of("renew")
        assert (later.applied, overtaken.applied) == (True, False)
        assert table.get("k").expires_at == end_of(later)
        assert end_of(overtaken) < end_of(later)


def test_a_renewal_that_meets_a_later_end_of_another_hand_goes_beyond_it(table, here, proxy):
    with Mutex.for_key("k", model=here, lease=30.0) as mutex:
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


@pytest.fixture
def clock():
    with FakeClock() as clock:
        yield clock


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
    here = through(proxy, table, read_timeout=LONG)
    mutex = Mutex.for_key("k", model=here, lease=1.0)
    assert mutex.acquire()
    hanging = Hanging()
    proxy.next(hanging, op="renew")
    clock.advance(0.34)
    assert hanging.came.wait(GENEROUS)
    dates.now += 1
    assert not Mutex.for_key("another", model=here).locked()
    # the next was planned a third of the lease after the one that hangs: too late now
    assert mutex.remaining < 1 / 3
    clock.advance(mutex.remaining / 2)
    proxy.wait(1, "renew")
    until(lambda: mutex.remaining > 0.8)
    hanging.goes_on.set()
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


def end_of(seen):
    """The end that a renewal asks for."""
    (name,) = [
        n for n, name in seen.body["ExpressionAttributeNames"].items() if name == "expires_at"
    ]
    placeholder = re.search(rf"{name} = (:\w+)", seen.body["UpdateExpression"])[1]
    return float(seen.body["ExpressionAttributeValues"][placeholder]["N"])


def renewing_threads():
    return {t for t in threading.enumerate() if t.name.startswith("pynamodb-mutex")}


def test_short_locks_share_one_thread(table):
    seen = set()
    for i in range(30):
        with Mutex.for_key(f"k{i % 3}", lease=30.0):
            seen |= renewing_threads() - LEFT_OVER
    # workers may still renew what a test before left behind
    assert len([thread for thread in seen if thread.name == "pynamodb-mutex-renewer"]) == 1


LEFT_OVER: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def left_over():
    LEFT_OVER.clear()
    LEFT_OVER.update(renewing_threads())


def test_without_renewal_or_on_lost_there_is_no_thread(table):
    with Mutex.for_key("k", auto_renew=False):
        assert renewing_threads() <= LEFT_OVER


def test_a_lock_outlives_its_lease_as_long_as_it_is_renewed(table, here, proxy, clock):
    with Mutex.for_key("k", model=here, lease=30.0) as mutex:
        before = table.get("k", consistent_read=True)
        for _ in range(6):  # each third of the lease
            clock.advance(10)
            until(lambda: mutex.remaining > 25)
        after = table.get("k", consistent_read=True)
        assert after.expires_at > before.expires_at
        assert after.ttl >= before.ttl
        assert (after.token, after.version) == (before.token, before.version)
        assert len(proxy.of("renew")) == 6


class Hanging(Fault):
    """Reaches the engine when the test says so, and is answered then."""

    def __init__(self):
        super().__init__("hanging", self._keep)
        self.came, self.goes_on = threading.Event(), threading.Event()

    def _keep(self, exchange):
        self.came.set()
        self.goes_on.wait(GENEROUS)
        exchange.answer(exchange.apply(self.name))


def test_a_renewal_under_way_does_not_revive_a_released_lock(table, proxy, clock):
    here = through(proxy, table, read_timeout=LONG)
    hanging = Hanging()
    proxy.next(hanging, op="renew")
    mutex = Mutex.for_key("k", model=here, lease=30.0)
    assert mutex.acquire()
    clock.advance(11)
    assert hanging.came.wait(GENEROUS)
    mutex.release()
    hanging.goes_on.set()
    (renewal,) = proxy.wait(1, "renew")
    assert not renewal.applied
    assert not mutex.held
    assert not mutex.lost
    assert table.get("k", consistent_read=True).expires_at is None


def test_a_renewal_answered_after_the_release_does_not_either(table, proxy, clock):
    here = through(proxy, table, read_timeout=LONG)
    came, goes_on = threading.Event(), threading.Event()

    def meet(exchange):
        reply = exchange.apply("late answer")
        came.set()
        goes_on.wait(GENEROUS)
        exchange.answer(reply)

    proxy.next(Fault("late answer", meet), op="renew")
    mutex = Mutex.for_key("k", model=here, lease=30.0)
    assert mutex.acquire()
    clock.advance(11)
    assert came.wait(GENEROUS)
    mutex.release()
    goes_on.set()
    for _ in range(20):
        time.sleep(0.02)
        assert not mutex.held
    assert table.get("k", consistent_read=True).expires_at is None


def test_a_renewal_that_the_network_kept_does_not_touch_the_next_holder(table, here, proxy, clock):
    kept = late()
    proxy.next(kept, op="renew")
    mutex = Mutex.for_key("k", model=here, lease=30.0)
    assert mutex.acquire()
    clock.advance(11)
    assert kept.caught.wait(GENEROUS)
    mutex.release()
    with Mutex.for_key("k") as other:
        before = table.get("k", consistent_read=True)
        assert kept.apply().error == "ConditionalCheckFailedException"
        after = table.get("k", consistent_read=True)
        assert after.token == other.token
        assert after.expires_at == before.expires_at
