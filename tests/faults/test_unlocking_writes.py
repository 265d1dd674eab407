"""I1: nobody believes to hold a row's lock from when a write that unlocks it may be applied."""

import signal
import threading

import pytest
from driving import handle, send_renewal
from pynamodb.exceptions import PynamoDBException
from row_scene import (
    TRANSACT,
    Account,
    add_unread,
    save,
    save_or_update,
    update,
)
from scene import held
from subjects import assert_changes_nothing

from dev.faultproxy import deny, drop_answer, drop_request, late, stall
from pynamodb_mutex import MutexAlreadyHeldError, MutexLostError, MutexNotHeldError


def belief(lock):
    """Say what a lock says of itself; a holder that does not believe must not act on it either."""
    if not lock.held:
        with pytest.raises(MutexNotHeldError) as raised:
            lock.ensure_held()
        assert lock.lost == isinstance(raised.value, MutexLostError)
    return lock.held, lock.remaining, lock.lost


NO_BELIEF = (False, 0.0, False)


@save_or_update
def test_holder_that_unlocks_by_a_write_believes_no_more_when_it_is_applied(any_scene, write):
    lost, seen = [], []
    lock, op = any_scene.lock(on_lost=lost.append), any_scene.op(write.__name__)
    with lock as row:
        note = drop_answer(lambda: seen.append(belief(lock)))
        any_scene.proxy.next(note, drop_answer(), op=op)
        write(row, unlock=True)
        assert seen == [NO_BELIEF]
        assert any_scene.applied(op) == [True, False, False]
        assert belief(lock) == NO_BELIEF
    assert (any_scene.row.balance, any_scene.row.last) == (1, "mine")
    assert any_scene.is_free
    assert any_scene.proxy.of("release") == []
    assert lost == []
    any_scene.taken().release()


@save_or_update
def test_two_never_believe_when_another_takes_what_a_write_unlocked(any_scene, write):
    row = any_scene.locked()
    lock, seen = row.row_lock, []

    def take():
        other = any_scene.taken()
        seen.append((lock.held, other.held))

    any_scene.proxy.next(drop_answer(take), op=any_scene.op(write.__name__))
    with pytest.raises(MutexLostError) as raised:
        write(row, unlock=True)
    assert raised.value.applied is None
    assert seen == [(False, True)]
    assert (any_scene.row.balance, any_scene.row.last) == (1, "mine")


def test_holder_that_unlocks_several_rows_believes_no_more_when_it_is_applied(rows):
    locks = held(rows.locks())
    seen = []
    rows.scene.proxy.next(drop_answer(lambda: seen.append(belief(locks))), op=TRANSACT)
    add_unread(rows, locks, unlock=True)
    assert seen == [NO_BELIEF]
    assert rows.balances == [1, 1, 1]


def test_renewal_of_a_claim_goes_on_while_a_write_that_unlocks_is_under_way(row_scene):
    # it may be refused, and then the lock is still held
    row = row_scene.locked()
    held = row.row_lock._latest
    # what the renewal loop does in a third of the lease
    kept = drop_request(lambda: handle(held, ahead=30) and send_renewal(held))
    row_scene.proxy.next(kept, op=row_scene.op("save"))
    save(row, unlock=True)
    assert row_scene.applied("renew")[0]
    assert row_scene.is_free


@save_or_update
def test_belief_is_back_when_the_write_was_refused(row_scene, write):
    row = row_scene.locked()
    for refused in ({"condition": Account.balance == 77}, {}):
        if not refused:
            row_scene.proxy.next(deny(), op=row_scene.op(write.__name__))
        with pytest.raises(PynamoDBException):
            write(row, unlock=True, **refused)
        assert row.row_lock.held
        row.row_lock.ensure_held()
        row.refresh()
    write(row)
    assert row_scene.row.balance == 1


def of_unknown_outcome(row_scene, **options):
    """Unlock by a write that the network keeps, and give up."""
    kept = late()
    row_scene.proxy.next(kept, deny(), op=row_scene.op("update"))
    row = row_scene.locked(**options)
    with pytest.raises(PynamoDBException):
        update(row, unlock=True)
    return kept, row


def test_no_belief_after_a_write_of_unknown_outcome(row_scene):
    kept, row = of_unknown_outcome(row_scene)
    assert belief(row.row_lock) == NO_BELIEF
    assert kept.apply().status == 200
    other = row_scene.taken()
    assert (row.row_lock.held, other.held) == (False, True)
    row.row_lock.release()  # by our own doing: no loss
    assert other.held


@pytest.mark.parametrize("reentrant", [False, True])
def test_lock_of_unknown_state_is_not_taken_again_by_its_own_mutex(row_scene, reentrant):
    _, row = of_unknown_outcome(row_scene, reentrant=reentrant)
    with pytest.raises(MutexAlreadyHeldError):
        row.row_lock.acquire(timeout=0)
    row.row_lock.release()
    assert row_scene.is_free
    assert row.row_lock.acquire(timeout=0)


def test_locks_of_unknown_state_are_not_taken_again(rows):
    locks = held(rows.locks())
    rows.scene.proxy.next(late(), deny(), op=TRANSACT)
    with pytest.raises(PynamoDBException):
        add_unread(rows, locks, unlock=True)
    assert belief(locks) == NO_BELIEF
    with pytest.raises(MutexAlreadyHeldError):
        locks.acquire()
    locks.release()
    assert rows.free() == [True] * 3


def test_later_write_under_the_claim_proves_that_it_stands(row_scene):
    kept, row = of_unknown_outcome(row_scene)
    update(row)
    assert row.row_lock.held
    assert_changes_nothing(row_scene, kept)
    row.row_lock.ensure_held()
    assert row_scene.row.balance == 1


def test_no_belief_after_a_refusal_if_an_attempt_may_still_land(row_scene):
    kept = late()
    row_scene.proxy.next(kept, op=row_scene.op("save"))
    row = row_scene.locked()
    with pytest.raises(PynamoDBException) as raised:
        save(row, unlock=True, condition=Account.balance == 77)
    assert raised.type is not MutexLostError
    assert belief(row.row_lock) == NO_BELIEF
    row.row_lock.release()


@pytest.mark.real("embedded")
def test_no_belief_after_ctrl_c_while_it_is_under_way(row_scene):
    row = row_scene.locked()
    done = threading.Event()
    row_scene.proxy.next(stall(done, apply=True), op=row_scene.op("save"))

    def press():
        row_scene.proxy.wait(1, row_scene.op("save"))
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    pressing = threading.Thread(target=press)
    pressing.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            save(row, unlock=True)
    finally:
        done.set()
        pressing.join()
    assert belief(row.row_lock) == NO_BELIEF
    other = row_scene.taken()
    row.row_lock.release()
    assert other.held
