"""What a process writes, takes and believes after a time without an answer from DynamoDB."""

from functools import partial

import pytest
from operations_by_hand import waiting
from sent_requests import DAY, NOW, Dates, another_process
from two_clients import held

from dev.faultproxy import no_date, through
from pynamodb_mutex import Mutex


class Idle(Dates):
    """A client whose clock is moved by hand, as is the server time that its answers show.

    Attributes:
        model: Its table.
        keys: One, or several, for tests of both.
    """

    def __init__(self, scene, proxy, clock):
        super().__init__(proxy)
        self.model, self.clock = through(proxy, scene.there), clock
        self.keys = [scene.key, f"{scene.key}-b"]
        with lock_of(self.model, f"{scene.key}-before"):
            pass
        proxy.log.clear()

    def rest(self, seconds, *, lasts=1.0):
        """Send nothing for so many seconds of its clock, each of which lasts so many true ones."""
        self.clock.advance(seconds)
        self.now += seconds * lasts


@pytest.fixture
def idle(scene, proxy, clock):
    return Idle(scene, proxy, clock)


def lock_of(client, *keys, **options):
    make = partial(Mutex.for_keys, keys) if keys[1:] else partial(Mutex.for_key, *keys)
    return make(model=client, auto_renew=False, timeout=0, **options)


@pytest.mark.parametrize("lease", [1.0, 30.0, 600.0])
@pytest.mark.parametrize("lasts", [0.99, 0.9999, 1.01])
@pytest.mark.parametrize("seconds", [20.0, 3600.0, DAY])
def test_lock_taken_after_an_idle_time_is_held_and_ends_in_time(scene, idle, seconds, lasts, lease):
    idle.rest(seconds, lasts=lasts)
    mutex = held(lock_of(idle.model, scene.key, lease=lease))
    assert mutex.remaining >= lease / 2
    assert scene.row.expires_at <= idle.now + lease + 1.302
    with another_process(scene, idle.now + 1.01 * lease + 2.5) as (newcomer, _):
        assert lock_of(newcomer, scene.key).acquire(blocking=False)


@pytest.mark.parametrize(
    ("several", "kinds"),
    [
        (False, ["GetItem", "acquire", "release"]),
        (True, ["BatchGetItem", "TransactWriteItems", "TransactWriteItems"]),
    ],
)
def test_process_reads_the_rows_first_only_after_a_long_idle_time(idle, several, kinds):
    for seconds, reads in ((24 * 30.0, 0), (26 * 30.0, 1)):
        idle.rest(seconds)
        idle.proxy.log.clear()
        with lock_of(idle.model, *idle.keys[: 1 + several]) as lock:
            assert lock.held
        assert idle.proxy.kinds() == kinds[1 - reads :]


def test_process_reads_the_row_before_it_attaches_after_a_long_idle_time(scene, idle):
    with another_process(scene, NOW + DAY) as (newcomer, _):
        ticket = held(lock_of(newcomer, scene.key)).detach()
    idle.rest(DAY)
    mutex = Mutex.attach(ticket, model=idle.model, auto_renew=False)
    assert idle.proxy.kinds() == ["GetItem", "attach"]
    assert mutex.remaining > 28


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("seconds", [600.0, 2400.0, 7200.0, DAY])
def test_renewal_after_a_long_idle_time_wins_the_lock_back(idle, seconds, several):
    lock = held(lock_of(idle.model, *idle.keys[: 1 + several]))
    idle.rest(seconds)
    assert lock.lost
    lock.renew()
    assert lock.held
    assert lock.remaining > (28 if several and seconds == DAY else 15)
    lock.release()


@pytest.mark.parametrize(("minutes", "kinds"), [(12, ["hand_over"]), (60, ["release", "acquire"])])
def test_lock_is_handed_over_only_if_the_next_lease_ends_in_time(idle, heard, minutes, kinds):
    holder = held(lock_of(idle.model, heard.key, lease=DAY))
    idle.rest(minutes * 60)
    waiter = lock_of(idle.model, heard.key)
    waits = waiting(waiter)
    holder.release()
    assert waits.wake() is None
    assert idle.proxy.kinds() == ["acquire", *kinds]
    assert waiter.remaining > 15
    assert idle.model.get(heard.key).expires_at <= idle.now + 30 + 1.302
    assert "lost" not in heard.names


def test_ticket_of_a_lock_whose_clock_stood_still_is_good_for_its_lease(scene, idle):
    mutex = held(lock_of(idle.model, scene.key))
    idle.now += 3600
    ticket = mutex.detach()
    with another_process(scene, NOW + 3600 + 25) as (newcomer, _):
        assert Mutex.attach(ticket, model=newcomer, auto_renew=False).held


def test_claim_that_began_without_server_time_ends_by_it_once_a_renewal_has_shown_it(
    scene, proxy, clock
):
    here = through(proxy, scene.there)
    proxy.always(no_date())
    mutex = held(lock_of(here, scene.key))
    proxy.clear()
    dates = Dates(proxy)
    mutex.renew()
    # the holder's machine is suspended, and a waiter has watched the row for the lease: its end is far off
    dates.now += 60
    assert mutex.held
    assert not lock_of(here, f"{scene.key}-b").locked()
    assert not mutex.held


@pytest.mark.parametrize(("rests", "is_dead"), [(30.0, False), (1.01 * 30 + 2.5, True)])
def test_idle_newcomer_takes_a_dead_holders_lock_only_without_a_wait(scene, idle, rests, is_dead):
    # what it knows of server time is behind by 2 % of this, and yet it reads no row first
    idle.rest(600, lasts=1.01)
    with another_process(scene, idle.now) as (newcomer, _):
        held(lock_of(newcomer, scene.key, lease=30))
    idle.rest(rests)
    assert lock_of(idle.model, scene.key).acquire(blocking=False) is is_dead
    assert idle.proxy.kinds() == ["acquire"] * (1 + is_dead)


def test_item_is_not_held_when_its_claim_has_ended_however_long_the_process_was_idle(scene, idle):
    idle.rest(DAY)
    with another_process(scene, idle.now - 34) as (newcomer, _):
        held(lock_of(newcomer, scene.key))
    assert not idle.model.get(scene.key).is_held
    assert idle.proxy.kinds() == ["GetItem", "GetItem"]  # the first is PynamoDB's
