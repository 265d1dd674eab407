"""Several row locks over a bad network, and what the loss of one of them is."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from pynamodb.exceptions import GetError, TransactWriteError
from row_scene import TRANSACT, Account, Rows, RowScene, add_to_all, add_unread, update
from scene import Lose, lost_in_two_ways

from dev.faultproxy import (
    FaultProxy,
    after,
    deny,
    drop_answer,
    drop_request,
    fault_proxy,
    server_error,
    throttle,
    through,
)
from pynamodb_mutex import MutexLostError
from pynamodb_mutex.exceptions import Loss

# -- lost answers ----------------------------------------------------------------------------------


@lost_in_two_ways
@pytest.mark.parametrize("times", [1, 3])
def test_answer_to_the_locking_lost(rows: Rows, lose: Lose, times: int) -> None:
    rows.scene.proxy.next(*[lose() for _ in range(times)], op=TRANSACT)
    with rows.locks() as locked:
        assert rows.scene.applied(TRANSACT) == [True] + [False] * times
        assert not any(rows.free())
        add_to_all(locked)
    assert rows.balances == [1, 1, 1]


@lost_in_two_ways
@pytest.mark.parametrize("unlock", [True, False])
def test_answer_to_the_transaction_lost(rows: Rows, lose: Lose, unlock: bool) -> None:
    with rows.locks() as locked:
        rows.scene.proxy.next(lose(), lose(), op=TRANSACT)
        add_unread(rows, locked, unlock=unlock)
        assert rows.scene.applied(TRANSACT) == [True, True, False, False]
    assert rows.balances == [1, 1, 1]
    assert all(rows.free())


@lost_in_two_ways
def test_answer_to_the_release_lost(rows: Rows, lose: Lose) -> None:
    locks = rows.locks()
    assert locks.acquire()
    rows.scene.proxy.next(lose(), op=TRANSACT)
    locks.release()
    assert all(rows.free())
    assert not locks.lost


def test_locking_that_is_given_up_leaves_nothing_locked(rows: Rows) -> None:
    rows.scene.proxy.next(drop_answer(), deny(), op=TRANSACT)
    locks = rows.locks()
    with pytest.raises(TransactWriteError):
        locks.acquire()
    assert not locks.held
    assert all(rows.free())


def test_renewal_leaves_to_the_unlocking_write_what_becomes_of_the_claims(rows: Rows) -> None:
    locks = rows.locks(lease=20)
    assert locks.acquire()
    rows.scene.proxy.next(after(locks.renew), op=TRANSACT)
    add_unread(rows, locks)
    assert rows.scene.applied(TRANSACT) == [True, True]
    assert not locks.lost
    assert all(rows.free())


# -- losses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 2])
def test_loss_of_one_refuses_the_whole_transaction(rows: Rows, place: int) -> None:
    lost: list[Any] = []
    told = threading.Event()

    def on_lost(lock: Any) -> None:
        lost.append(lock)
        told.set()

    locks = rows.locks(auto_renew=False, on_lost=on_lost)
    assert locks.acquire()
    other = rows.forced_and_taken(place)
    assert locks.held  # it cannot know
    with pytest.raises(MutexLostError) as raised:
        add_unread(rows, locks)
    assert raised.value.applied is False
    assert raised.value.loss is locks.loss is Loss.TAKEN
    assert raised.value.key == other.key
    assert not locks.held
    assert rows.balances == [0, 0, 0]
    assert told.wait(60)
    with pytest.raises(MutexLostError):
        locks.release()
    # its own are released, the other's is not
    assert rows.free() == [at != place for at in range(3)]
    assert other.held
    time.sleep(0.1)
    assert len(lost) == 1
    other.release()


@pytest.mark.real
def test_loss_of_one_refuses_the_write_of_another(rows: Rows) -> None:
    locks = rows.locks(auto_renew=False)
    assert locks.acquire()
    first, second, _ = locks._rows_of(locks._current("rows"))
    rows.forced_and_taken(1)
    # the claim of the first stands, but what belongs together would be torn apart
    for row in (second, first):
        with pytest.raises(MutexLostError):
            update(row)
    assert rows.balances == [0, 0, 0]


def test_loss_of_one_is_reported_at_the_release(rows: Rows) -> None:
    locks = rows.locks(auto_renew=False)
    assert locks.acquire()
    rows.forced_and_taken(1)
    with pytest.raises(MutexLostError):
        locks.release()
    assert rows.free() == [True, False, True]


def test_not_applied_and_then_lost_before_the_repeat_is_unknown(rows: Rows) -> None:
    locks = rows.locks()
    assert locks.acquire()
    fault = drop_request(then=lambda: rows.forced_and_taken(1))
    rows.scene.proxy.next(fault, op=TRANSACT)
    with pytest.raises(MutexLostError) as raised:
        add_unread(rows, locks)
    assert raised.value.applied is None
    assert rows.balances == [0, 0, 0]


def test_throttled_and_then_lost_is_not_applied(rows: Rows) -> None:
    locks = rows.locks()
    assert locks.acquire()
    rows.scene.proxy.next(throttle(), after(lambda: rows.forced_and_taken(2)), op=TRANSACT)
    with pytest.raises(MutexLostError) as raised:
        add_unread(rows, locks)
    assert raised.value.applied is False


@lost_in_two_ways
@pytest.mark.parametrize("unlock", [True, False])
def test_applied_and_one_lost_before_the_repeat(rows: Rows, lose: Lose, unlock: bool) -> None:
    locks = rows.locks()
    assert locks.acquire()
    take = (lambda: rows.taken(1)) if unlock else (lambda: rows.forced_and_taken(1))
    first, second, third = locks._rows_of(locks._current("rows"))
    with locks.transaction(unlock=unlock) as transaction:
        for row in (first, second, third):
            row.balance += 1
            transaction.save(row)
        rows.scene.proxy.next(lose(then=take), op=TRANSACT)
    # the others show that it was applied
    assert rows.balances == [1, 1, 1]
    assert rows.scene.applied(TRANSACT) == [True, True, False]
    assert locks.lost is not unlock
    assert not locks.held
    assert not first.is_locked
    if not unlock:
        assert locks.loss is Loss.TAKEN
        with pytest.raises(MutexLostError):
            locks.release()
    assert rows.free() == [True, False, True]


def test_row_that_is_gone_proves_nothing_next_to_one_that_was_not_written(
    row_scene: RowScene,
) -> None:
    any_scene = row_scene
    rows = Rows(any_scene)
    locks = rows.locks()
    assert locks.acquire()
    any_scene.proxy.next(
        drop_request(then=lambda: any_scene.old(rows.keys[0]).delete()), op=TRANSACT
    )
    transaction = locks.transaction()
    transaction.delete(any_scene.here(rows.keys[0]))
    transaction.update(any_scene.here(rows.keys[1]), [any_scene.here.balance.add(1)])
    with pytest.raises(MutexLostError) as raised, transaction:
        pass
    assert raised.value.applied is None
    assert any_scene.there.get(rows.keys[1], consistent_read=True).balance == 0


def knows_nothing(any_scene: RowScene, proxy: FaultProxy) -> type[Account]:
    """Return a client that has had no answer yet."""
    fresh = through(proxy, any_scene.there)
    if any_scene.in_table:
        fresh.lock_model = through(proxy, any_scene.locks)
    return fresh


def test_client_that_knows_nothing_yet_claims_no_longer_than_its_lease(
    rows: Rows,
) -> None:
    # an end in server time is what frees a dead holder's rows for whoever comes first
    any_scene = rows.scene
    with fault_proxy(any_scene.engine) as proxy:
        fresh = knows_nothing(any_scene, proxy)
        locks = fresh.locked_all(rows.keys, lease=20, auto_renew=False)
        assert locks.acquire()
        assert locks.held
        assert proxy.kinds() == ["BatchGetItem", TRANSACT]
        for key in rows.keys:
            at = replace(any_scene, key=key)
            assert float(at.claim["expires_at"]["N"]) < time.time() + 60
        locks.release()


def test_client_that_knows_nothing_and_reaches_nothing_says_so(rows: Rows) -> None:
    with fault_proxy(rows.scene.engine) as proxy:
        fresh = knows_nothing(rows.scene, proxy)
        proxy.always(server_error())
        with pytest.raises(GetError, match="BatchGetItem failed"):
            fresh.locked_all(rows.keys).acquire(blocking=False)
        assert set(proxy.kinds()) == {"BatchGetItem"}
