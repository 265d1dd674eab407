"""What a process writes, takes and believes after a time without an answer from DynamoDB."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from typing import Any

import pytest
from scene import Scene

from dev.faultproxy import FaultProxy, fault_proxy, set_date, through
from pynamodb_mutex import LockItem, Mutex
from pynamodb_mutex.testing import FakeClock

NOW = 1_800_000_000.0
DAY = 86_400.0


class Idle:
    """A client whose clock is moved by hand, as is the time that its answers show.

    Attributes:
        model: Its table.
        proxy: On its way.
        clock: Its local clock.
    """

    def __init__(self, scene: Scene, proxy: FaultProxy, clock: FakeClock) -> None:
        self.model: type[LockItem] = through(proxy, scene.there)
        self.proxy, self.clock = proxy, clock
        self.server_time = NOW
        with self.lock(f"{scene.key}-before"):
            pass
        proxy.log.clear()

    def rest(self, seconds: float, *, lasts: float = 1.0) -> None:
        """Send nothing for so many seconds of its clock, each of which lasts so many true ones."""
        self.clock.advance(seconds)
        self.server_time += seconds * lasts

    def lock(self, key: str, **options: Any) -> Mutex:
        return Mutex.for_key(
            key, model=self.model, **{"auto_renew": False, "timeout": 0, **options}
        )


@pytest.fixture
def idle(scene: Scene) -> Iterator[Idle]:
    with FakeClock() as clock, fault_proxy(scene.engine) as proxy:
        client = None

        def date(_: str) -> str:
            return formatdate(NOW if client is None else client.server_time, usegmt=True)

        proxy.always(set_date(date))
        client = Idle(scene, proxy, clock)
        yield client


@contextmanager
def newcomer(scene: Scene, server_time: float) -> Iterator[type[LockItem]]:
    """Make a client that has had no answer yet."""
    with fault_proxy(scene.engine) as proxy:
        proxy.always(set_date(lambda _: formatdate(server_time, usegmt=True)))
        yield through(proxy, scene.there)


# -- the end that it writes ------------------------------------------------------------------------


@pytest.mark.parametrize("lease", [1.0, 30.0, 600.0])
@pytest.mark.parametrize("lasts", [0.99, 0.9999, 1.01])
@pytest.mark.parametrize("seconds", [20.0, 3600.0, DAY])
def test_lock_taken_after_an_idle_time_ends_in_time_and_is_held_meanwhile(
    scene: Scene, idle: Idle, seconds: float, lasts: float, lease: float
) -> None:
    idle.rest(seconds, lasts=lasts)
    mutex = idle.lock(scene.key, lease=lease)
    assert mutex.acquire()
    assert mutex.remaining >= lease / 2
    assert scene.row.expires_at <= idle.server_time + lease + 1.302
    dead = idle.server_time + 1.01 * lease + 2.5
    with newcomer(scene, dead) as model:
        assert Mutex.for_key(scene.key, model=model).acquire(blocking=False)


def test_lock_taken_after_a_short_idle_time_costs_no_request_more(scene: Scene, idle: Idle) -> None:
    idle.rest(24 * 30.0)
    with idle.lock(scene.key):
        pass
    assert idle.proxy.kinds() == ["acquire", "release"]


def test_process_reads_the_row_before_it_takes_a_lock_after_a_long_idle_time(
    scene: Scene, idle: Idle
) -> None:
    idle.rest(26 * 30.0)
    with idle.lock(scene.key):
        pass
    assert idle.proxy.kinds() == ["GetItem", "acquire", "release"]


def test_process_reads_the_rows_before_it_takes_several_locks_after_a_long_idle_time(
    scene: Scene, idle: Idle
) -> None:
    options = {"model": idle.model, "auto_renew": False, "timeout": 0}
    for seconds, kinds in ((24 * 30.0, []), (26 * 30.0, ["BatchGetItem"])):
        idle.rest(seconds)
        idle.proxy.log.clear()
        with Mutex.for_keys([scene.key, f"{scene.key}-b"], **options) as group:
            assert group.held
        assert idle.proxy.kinds() == [*kinds, "TransactWriteItems", "TransactWriteItems"]


def test_process_reads_the_row_before_it_attaches_after_a_long_idle_time(
    scene: Scene, idle: Idle
) -> None:
    with newcomer(scene, NOW + DAY) as model:
        giver = Mutex.for_key(scene.key, model=model, auto_renew=False)
        assert giver.acquire()
        ticket = giver.detach()
    idle.rest(DAY)
    mutex = Mutex.attach(ticket, model=idle.model, auto_renew=False)
    assert idle.proxy.kinds() == ["GetItem", "attach"]
    assert mutex.remaining > 28


# -- renewing after the lease has ended ------------------------------------------------------------


@pytest.mark.parametrize("seconds", [600.0, 7200.0, DAY])
def test_renewal_after_a_long_idle_time_wins_the_lock_back(
    scene: Scene, idle: Idle, seconds: float
) -> None:
    mutex = idle.lock(scene.key)
    assert mutex.acquire()
    idle.rest(seconds)
    assert mutex.lost
    mutex.renew()
    assert mutex.held
    assert mutex.remaining > 15
    mutex.release()


def test_renewal_of_several_after_a_long_idle_time_wins_them_back(scene: Scene, idle: Idle) -> None:
    keys = [scene.key, f"{scene.key}-b"]
    group = Mutex.for_keys(keys, model=idle.model, auto_renew=False)
    assert group.acquire()
    idle.rest(DAY)
    assert group.lost
    group.renew()
    assert group.remaining > 28
    group.release()


def test_ticket_of_a_lock_whose_clock_stood_still_is_good_for_its_lease(
    scene: Scene, idle: Idle
) -> None:
    mutex = idle.lock(scene.key)
    assert mutex.acquire()
    idle.server_time += 3600
    ticket = mutex.detach()
    with newcomer(scene, NOW + 3600 + 25) as model:
        assert Mutex.attach(ticket, model=model, auto_renew=False).held


# -- a dead holder's lock --------------------------------------------------------------------------


def test_idle_newcomer_that_does_not_wait_takes_a_dead_holders_lock(
    scene: Scene, idle: Idle
) -> None:
    lease = 30.0
    # what it knows of server time is behind by 2 % of this, and yet it reads no row first
    idle.rest(600, lasts=1.01)
    with newcomer(scene, idle.server_time) as model:
        dies = Mutex.for_key(scene.key, model=model, lease=lease, auto_renew=False)
        assert dies.acquire()
    idle.rest(1.01 * lease + 2.5)
    assert idle.lock(scene.key).acquire(blocking=False)
    assert idle.proxy.kinds() == ["acquire", "acquire"]


def test_item_is_not_held_when_its_claim_has_ended_however_long_the_process_was_idle(
    scene: Scene, idle: Idle
) -> None:
    idle.rest(DAY)
    with newcomer(scene, idle.server_time - 34) as model:
        assert Mutex.for_key(scene.key, model=model, auto_renew=False).acquire()
    item = idle.model.get(scene.key)
    assert not item.is_held
    assert idle.proxy.kinds() == ["GetItem", "GetItem"]  # the first is PynamoDB's


def test_idle_newcomer_does_not_take_a_live_holders_lock(scene: Scene, idle: Idle) -> None:
    with newcomer(scene, NOW) as model:
        lives = Mutex.for_key(scene.key, model=model, auto_renew=False)
        assert lives.acquire()
    idle.rest(30)
    assert not idle.lock(scene.key).acquire(blocking=False)
    assert idle.proxy.kinds() == ["acquire"]
