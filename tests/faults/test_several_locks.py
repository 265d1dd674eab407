"""Locks that are held together: renewals, losses and writes of several keys or rows over a bad network.

What they have in common with a single lock is in test_repeated_requests.py, test_errors.py and
test_loss.py.
"""

import time
from dataclasses import replace

import pytest
from operations_by_hand import Driven
from pynamodb.exceptions import TransactWriteError
from row_models import add_unread, save, update
from sent_requests import TRANSACT, kinds, that
from signal_receivers import OnLost, hearing
from two_clients import Keys, Rows, held

from dev import faultproxy as net
from dev.faultproxy import (
    apply_then_500,
    delay_answer,
    drop_answer,
    drop_request,
    stall,
    throttle,
)
from pynamodb_mutex import Loss, Mutex, MutexLostError
from pynamodb_mutex._lock.operations.renew import renew_in_background

in_two_ways = pytest.mark.parametrize("lose", [drop_answer, apply_then_500])

# -- renewal ---------------------------------------------------------------------------------------


def test_renewal_that_meets_a_later_end_goes_beyond_it(keys):
    there = keys.scene.there
    with keys.group(lease=20, auto_renew=False) as group:
        far = keys.ends[1] + 100
        there._get_connection().update_item(keys.keys[1], actions=[there.expires_at.set(far)])
        group.renew()
        assert kinds(keys.scene.proxy)[1:] == ["3 renew", "3 renew"]
        assert keys.ends[1] > far
        assert not group.lost


def test_group_believes_in_the_end_that_was_stored_by_the_attempt_that_was_applied(keys, clock):
    keys.scene.proxy.next(drop_answer(lambda: clock.advance(3)), op=TRANSACT)
    group = held(keys.group(lease=20, auto_renew=False))
    assert [claim.own.expires_at for claim in group._latest.claims] == keys.ends


def test_claims_are_not_renewed_if_one_is_not_to_be(keys, clock):
    first, others = OnLost(), OnLost()
    model = keys.scene.here
    mutex = Mutex.for_key(keys.keys[0], model=model, auto_renew=False, lease=10, on_lost=first)
    group = held(Mutex.for_keys([mutex, *keys.keys[1:]], model=model, on_lost=others))
    clock.advance(11)
    others.wait()
    first.wait()
    assert group.loss is Loss.EXPIRED
    assert kinds(keys.scene.proxy) == ["3 acquire"]
    # each is called once
    assert (first.locks, others.locks) == ([mutex], [group.members[1]])
    with pytest.raises(MutexLostError):
        group.release()


def test_renewal_that_begins_after_the_release_sends_nothing(keys):
    group = held(keys.group(lease=20))
    whole = group._latest
    renewal = Driven(renew_in_background(whole))
    group.release()
    assert renewal.until_it_waits() is None
    assert kinds(keys.scene.proxy) == ["3 acquire", "3 release"]
    assert whole.is_released


def test_renewal_that_meets_the_release_of_one_is_no_loss(keys):
    on_lost = []
    group = held(keys.group(lease=20, on_lost=on_lost.append))
    keys.scene.proxy.next(net.after(group.members[1].release), when=that("renew"))
    group.renew()
    assert kinds(keys.scene.proxy)[1:] == ["release", "3 renew", "2 renew"]
    assert group.members[0].held
    group.release()
    assert on_lost == []


def test_renewal_leaves_to_the_unlocking_write_what_becomes_of_the_claims(rows):
    locks = held(rows.locks(lease=20))
    rows.scene.proxy.next(net.after(locks.renew), op=TRANSACT)
    add_unread(rows, locks)
    assert rows.scene.applied(TRANSACT) == [True, True]
    assert not locks.lost
    assert all(rows.free())


@pytest.mark.parametrize("options", [{"blocking": False}, {"timeout": 0}])
def test_refusal_without_a_visible_reason_ends_with_the_callers_patience(keys, options):
    free = {"key": {"S": keys.keys[0]}, "token": {"S": "theirs"}, "version": {"N": "1"}}
    reasons = [{"Code": "ConditionalCheckFailed", "Item": free}, {"Code": "None"}, {"Code": "None"}]
    canceled = net.refuse("TransactionCanceledException", CancellationReasons=reasons)
    keys.scene.proxy.always(canceled, op=TRANSACT)
    assert not keys.group().acquire(**options)
    # once more after the first, for that may have shown what was not known
    assert kinds(keys.scene.proxy) == ["3 acquire"] * 2
    keys.scene.proxy.clear()
    assert keys.group().acquire(**options)


@pytest.mark.parametrize("lose", [Keys.force, Keys.forced_and_taken])
def test_acquire_of_which_one_claim_is_broken_before_the_retry_is_made_anew(keys, lose):
    keys.scene.proxy.next(drop_answer(then=lambda: lose(keys, 0)), op=TRANSACT)
    group = keys.group()
    assert group.acquire(blocking=False) is (lose is Keys.force)
    assert keys.free() == [False, *[not group.held] * 2]


def test_error_of_many_locks_comes_soon_though_dynamodb_hangs(scene):
    group = Mutex.for_keys(list("abcdefghij"), model=scene.here, timeout=4)
    scene.proxy.always(stall(3.0))
    began = time.monotonic()
    with pytest.raises(TransactWriteError):
        group.acquire()
    # two attempts at the transaction, and two at ending a claim
    assert time.monotonic() - began == pytest.approx(12, abs=1)


# -- rows written together -------------------------------------------------------------------------


@in_two_ways
@pytest.mark.parametrize("unlock", [True, False])
def test_transaction_of_rows_whose_answer_is_lost_is_applied_once(rows, lose, unlock):
    locks, believed = rows.locks(), []
    with locks as locked:
        note = lose(then=lambda: believed.append(locks.held))
        rows.scene.proxy.next(note, lose(), op=TRANSACT)
        add_unread(rows, locked, unlock=unlock)
        assert [*believed, locks.held] == [not unlock] * 2
        assert rows.scene.applied(TRANSACT) == [True, True, False, False]
    assert rows.balances == [1, 1, 1]
    assert all(rows.free())


def test_transaction_that_unlocks_and_is_answered_after_the_lease_is_no_loss(rows):
    on_lost = OnLost()
    locks = held(rows.locks(lease=3, auto_renew=False, on_lost=on_lost))
    rows.scene.proxy.next(delay_answer(5), op=TRANSACT)
    add_unread(rows, locks, unlock=True)
    time.sleep(1)
    assert (locks.held, locks.loss, on_lost.calls) == (False, None, [])


def test_others_are_renewed_beyond_the_end_of_one_that_a_write_without_an_answer_unlocks(rows):
    locks = rows.locks(lease=3)
    with locks as (first, *others):
        rows.scene.proxy.next(delay_answer(10), op=rows.scene.op("save"))
        save(first, unlock=True)
        assert [row.row_lock.held for row in others] == [True, True]
        assert rows.free() == [True, False, False]
    assert not locks.lost


def test_loss_of_another_while_a_write_that_unlocks_one_has_no_answer_is_its_end(rows):
    locks = rows.locks()

    def lose():
        rows.force(2)
        with pytest.raises(MutexLostError):
            locks.renew()

    def work():
        with locks as (first, *_):
            rows.scene.proxy.next(drop_answer(then=lose), op=rows.scene.op("save"))
            save(first, unlock=True)

    with hearing(rows.keys[0]) as heard, pytest.raises(MutexLostError):
        work()
    assert heard.names == ["acquired", "lost"]
    assert all(rows.free())


@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("faults", [[], [drop_request], [throttle]])
def test_loss_of_one_refuses_the_whole_transaction(rows, place, faults):
    on_lost, others = OnLost(), []
    locks = held(rows.locks(auto_renew=False, on_lost=on_lost))
    take = net.after(lambda: others.append(rows.forced_and_taken(place)))
    rows.scene.proxy.next(*[fault() for fault in faults], take, op=TRANSACT)
    with pytest.raises(MutexLostError) as raised:
        add_unread(rows, locks)
    assert raised.value.applied is False
    assert raised.value.loss is locks.loss is Loss.TAKEN
    assert raised.value.key == others[0].key
    assert not locks.held
    assert rows.balances == [0, 0, 0]
    on_lost.wait()
    with pytest.raises(MutexLostError):
        locks.release()
    # its own are released, the other's is not
    assert rows.free() == [at != place for at in range(3)]
    assert others[0].held
    time.sleep(0.1)
    assert len(on_lost.calls) == 1


def test_loss_of_one_refuses_the_write_of_another(rows):
    locks = held(rows.locks(auto_renew=False))
    first, second, _ = locks._rows_of(locks._current("rows"))
    rows.forced_and_taken(1)
    # the claim of the first stands, but what belongs together would be torn apart
    for row in (second, first):
        with pytest.raises(MutexLostError):
            update(row)
    assert rows.balances == [0, 0, 0]


@in_two_ways
@pytest.mark.parametrize("unlock", [True, False])
def test_transaction_applied_before_the_loss_of_one(rows, lose, unlock):
    locks = held(rows.locks())
    locked = locks._rows_of(locks._current("rows"))
    take = rows.taken if unlock else rows.forced_and_taken
    with locks.transaction(unlock=unlock) as transaction:
        for row in locked:
            row.balance += 1
            transaction.save(row)
        rows.scene.proxy.next(lose(then=lambda: take(1)), op=TRANSACT)
    # the others show that it was applied
    assert rows.balances == [1, 1, 1]
    assert rows.scene.applied(TRANSACT) == [True, True, False]
    assert (locks.held, locked[0].is_locked) == (False, False)
    assert locks.loss is (None if unlock else Loss.TAKEN)
    if not unlock:
        with pytest.raises(MutexLostError):
            locks.release()
    assert rows.free() == [True, False, True]


def test_row_that_is_gone_proves_nothing_next_to_one_that_was_not_written(row_scene):
    rows = Rows(row_scene)
    locks = held(rows.locks())
    delete = row_scene.old(rows.keys[0]).delete
    row_scene.proxy.next(drop_request(then=delete), op=TRANSACT)
    transaction = locks.transaction()
    transaction.delete(row_scene.here(rows.keys[0]))
    transaction.update(row_scene.here(rows.keys[1]), [row_scene.here.balance.add(1)])
    with pytest.raises(MutexLostError) as raised, transaction:
        pass
    assert raised.value.applied is None
    assert row_scene.there.get(rows.keys[1], consistent_read=True).balance == 0


def test_rows_locked_by_a_client_that_has_had_no_answer_yet_end_in_server_time(rows):
    scene = rows.scene
    with net.fault_proxy(scene.engine) as proxy:
        fresh = net.through(proxy, scene.there)
        if scene.in_table:
            fresh.lock_model = net.through(proxy, scene.locks)
        locks = held(fresh.locked_all(rows.keys, lease=20, auto_renew=False))
        assert proxy.kinds() == ["BatchGetItem", TRANSACT]
        # that is what frees a dead holder's rows for the first client that comes
        for key in rows.keys:
            assert float(replace(scene, key=key).claim["expires_at"]["N"]) < time.time() + 60
        locks.release()
