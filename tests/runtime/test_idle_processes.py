"""What a process writes, takes and believes after a time without an answer from DynamoDB."""

from contextlib import contextmanager
from email.utils import formatdate
from functools import partial

import pytest

from dev.faultproxy import fault_proxy, set_date, through
from pynamodb_mutex import Mutex

NOW = 1_800_000_000.0
DAY = 86_400.0


class Idle:
    """A client whose clock is moved by hand, as is the time that its answers show.

    Attributes:
        model: Its table; `proxy` is on its way.
    """

    def __init__(self, scene, proxy, clock):
        self.model, self.proxy, self.clock = through(proxy, scene.there), proxy, clock
        self.server_time = NOW
        proxy.always(set_date(lambda _: formatdate(self.server_time, usegmt=True)))
        with self.lock(f"{scene.key}-before"):
            pass
        proxy.log.clear()

    def rest(self, seconds, *, lasts=1.0):
        """Send nothing for so many seconds of its clock, each of which lasts so many true ones."""
        self.clock.advance(seconds)
        self.server_time += seconds * lasts

    def lock(self, *keys, **options):
        options = {"model": self.model, "auto_renew": False, "timeout": 0, **options}
        return Mutex.for_keys(keys, **options) if keys[1:] else Mutex.for_key(*keys, **options)


@pytest.fixture
def idle(scene, clock):
    with fault_proxy(scene.engine) as proxy:
        yield Idle(scene, proxy, clock)


@contextmanager
def newcomer(scene, server_time):
    """Make a client that has had no answer yet; yield what makes its lock."""
    with fault_proxy(scene.engine) as proxy:
        proxy.always(set_date(lambda _: formatdate(server_time, usegmt=True)))
        yield partial(Mutex.for_key, scene.key, model=through(proxy, scene.there), auto_renew=False)


@pytest.mark.parametrize("lease", [1.0, 30.0, 600.0])
@pytest.mark.parametrize("lasts", [0.99, 0.9999, 1.01])
@pytest.mark.parametrize("seconds", [20.0, 3600.0, DAY])
def test_lock_taken_after_an_idle_time_ends_in_time_and_is_held_meanwhile(
    scene, idle, seconds, lasts, lease
):
    idle.rest(seconds, lasts=lasts)
    mutex = idle.lock(scene.key, lease=lease)
    assert mutex.acquire()
    assert mutex.remaining >= lease / 2
    assert scene.row.expires_at <= idle.server_time + lease + 1.302
    with newcomer(scene, idle.server_time + 1.01 * lease + 2.5) as lock:
        assert lock().acquire(blocking=False)


@pytest.mark.parametrize(
    ("several", "kinds"),
    [
        (False, ["GetItem", "acquire", "release"]),
        (True, ["BatchGetItem", "TransactWriteItems", "TransactWriteItems"]),
    ],
)
def test_process_reads_the_rows_first_only_after_a_long_idle_time(scene, idle, several, kinds):
    keys = [scene.key, f"{scene.key}-b"][: 1 + several]
    for seconds, reads in ((24 * 30.0, 0), (26 * 30.0, 1)):
        idle.rest(seconds)
        idle.proxy.log.clear()
        with idle.lock(*keys) as lock:
            assert lock.held
        assert idle.proxy.kinds() == kinds[1 - reads :]


def test_process_reads_the_row_before_it_attaches_after_a_long_idle_time(scene, idle):
    with newcomer(scene, NOW + DAY) as lock, lock() as giver:
        ticket = giver.detach()
    idle.rest(DAY)
    mutex = Mutex.attach(ticket, model=idle.model, auto_renew=False)
    assert idle.proxy.kinds() == ["GetItem", "attach"]
    assert mutex.remaining > 28


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("seconds", [600.0, 7200.0, DAY])
def test_renewal_after_a_long_idle_time_wins_the_lock_back(scene, idle, seconds, several):
    lock = idle.lock(*[scene.key, f"{scene.key}-b"][: 1 + several])
    assert lock.acquire()
    idle.rest(seconds)
    assert lock.lost
    lock.renew()
    assert lock.held
    assert lock.remaining > (28 if several and seconds == DAY else 15)
    lock.release()


def test_ticket_of_a_lock_whose_clock_stood_still_is_good_for_its_lease(scene, idle):
    mutex = idle.lock(scene.key)
    assert mutex.acquire()
    idle.server_time += 3600
    ticket = mutex.detach()
    with newcomer(scene, NOW + 3600 + 25) as lock:
        assert Mutex.attach(ticket, model=lock.keywords["model"], auto_renew=False).held


@pytest.mark.parametrize(("rests", "is_dead"), [(30.0, False), (1.01 * 30 + 2.5, True)])
def test_idle_newcomer_that_does_not_wait_takes_a_dead_holders_lock_only(
    scene, idle, rests, is_dead
):
    # what it knows of server time is behind by 2 % of this, and yet it reads no row first
    idle.rest(600, lasts=1.01)
    with newcomer(scene, idle.server_time) as lock:
        assert lock(lease=30).acquire()
    idle.rest(rests)
    assert idle.lock(scene.key).acquire(blocking=False) is is_dead
    assert idle.proxy.kinds() == ["acquire"] * (1 + is_dead)


def test_item_is_not_held_when_its_claim_has_ended_however_long_the_process_was_idle(scene, idle):
    idle.rest(DAY)
    with newcomer(scene, idle.server_time - 34) as lock:
        assert lock().acquire()
    assert not idle.model.get(scene.key).is_held
    assert idle.proxy.kinds() == ["GetItem", "GetItem"]  # the first is PynamoDB's
