"""Locks that are held together: renewals and losses of several keys or rows over a bad network.

What they have in common with a single lock is in test_lost_answers.py, test_late_duplicates.py and test_errors.py.
"""

import threading
import time
from dataclasses import replace

import pytest
from driving import Driven
from group_scene import TRANSACT, kinds, that
from hearing import OnLost, until
from pynamodb.exceptions import GetError
from row_scene import Rows, add_to_all, add_unread, update
from scene import held, lost_in_two_ways

from dev.faultproxy import (
    after,
    drop_answer,
    drop_request,
    fault_proxy,
    refuse,
    server_error,
    throttle,
    through,
)
from pynamodb_mutex import Mutex, MutexLostError
from pynamodb_mutex._operations.effects import Wait
from pynamodb_mutex._operations.renew import renew_in_background
from pynamodb_mutex._runtime.process import current_process
from pynamodb_mutex._runtime.run_on_thread import run
from pynamodb_mutex.exceptions import Loss
from pynamodb_mutex.testing import FakeClock


@pytest.fixture
def on_lost():
    return OnLost()


# -- renewal ---------------------------------------------------------------------------------------


def test_several_are_renewed_in_the_background_by_one_request(keys):
    with FakeClock() as clock, keys.group() as group:
        ends = keys.ends
        for _ in range(2):
            clock.advance(10.5)
            until(lambda: group.remaining > 25)
        assert all(later > end for later, end in zip(keys.ends, ends, strict=True))
    assert set(kinds(keys.scene.proxy)[1:-1]) == {"3 renew"}


def test_renewal_that_meets_a_later_end_goes_beyond_it(keys):
    there = keys.scene.there
    with keys.group(lease=20, auto_renew=False) as group:
        far = keys.ends[1] + 100
        there._get_connection().update_item(keys.keys[1], actions=[there.expires_at.set(far)])
        group.renew()
        assert kinds(keys.scene.proxy)[1:] == ["3 renew", "3 renew"]
        assert keys.ends[1] > far
        assert not group.lost


def test_claims_are_not_renewed_if_one_is_not_to_be(keys, on_lost):
    first = Mutex.for_key(keys.keys[0], model=keys.scene.here, auto_renew=False, lease=10)
    with FakeClock() as clock:
        group = Mutex.for_keys([first, *keys.keys[1:]], model=keys.scene.here, on_lost=on_lost)
        assert group.acquire()
        clock.advance(11)
        on_lost.wait()
        assert group.loss is Loss.EXPIRED
        assert kinds(keys.scene.proxy) == ["3 acquire"]
        assert on_lost.locks == [group.members[1]]
        with pytest.raises(MutexLostError):
            group.release()


def test_max_hold_ends_the_renewal(keys, on_lost):
    with FakeClock() as clock:
        group = held(keys.group(lease=30, max_hold=5, on_lost=on_lost))
        clock.advance(11)
        until(lambda: group._latest.due() > clock.now() + 10)  # not to be renewed any more
        clock.advance(20)
        assert on_lost.wait()[1] is Loss.EXPIRED
        assert kinds(keys.scene.proxy) == ["3 acquire"]
        assert "lost: its lease ended, for it was held for longer than max_hold, 5 s" in repr(group)
        with pytest.raises(MutexLostError, match="longer than max_hold, 5 s"):
            group.release()


def test_no_answer_until_the_lease_ends_is_a_loss_that_is_reported_once(keys, on_lost):
    with FakeClock() as clock:
        group = held(keys.group(on_lost=on_lost))
        keys.scene.proxy.always(server_error(), when=that("renew"))
        clock.advance(11)
        keys.scene.proxy.wait(2, TRANSACT)
        clock.advance(20)
        on_lost.wait()
        assert {mutex.loss for mutex in group.members} == {Loss.UNREACHABLE}
    time.sleep(0.1)
    assert len(on_lost.calls) == 1


def test_leases_that_ended_are_won_back_together(keys):
    with FakeClock() as clock:
        group = held(keys.group(auto_renew=False))
        clock.advance(31)
        assert group.loss is Loss.EXPIRED
        group.renew()
        assert group.held
        assert not group.lost
        clock.advance(31)
        assert group.lost
        keys.forced_and_taken(1).release()
        for loss in (Loss.TAKEN, Loss.TAKEN):
            with pytest.raises(MutexLostError) as raised:
                group.renew()
            assert raised.value.loss is loss
            assert not any(mutex.held for mutex in group.members)


def test_renewal_that_begins_after_the_release_sends_nothing(keys):
    group = held(keys.group(lease=20))
    together = group._latest
    renewal = Driven(renew_in_background(current_process(), [together]))
    group.release()
    assert renewal.until_it_waits() is None
    assert kinds(keys.scene.proxy) == ["3 acquire", "3 release"]
    assert together.is_released


def test_renewal_that_meets_the_release_of_one_is_no_loss(keys, on_lost):
    group = held(keys.group(lease=20, on_lost=on_lost))
    keys.scene.proxy.next(after(group.members[1].release), when=that("renew"))
    group.renew()
    assert kinds(keys.scene.proxy)[1:] == ["release", "3 renew", "2 renew"]
    assert group.members[0].held
    group.release()
    assert on_lost.calls == []


def test_renewal_leaves_to_the_unlocking_write_what_becomes_of_the_claims(rows):
    locks = held(rows.locks(lease=20))
    rows.scene.proxy.next(after(locks.renew), op=TRANSACT)
    add_unread(rows, locks)
    assert rows.scene.applied(TRANSACT) == [True, True]
    assert not locks.lost
    assert all(rows.free())


# -- losses ----------------------------------------------------------------------------------------


def test_loss_of_one_is_loss_of_all(keys, on_lost):
    of_last = OnLost()
    last = Mutex.for_key(keys.keys[2], model=keys.scene.here, on_lost=of_last)
    group = Mutex.for_keys([*keys.keys[:2], last], model=keys.scene.here, on_lost=on_lost)
    assert group.acquire()
    other = keys.forced_and_taken(1)
    with pytest.raises(MutexLostError) as raised:
        group.renew()
    error = raised.value
    assert (error.loss, error.key, error.owner) == (Loss.TAKEN, other.key, "other")
    assert {mutex.loss for mutex in group.members} == {Loss.TAKEN}
    assert not group.held
    assert "lost" in repr(group)
    # what still stands is released, not before
    assert keys.free() == [False] * 3
    with pytest.raises(MutexLostError):
        group.release()
    assert keys.free() == [True, False, True]
    assert other.held
    on_lost.wait()
    of_last.wait()
    time.sleep(0.1)
    assert (on_lost.locks, of_last.locks) == ([group.members[1]], [last])


def test_loss_is_reported_at_the_end_of_a_block(keys):
    with pytest.raises(MutexLostError), keys.group(auto_renew=False):
        keys.force(2)
    assert all(keys.free())


def test_loss_of_all_at_the_same_instant_is_reported_once(keys, on_lost):
    group = held(keys.group(lease=20, on_lost=on_lost))
    process = current_process()

    def losing(claim):
        yield Wait(0.0)
        claim.lose(Loss.TAKEN)

    claims = group._current("test").claims
    threads = [threading.Thread(target=run, args=(process, losing(claim))) for claim in claims]
    with process.monitor:
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join()
    on_lost.wait()
    time.sleep(0.1)
    assert len(on_lost.calls) == 1


@pytest.mark.parametrize("options", [{"blocking": False}, {"timeout": 0}])
def test_refusal_without_a_visible_reason_ends_with_the_callers_patience(keys, options):
    free = {"key": {"S": keys.keys[0]}, "token": {"S": "theirs"}, "version": {"N": "1"}}
    reasons = [{"Code": "ConditionalCheckFailed", "Item": free}, {"Code": "None"}, {"Code": "None"}]
    canceled = refuse("TransactionCanceledException", CancellationReasons=reasons)
    keys.scene.proxy.always(canceled, op=TRANSACT)
    assert not keys.group().acquire(**options)
    # once more after the first, for that may have shown what was not known
    assert kinds(keys.scene.proxy) == ["3 acquire"] * 2
    keys.scene.proxy.clear()
    assert keys.group().acquire(**options)


# -- rows written together -------------------------------------------------------------------------


@lost_in_two_ways
@pytest.mark.parametrize("unlock", [True, False])
def test_transaction_of_rows_whose_answer_is_lost_is_applied_once(rows, lose, unlock):
    with rows.locks() as locked:
        rows.scene.proxy.next(lose(), lose(), op=TRANSACT)
        add_unread(rows, locked, unlock=unlock)
        assert rows.scene.applied(TRANSACT) == [True, True, False, False]
    assert rows.balances == [1, 1, 1]
    assert all(rows.free())


def test_rows_of_an_acquire_whose_answer_was_lost_are_written(rows):
    rows.scene.proxy.next(drop_answer(), op=TRANSACT)
    with rows.locks() as locked:
        add_to_all(locked)
    assert rows.balances == [1, 1, 1]


@pytest.mark.parametrize("place", [0, 2])
def test_loss_of_one_refuses_the_whole_transaction(rows, place, on_lost):
    locks = held(rows.locks(auto_renew=False, on_lost=on_lost))
    other = rows.forced_and_taken(place)
    assert locks.held  # it cannot know
    with pytest.raises(MutexLostError) as raised:
        add_unread(rows, locks)
    assert raised.value.applied is False
    assert raised.value.loss is locks.loss is Loss.TAKEN
    assert raised.value.key == other.key
    assert not locks.held
    assert rows.balances == [0, 0, 0]
    on_lost.wait()
    with pytest.raises(MutexLostError):
        locks.release()
    # its own are released, the other's is not
    assert rows.free() == [at != place for at in range(3)]
    assert other.held
    time.sleep(0.1)
    assert len(on_lost.calls) == 1


@pytest.mark.real
def test_loss_of_one_refuses_the_write_of_another(rows):
    locks = held(rows.locks(auto_renew=False))
    first, second, _ = locks._rows_of(locks._current("rows"))
    rows.forced_and_taken(1)
    # the claim of the first stands, but what belongs together would be torn apart
    for row in (second, first):
        with pytest.raises(MutexLostError):
            update(row)
    assert rows.balances == [0, 0, 0]


@pytest.mark.parametrize(("fault", "applied"), [(drop_request, None), (throttle, False)])
def test_transaction_not_applied_before_the_loss_of_one_is_reported_as_far_as_known(
    rows, fault, applied
):
    locks = held(rows.locks())
    rows.scene.proxy.next(fault(), after(lambda: rows.forced_and_taken(1)), op=TRANSACT)
    with pytest.raises(MutexLostError) as raised:
        add_unread(rows, locks)
    assert raised.value.applied is applied
    assert rows.balances == [0, 0, 0]


@lost_in_two_ways
@pytest.mark.parametrize("unlock", [True, False])
def test_transaction_applied_before_the_loss_of_one(rows, lose, unlock):
    locks = held(rows.locks())
    take = (lambda: rows.taken(1)) if unlock else (lambda: rows.forced_and_taken(1))
    locked = locks._rows_of(locks._current("rows"))
    with locks.transaction(unlock=unlock) as transaction:
        for row in locked:
            row.balance += 1
            transaction.save(row)
        rows.scene.proxy.next(lose(then=take), op=TRANSACT)
    # the others show that it was applied
    assert rows.balances == [1, 1, 1]
    assert rows.scene.applied(TRANSACT) == [True, True, False]
    assert locks.lost is not unlock
    assert not locks.held
    assert not locked[0].is_locked
    if not unlock:
        assert locks.loss is Loss.TAKEN
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


@pytest.mark.parametrize("reaches", [True, False])
def test_client_that_has_had_no_answer_yet(rows, reaches):
    scene = rows.scene
    with fault_proxy(scene.engine) as proxy:
        fresh = through(proxy, scene.there)
        if scene.in_table:
            fresh.lock_model = through(proxy, scene.locks)
        locks = fresh.locked_all(rows.keys, lease=20, auto_renew=False)
        if not reaches:
            proxy.always(server_error())
            with pytest.raises(GetError, match="BatchGetItem failed"):
                locks.acquire(blocking=False)
            assert set(proxy.kinds()) == {"BatchGetItem"}
            return
        assert locks.acquire()
        assert proxy.kinds() == ["BatchGetItem", TRANSACT]
        # an end in server time is what frees a dead holder's rows for the first client that comes
        for key in rows.keys:
            assert float(replace(scene, key=key).claim["expires_at"]["N"]) < time.time() + 60
        locks.release()
